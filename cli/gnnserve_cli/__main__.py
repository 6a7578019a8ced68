"""`python -m gnnserve_cli`: the same program as `gnnserve`, for an interpreter that is not on the PATH."""

from gnnserve_cli.main import main

main()
