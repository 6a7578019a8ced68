"""`gnnserve validate` on the manifest that ships, and on one that is wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import Result
from typer.testing import CliRunner

from gnnserve_cli.commands.validate import checked_documents
from gnnserve_cli.main import app

DIGITS = Path(__file__).parents[2] / "examples" / "digits.yaml"


def test_what_was_understood_is_printed() -> None:
    result = CliRunner().invoke(app, ["validate", str(DIGITS)])
    assert result.exit_code == 0, result.stderr
    understood = dict(line.split(maxsplit=1) for line in result.output.splitlines())
    assert understood["service"].strip() == "default/digits"
    assert understood["source"].strip() == "builtin Digits"
    assert understood["variants"].strip() == "x1, x2, x4, x8, x16, ranked by Lasso"
    assert understood["tables"].strip() == "float32; projection Auto"
    assert understood["objective"].strip() == "none: the most accurate variant answers"


def test_objectives_are_spelled_out(tmp_path: Path) -> None:
    manifest = tmp_path / "m.yaml"
    manifest.write_text(DIGITS.read_text() + "  objective: {latencyMs: 5, accuracyTolerancePermille: 10}\n")
    result = CliRunner().invoke(app, ["validate", str(manifest)], env={"COLUMNS": "200"})
    assert "latency within 5 ms, accuracy at most 10 permille below the best" in result.output


def test_what_workers_ask_for_is_among_what_concerns_a_cluster(tmp_path: Path) -> None:
    manifest = tmp_path / "m.yaml"
    manifest.write_text(DIGITS.read_text() + "  worker: {replicas: 2, gpu: {count: 4}}\n")
    result = CliRunner().invoke(app, ["validate", str(manifest)], env={"COLUMNS": "200"})
    assert "2 workers with 4 nvidia.com/gpu, " in result.output


def test_the_device_is_said_and_what_changes_nothing_on_it(tmp_path: Path) -> None:
    manifest = tmp_path / "m.yaml"
    for worker, device, idle in (
        ("{}", "Auto; all free memory of the GPU; cache Frequency", []),
        ("{gpuMemory: 2Gi, cache: {policy: LFU}}", "Auto; at most 2Gi of the GPU; cache LFU", []),
        ("{device: CPU}", "CPU", []),
        ("{device: CPU, gpuMemory: 2Gi, cache: {policy: LFU}}", "CPU", ["gpuMemory", "cache"]),
    ):
        manifest.write_text(f"{DIGITS.read_text()}  worker: {worker}\n")
        plain = CliRunner().invoke(app, ["validate", str(manifest)], env={"COLUMNS": "200"})
        assert re.search(r"^device +(.+)$", plain.stdout, re.MULTILINE)[1] == device  # type: ignore[index]
        as_json = CliRunner().invoke(app, ["validate", str(manifest), "--json"])
        assert json.loads(as_json.stdout)["valid"] is True
        notes = "".join(f"note: spec.worker.{field} changes nothing: spec.worker.device is CPU\n" for field in idle)
        assert plain.stderr == as_json.stderr == notes


def test_variants_that_answer_nothing_beside_changes_are_named(tmp_path: Path) -> None:
    manifest = tmp_path / "m.yaml"
    listed = "  variants:\n    oneRow: [{hops: 0}, {hops: 1}]\n    stored: [1, 2]\n"
    text = DIGITS.read_text().replace("  variants:\n", listed)
    manifest.write_text(text)
    assert CliRunner().invoke(app, ["validate", str(manifest)]).stderr == ""
    manifest.write_text(f"{text}  updates: {{log: {{sqlite: {{}}}}}}\n")
    told = CliRunner().invoke(app, ["validate", str(manifest)])
    assert told.exit_code == 0
    assert told.stderr.startswith("note: no request is answered by stored2, mlp1 while spec.updates is given: ")


def test_a_search_beside_changes_says_which_variant_answers(tmp_path: Path) -> None:
    manifest = tmp_path / "m.yaml"
    head = {"apiVersion": "gnnserve.dev/v1alpha1", "kind": "GNNService", "metadata": {"name": "digits"}}
    spec = {"graph": {"source": {"builtin": "Digits"}}, "variants": {"search": "Auto"}}
    for beside, words in (
        ({}, "in 1,800 s; columns ranked by Greedy"),
        ({"updates": {"log": {"sqlite": {}}}}, "Greedy; the most accurate that follows changes is among them"),
    ):
        manifest.write_text(json.dumps({**head, "spec": {**spec, **beside}}))
        told = CliRunner().invoke(app, ["validate", str(manifest)], env={"COLUMNS": "300"})
        assert words in told.stdout
        assert "answered by" not in told.stderr


def test_embeddings_of_a_variant_that_may_be_left_out_are_noted(tmp_path: Path) -> None:
    manifest = tmp_path / "m.yaml"
    manifest.write_text(f"{DIGITS.read_text()}  embeddings: {{variant: projected}}\n")
    told = CliRunner().invoke(app, ["validate", str(manifest)]).stderr
    assert told.startswith("note: spec.embeddings names projected, which is kept only where no other variant is as acc")
    assert told.endswith("generation may leave it out, and no embeddings are then made\n")


def test_given_weights_and_storages_are_named(tmp_path: Path) -> None:
    manifest = tmp_path / "m.yaml"
    text = DIGITS.read_text().replace("  variants:\n", "  variants:\n    storage: [float32, int8]\n")
    manifest.write_text(text.replace("  model:\n", "  model:\n    checkpoint: {uri: file:///a.safetensors}\n"))
    understood = CliRunner().invoke(app, ["validate", str(manifest)], env={"COLUMNS": "200"}).output
    assert "weights        file:///a.safetensors, not trained" in understood
    assert "tables         float32, int8; projection Auto" in understood
    assert "training" not in understood.split("note: ")[0]
    expected = "    checkpoint: {uri: file:///a.safetensors}\n    expected: {uri: file:///e.npz}\n"
    manifest.write_text(text.replace("  model:\n", f"  model:\n{expected}"))
    understood = CliRunner().invoke(app, ["validate", str(manifest)], env={"COLUMNS": "200"}).output
    assert "weights        file:///a.safetensors, not trained, compared with file:///e.npz" in understood


def test_a_program_is_told_with_what_it_reads_and_samples_and_may_take(tmp_path: Path) -> None:
    manifest = tmp_path / "m.yaml"
    text = DIGITS.read_text()
    model = """  model:
    program:
      uri: file:///model.onnx
      hops: 2
      readsDegrees: true
      inputs: [{name: x, is: Features}, {name: edge_index, is: Edges}]
      scores: {name: logits, columns: 10}
    expected: {uri: file:///e.npz}
"""
    manifest.write_text(text[: text.index("  model:")] + model)
    told = CliRunner().invoke(app, ["validate", str(manifest)], env={"COLUMNS": "200"}).output
    assert (
        "model          program, 2 hops and one more, since layers count edges, every neighbour, of x (Features), "
        "edge_index (Edges); at most 2Gi and 10 s a run\n" in told
    )
    assert "program        file:///model.onnx, not trained, compared with file:///e.npz\n" in told
    assert "variants       x1, the program over all columns\n" in told
    assert "training" not in told


def test_given_variants_are_named() -> None:
    manifest = DIGITS.parent / "given-variants" / "given-variants.yaml"
    alone = CliRunner().invoke(app, ["validate", str(manifest)], env={"COLUMNS": "200"})
    assert "variants       given-1, half, given\n" in alone.output
    assert "training       none: every variant is given\n" in alone.output


def test_what_a_search_reads_alone_and_what_it_does_not_read_is_noted(tmp_path: Path) -> None:
    searched, listed = tmp_path / "searched.yaml", tmp_path / "listed.yaml"
    text = DIGITS.with_name("digits-search.yaml").read_text()
    unread = "  variants:\n    storage: [int8]\n    pruning: {factors: [1, 2]}\n"
    searched.write_text(text.replace("  variants:\n", unread))
    listed.write_text(text.replace("    search: Auto\n", ""))
    notes = CliRunner().invoke(app, ["validate", str(searched)]).stderr
    assert notes == (
        "note: spec.variants.pruning.factors changes nothing: spec.variants.search is Auto, which finds them out\n"
        "note: spec.variants.storage changes nothing: spec.variants.search is Auto, which looks at every storage\n"
    )
    notes = CliRunner().invoke(app, ["validate", str(listed)]).stderr
    assert notes == "note: spec.variants.budget changes nothing: spec.variants.search is Disabled\n"


UNREAD = {
    "a program": (
        "architecture: GraphSAGE, hidden: 128, fanouts: [25, 10], program: {uri: file:///model.onnx, hops: 2, "
        "inputs: [{name: x, is: Features}, {name: edge_index, is: Edges}], scores: {name: logits, columns: 10}}, "
        "expected: {uri: file:///e.npz}",
        ["architecture", "hidden", "fanouts"],
        "spec.model.program says it itself",
    ),
    "layers": (
        "architecture: GraphSAGE, hidden: 128, fanouts: [5, 5], layers: [{conv: GCN, width: 8}, {conv: GCN}]",
        ["architecture", "hidden"],
        "spec.model.layers say it themselves",
    ),
    "no hidden layer": (
        "architecture: SGC, hidden: 64, fanouts: [0]",
        ["hidden"],
        "spec.model.architecture is SGC, which has no hidden layer",
    ),
    "nothing to train": (
        "checkpoint: {uri: file:///w.safetensors}, training: {epochs: 3, batchSize: 8, seed: 1, scope: Transductive}",
        ["training.batchSize", "training.epochs"],
        "spec.model.checkpoint has all weights",
    ),
    "all of it is read": ("architecture: GCN, hidden: 128, fanouts: [25, 10], training: {epochs: 3}", [], ""),
}


@pytest.mark.parametrize(("model", "fields", "why"), UNREAD.values(), ids=UNREAD)
def test_fields_of_the_model_that_something_else_says_are_noted(
    tmp_path: Path, model: str, fields: Sequence[str], why: str
) -> None:
    manifest = tmp_path / "digits.yaml"
    text = DIGITS.read_text()
    manifest.write_text(f"{text[: text.index('  model:')]}  model: {{{model}}}\n")
    done = CliRunner().invoke(app, ["validate", str(manifest)])
    assert done.exit_code == 0, done.stderr
    notes = [line for line in done.stderr.splitlines() if "changes nothing" in line]
    assert notes == [f"note: spec.model.{field} changes nothing: {why}" for field in fields]


def test_a_choice_among_factors_is_said_and_noted_where_there_is_none(tmp_path: Path) -> None:
    manifest = tmp_path / "digits.yaml"
    chosen = DIGITS.read_text().replace("factors: [1, 2, 4, 8, 16]", "choice: Auto")
    manifest.write_text(f"{chosen.rstrip()}\n  routing: {{mode: Static, variant: x4}}\n")
    done = CliRunner().invoke(app, ["validate", str(manifest)])
    assert "x1, x2, x4, x8, ranked by Lasso, those that are worth it" in done.stdout
    assert "note: spec.routing names x4, which is made only where that is predicted to be worth it" in done.stderr
    manifest.write_text(chosen.replace("choice: Auto", "choice: Auto\n    projection: Disabled"))
    assert CliRunner().invoke(app, ["validate", str(manifest)]).stderr == (
        "note: spec.variants.pruning.choice changes nothing: spec.variants leaves nothing to choose\n"
    )
    manifest.write_text(chosen.replace("choice: Auto", "choice: All"))
    assert CliRunner().invoke(app, ["validate", str(manifest)]).stderr == ""


def test_of_several_types_variants_of_products_are_named_and_pruned_ones_of_lists_that_ask(tmp_path: Path) -> None:
    manifest, pruned = DIGITS.parent / "reviews" / "reviews.yaml", tmp_path / "pruned.yaml"
    understood = CliRunner().invoke(app, ["validate", str(manifest)], env={"COLUMNS": "200"}).output
    assert "changes nothing" not in understood
    text = manifest.read_text()
    assert "  variants:\n" in text

    def validated(pruning: str) -> Result:
        pruned.write_text(text.replace("  variants:\n", f"  variants:\n    pruning: {{{pruning}}}\n"))
        return CliRunner().invoke(app, ["validate", str(pruned)], env={"COLUMNS": "200"})

    assert "variants       projected, of products of each relation; x1, x4, ranked by Greedy; stored1" in (
        validated("factors: [1, 4]").stdout
    )
    assert "; x1, x2, x4, x8, ranked by Greedy, those that are worth it; stored1" in validated("choice: Auto").stdout
    assert (
        "note: spec.variants.pruning.factors changes nothing: spec.graph.source.typed makes no variants of the default "
        "list of factors; list others, as [1, 4, 16], or set variants.pruning.choice to Auto, which makes those that "
        "pay\n"
    ) in validated("factors: [1, 2, 4, 8]").stderr
    assert (
        "note: spec.variants.pruning.factors changes nothing: spec.graph.source.typed makes no x1 alone, since "
        "projected computes the same; list others beside, as [1, 4]\n"
    ) in validated("factors: [1]").stderr
    assert "changes nothing" not in validated("factors: [1, 4]").stderr
    assert "source         2 types, users.csv …, 1 relation\n" in understood
    told = "variants       projected, of products of each relation; stored1, of layers computed ahead of time\n"
    assert told in understood


def test_listed_layers_of_fewer_columns_are_named(tmp_path: Path) -> None:
    manifest, text = tmp_path / "m.yaml", DIGITS.read_text()
    model = "  model:\n    layers: [{conv: GCN, width: 16}, {conv: GCN}]\n    fanouts: [-1, -1]\n"
    variants = "  variants:\n    pruning: {factors: [1, 4]}\n"
    manifest.write_text(text[: text.index("  model:")] + model + variants)
    told = CliRunner().invoke(app, ["validate", str(manifest)], env={"COLUMNS": "200"}).output
    assert "variants       x1, x4, ranked by Greedy\n" in told


def test_stored_layers_and_networks_with_fewer_channels_are_named(tmp_path: Path) -> None:
    manifest = tmp_path / "m.yaml"
    listed = "    stored: [2, 1]\n    channels: [{factor: 2}, {factor: 4, table: Projected}]\n"
    manifest.write_text(DIGITS.read_text().replace("  variants:\n", f"  variants:\n{listed}"))
    understood = CliRunner().invoke(app, ["validate", str(manifest)], env={"COLUMNS": "200"}).output
    assert "; stored1, stored2, of layers computed ahead of time;" in understood
    assert "channels2, channels4-projected, of fewer hidden channels" in understood


@pytest.mark.parametrize(
    ("model", "variants", "listed", "optional"),
    [
        (
            "{layers: [{conv: GCN, width: 16}, {conv: GCN}], fanouts: [-1, -1]}",
            "{storage: [float32, int8], channels: [{factor: 4, table: Projected}], pruning: {factors: [1]}}",
            ["x1", "x1-int8", "channels4-projected", "channels4-projected-int8"], ["projected", "projected-int8"],
        ),
        (
            "{fanouts: [10, 5]}", "{pruning: {factors: [1]}, fanouts: [[5, 5]]}",
            ["x1", "x1-f5x5"], ["projected", "projected-f5x5"],
        ),
        ("{}", "{pruning: {factors: [1]}, projection: Disabled}", ["x1"], []),
    ],
)  # fmt: skip
def test_every_name_of_a_variant_is_told(
    tmp_path: Path, model: str, variants: str, listed: list[str], optional: list[str]
) -> None:
    """What generation makes of them is held against the same names by tests/matrix and the examples in a cluster."""
    manifest, text = tmp_path / "m.yaml", DIGITS.read_text()
    manifest.write_text(f"{text[: text.index('  model:')]}  model: {model}\n  variants: {variants}\n")
    told = CliRunner().invoke(app, ["validate", str(manifest)], env={"COLUMNS": "200"})
    rows = {name: ", ".join(names) for name, names in (("names", listed), ("optional", optional)) if names}
    found = dict(line.split(maxsplit=1) for line in told.output.splitlines())
    assert {name: found.get(name) for name in ("names", "optional") if name in found} == rows
    as_json = json.loads(CliRunner().invoke(app, ["validate", str(manifest), "--json"]).stdout)
    assert as_json["variants"] == {"listed": listed, "optional": optional}


SHOP = """\
apiVersion: gnnserve.dev/v1alpha1
kind: GNNService
metadata: {name: shop}
spec:
  graph:
    source:
      csv:
        nodes: {uri: nodes.csv, label: kind}
        edges: {uri: ~/edges.csv}
"""


def test_each_file_is_told_with_its_place_and_all_that_are_missing_are_listed_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = tmp_path / "shop" / "shop.yaml"
    manifest.parent.mkdir()
    manifest.write_text(SHOP)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir("/")
    result = CliRunner().invoke(app, ["validate", str(manifest)], env={"COLUMNS": "400"})
    nodes, edges = f"nodes.csv ({manifest.parent}/nodes.csv)", f"~/edges.csv ({tmp_path}/edges.csv)"
    assert result.exit_code == 0
    assert f"files          {nodes}\n               {edges}\n" in result.stdout
    assert result.stderr.splitlines() == [
        f"note: spec.graph.source.csv.nodes.uri: no such file on this machine: {nodes}",
        f"note: spec.graph.source.csv.edges.uri: no such file on this machine: {edges}",
        "note: not for a cluster as it is: spec.graph.source.csv.nodes.uri is relative to the volume of the data, and "
        "there is none: add spec.graph.volume with the claim that has the file",
        "note: not for a cluster as it is: spec.graph.source.csv.edges.uri must not begin with ~ in a cluster, where "
        "pods have no home: bring the file to the volume of spec.graph.volume, and write its path there",
    ]

    manifest.write_text(SHOP.replace("~/edges.csv", "edges.csv"))
    notes = CliRunner().invoke(app, ["validate", str(manifest)]).stderr.splitlines()
    of_cluster = [note.split(" is relative")[0] for note in notes if "not for a cluster" in note]
    assert of_cluster == [
        f"note: not for a cluster as it is: spec.graph.source.csv.{part}.uri" for part in ("nodes", "edges")
    ], "each of several that are refused for one reason"

    (tmp_path / "edges.csv").touch()
    manifest.write_text(SHOP + "    volume: {claimName: shop-data}\n")
    result = CliRunner().invoke(app, ["validate", str(manifest), "--json"])
    assert "edges.csv (" not in result.stderr
    assert f"{nodes}; in a cluster the files are those of claim shop-data\n" in result.stderr
    assert json.loads(result.stdout)["files"] == [
        {
            "field": "spec.graph.source.csv.nodes.uri",
            "written": "nodes.csv",
            "path": str(manifest.parent / "nodes.csv"),
            "isMissing": True,
        },
        {
            "field": "spec.graph.source.csv.edges.uri",
            "written": "~/edges.csv",
            "path": str(tmp_path / "edges.csv"),
            "isMissing": False,
        },
    ]


def test_files_that_generation_misses_are_listed_at_once(tmp_path: Path) -> None:
    manifest = tmp_path / "shop.yaml"
    manifest.write_text(
        SHOP.replace("~/", "") + "  variants: {given: [{checkpoint: {uri: a.safetensors}, columns: [0]}]}\n"
    )
    for command in (
        ["generate", str(manifest), "--repository", str(tmp_path / "r")],
        ["graph", "inspect", str(manifest)],
    ):
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 2
        missing = ["nodes.csv", "edges.csv", "a.safetensors"][: 3 if command[0] == "generate" else 2]
        assert f"names {len(missing)} files that are not there: " in result.stderr
        assert all(f"{name} ({tmp_path / name})" in result.stderr for name in missing)


def test_json_says_whether_and_why() -> None:
    valid = CliRunner().invoke(app, ["validate", str(DIGITS), "--json"])
    assert valid.exit_code == 0
    assert json.loads(valid.output)["spec"]["variants"]["pruning"]["factors"] == [1, 2, 4, 8, 16]


def test_every_problem_is_listed_and_the_exit_code_says_invalid(tmp_path: Path) -> None:
    manifest = tmp_path / "m.yaml"
    manifest.write_text(DIGITS.read_text().replace("hidden: 128", "hidden: 0\n    widht: 3"))
    plain = CliRunner().invoke(app, ["validate", str(manifest)])
    assert plain.exit_code == 2
    assert "spec.model.hidden" in plain.stderr
    assert "spec.model.widht" in plain.stderr

    as_json = CliRunner().invoke(app, ["validate", str(manifest), "--json"])
    assert as_json.exit_code == 2
    answer = json.loads(as_json.output)
    assert answer["valid"] is False
    assert "spec.model.widht" in answer["problem"]


def test_a_path_that_is_no_text_is_valid_json_too() -> None:
    as_json = CliRunner().invoke(app, ["validate", "no\udcff.yaml", "--json"])
    assert as_json.exit_code == 2
    assert json.loads(as_json.output)["problem"].startswith(r"no\udcff.yaml: no such file")


def test_half_a_character_is_a_problem_and_its_json_is_valid(tmp_path: Path) -> None:
    manifest = tmp_path / "m.yaml"
    manifest.write_text('metadata: {name: "\\ud800"}')
    as_json = CliRunner().invoke(app, ["validate", str(manifest), "--json"])
    assert as_json.exit_code == 2
    assert r"\ud800 is half a character" in json.loads(as_json.output)["problem"]


def test_one_of_something_is_not_several(tmp_path: Path) -> None:
    manifest = tmp_path / "m.yaml"
    text = DIGITS.read_text().replace("epochs: Auto", "epochs: 1")
    manifest.write_text(text)
    assert "1 epoch, " in CliRunner().invoke(app, ["validate", str(manifest)]).output


def test_several_manifests_are_each_judged_and_one_bad_one_is_enough_to_fail(tmp_path: Path) -> None:
    bad, missing = tmp_path / "bad.yaml", tmp_path / "missing.yaml"
    bad.write_text(DIGITS.read_text().replace("hidden: 128", "hidden: 0"))
    result = CliRunner().invoke(app, ["validate", str(bad), str(DIGITS), str(missing)])
    assert result.exit_code == 2
    assert result.stdout.startswith(f"{DIGITS}:\nservice ") or f"\n{DIGITS}:\nservice " in result.stdout
    assert f"error: {bad}: 1 problem\n  spec.model.hidden" in result.stderr
    assert f"error: {missing}: no such file" in result.stderr
    as_json = CliRunner().invoke(app, ["validate", "--json", str(bad), str(DIGITS), str(missing)])
    assert as_json.exit_code == 2
    told = json.loads(as_json.stdout)
    assert [(one["manifest"], one["valid"]) for one in told] == [
        (str(bad), False), (str(DIGITS), True), (str(missing), False)
    ]  # fmt: skip
    assert "hidden" in told[0]["problem"]
    both = CliRunner().invoke(app, ["validate", str(DIGITS), str(DIGITS)])
    assert (both.exit_code, both.stdout.count("recipe ")) == (0, 2)


def test_standard_input_may_hold_what_kustomize_or_helm_make() -> None:
    """Several objects, of which those of other APIs are none of its business."""
    other = "apiVersion: v1\nkind: Secret\nmetadata: {name: accepted}\n"
    text = f"{other}---\n{DIGITS.read_text()}---\n{DIGITS.read_text().replace('name: digits', 'name: Other')}"
    result = CliRunner().invoke(app, ["validate", "-"], input=text)
    assert result.exit_code == 2
    assert "note: standard input, document 1: a Secret, which is not checked" in result.stderr
    assert "standard input, document 2:\nservice" in result.stdout
    assert "error: standard input, document 3: 1 problem\n  metadata.name" in result.stderr
    alone = CliRunner().invoke(app, ["validate", "-"], input=DIGITS.read_text())
    assert (alone.exit_code, alone.stdout.startswith("service ")) == (0, True)
    nothing = CliRunner().invoke(app, ["validate", "-"], input=other)
    assert nothing.exit_code == 2
    assert "error: standard input: holds no GNNService" in nothing.stderr
    misspelt = CliRunner().invoke(app, ["validate", "-"], input=DIGITS.read_text().replace("GNNService", "GNNServce"))
    assert (misspelt.exit_code, "expected GNNService" in misspelt.stderr) == (2, True)


def test_standard_input_that_is_closed_or_named_twice_is_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    twice = CliRunner().invoke(app, ["validate", "-", str(DIGITS), "-"], input=DIGITS.read_text())
    assert twice.exit_code == 2
    assert "standard input: is named more than once" in twice.stderr
    monkeypatch.setattr("gnnserve_api.manifest.sys", SimpleNamespace(stdin=None))
    assert next(checked_documents(Path("-"))).problem.startswith("standard input: is closed; pipe a manifest")


def test_a_variant_that_no_factor_stands_for_is_refused_and_one_that_may_be_left_out_is_noted(tmp_path: Path) -> None:
    manifest = tmp_path / "m.yaml"
    manifest.write_text(DIGITS.read_text() + "  routing: {mode: Static, variant: x3}\n")
    refused = CliRunner().invoke(app, ["validate", str(manifest)])
    assert refused.exit_code == 2
    assert "spec.routing.variant: names x3, which spec.variants does not generate" in refused.stderr
    manifest.write_text(DIGITS.read_text() + "  routing: {mode: Static, variant: projected}\n")
    accepted = CliRunner().invoke(app, ["validate", str(manifest)])
    assert accepted.exit_code == 0
    assert "note: spec.routing names projected, which is kept only where" in accepted.stderr
    manifest.write_text(DIGITS.read_text() + "  routing: {mode: Static, variant: x4}\n")
    assert "note" not in CliRunner().invoke(app, ["validate", str(manifest)]).stderr


def test_a_pool_is_checked_beside_its_services(tmp_path: Path) -> None:
    paths = sorted((DIGITS.parent / "pool").glob("*.yaml"))
    found = CliRunner().invoke(app, ["validate", *map(str, paths)])
    assert found.exit_code == 0
    assert "GNNWorkerPool shared is valid" in found.output
    (told,) = [json.loads(CliRunner().invoke(app, ["validate", str(paths[-1]), "--json"]).stdout)]
    assert told == {"valid": True, "pool": "default/shared"}
    wrong = tmp_path / "pool.yaml"
    wrong.write_text(paths[-1].read_text().replace("replicas: 1", "replicas: -1"))
    found = CliRunner().invoke(app, ["validate", str(wrong)])
    assert found.exit_code == 2
    assert "spec.replicas" in found.output
