"""The program `gnnserve`, also as `python -m gnnserve_cli`, for an interpreter that is not on the PATH."""

from gnnserve_cli.main import main

if __name__ == "__main__":
    main()
