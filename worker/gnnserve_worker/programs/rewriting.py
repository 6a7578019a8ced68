"""Reductions of edges' values by target, written so that ONNX Runtime runs them by rows.

Torch exports them as ScatterElements, whose index it expands to all columns: ONNX Runtime then looks up a target for
each number, which is nine tenths of the time of a program. ScatterND takes one index for a whole row, and adds in the
same order where a run has one thread. Where each edge has one number, the two are as fast, and nothing is rewritten.

Sizes are those that the file states. Where they are not true, ONNX Runtime refuses the run: an index for each row fits
no other sizes of values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

_REDUCTIONS = frozenset({b"add", b"max", b"min"})
_STANDARD_DOMAINS = ("", "ai.onnx")


def rewritten(file: Path, most_bytes: int) -> bytes | None:
    """The program by rows, with its larger weights still in the files beside it. None: there is nothing to rewrite, or
    the file is larger than `most_bytes`, since it is in memory several times meanwhile."""
    if file.stat().st_size > most_bytes:
        return None
    content = file.read_bytes()
    # Without the import of onnx, which takes longer than starting all else.
    if b"ScatterElements" not in content:
        return None
    import onnx  # noqa: PLC0415 - of an extra

    model = onnx.load_model_from_string(content)
    return model.SerializeToString() if reduce_by_rows(model) else None


def reduce_by_rows(model: Any) -> int:
    """How many reductions of a ModelProto now go by rows; those in branches, loops and functions stay."""
    graph = model.graph
    tensors = _tensors_of(graph)
    expands = {node.output[0]: node for node in graph.node if _is(node, "Expand")}
    names = _new_names(graph)
    made: list[Any] = []
    replaced: set[str] = set()
    rows_of: dict[str, str] = {}
    changed = 0
    for node in graph.node:
        source = _index_of_rows(node, expands, tensors)
        if source is None:
            made.append(node)
            continue
        if source not in rows_of:
            nodes, rows_of[source] = _as_column(source, names)
            made += nodes
        made.append(_by_rows(node, rows_of[source]))
        replaced.add(node.input[1])
        changed += 1
    if changed:
        used = Counter(_names_read(made, graph.output))
        kept = [node for node in made if not any(name in replaced and not used[name] for name in node.output)]
        del graph.node[:]
        graph.node.extend(kept)
    return changed


@dataclass(frozen=True, slots=True)
class _Tensor:
    """Kind and sizes that the file states of a value."""

    kind: int
    sizes: tuple[int | str, ...]
    """By axis; a name where it differs from call to call, empty where nothing is stated."""


def _tensors_of(graph: Any) -> Mapping[str, _Tensor]:
    found = {}
    for value in (*graph.value_info, *graph.output, *graph.input):
        stated = value.type.tensor_type
        if stated.HasField("shape"):
            sizes = tuple(each.dim_value if each.HasField("dim_value") else each.dim_param for each in stated.shape.dim)
            found[value.name] = _Tensor(stated.elem_type, sizes)
    return found


def _index_of_rows(node: Any, expands: Mapping[str, Any], tensors: Mapping[str, _Tensor]) -> str | None:
    """Name of the index [edges, 1, …] of which a reduction's is an expansion to all columns. None: it is another
    operator, or that is not certain."""
    import onnx  # noqa: PLC0415 - of an extra

    if not _is(node, "ScatterElements") or len(node.input) != 3 or node.input[1] not in expands:
        return None
    given = {each.name: each for each in node.attribute}
    source = expands[node.input[1]].input[0]
    known = [tensors.get(name) for name in (node.input[0], node.input[1], source)]
    if "reduction" not in given or given["reduction"].s not in _REDUCTIONS or None in known:
        return None
    data, index, rows = (each for each in known if each is not None)
    rank = len(data.sizes)
    is_along_rows = "axis" not in given or given["axis"].i in (0, -rank)
    has_kinds = data.kind == onnx.TensorProto.FLOAT and rows.kind == onnx.TensorProto.INT64
    is_column = len(rows.sizes) == rank and rank > 1 and set(rows.sizes[1:]) == {1}
    # A row that is expanded to many has one index for all edges.
    is_whole = index.sizes == (*rows.sizes[:1], *data.sizes[1:]) and rows.sizes[0] != ""
    is_fixed = all(isinstance(size, int) for size in data.sizes[1:])
    return source if is_along_rows and has_kinds and is_column and is_whole and is_fixed else None


def _as_column(source: str, names: Iterator[str]) -> tuple[list[Any], str]:
    """Nodes that give the index as [edges, 1], and its name."""
    from onnx import TensorProto, helper  # noqa: PLC0415 - of an extra

    sizes, rows = next(names), next(names)
    value = helper.make_tensor(sizes, TensorProto.INT64, [2], [-1, 1])
    constant = helper.make_node("Constant", [], [sizes], value=value)
    return [constant, helper.make_node("Reshape", [source, sizes], [rows])], rows


def _by_rows(node: Any, rows: str) -> Any:
    from onnx import helper  # noqa: PLC0415 - of an extra

    data, _, values = node.input
    reduction = next(each.s for each in node.attribute if each.name == "reduction")
    return helper.make_node("ScatterND", [data, rows, values], list(node.output), node.name, reduction=reduction)


def _new_names(graph: Any) -> Iterator[str]:
    taken = {each.name for each in (*graph.input, *graph.initializer, *graph.value_info)}
    taken |= {name for node in _nodes_of(graph.node) for name in (*node.input, *node.output)}
    return (name for name in (f"gnnserve_rows_{number}" for number in count()) if name not in taken)


def _names_read(nodes: list[Any], outputs: Any) -> Iterator[str]:
    yield from (each.name for each in outputs)
    for node in _nodes_of(nodes):
        yield from node.input
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from (each.name for each in inner.output)


def _nodes_of(nodes: Any) -> Iterator[Any]:
    """The nodes, and those of graphs in them."""
    left = list(nodes)
    while left:
        node = left.pop()
        yield node
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                left += inner.node


def _is(node: Any, operator: str) -> bool:
    return bool(node.op_type == operator and node.domain in _STANDARD_DOMAINS)
