"""Items scored by the rows that a module gives: nodes of one type, or links of a relation by rows of their ends.

Each kind says which types have rows, what of the graph and of the command belongs to it, and what its manifest and its
expected scores say beside those of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch

from gnnserve_api.errors import InputError
from gnnserve_api.files.programs import RelationKey
from gnnserve_describe.decoder import decoder_of
from gnnserve_describe.expected import ExpectedNodeScores, score_pairs
from gnnserve_describe.findings import Findings
from gnnserve_describe.given_graph import GivenGraph, listed
from gnnserve_describe.graph import Blocks


@dataclass(frozen=True, slots=True, eq=False)
class DescribedTask:
    """Parts of a task that are written beside its program."""

    task: Mapping[str, Any] = field(default_factory=dict)
    """`spec.task`; empty: nodes are classified."""
    weights: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Weights of a decoder."""
    pairs: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Expected scores of pairs, and by `pairs` their ends, int64 [pairs, 2]: positions of first and of second nodes."""


class DescribedItems(Protocol):
    @property
    def target(self) -> str:
        """The type whose rows are the scores of the program."""

    @property
    def types(self) -> tuple[str, ...]:
        """Types whose nodes have scores or rows, the target first."""

    @property
    def gives_rows(self) -> bool:
        """Whether the output of the module are rows of nodes, whose pairs are scored."""

    @property
    def has_classes(self) -> bool:
        """Whether labels of the graph are classes of what is scored."""

    def labels_in(self, found: GivenGraph) -> torch.Tensor | None:
        """Labels of the nodes that are scored, where the graph has them."""

    def masks_in(self, found: GivenGraph) -> Blocks:
        """Which nodes are for training, validation and test, by the names of the masks, where the graph has them."""

    def type_told(self, kind: str) -> str:
        """The type as outputs and expected scores name it; empty: they name none."""

    def renamed(self, kind: str, relation: RelationKey) -> DescribedItems:
        """The same where the only type and the only relation have these names."""

    def check(self, target: str | None, ids: Any) -> None:
        """InputError: the command names a target or ids, which have no sense here."""

    def judge(
        self, decoder: torch.nn.Module | None, columns: int, expected: Sequence[ExpectedNodeScores], seed: int,
        classes: int | None, findings: Findings,
    ) -> DescribedTask: ...  # fmt: skip


Choose = Callable[[GivenGraph], DescribedItems]
"""Chooses what is scored of a graph. InputError: it does not have that."""


@dataclass(frozen=True, slots=True)
class DescribedNodes:
    target: str
    gives_rows = False
    has_classes = True

    @property
    def types(self) -> tuple[str, ...]:
        return (self.target,)

    def labels_in(self, found: GivenGraph) -> torch.Tensor | None:
        return found.labels.get(self.target)

    def masks_in(self, found: GivenGraph) -> Blocks:
        return found.masks.get(self.target, {})

    def type_told(self, _kind: str) -> str:
        return ""

    def renamed(self, kind: str, _relation: RelationKey) -> DescribedItems:
        return DescribedNodes(kind)

    def check(self, target: str | None, ids: Any) -> None:
        """Both are of nodes."""

    def judge(
        self, _decoder: torch.nn.Module | None, columns: int, _expected: Sequence[ExpectedNodeScores], _seed: int,
        classes: int | None, findings: Findings,
    ) -> DescribedTask:  # fmt: skip
        if columns == 1:
            findings.tell(
                "scores have one column, which is served for no task so far: where it is the logit of two classes, "
                "give labels 0 and 1 (y), and it becomes two columns; where it is a number (a regression), describe "
                "the part that gives rows of nodes"
            )
        if classes is not None and columns > 1 and classes != columns:
            findings.tell(
                f"nodes have labels of {classes} classes, and scores {columns} columns: classes of nodes are served "
                "where these are as many, so give spec.graph.source at least one labelled node of each class"
            )
        return DescribedTask()


@dataclass(frozen=True, slots=True)
class DescribedLinks:
    relation: RelationKey
    gives_rows = True
    has_classes = False

    @property
    def target(self) -> str:
        return self.relation.source

    @property
    def types(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((self.relation.source, self.relation.target)))

    def labels_in(self, _found: GivenGraph) -> None:
        return None

    def masks_in(self, _found: GivenGraph) -> Blocks:
        return {}

    def type_told(self, kind: str) -> str:
        return kind

    def renamed(self, _kind: str, relation: RelationKey) -> DescribedItems:
        return DescribedLinks(relation)

    def check(self, target: str | None, ids: Any) -> None:
        if target is not None and self.relation.name:
            remedy = "leave it out; --relation names both"
            raise InputError("--target", "links are scored, whose ends have types", remedy)
        if ids is not None and self.relation.name:
            raise InputError(
                "--ids", "links join types, and expected rows are of nodes by their type and position",
                "leave it out, and give the source without ids",
            )  # fmt: skip

    def judge(
        self, decoder: torch.nn.Module | None, columns: int, expected: Sequence[ExpectedNodeScores], seed: int,
        _classes: int | None, _findings: Findings,
    ) -> DescribedTask:  # fmt: skip
        found = decoder_of(decoder, columns, (self.relation.source, self.relation.target))
        pairs = score_pairs(found, expected[0], expected[-1], seed)
        named = {"relation": words_of(self.relation)} if self.relation.name else {}
        task = {"links": {**named, "decoder": found.kind, "dimensions": columns}}
        return DescribedTask(task, found.weights, {"pairs": pairs.ends, "pair_scores": pairs.scores})


def nodes_of(target: str | None) -> Choose:
    """Nodes of that type; None: of the one that has labels, or of the only one."""

    def choose(found: GivenGraph) -> DescribedItems:
        types = list(found.nodes)
        if target is not None:
            if target not in types:
                raise InputError("--target", f"the graph has no type {target!r}", f"name one of {listed(types)}")
            return DescribedNodes(target)
        if len(types) == 1:
            return DescribedNodes(types[0])
        if len(found.labels) == 1:
            return DescribedNodes(next(iter(found.labels)))
        raise InputError(
            "--target", f"types {listed(found.labels) if found.labels else listed(types)} may be scored",
            "name the one that the model scores",
        )  # fmt: skip

    return choose


def links_of(named: str) -> Callable[[str | None], Choose]:
    """Links of the relation of that name, or of that source type, name and target type with blanks between; empty: of
    the only one. Whatever the type that is to be scored, which `DescribedItems.check` refuses."""

    def choose(found: GivenGraph) -> DescribedItems:
        keys = list(found.edges)
        fitting = [key for key in keys if not named or named in (key.name, words_of(key))]
        if len(fitting) == 1:
            return DescribedLinks(fitting[0])
        told = f"{named!r} is the name of {len(fitting) or 'none'}" if named else "links of one relation are scored"
        there = "; ".join(map(words_of, keys)) if keys[0].name else "one relation, which has no name"
        remedy = "name one, with its types where several fit"
        raise InputError("--relation", f"{told}, and the graph has {there}", remedy)

    return lambda _target: choose


def words_of(key: RelationKey) -> str:
    """Source type, name and target type; empty: all nodes are of one type."""
    return f"{key.source} {key.name} {key.target}" if key.name else ""
