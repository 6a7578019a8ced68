"""The program `gnnserve-describe`: what it is given, and how it ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.support.operator.declared_environment import run_declared
from tests.support.programs.described import GRAPH
from torch_geometric.data import Data
from typer.testing import CliRunner

from gnnserve_api.manifest import load_manifest
from gnnserve_cli.main import app
from gnnserve_describe.__main__ import main
from gnnserve_describe.write import MANIFEST
from gnnserve_worker.graph.sources.load import load_source

SOURCE = """
import torch
from tests.support.programs.described import GRAPH, Net
from torch_geometric.nn import SAGEConv

model = Net(SAGEConv).eval()
given = 7


class Sized(torch.nn.Module):
    def __init__(self, width):
        super().__init__()


def make():
    return Net(SAGEConv).eval()


def make_both():
    return make(), (GRAPH.x, GRAPH.edge_index)


def make_of(width):
    return make()


def fail():
    return make().load_state_dict({})


def graph():
    return GRAPH


ids = [f"paper-{number}" for number in range(len(GRAPH.x))]
few = ids[:-1]
digits = [str(number) for number in range(len(GRAPH.x))]
same = ids[:-1] + ids[:1]
"""


@pytest.fixture
def train(tmp_path: Path) -> str:
    path = tmp_path / f"train_{tmp_path.name}.py"
    path.write_text(SOURCE)
    return str(path)


def graph_file(folder: Path, suffix: str) -> str:
    path = folder / f"graph{suffix}"
    data = Data(x=GRAPH.x, edge_index=GRAPH.edge_index, y=GRAPH.y)
    if suffix == ".pt":
        torch.save(data, path)
        return str(path)
    order = np.argsort(data.edge_index[1].numpy(), kind="stable")
    counts = np.bincount(data.edge_index[1], minlength=len(data.x))
    np.savez(
        path, indptr=np.concatenate([[0], np.cumsum(counts)]), indices=data.edge_index[0].numpy()[order],
        features=data.x.numpy(), labels=data.y.numpy(),
    )  # fmt: skip
    return str(path)


@pytest.mark.parametrize(
    ("module", "graph"),
    [("model", "graph"), ("make", ".npz"), ("make", ".pt"), ("make_both", None)],
    ids=["objects", "npz", "saved", "example arguments"],
)
def test_a_model_is_described(
    module: str, graph: str | None, train: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    words = [f"{train}:{module}", "--out", str(out), "--nodes", "20"]
    if graph is not None:
        words += ["--graph", f"{train}:graph" if graph == "graph" else graph_file(tmp_path, graph)]
    assert main(words) == 0
    told = capsys.readouterr().out
    assert "reads 2 hops; 4 columns" in told
    assert "equal those of the module over the whole graph" in told
    with np.load(out / "expected.npz") as arrays:
        assert len(arrays["nodes"]) == 20


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("Sized", "is a class that needs arguments: width; write a function without arguments"),
        ("make_of", "is a function that needs arguments: width; write a function without arguments"),
        ("given", "is a int, no torch.nn.Module"),
        ("nothing", "has no 'nothing'; name one of: "),
        ("fail", "in fail: return make().load_state_dict({})"),
        ("make", "no graph is given, and MODULE returns no example inputs"),
    ],
)
def test_what_names_no_model_is_told(
    module: str, words: str, train: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([f"{train}:{module}", "--out", str(tmp_path / "out")]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_python_objects_in_a_file_are_read_where_it_is_trusted(
    train: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "graph.pt"
    torch.save({"x": GRAPH.x, "edge_index": GRAPH.edge_index, "made_by": Path}, path)
    words = [f"{train}:make", "--graph", str(path), "--out", str(tmp_path / "out")]
    assert main(words) == 2
    assert "if you trust the file, add --trust" in capsys.readouterr().err
    assert main([*words, "--trust"]) == 0


def test_expected_scores_have_the_ids_of_the_source(
    train: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [f"{train}:make", "--graph", f"{train}:graph", "--out", str(tmp_path / "out"), "--ids"]
    assert main([*words, f"{train}:few"]) == 2
    assert "--ids: they are <U9 [159], and 160 nodes are scored" in capsys.readouterr().err
    assert main([*words, f"{train}:same"]) == 2
    assert "--ids: some are there more than once" in capsys.readouterr().err
    assert main([*words, f"{train}:ids"]) == 0
    with np.load(tmp_path / "out" / "expected.npz") as arrays:
        assert arrays["nodes"][0] == "paper-0"
    assert "next: gnnserve run" in capsys.readouterr().out
    graph = load_source(load_manifest(tmp_path / "out" / MANIFEST).spec.graph.source, Path("unused"))
    assert graph.ids is not None
    assert graph.ids.shown(0, 2) == ["paper-0", "paper-1"]
    np.testing.assert_array_equal(graph.target.features, GRAPH.x)
    assert graph.graph.edges == GRAPH.num_edges


def test_ids_that_a_table_would_alter_leave_the_graph_to_the_user(
    train: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [f"{train}:make", "--graph", f"{train}:graph", "--out", str(tmp_path / "out"), "--ids", f"{train}:digits"]
    assert main(words) == 0
    assert "next: add the graph to" in capsys.readouterr().out


def test_the_command_line_of_the_server_describes_too(train: str, tmp_path: Path) -> None:
    words = [f"{train}:make", "--graph", f"{train}:graph", "--out", str(tmp_path / "out"), "--nodes", "20"]
    ended = CliRunner().invoke(app, ["model", "describe", *words])
    assert ended.exit_code == 0, ended.output
    refused = CliRunner().invoke(app, ["model", "describe", *words])
    assert refused.exit_code == 2
    assert "exists" in refused.output


def test_inputs_may_be_named(train: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [f"{train}:make", "--graph", f"{train}:graph", "--out", str(tmp_path / "out")]
    assert main([*words, "--inputs", "x,weather"]) == 2
    assert "the graph has no 'weather'; name one of x, " in capsys.readouterr().err
    assert main([*words, "--inputs", "x,edge_index"]) == 0


def test_help_needs_neither_torch_nor_a_worker(tmp_path: Path) -> None:
    program = (
        "import sys\nfrom gnnserve_describe.__main__ import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\nassert 'torch' not in sys.modules"
    )
    ended = run_declared("describe", tmp_path, program)
    assert ended.returncode == 0, ended.stderr
    assert "--graph" in ended.stdout


def test_no_worker_is_imported() -> None:
    """Users' environments have no worker."""
    program = (
        "import sys, gnnserve_describe\n"
        "gnnserve_describe.describe\n"
        "print([name for name in sys.modules if name.startswith(('gnnserve_w', 'gnnserve_cli', 'numba', 'pydantic'))])"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"
