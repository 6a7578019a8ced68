"""Files that are no program that may be run are refused, each with what is wrong and the next step."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from tests.support.programs.programs import GRAPH_INPUTS, check_program_file, export, manifest_of, save, write_mischief

from gnnserve_api.errors import InputError
from gnnserve_api.files.programs import InputRole, ProgramInput
from gnnserve_api.spec.program import Program
from gnnserve_worker.generation import given_program
from gnnserve_worker.generation.given_program import read_program
from gnnserve_worker.programs import allowed
from gnnserve_worker.programs.allowed import OPERATORS, facts_of

X_ALONE = GRAPH_INPUTS[:1]
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def value(name: str, kind: int, *sizes: int | str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, list(sizes))


def graph(
    *nodes: onnx.NodeProto,
    inputs: tuple[onnx.ValueInfoProto, ...] = (value("x", FLOAT, "nodes", 3),),
    output: onnx.ValueInfoProto | None = None,
    weights: tuple[onnx.TensorProto, ...] = (),
) -> onnx.GraphProto:
    made = nodes or (helper.make_node("Relu", ["x"], ["scores"]),)
    return helper.make_graph(
        list(made), "g", list(inputs), [output or value("scores", FLOAT, "nodes", 3)], list(weights)
    )


def refusal(path: Path, **contract: Any) -> str:
    inputs = contract.pop("inputs", X_ALONE)
    with pytest.raises(InputError) as raised:
        check_program_file(path, manifest_of(inputs, **contract))
    assert raised.value.remedy
    return str(raised.value)


def test_what_may_be_run_is_accepted(tmp_path: Path) -> None:
    check_program_file(save(graph(), tmp_path / "model.onnx"), manifest_of(X_ALONE))
    check_program_file(write_mischief(tmp_path / "loops.onnx"), manifest_of(X_ALONE, columns=2))


def test_operators_are_those_of_onnx() -> None:
    known = {each.name for each in onnx.defs.get_all_schemas() if each.domain == ""}
    assert known >= OPERATORS


@pytest.mark.parametrize(
    ("node", "words"),
    [
        (
            helper.make_node("FusedThing", ["x"], ["scores"], domain="com.example"),
            "FusedThing is of com.example, and cu",
        ),
        (helper.make_node("RandomNormalLike", ["x"], ["scores"]), "RandomNormalLike draws random numbers.*model.eval"),
        (helper.make_node("StringNormalizer", ["x"], ["scores"]), "StringNormalizer is not among those"),
    ],
)
def test_operators_that_may_not_be_are_named(node: onnx.NodeProto, words: str, tmp_path: Path) -> None:
    assert_told(refusal(save(graph(node), tmp_path / "model.onnx", domains=("com.example",))), words)


def test_operators_inside_of_others_are_read_too(tmp_path: Path) -> None:
    inner = helper.make_graph([helper.make_node("Bernoulli", ["x"], ["y"])], "inner", [], [value("y", FLOAT, "n", 3)])
    node = helper.make_node("If", ["is"], ["scores"], then_branch=inner, else_branch=inner)
    weights = (helper.make_tensor("is", TensorProto.BOOL, [], [True]),)
    assert_told(refusal(save(graph(node, weights=weights), tmp_path / "model.onnx")), "Bernoulli draws random numbers")


def test_functions_of_the_file_are_read_and_may_be_called(tmp_path: Path) -> None:
    for operator, is_allowed in (("Relu", True), ("Multinomial", False)):
        own = helper.make_function(
            "own", "Twice", ["a"], ["b"], [helper.make_node(operator, ["a"], ["b"])], [helper.make_opsetid("", 18)]
        )
        model = helper.make_model(
            graph(helper.make_node("Twice", ["x"], ["scores"], domain="own")),
            functions=[own],
            opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid("own", 1)],
        )
        onnx.save(model, tmp_path / "model.onnx")
        if is_allowed:
            check_program_file(tmp_path / "model.onnx", manifest_of(X_ALONE))
        else:
            assert_told(refusal(tmp_path / "model.onnx"), "Multinomial draws")


@pytest.mark.parametrize("opset", [9, 90])
def test_other_opsets_are_refused(opset: int, tmp_path: Path) -> None:
    assert_told(refusal(save(graph(), tmp_path / "model.onnx", opset=opset)), f"is of opset {opset}; 13 to 23 are run")


@pytest.mark.parametrize("content", [b"", b"no program", b"\x80\x04}q\x00."], ids=["empty", "text", "pickle"])
def test_other_files_are_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(content)
    assert "model.onnx" in refusal(tmp_path / "model.onnx")


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    assert_told(refusal(tmp_path / "model.onnx"), "cannot be read: No such file")


def test_sizes_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(
        graph(helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Relu", ["y"], ["scores"])), tmp_path / "m"
    )
    with monkeypatch.context() as patch:
        patch.setattr(allowed, "MOST_FILE_BYTES", 10)
        assert_told(refusal(path), "more than the 10 that a file of ONNX may have")
    monkeypatch.setattr(allowed, "MOST_OPERATORS", 1)
    assert_told(refusal(path), "more than 1 operators; a loop over data")


def external(location: str, *, length: str = "12", dims: tuple[int, ...] = (3,)) -> onnx.TensorProto:
    tensor = TensorProto(name="w", data_type=FLOAT, dims=dims, data_location=TensorProto.EXTERNAL)
    for key, text in (("location", location), ("offset", "0"), ("length", length)):
        tensor.external_data.add(key=key, value=text)
    return tensor


@pytest.mark.parametrize(
    ("location", "length", "words"),
    [
        ("../secret", "12", "at '../secret', outside the program's own folder"),
        ("/etc/passwd", "12", "outside the program's own folder"),
        ("link", "12", "outside the program's own folder"),
        ("", "12", "outside the program's own folder"),
        ("missing", "12", "which is not there; copy that file"),
        ("data", "13", "data has 12 bytes, and weights 'w' end at 13"),
        ("data", "-1", "not a number of bytes"),
        ("d" * 5000, "12", "a name of 5,000 letters, which no file has"),
        ("data\0", "12", "which no file has"),
    ],
)
def test_weights_elsewhere_are_refused(location: str, length: str, words: str, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "secret").write_bytes(bytes(12))
    (folder / "data").write_bytes(bytes(12))
    (folder / "link").symlink_to(tmp_path / "secret")
    node = helper.make_node("Add", ["x", "w"], ["scores"])
    path = save(graph(node, weights=(external("data"),)), folder / "model.onnx")
    check_program_file(path, manifest_of(X_ALONE))
    assert_told(refusal(save(graph(node, weights=(external(location, length=length),)), path)), words)


def test_weights_of_too_many_bytes_are_refused(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(bytes(12))
    node = helper.make_node("Add", ["x", "w"], ["scores"])
    path = save(graph(node, weights=(external("data", dims=(1 << 20, 1 << 20)),)), tmp_path / "model.onnx")
    assert_told(refusal(path), "more than 8,589,934,592 bytes")


class _Sum(torch.nn.Module):
    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]])


EXAMPLE = {"x": np.ones((7, 3), np.float32), "edge_index": np.zeros((2, 11), np.int64)}


def test_an_export_of_fixed_sizes_is_told_with_the_fix(tmp_path: Path) -> None:
    path = export(_Sum(), EXAMPLE, {}, tmp_path / "model.onnx")
    told = refusal(path, inputs=GRAPH_INPUTS)
    assert_told(told, r"inputs\.x: axis 0 has the fixed size 7 of the example, .*dynamic_shapes=…\) with a torch")
    path = export(_Sum(), EXAMPLE, {"x": {0: "nodes"}}, tmp_path / "model.onnx")
    assert_told(refusal(path, inputs=GRAPH_INPUTS), r"inputs\.edge_index: axis 1 has the fixed size 11")


@pytest.mark.parametrize(
    ("made", "contract", "words"),
    [
        (graph(), {"inputs": GRAPH_INPUTS}, "takes x, and the contract describes edge_index, x"),
        (graph(), {"inputs": ()}, "takes x, and the contract describes nothing"),
        (graph(inputs=(value("x", TensorProto.DOUBLE, "n", 3),)), {}, "takes double, and Features are float32"),
        (graph(inputs=(value("x", FLOAT, "n"),)), {}, "takes 1 axes, and Features have 2"),
        (graph(), {"scores": "logits"}, "gives scores, and no 'logits'; name one of these"),
        (graph(), {"columns": 4}, "has 3 columns, and the contract says 4; say 3"),
        (graph(output=value("scores", FLOAT, 7, 3)), {}, "has always 7 rows"),
        (graph(output=value("scores", INT64, "n")), {}, "gives int64 of 1 axes; expected float32"),
    ],
)
def test_another_contract_than_the_programs_is_told(
    made: onnx.GraphProto, contract: dict[str, Any], words: str, tmp_path: Path
) -> None:
    assert_told(refusal(save(made, tmp_path / "model.onnx"), **contract), words)


def test_counts_may_have_fixed_sizes(tmp_path: Path) -> None:
    made = graph(inputs=(value("x", FLOAT, "n", 3), value("hops", INT64, 3), value("seeds", INT64)))
    counts = (ProgramInput("hops", InputRole.NODES_PER_HOP), ProgramInput("seeds", InputRole.SEED_COUNT))
    check_program_file(save(made, tmp_path / "model.onnx"), manifest_of((*X_ALONE, *counts)))


def calling(bodies: dict[str, list[str]], path: Path) -> Path:
    """A program that calls the last of its functions, each of which calls others, or Relu, in turn."""
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    made = []
    for name, called in bodies.items():
        values = ["a", *(f"v{place}" for place in range(len(called) - 1)), "b"]
        nodes = [
            helper.make_node(each, [values[place]], [values[place + 1]], domain="own" if each in bodies else "")
            for place, each in enumerate(called)
        ]
        made.append(helper.make_function("own", name, ["a"], ["b"], nodes, opsets))
    last = helper.make_node(list(bodies)[-1], ["x"], ["scores"], domain="own")
    onnx.save(helper.make_model(graph(last), functions=made, opset_imports=opsets), path)
    return path


def test_functions_count_as_often_as_they_are_called(tmp_path: Path) -> None:
    doubled = {f"f{place}": [f"f{place - 1}"] * 2 if place else ["Relu"] for place in range(40)}
    check_program_file(calling(dict(list(doubled.items())[:9]), tmp_path / "model.onnx"), manifest_of(X_ALONE))
    assert_told(refusal(calling(doubled, tmp_path / "model.onnx")), "more than 100,000 operators")
    itself = calling({"f": ["g"], "g": ["f"]}, tmp_path / "model.onnx")
    assert_told(refusal(itself), "function [fg] of the program calls itself")


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    path = save(graph(), tmp_path / "model.onnx")
    model = onnx.load(path)
    model.ir_version = 99
    onnx.save(model, path)
    assert_told(refusal(path), f"is of version 99 of ONNX's format; up to {onnx.IR_VERSION} are read")


def test_types_that_onnx_does_not_know_are_told_by_number(tmp_path: Path) -> None:
    path = save(graph(inputs=(value("x", 99, "nodes", 3),)), tmp_path / "model.onnx")
    assert_told(refusal(path), "takes type 99, and Features are float32")
    sequence = helper.make_tensor_sequence_value_info("x", FLOAT, None)
    assert_told(refusal(save(graph(inputs=(sequence,)), path)), "takes a sequence_type")


def test_weights_in_attributes_are_read_too(tmp_path: Path) -> None:
    outside = external("/etc/passwd")
    sparse = onnx.SparseTensorProto(values=outside, indices=helper.make_tensor("i", INT64, [3], [0, 1, 2]), dims=[3])
    node = helper.make_node("Constant", [], ["c"])
    node.attribute.add(name="sparse_value", type=onnx.AttributeProto.SPARSE_TENSOR, sparse_tensor=sparse)
    path = save(graph(node, helper.make_node("Add", ["x", "c"], ["scores"])), tmp_path / "model.onnx")
    assert_told(refusal(path), "at '/etc/passwd', outside the program's own folder")
    own = helper.make_function(
        "own", "Twice", ["a"], ["b"], [helper.make_node("Relu", ["a"], ["b"])], [helper.make_opsetid("", 18)],
        attribute_protos=[helper.make_attribute("w", outside)],
    )  # fmt: skip
    model = helper.make_model(
        graph(helper.make_node("Twice", ["x"], ["scores"], domain="own")), functions=[own],
        opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid("own", 1)],
    )  # fmt: skip
    onnx.save(model, path)
    assert_told(refusal(path), "at '/etc/passwd', outside the program's own folder")


def sparse_file(path: Path, size: int) -> Path:
    with path.open("wb") as opened:
        opened.truncate(size)
    return path


def test_files_of_many_gigabytes_are_refused_before_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(given_program, "pinned_digest", lambda *_: pytest.fail("it was read"))
    path = sparse_file(tmp_path / "model.onnx", 40 << 30)
    program = Program.model_validate(
        {
            "uri": path.as_uri(), "hops": 0, "inputs": [{"name": "x", "is": "Features"}],
            "scores": {"name": "scores", "columns": 3},
        }
    )  # fmt: skip
    with pytest.raises(InputError, match="has 42,949,672,960 bytes, more than"):
        read_program(program, program.limits.to_limits())
    sparse_file(tmp_path / "data", 40 << 30)
    node = helper.make_node("Add", ["x", "w"], ["scores"])
    with pytest.raises(InputError, match="data has 42,949,672,960 bytes, more than"):
        facts_of(save(graph(node, weights=(external("data"),)), tmp_path / "other.onnx"))


def assert_told(told: str, words: str) -> None:
    assert re.search(words, told), told
