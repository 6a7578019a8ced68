"""`python -m gnnserve_operator`: the operator's container."""

from __future__ import annotations

import sys

from gnnserve_operator.main import main

if __name__ == "__main__":
    sys.exit(main())
