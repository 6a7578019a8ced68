"""The program `gnnserve`, also as `python -m gnnserve_cli`, for an interpreter that is not on the PATH."""

import sys

from gnnserve_api.extras import lack_of_package

_LACKS_RESOURCE = 4
"""`ExitCode.RESOURCE`, whose module needs what may be missing here."""


def main() -> None:
    try:
        from gnnserve_cli.main import main as run  # noqa: PLC0415 - the extra `cli` may not be installed
    except ModuleNotFoundError as error:
        if (package := lack_of_package(error)) is None:
            raise
        print(f"error: gnnserve needs {package}", file=sys.stderr)
        sys.exit(_LACKS_RESOURCE)
    run()


if __name__ == "__main__":
    main()
