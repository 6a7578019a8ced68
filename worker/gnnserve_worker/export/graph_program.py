"""A variant as a program of a graph: features by type go in as the source has them, edges by relation with what they
have, and the nodes that are asked about come first. These are the inputs of programs that people bring.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch import nn

from gnnserve_api.files.export import ExportCheck, ExportedArray, ExportFormat
from gnnserve_api.files.graph_schema import GraphSchema
from gnnserve_api.files.programs import InputRole, ProgramInput, ProgramManifest, ProgramOutput, RelationKey
from gnnserve_worker.export.check import compare, require_within
from gnnserve_worker.export.made_up import FEW, FEWER, MadeUpGraph
from gnnserve_worker.export.programs import Program
from gnnserve_worker.programs.layered import SCORES


@dataclass(frozen=True, slots=True)
class GraphInputs:
    """Names of inputs."""

    features: Mapping[int, str]
    """By the place of the type."""
    edges: Mapping[int, str]
    """By the place of the relation."""
    edge_features: Mapping[int, str]
    """By the place of the relation, of those whose edges have columns that are read."""

    @staticmethod
    def of(schema: GraphSchema, types: Sequence[int], relations: Sequence[int], having: Sequence[int]) -> GraphInputs:
        """`types`, `relations`: places of those that are read. `having`: of relations whose columns are."""
        keys = {place: schema.relations[place].key for place in relations}
        features = named("x", [schema.types[kind].name for kind in types])
        edges, columns = named("edges", keys.values()), named("edge_features", [keys[place] for place in having])
        return GraphInputs(
            dict(zip(types, features, strict=True)), dict(zip(relations, edges, strict=True)),
            dict(zip(having, columns, strict=True)),
        )  # fmt: skip

    def of_program(self, schema: GraphSchema) -> Iterator[ProgramInput]:
        """The inputs, in their order."""
        for kind, name in self.features.items():
            yield ProgramInput(name, InputRole.FEATURES, type=schema.types[kind].name)
        for role, named_ in ((InputRole.EDGES, self.edges), (InputRole.EDGE_FEATURES, self.edge_features)):
            for place, name in named_.items():
                one = schema.relations[place]
                yield ProgramInput(name, role, relation=RelationKey(one.source, one.name, one.target))

    def exported(self, schema: GraphSchema) -> tuple[ExportedArray, ...]:
        """What they are, in the same order."""
        types, relations, names = schema.types, schema.relations, schema.names
        features = [
            ExportedArray(
                name, "float32", (name, types[kind].features or 0),
                f"Features of {names.nodes_of(types[kind].name)}, as the source has them; the nodes that are asked "
                "about come first.",
            )
            for kind, name in self.features.items()
        ]  # fmt: skip
        edges = [
            ExportedArray(
                name, "int64", (2, name),
                f"{_begun(names.edges_of(relations[place].key))}: in the first row the place of the node that is read "
                f"in `{self.features[schema.place_of(relations[place].source)]}`, in the second that of the node that "
                f"reads it in `{self.features[schema.place_of(relations[place].target)]}`.",
            )
            for place, name in self.edges.items()
        ]  # fmt: skip
        having = [
            ExportedArray(
                name, "float32", (self.edges[place], len(payload.columns)),
                f"Columns of the edges of `{self.edges[place]}`, in their order: {', '.join(payload.columns)}.",
            )
            for place, name in self.edge_features.items()
            if (payload := relations[place].payload)
        ]  # fmt: skip
        return (*features, *edges, *having)


def _begun(words: str) -> str:
    """The words as a sentence begins."""
    return words[:1].upper() + words[1:]


def named(prefix: str, called: Iterable[str]) -> list[str]:
    """Names of inputs or outputs, each once, of letters and digits that programs may have in names."""
    found: list[str] = []
    for one in called:
        name = f"{prefix}_{re.sub(r'[^a-z0-9]+', '_', one.lower())}".strip("_")
        found.append(name if name not in found else f"{name}_{len(found)}")
    return found


def outputs_of(columns: int, scored_types: Sequence[str]) -> list[ProgramOutput]:
    """Outputs with scores of nodes of each type; of no types, of those that are classified."""
    names = (SCORES, *named("scores", scored_types[1:]))
    return [ProgramOutput(name, columns, type_) for name, type_ in zip(names, scored_types or [""], strict=True)]


@dataclass(frozen=True, slots=True)
class GraphExport:
    """A `VariantExport` (`write.py`)."""

    name: str
    """Name of the variant."""
    schema: GraphSchema
    given: GraphInputs
    contract: ProgramManifest
    scored: Mapping[int, str]
    """Names of outputs by the place of their type."""
    make: Callable[[], nn.Module]
    """Makes the program."""
    made_up: MadeUpGraph
    sums_by_segments: bool = True
    """As of `VariantExport`."""

    @property
    def inputs(self) -> tuple[ExportedArray, ...]:
        return self.given.exported(self.schema)

    def outputs(self, scores: str) -> tuple[ExportedArray, ...]:
        """`scores`: a sentence about the scores."""
        rows, contract = self.given.features, self.contract
        columns = {each.name: each.columns for each in contract.outputs}
        found = [
            ExportedArray(name, "float32", (rows[kind], columns[name]), scores) for kind, name in self.scored.items()
        ]
        if contract.embeddings is not None:
            shape, (first, *_) = contract.embeddings.columns, self.scored
            found.append(
                ExportedArray(contract.embeddings.name, "float32", (rows[first], shape), "The last hidden layer.")
            )
        return tuple(found)

    def module(self) -> nn.Module:
        return self.make()

    def checks(self, chosen: ExportFormat, program: Program) -> list[ExportCheck]:
        """Raises RuntimeError where scores differ by more than the tolerance."""
        checks = [compare(chosen, [self.made_up.ask_few(count)], program) for count in (FEW, FEWER)]
        checks.append(compare(chosen, self.made_up.large_batches(), program))
        require_within(checks, self.name)
        return checks

    def example(self) -> dict[str, np.ndarray]:
        question = self.made_up.ask_few(FEW)
        return {**question.inputs, **question.outputs}

    def rows(self) -> None:
        """Inputs are features."""

    def row_recipe(self) -> dict[str, np.ndarray]:
        return {}
