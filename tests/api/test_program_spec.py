"""`model.program` in a manifest: what is refused, in whose words, and what follows from what is given."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from pydantic import ValidationError

from gnnserve_api.files.programs import InputRole, ProgramInput, ProgramManifest, ProgramOutput
from gnnserve_api.spec.program import Program
from gnnserve_api.spec.service import GNNServiceSpec

PROGRAM: dict[str, Any] = {
    "uri": "data/model.onnx",
    "hops": 2,
    "inputs": [{"name": "x", "is": "Features"}, {"name": "edge_index", "is": "Edges"}],
    "scores": {"name": "logits", "columns": 10},
}
SPEC: dict[str, Any] = {
    "graph": {"source": {"builtin": "Digits"}},
    "model": {"program": PROGRAM, "expected": {"uri": "data/expected.npz"}},
}


def spec_with(*, program: dict[str, Any] | None = None, **parts: Any) -> GNNServiceSpec:
    given = deepcopy(SPEC)
    given["model"]["program"] |= program or {}
    given["model"] |= parts.pop("model", {})
    return GNNServiceSpec.model_validate({**given, **parts})


def test_the_contract_of_a_manifest_is_the_one_that_a_revision_keeps() -> None:
    program = spec_with(program={"embeddings": {"name": "h", "columns": 64}, "readsDegrees": True}).model.program
    assert program is not None
    inputs = (ProgramInput("x", InputRole.FEATURES), ProgramInput("edge_index", InputRole.EDGES))
    outputs = ProgramOutput("logits", 10), ProgramOutput("h", 64)
    assert program.contract("model.onnx", "ab") == ProgramManifest("model.onnx", "ab", 2, inputs, *outputs, True)


def test_a_folder_says_the_contract_in_its_place() -> None:
    program = Program.model_validate({"uri": "file:///made/"})
    assert not program.has_contract
    with pytest.raises(ValueError, match="in its folder"):
        program.contract("model.onnx", "")


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"model": {"fanouts": [5, 5]}}, "fanouts must be left out with a program.*program.fanouts says how many"),
        ({"model": {"architecture": "GCN"}}, "architecture must be left out with a program"),
        ({"model": {"mlpHidden": 8, "architecture": "GIN"}}, "architecture must be left out with a program"),
        ({"program": {"fanouts": [5]}}, r"fanouts \[5\] must be one number for each of hops, which is 2"),
        ({"program": {"limits": {"memory": "lots"}}}, "must be a size|should match pattern"),
        ({"program": {"limits": {"seconds": 0}}}, "greater than 0"),
        ({"variants": {"channels": [{"factor": 2}]}}, "channels must be left out with model.program"),
        (
            {"variants": {"fanouts": [[5, 5]]}, "program": {"readsDegrees": True}},
            r"variants.fanouts \[\[5, 5\]\] must be .* left out with model.program.readsDegrees",
        ),
        ({"variants": {"fanouts": [[5]]}}, r"variants.fanouts \[\[5\]\] must be one number for each of .*, which is 2"),
        (
            {"variants": {"fanouts": [[5, 6]]}, "program": {"fanouts": [5, 5]}},
            r"must be smaller than model.program.fanouts \[5, 5\], and \[5, 6\] is not",
        ),
        ({"variants": {"pruning": {"stabilitySeeds": 2}}}, "stabilitySeeds 2 must be 0 with a model.checkpoint,"),
    ],
)
def test_what_a_program_excludes_is_said_with_its_value(parts: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        spec_with(**parts)


def test_a_program_has_one_variant_of_all_columns_and_those_beside_it_that_look_at_scores_alone() -> None:
    variants = {
        "storage": ["float32", "int8"],
        "fanouts": [[5, 5]],
        "oneRow": [{"hops": 0}],
        "cascades": [{"first": "mlp0", "then": "x1", "passOnPercents": [10]}],
    }
    spec = spec_with(variants=variants)
    names = {"x1", "x1-int8", "x1-f5x5", "x1-int8-f5x5", "mlp0", "mlp0-int8"}
    assert {name for name in spec.possible_variants() if "then" not in name} == names
    assert spec.trains_networks
    assert not spec_with().trains_networks


GIVEN: dict[str, Any] = {"program": {**PROGRAM, "hops": 1}, "expected": {"uri": "data/small.npz"}, "name": "small"}


def test_another_program_is_a_variant_of_its_own_and_part_of_the_recipe() -> None:
    spec = spec_with(variants={"given": [GIVEN, {**GIVEN, "name": None}], "storage": ["float32", "int8"]})
    assert {*spec.possible_variants()} == {"x1", "x1-int8", "small", "small-int8", "given-2", "given-2-int8"}
    assert not spec.trains_networks
    plain = spec_with(variants={"given": [GIVEN]})
    said = {**GIVEN, "program": {**GIVEN["program"], "readsDegrees": False, "otherScores": []}}
    assert plain.recipe() == spec_with(variants={"given": [said]}).recipe() != spec_with().recipe()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({**GIVEN, "columns": [0]}, "columns and hidden must be left out with program"),
        ({**GIVEN, "expected": None}, "expected must be given with program"),
        ({**GIVEN, "checkpoint": {"uri": "a.safetensors"}}, "either checkpoint or program must be given"),
        (
            {"checkpoint": {"uri": "a.safetensors"}},
            r"must be programs \(program in place of checkpoint\) with",
        ),
        ({**GIVEN, "program": {**PROGRAM, "limits": {}}}, "limits"),
    ],
)
def test_what_another_program_excludes_is_said(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        spec_with(variants={"given": [given]})


def test_programs_stand_beside_a_program_alone() -> None:
    layers = {"graph": SPEC["graph"], "variants": {"given": [GIVEN]}}
    with pytest.raises(ValidationError, match="must be checkpoints, and no programs, without model"):
        GNNServiceSpec.model_validate(layers)


def test_what_does_nothing_to_a_program_makes_no_other_revision() -> None:
    recipe = spec_with().recipe()
    assert spec_with(model={"training": {"epochs": 5}}).recipe() == recipe
    assert spec_with(program={"limits": {"memory": "2Gi", "seconds": 10}}).recipe() == recipe
    assert spec_with(program={"limits": {"memory": "1Gi", "seconds": 5}}).recipe() == recipe
    assert spec_with(program={"hops": 3}).recipe() != recipe


def test_scores_of_a_program_are_held_to_what_float32_leaves() -> None:
    def held_to(spec: GNNServiceSpec) -> float:
        assert spec.model.expected is not None
        return spec.model.expected.of_program().tolerance_permille

    assert held_to(spec_with()) == 0.01
    closer = {"expected": {"uri": "data/expected.npz", "tolerancePermille": 0.001}}
    assert held_to(spec_with(model=closer)) == 0.001


TYPED: dict[str, Any] = {"graph": {"source": {"typed": {"npz": {"uri": "data/shop"}}}}}


def test_a_program_over_several_types_has_storages_and_smaller_fanouts_and_follows_changes() -> None:
    updates = {"log": {"sqlite": {}}}
    spec = spec_with(**TYPED, variants={"storage": ["float32", "int8"], "fanouts": [[5, 5]]}, updates=updates)
    assert {*spec.possible_variants()} == {"x1", "x1-int8", "x1-f5x5", "x1-int8-f5x5"}
    assert not spec.trains_networks


def test_one_row_variants_and_cascades_stand_beside_a_program_over_several_types() -> None:
    cascades = [{"first": "mlp0", "then": "x1", "passOnPercents": [50]}]
    spec = spec_with(**TYPED, variants={"oneRow": [{"hops": 0}, {"hops": 2}], "cascades": cascades})
    assert {"x1", "mlp0", "mlp2"} <= {*spec.possible_variants()}
    assert spec.trains_networks


@pytest.mark.parametrize("task", [{}, {"links": {}}])
def test_weights_of_a_decoder_are_refused_where_there_is_no_such_decoder(task: dict[str, Any]) -> None:
    program = {"uri": "described", "decoder": {"uri": "described/decoder.safetensors"}}
    with pytest.raises(ValidationError, match="without them it must be left out"):
        spec_with(model={"program": program}, task=task)


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"variants": {"channels": [{"factor": 2}]}}, "channels must be left out with model.program"),
    ],
)
def test_what_a_program_over_several_types_excludes_is_said(parts: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        spec_with(**TYPED, **parts)
