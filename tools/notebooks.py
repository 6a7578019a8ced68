"""Runs the code cells of notebooks in this process, without Jupyter, and writes what they print and draw beside them.

A cell is run as a notebook does: in the namespace of those before it, the value of its last expression shown, and each
figure of matplotlib that it leaves open drawn. What a cell needs of IPython (`%magic`, `!command`) is an error here:
then the file runs as a program anywhere. `python -m tools.notebooks FILE…` runs copies in folders of their own, and
`--write` keeps their outputs in the files, as readers on the web see them.
"""

from __future__ import annotations

import argparse
import ast
import base64
import io
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import chdir, redirect_stdout
from pathlib import Path
from typing import Any

_INDENT = 1
_DPI = 80


def run(notebook: dict[str, Any]) -> None:
    """Run the code cells, in order, and put their outputs into them. Raises what a cell raises."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    try:
        for number, cell in enumerate(code, 1):
            printed = io.StringIO()
            with redirect_stdout(printed):
                value = _run_cell("".join(cell["source"]), f"cell {number}", namespace)
            cell["execution_count"] = number
            cell["outputs"] = [*_streams(printed.getvalue()), *_values(value, number), *_figures()]
    finally:
        for started in namespace.values():
            if isinstance(started, subprocess.Popen):  # a server that a cell which failed has left
                started.kill()


def _run_cell(source: str, name: str, namespace: dict[str, Any]) -> Any:
    """The value of the last expression, or None."""
    tree = ast.parse(source, name)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec"), namespace)  # noqa: S102 - the examples of this repository
    if not isinstance(last, ast.Expr):
        return None
    return eval(compile(ast.Expression(last.value), name, "eval"), namespace)  # noqa: S307 - as above


def _streams(text: str) -> list[dict[str, Any]]:
    return [{"name": "stdout", "output_type": "stream", "text": text.splitlines(keepends=True)}] if text else []


def _values(value: Any, number: int) -> list[dict[str, Any]]:
    if value is None:
        return []
    data = {"text/plain": repr(value).splitlines(keepends=True)}
    return [{"data": data, "execution_count": number, "metadata": {}, "output_type": "execute_result"}]


def _figures() -> list[dict[str, Any]]:
    from matplotlib import pyplot  # noqa: PLC0415 - of notebooks that draw

    found = []
    for number in pyplot.get_fignums():
        drawn = io.BytesIO()
        pyplot.figure(number).savefig(drawn, format="png", dpi=_DPI, bbox_inches="tight")
        image = base64.b64encode(drawn.getvalue()).decode()
        found.append({"data": {"image/png": image}, "metadata": {}, "output_type": "display_data"})
    pyplot.close("all")
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.notebooks", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--write", action="store_true", help="keep the outputs in the files")
    options = parser.parse_args(arguments)
    os.environ["MPLBACKEND"] = "agg"
    for file in options.files:
        notebook = json.loads(file.read_text(encoding="utf-8"))
        with tempfile.TemporaryDirectory() as folder, chdir(folder):
            sys.path.insert(0, folder)
            run(notebook)
            sys.path.remove(folder)
        if options.write:
            file.write_text(json.dumps(notebook, indent=_INDENT, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"{file}: {sum(cell['cell_type'] == 'code' for cell in notebook['cells'])} cells")


if __name__ == "__main__":
    main()
