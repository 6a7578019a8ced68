"""The program `gnnserve`, also as `python -m gnnserve_cli`, for an interpreter that is not on the PATH."""

from gnnserve_worker.uncollected import uncollected


def main() -> None:
    with uncollected():
        from gnnserve_cli.main import main as run  # noqa: PLC0415
    run()


if __name__ == "__main__":
    main()
