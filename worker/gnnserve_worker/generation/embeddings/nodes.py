"""The nodes that embeddings are of: all of a graph of one type, or those of one type, by the ids of that type."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gnnserve_api.errors import InputError
from gnnserve_api.files.repository import NodeIdKind
from gnnserve_worker.generation.embeddings.sink import Ids
from gnnserve_worker.graph.ids import NodeIds
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.tasks.published import NodeRange
from gnnserve_worker.tasks.serving import published_task

_INT64 = 2**63


@dataclass(frozen=True, slots=True)
class EmbeddedNodes:
    """Nodes that stand one behind the other in a revision's graph."""

    type: str
    """Empty: of whatever type."""
    first: int
    """Position of the first one, or over several types its number."""
    count: int
    ids: NodeIds | None
    """None: they are called by their places here, from 0."""
    ids_from: int = 0
    """Place of the first one in `ids`."""

    @property
    def id_kind(self) -> NodeIdKind:
        return NodeIdKind.POSITIONS if self.ids is None else self.ids.kind

    def shown(self, start: int, end: int) -> Ids:
        """Ids of the nodes at places start to end - 1."""
        if self.ids is None:
            return range(start, end)
        return self.ids.shown(self.ids_from + start, self.ids_from + end)

    def find(self, ids: tuple[int | str, ...]) -> np.ndarray:
        """Places of the nodes, int64. Raises InputError that names the first id that is none of them."""
        wanted = str if self.id_kind is NodeIdKind.STRINGS else int
        for each in ids:
            if type(each) is not wanted or (isinstance(each, int) and not -_INT64 <= each < _INT64):
                raise self._unknown(each)
        if self.ids is None:
            found = np.array([each if 0 <= int(each) < self.count else -1 for each in ids], np.int64)
        elif self.id_kind is NodeIdKind.STRINGS:
            found = self.ids.find_texts([str(each) for each in ids]) - self.ids_from
        else:
            found = self.ids.find_integers(np.array(ids, np.int64)) - self.ids_from
        if (unknown := np.flatnonzero((found < 0) | (found >= self.count))).size:
            raise self._unknown(ids[int(unknown[0])])
        return found

    def _unknown(self, each: int | str) -> InputError:
        which = f"node {each!r} of type {self.type}" if self.type else f"node {each!r}"
        return InputError("--nodes", f"the graph has no {which}", "name nodes as the graph's source does")


def nodes_to_embed(revision: LoadedRevision, wanted: str | None) -> EmbeddedNodes:
    """`wanted`: their type; None: those that the service answers about. Raises InputError: there is no such type, or
    its nodes have no embeddings."""
    manifest = revision.manifest
    assert manifest is not None  # noqa: S101  (a published one has it)
    ends, of_types = _of_ends(revision, published_task(manifest).ranges()), _of_types(revision)
    if wanted is None:
        return EmbeddedNodes("", 0, revision.answered_nodes, revision.ids.asked) if ends else of_types[0]
    given = [each for each in ends or of_types if each.type]
    for each in given:
        if each.type == wanted:
            return each
    if not given:
        raise InputError("--type", "the nodes of this graph are of one type", "leave it out")
    known = set() if ends else {kind.name for kind in revision.graph.schema.types}
    remedy = f"name one of {', '.join(each.type for each in given)}"
    if wanted in known:
        problem = f"nodes of type {wanted} have no embeddings: no node that is classified reads them"
        raise InputError("--type", problem, remedy)
    raise InputError("--type", f"there are no nodes of type {wanted!r} with embeddings", remedy)


def _of_types(revision: LoadedRevision) -> list[EmbeddedNodes]:
    """The type that is classified, and those that it reads: their last hidden layer was trained. What the network
    computes of others there reaches no score."""
    schema = revision.graph.schema
    read = {relation.source for relation in schema.relations if relation.target == schema.target.name}
    return [
        EmbeddedNodes(kind.name, first, kind.nodes, revision.ids.by_type[kind.name])
        for kind, first in zip(schema.types, schema.first_nodes, strict=False)
        if kind.name in {schema.target.name, *read}
    ]


def _of_ends(revision: LoadedRevision, ranges: Sequence[NodeRange]) -> list[EmbeddedNodes]:
    """Nodes at either end of links that join types, whose ids are texts with their type."""
    return [EmbeddedNodes(one.type, one.start, one.end - one.start, revision.ids.asked, one.start) for one in ranges]
