"""The program `gnnserve-describe`, for the environment that has the model."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from gnnserve_api.errors import GnnserveError, InputError

_EPILOG = """\
Example: gnnserve-describe train.py:make_model --graph train.py:data --out described

MODULE is a torch.nn.Module, or a function without arguments that builds it, loads its weights and returns it, or
(module, example inputs). Exit codes: 0 done, 2 bad input, 4 something is missing.
"""


def parser(prog: str = "gnnserve-describe") -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog=prog,
        description="Write a model as a program that gnnserve serves, with expected scores and a manifest.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("module", metavar="MODULE", help="file.py:object or package.module:object")
    made.add_argument(
        "--graph", metavar="GRAPH",
        help="graph that the model runs over: file.py:object (a torch_geometric Data or HeteroData, or a function that "
        "returns it), or a .pt or .npz file; absent: MODULE returns example inputs",
    )  # fmt: skip
    made.add_argument("--out", metavar="FOLDER", required=True, type=Path, help="new folder to write")
    made.add_argument(
        "--inputs", metavar="NAMES", default="",
        help="what forward is given, in order: x,edge_index,edge_weight=edge_attr; absent: by its parameters' names",
    )  # fmt: skip
    made.add_argument("--target", metavar="TYPE", help="type of the nodes that are scored; absent: the one with labels")
    made.add_argument("--hops", metavar="N", type=int, help="layers that read neighbours; absent: measured")
    made.add_argument(
        "--ids", metavar="IDS",
        help="file.py:object with the ids of the nodes that are scored, in order; absent: positions",
    )  # fmt: skip
    made.add_argument("--nodes", metavar="N", type=int, default=256, help="expected scores to write (default 256)")
    made.add_argument("--seed", metavar="N", type=int, default=0, help="for the nodes that are drawn (default 0)")
    made.add_argument("--name", metavar="NAME", default="", help="of the service in the manifest; absent: the folder's")
    made.add_argument(
        "--output", metavar="NAME", default="",
        help="output of forward to serve, by its name or its place from 0; absent: the likely one",
    )  # fmt: skip
    made.add_argument("--links", action="store_true", help="forward gives rows of nodes, whose pairs are scored")
    made.add_argument(
        "--relation", metavar="RELATION", default="",
        help="relation whose links are scored, where there are several types: its name, or 'user buys item'",
    )  # fmt: skip
    made.add_argument(
        "--decoder", metavar="DECODER", help="file.py:object that scores two rows, for links; absent: their dot product"
    )
    made.add_argument(
        "--trust", dest="is_trusted", action="store_true", help="read Python objects in a .pt file, which may run code"
    )
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code."""
    given = parser().parse_args(arguments)
    try:
        # Imported here: torch takes seconds, which --help does without.
        from gnnserve_describe.command import DescribeCommand, run  # noqa: PLC0415

        run(DescribeCommand(**vars(given)))
    except KeyboardInterrupt:
        print("interrupted; nothing was written", file=sys.stderr)
        return 130
    except ImportError as error:
        print(f"error: {error}; `pip install 'gnnserve[describe]'` where torch is brings it", file=sys.stderr)
        return 4
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (GnnserveError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 4
    return 0


if __name__ == "__main__":
    sys.exit(main())
