"""Inputs of a program, and the graph that they are made of: several tensors of nodes, or of edges, stand beside each
other in one matrix, as a server has them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

import msgspec
import torch

from gnnserve_api.errors import InputError
from gnnserve_api.files.programs import InputRole, ProgramInput, RelationKey
from gnnserve_describe.given_graph import TIME_NAMES
from gnnserve_describe.graph import Blocks, GraphTensors


@dataclass(frozen=True, slots=True)
class ColumnBlock:
    """Columns of a matrix that are one tensor of the module's."""

    name: str
    columns: int
    is_flat: bool
    """Whether the module is given [rows], and not [rows, columns]."""
    dtype: torch.dtype

    def of(self, matrix: torch.Tensor, first: int) -> torch.Tensor:
        found = matrix[:, first : first + self.columns]
        found = found[:, 0] if self.is_flat else found
        # Floating point stays as the matrix has it, which is float64 while hops are measured.
        return found if self.dtype.is_floating_point else found.to(self.dtype)


@dataclass(frozen=True, slots=True)
class Matrix:
    """An input with the tensors that are made of it."""

    input: ProgramInput
    blocks: tuple[ColumnBlock, ...]

    @property
    def columns(self) -> int:
        return sum(block.columns for block in self.blocks)


@dataclass(frozen=True, slots=True)
class InputLayout:
    matrices: tuple[Matrix, ...]

    @property
    def inputs(self) -> tuple[ProgramInput, ...]:
        return tuple(each.input for each in self.matrices)

    def tensors_of(self, graph: GraphTensors) -> tuple[torch.Tensor, ...]:
        """Inputs of the program, for a graph of the user's."""
        return tuple(_tensor(each, graph) for each in self.matrices)

    def graph_of(self, tensors: Sequence[torch.Tensor]) -> GraphTensors:
        """The graph as the module is given it."""
        features: dict[str, Blocks] = {}
        edges: dict[RelationKey, torch.Tensor] = {}
        payload: dict[RelationKey, dict[str, torch.Tensor]] = {}
        for each, tensor in zip(self.matrices, tensors, strict=True):
            match each.input.role:
                case InputRole.FEATURES:
                    features[each.input.type] = _split(each, tensor)
                case InputRole.EDGES:
                    edges[each.input.relation] = tensor
                case InputRole.EDGE_TIMES:
                    payload.setdefault(each.input.relation, {})[each.blocks[0].name] = tensor.to(each.blocks[0].dtype)
                case _:
                    payload.setdefault(each.input.relation, {}).update(_split(each, tensor))
        return GraphTensors(features, edges, {key: payload.get(key, {}) for key in edges})


def layout_of(graph: GraphTensors) -> InputLayout:
    """Inputs have names of their own, also where types differ in a hyphen alone."""
    taken: set[str] = set()
    found = []
    for each in _matrices(graph):
        name = next(name for name in _numbered(each.input.name) if name not in taken)
        taken.add(name)
        found.append(replace(each, input=msgspec.structs.replace(each.input, name=name)))
    return InputLayout(tuple(found))


def _numbered(name: str) -> Iterator[str]:
    yield name
    yield from (f"{name}_{number}" for number in count(2))


def _matrices(graph: GraphTensors) -> Iterator[Matrix]:
    for kind, blocks in graph.features.items():
        described = ProgramInput(name_of_type("x", kind), InputRole.FEATURES, type=kind)
        yield Matrix(described, tuple(_block(name, block) for name, block in blocks.items()))
    for key in graph.edges:
        yield Matrix(ProgramInput(_of_relation("edge_index", key), InputRole.EDGES, relation=key), ())
        times = {name: block for name, block in graph.payload[key].items() if _is_time(name, block)}
        columns = {name: block for name, block in graph.payload[key].items() if name not in times}
        if len(times) > 1:
            raise InputError(
                "--graph", f"edges have several times: {', '.join(times)}", "leave all but one out, by --inputs"
            )
        if columns:
            described = ProgramInput(_of_relation("edge_attr", key), InputRole.EDGE_FEATURES, relation=key)
            yield Matrix(described, tuple(_block(name, block) for name, block in columns.items()))
        for name, block in times.items():
            described = ProgramInput(_of_relation("edge_time", key), InputRole.EDGE_TIMES, relation=key)
            yield Matrix(described, (_block(name, block),))


def _is_time(name: str, block: torch.Tensor) -> bool:
    return name in TIME_NAMES and block.dim() == 1 and not block.is_floating_point()


def _block(name: str, block: torch.Tensor) -> ColumnBlock:
    return ColumnBlock(name, 1 if block.dim() == 1 else block.shape[1], block.dim() == 1, block.dtype)


def name_of_type(role: str, kind: str) -> str:
    return f"{role}_{_word(kind)}" if kind else role


def _of_relation(role: str, key: RelationKey) -> str:
    return "_".join([role, *(_word(part) for part in (key.source, key.name, key.target) if part)])


def _word(text: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in text)


def _tensor(each: Matrix, graph: GraphTensors) -> torch.Tensor:
    match each.input.role:
        case InputRole.FEATURES:
            return _joined(each, graph.features[each.input.type])
        case InputRole.EDGES:
            return graph.edges[each.input.relation]
        case InputRole.EDGE_TIMES:
            return graph.payload[each.input.relation][each.blocks[0].name].long()
        case _:
            return _joined(each, graph.payload[each.input.relation])


def _joined(each: Matrix, blocks: Blocks) -> torch.Tensor:
    found = [blocks[block.name] for block in each.blocks]
    matrices = [
        tensor.unsqueeze(1) if block.is_flat else tensor for tensor, block in zip(found, each.blocks, strict=True)
    ]
    return torch.cat(matrices, dim=1).float().contiguous()


def _split(each: Matrix, tensor: torch.Tensor) -> Mapping[str, torch.Tensor]:
    made, first = {}, 0
    for block in each.blocks:
        made[block.name] = block.of(tensor, first)
        first += block.columns
    return made
