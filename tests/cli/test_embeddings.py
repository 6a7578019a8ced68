"""`gnnserve embeddings export`: files that other programs read, complete or not there, and what it refuses."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from gnnserve_api.spec.model import Model
from gnnserve_api.variants import Storage
from gnnserve_cli.exits import ExitCode
from gnnserve_cli.main import app
from gnnserve_worker.generation.embeddings import files
from gnnserve_worker.graph.ids import integer_ids, lay_out, string_ids
from gnnserve_worker.inference.batch import infer_batch
from gnnserve_worker.inference.made_up import (
    MadeUpVariant,
    made_up_graph,
    made_up_types,
    publish_made_up,
    publish_made_up_types,
)
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.repository.repository import Repository

NODES, HIDDEN = 20, 4
VARIANT = MadeUpVariant("x1", 1, "features", Storage.FLOAT32, "float32")
TEXTS = [f"päper {node}" for node in range(NODES)]


def publish(root: Path, ids: str = "positions") -> str:
    data = made_up_graph(NODES, 3, 5, 3)
    match ids:
        case "texts":
            data = data.with_ids(string_ids(*lay_out(TEXTS)))
        case "integers":
            data = data.with_ids(integer_ids(np.arange(NODES) * 10 - 2**62))
    network = Model(hidden=HIDDEN, fanouts=(3, 2)).network(3)
    return publish_made_up(Repository(root, "default", "papers"), data, network, [VARIANT]).revision


def run(root: Path, *arguments: str | Path, code: int = 0) -> str:
    options = ["embeddings", "export", *map(str, arguments), "--repository", str(root)]
    result = CliRunner().invoke(app, options)
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.stderr


def test_every_node_becomes_a_row_of_parquet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "repository"
    revision = publish(root, "texts")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(files, "_GROUP_ROWS", 7)

    told = run(root, revision, "x1").splitlines()

    name = f"x1-{revision}.parquet"
    assert told[0] == f"{name}: 20 nodes, 4 columns, by x1 over all neighbours"
    table = pq.read_table(tmp_path / name)
    assert table.schema.names == ["id", "embedding", "revision", "offset"]
    assert str(table.schema.field("embedding").type) == "fixed_size_list<element: float>[4]"
    assert table["id"].to_pylist() == TEXTS
    assert set(table["revision"].to_pylist()) == {revision}
    assert set(table["offset"].to_pylist()) == {None}
    described = json.loads((tmp_path / f"x1-{revision}.json").read_text(encoding="utf-8"))
    assert described["files"][name]["sha256"] == hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()
    assert described["offset"] is described["seed"] is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["repository", f"x1-{revision}.json", name]
    assert f"--out: '{name}' exists" in run(root, revision, "x1", code=ExitCode.BAD_INPUT)


@pytest.mark.parametrize("ids", ["positions", "integers", "texts"])
def test_chosen_nodes_become_an_array_with_their_ids(tmp_path: Path, ids: str) -> None:
    revision = publish(tmp_path, ids)
    named = {"positions": [3, 0], "integers": [30 - 2**62, -(2**62)], "texts": [TEXTS[3], TEXTS[0]]}[ids]
    listed = tmp_path / "nodes.txt"
    # Blanks around integers are none of theirs; those around texts are.
    listed.write_text("".join(f"{each}\n" if ids == "texts" else f" {each} \r\n" for each in named), encoding="utf-8")
    out = tmp_path / "vectors.npy"

    made = run(tmp_path, revision, "x1", "--nodes-file", listed, "--neighbours", "sampled", "--out", out, "--json")

    loaded = load_revision(Repository(tmp_path, "default", "papers"), revision)
    expected = infer_batch(loaded, "x1", np.array([3, 0]), 0).embeddings
    np.testing.assert_array_equal(np.load(out), expected)
    shown = [json.loads(line) for line in (tmp_path / "vectors.ids.jsonl").read_text(encoding="utf-8").splitlines()]
    assert shown == named
    told = json.loads(made)
    assert told == json.loads((tmp_path / "vectors.json").read_text(encoding="utf-8"))
    assert (told["nodes"], told["columns"], told["neighbours"], told["seed"]) == (2, HIDDEN, "sampled", 0)
    again = run(tmp_path, revision, "x1", "--nodes", json.dumps(named), "--out", tmp_path / "again.npy")
    assert "2 nodes, 4 columns, by x1 over all neighbours" in again


@pytest.fixture
def shop(tmp_path: Path) -> str:
    """Users who are classified, items that they buy, and a variant that draws two neighbours by each relation."""
    network = Model(hidden=HIDDEN, fanouts=(2, 2)).network(3)
    variants = [MadeUpVariant("projected", 1, "projected", Storage.FLOAT32, "float32")]
    data = made_up_types(NODES, 3, 5, 3)
    user, item = data.types
    named = replace(item, ids=string_ids(*lay_out([f"item-{node}" for node in range(NODES)])))
    data = replace(data, types=(user, named))
    return publish_made_up_types(Repository(tmp_path / "shop", "default", "shop"), data, network, variants).revision


def test_nodes_of_each_type_are_exported_by_their_own_ids(tmp_path: Path, shop: str) -> None:
    root = tmp_path / "shop"
    loaded = load_revision(Repository(root, "default", "shop"), shop)
    told = run(root, shop, "projected", "--neighbours", "sampled", "--out", tmp_path / "users.npy")
    assert "users.npy: 20 user nodes, 4 columns, by projected over sampled neighbours, seed 0" in told
    users = infer_batch(loaded, "projected", np.arange(NODES), 0).embeddings
    np.testing.assert_array_equal(np.load(tmp_path / "users.npy"), users)

    out, chosen = tmp_path / "items.parquet", tmp_path / "nodes.txt"
    chosen.write_text("item-7\nitem-0\n")
    arguments = ("--type", "item", "--nodes-file", chosen, "--out", out, "--json")
    described = json.loads(run(root, shop, "projected", *arguments))
    assert (described["type"], described["nodeIds"], described["nodes"]) == ("item", "Strings", 2)
    assert pq.read_table(out)["id"].to_pylist() == ["item-7", "item-0"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--type", "tag"], "--type: there are no nodes of type 'tag' with embeddings; name one of user, item"),
        (["--nodes", "20"], "the graph has no node 20 of type user"),
        (["--type", "item", "--nodes", "3"], "the graph has no node '3' of type item"),
    ],
)
def test_what_a_graph_of_several_types_does_not_have_is_told(
    tmp_path: Path, shop: str, arguments: list[str], problem: str
) -> None:
    out = tmp_path / "vectors.npy"
    told = run(tmp_path / "shop", shop, "projected", "--out", out, *arguments, code=ExitCode.BAD_INPUT)
    assert problem in told


def test_an_export_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    revision = publish(tmp_path / "repository")

    def full(path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "_entry", full)
    made = tmp_path / "made"
    made.mkdir()
    told = run(tmp_path / "repository", revision, "x1", "--out", made / "a.npy", code=ExitCode.RESOURCE)
    assert f"error: --out: '{made}/a.npy' cannot be written: No space left on device; free some space" in told
    assert [*made.iterdir()] == []


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--nodes", "20"], "--nodes: the graph has no node 20"),
        (["--nodes", "1,-1"], "--nodes: the graph has no node -1"),
        (["--nodes", "9999999999999999999"], "'9999999999999999999' is beyond 64 bits"),
        (["--nodes", "1,one"], "--nodes: 'one' is no integer, and the graph's node ids are integers"),
        (["--type", "user"], "--type: the nodes of this graph are of one type; leave it out"),
        (["--out", "vectors.csv"], "--out: 'vectors.csv' has the end of no format; end it in .parquet or .npy"),
        (["--out", "missing/vectors.npy"], "'missing' is no folder"),
        (["--nodes-file", "missing"], "--nodes-file: 'missing' cannot be read"),
        (["--nodes-file", "missing", "--nodes", "1"], "is given beside --nodes"),
    ],
)
def test_what_cannot_be_exported_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], problem: str
) -> None:
    revision = publish(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert problem in run(tmp_path, revision, "x1", *arguments, code=ExitCode.BAD_INPUT)


def test_a_file_of_nodes_is_named_where_one_of_its_nodes_is_not_there(tmp_path: Path) -> None:
    revision = publish(tmp_path)
    listed = tmp_path / "nodes.txt"
    for written, problem in (("1\none\n", "'one' is no integer"), ("1\n20\n", "the graph has no node 20")):
        listed.write_text(written, encoding="utf-8")
        told = run(tmp_path, revision, "x1", "--nodes-file", listed, code=ExitCode.BAD_INPUT)
        assert f"error: --nodes-file: {problem}" in told
