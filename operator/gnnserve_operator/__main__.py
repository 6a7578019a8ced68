"""`python -m gnnserve_operator`: the operator's container."""

from __future__ import annotations

import sys

from gnnserve_operator.one_client import import_one_client


def main() -> int:
    import_one_client()
    from gnnserve_operator.main import main as run  # noqa: PLC0415

    return run()


if __name__ == "__main__":
    sys.exit(main())
