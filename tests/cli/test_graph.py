"""`gnnserve graph inspect` on graphs that need no network."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.support.graphs.graphs import npz_arrays, planted_graph, write_npz
from tests.support.graphs.several_types import shop, write_folder
from tests.support.graphs.tables import edges_of, nodes_of, table_source, write_table
from typer.testing import CliRunner

from gnnserve_cli.exits import ExitCode
from gnnserve_cli.graph_inspection import taken_columns
from gnnserve_cli.main import app
from gnnserve_worker.graph.inspection import inspect
from gnnserve_worker.graph.sources.load import load_source

DIGITS = Path(__file__).parents[2] / "examples" / "digits.yaml"


@pytest.mark.parametrize("source", ["Digits", str(DIGITS)])
def test_a_name_and_a_manifest_mean_the_same(source: str) -> None:
    result = CliRunner().invoke(app, ["graph", "inspect", source], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.stderr
    assert "1,797, called 0, 1, 2, … (Positions)" in result.output
    assert "24,680, directed; 100% go both ways" in result.output
    assert "1,078 to train on, 359 to validate, 360 to test" in result.output


def test_a_manifest_is_inspected_from_standard_input_too() -> None:
    result = CliRunner().invoke(app, ["graph", "inspect", "-"], input=DIGITS.read_text(), env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.stderr
    assert "24,680, directed; 100% go both ways" in result.output
    nothing = CliRunner().invoke(app, ["graph", "inspect", "-"], input="")
    assert (nothing.exit_code, "standard input: is empty" in nothing.stderr) == (2, True)


def test_a_file_is_inspected_as_json(tmp_path: Path) -> None:
    data = planted_graph([0, 1], nodes=40, columns=4, classes=(4, 9))
    path = write_npz(tmp_path / "graph.npz", npz_arrays(data))
    result = CliRunner().invoke(app, ["graph", "inspect", str(path), "--json"])
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.output)
    assert (found["nodes"], found["edges"], found["nodeIds"]) == (40, data.graph.edges, "Positions")
    assert [entry["label"] for entry in found["classes"]] == list(data.classes)
    assert sum(nodes for _, nodes in found["neighbours"]["histogram"]) == 40


def _people(folder: Path, labels: str, classes: list[str], value: str) -> Path:
    rows = "".join(f"{n},{classes[n % len(classes)]},{n / 7}\n" for n in range(30))
    (folder / "people.csv").write_text(f"id,{value},age\n{rows}")
    (folder / "follows.csv").write_text("source,target\n1,2\n")
    manifest = folder / "people.yaml"
    manifest.write_text(
        "apiVersion: gnnserve.dev/v1alpha1\nkind: GNNService\nmetadata: {name: people}\n"
        f"spec: {{graph: {{source: {{csv: {{nodes: {{uri: {(folder / 'people.csv').as_uri()}, {labels}}}, "
        f"edges: {{uri: {(folder / 'follows.csv').as_uri()}}}}}}}}}}}\n"
    )
    return manifest


def test_no_class_reaches_the_terminal_as_a_command(tmp_path: Path) -> None:
    manifest = _people(tmp_path, "label: group", ["\x1b[31mred", "blue"], "group")

    result = CliRunner().invoke(app, ["graph", "inspect", str(manifest)], env={"COLUMNS": "1000"})

    assert result.exit_code == 0, result.stderr
    assert r'"\u001b[31mred"' in result.output
    assert "\x1b" not in result.output
    # Both tables are the source.
    assert "people.csv and file://" in " ".join(result.output.split())


def test_nodes_without_any_of_several_classes_are_called_that(tmp_path: Path) -> None:
    manifest = _people(tmp_path, "labels: [red, blue]", ["1,0", "0,0", "0,1"], "red,blue")

    result = CliRunner().invoke(app, ["graph", "inspect", str(manifest)], env={"COLUMNS": "200"})

    assert result.exit_code == 0, result.stderr
    assert "2 classes, several per node; 10 nodes of none" in result.output


def test_what_is_no_source_is_refused_with_the_known_names() -> None:
    result = CliRunner().invoke(app, ["graph", "inspect", "nix"])
    assert result.exit_code == ExitCode.BAD_INPUT
    assert (
        "'nix' is neither a manifest (.yaml), nor an .npz file, nor a folder of a typed graph, nor a known name"
        in result.stderr
    )
    assert "ogbn-arxiv" in result.stderr
    assert "did you mean" not in result.stderr
    nearly = CliRunner().invoke(app, ["graph", "inspect", "digit"])
    assert "nor a known name; did you mean Digits? tables" in nearly.stderr


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["graph", "inspect", str(tmp_path / "nix.npz")])
    assert result.exit_code == ExitCode.BAD_INPUT
    assert "cannot read" in result.stderr


def test_columns_that_are_features_are_named_and_runs_of_them_shortened(tmp_path: Path) -> None:
    numbered = {f"interest{number}": [0.5 * number] * 5 for number in range(300)}
    words = {"words": pa.array([[1.0, 2.0]] * 5)}
    nodes = write_table(tmp_path / "nodes.parquet", nodes_of(range(5)) | numbered | words)
    edges = write_table(tmp_path / "edges.parquet", edges_of([(0, 1)]))

    found = inspect(load_source(table_source(nodes, edges), tmp_path))

    assert (
        taken_columns(found.feature_columns) == "age, weight, interest0 … interest299 (300 columns), words (lists of 2)"
    )


def test_a_run_of_columns_ends_where_a_number_is_left_out(tmp_path: Path) -> None:
    numbered = {f"emb_{number}": [0.5 * number] * 5 for number in range(12)}
    nodes = write_table(tmp_path / "nodes.parquet", nodes_of(range(5)) | numbered)
    edges = write_table(tmp_path / "edges.parquet", edges_of([(0, 1)]))
    source = table_source(nodes, edges, {"features": ["emb_*"], "exclude_features": ["emb_3"]})

    shown = taken_columns(inspect(load_source(source, tmp_path)).feature_columns)

    assert shown == "emb_0, emb_1, emb_2, emb_4 … emb_11 (8 columns)"


def test_hundreds_of_columns_without_a_pattern_are_shortened(tmp_path: Path) -> None:
    named = {f"c{number}x": [1.0] * 5 for number in range(100)}
    nodes = write_table(tmp_path / "nodes.parquet", nodes_of(range(5)) | named)
    edges = write_table(tmp_path / "edges.parquet", edges_of([(0, 1)]))

    shown = taken_columns(inspect(load_source(table_source(nodes, edges), tmp_path)).feature_columns)

    assert shown.startswith("age, weight, c0x, ")
    assert ", … 62 more …, " in shown
    assert shown.endswith(", c99x")


def test_trying_says_by_measured_validation_which_scope_and_normalization_suit(tmp_path: Path) -> None:
    data = planted_graph((2, 5, 7), nodes=130)
    path = write_npz(tmp_path / "graph.npz", npz_arrays(data))
    result = CliRunner().invoke(app, ["graph", "inspect", str(path), "--try", "--json"])
    assert result.exit_code == 0, result.stderr
    tried = json.loads(result.stdout)["tried"]
    assert len({(one["scope"], one["normalization"]) for one in tried}) == len(tried) == 2 * 4
    scores = [one["validation"] for one in tried]
    assert scores == sorted(scores, reverse=True)
    assert scores[0] > 0.8


def test_a_folder_of_a_typed_graph_is_inspected(tmp_path: Path) -> None:
    write_folder(tmp_path / "shop", shop())

    result = CliRunner().invoke(app, ["graph", "inspect", str(tmp_path / "shop")], env={"COLUMNS": "200"})

    assert result.exit_code == ExitCode.OK, result.stderr
    assert "user        30, called user/0, user/1, user/2, …; 4 columns, dense" in result.stdout
    assert "tag         5, called tag/0, tag/1, tag/2, …; no features: embeddings are learned" in result.stdout
    assert re.search(r"^item +buys +user +120 ", result.stdout, re.MULTILINE)
    assert re.search(r"^user +rev_buys +item +120 ", result.stdout, re.MULTILINE)


def test_a_manifest_of_a_typed_graph_is_inspected_as_json(tmp_path: Path) -> None:
    given = write_folder(tmp_path / "shop", shop())
    manifest = tmp_path / "shop.yaml"
    manifest.write_text(
        "apiVersion: gnnserve.dev/v1alpha1\nkind: GNNService\nmetadata: {name: shop}\n"
        f"spec: {{graph: {{source: {{typed: {json.dumps(given)}}}}}}}\n"
    )

    result = CliRunner().invoke(app, ["graph", "inspect", str(manifest), "--json"])

    found = json.loads(result.stdout)
    assert [one["name"] for one in found["types"]] == ["user", "item", "tag"]
    assert found["target"] == "user"


def test_a_typed_graph_without_labels_is_inspected_where_links_may_be_scored(tmp_path: Path) -> None:
    given = write_folder(tmp_path / "shop", shop())
    nodes = tmp_path / "shop" / "nodes_user.npz"
    np.savez(nodes, **{name: array for name, array in np.load(nodes).items() if name in {"num_nodes", "features"}})
    manifest = tmp_path / "shop.yaml"

    def inspected(source: Path, task: str = "") -> str:
        manifest.write_text(
            "apiVersion: gnnserve.dev/v1alpha1\nkind: GNNService\nmetadata: {name: shop}\n"
            f"spec: {{graph: {{source: {{typed: {json.dumps(given)}}}}}{task}}}\n"
        )
        result = CliRunner().invoke(app, ["graph", "inspect", str(source)])
        return result.stdout + result.stderr

    assert "labels  no type has any: nothing can be classified, and links may be scored" in inspected(tmp_path / "shop")
    assert "scored  links of relation buys" in inspected(manifest, ", task: {links: {relation: buys}}")
    assert "error: spec.graph.source.typed: no type has labels; types are " in inspected(manifest)


def test_candidates_are_not_tried_on_a_typed_graph(tmp_path: Path) -> None:
    write_folder(tmp_path / "shop", shop())

    result = CliRunner().invoke(app, ["graph", "inspect", str(tmp_path / "shop"), "--try"])

    assert result.exit_code == ExitCode.BAD_INPUT
    assert "--try: trains candidates over graphs of one type alone" in result.stderr
