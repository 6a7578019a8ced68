"""Assembly of a checked graph from the types and relations of a source: the same for every layout that they may have.

A source hands over its types and the ends of its edges; which type is classified, which relations get a reverse and
what does not fit together is decided here, in words that name the place and what there is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import starmap

import numpy as np

from gnnserve_api.errors import InputError
from gnnserve_api.files.edges import Direction, Duplicates, EdgeRules
from gnnserve_api.files.graph_schema import AS_LISTED
from gnnserve_api.spec.heterogeneous import HeterogeneousSource, ReverseRelations
from gnnserve_worker.graph.edges import EdgeList
from gnnserve_worker.graph.payload import EdgePayload
from gnnserve_worker.graph.relation_lists import without_unused_payload
from gnnserve_worker.graph.sources.checks import check_node_count, unread_edge_data
from gnnserve_worker.graph.sources.table_nodes import LabelledNodes
from gnnserve_worker.graph.store import EdgeSplits, Finding, Graph, GraphData, NodeType, Relation, Splits

FIELD = "spec.graph.source.typed"
_REVERSE = "rev_"
"""Before the name of a relation that goes the other way, as torch_geometric's ToUndirected has it."""


@dataclass(frozen=True, slots=True)
class GivenType:
    kind: NodeType
    labelled: LabelledNodes | None
    """None: no node of it has a class."""
    place: str
    """Where the source has it, for messages."""


@dataclass(frozen=True, slots=True)
class GivenRelation:
    source: str
    name: str
    target: str
    sources: np.ndarray
    """Positions of the nodes that are read, integers; any value is possible."""
    targets: np.ndarray
    """Positions of the nodes that read, as many."""
    place: str
    ends: tuple[str, str]
    """Where the source has the two arrays, for messages."""
    rules: EdgeRules = AS_LISTED
    """How its edges become entries of lists. Between two types the target reads the source."""
    parts: np.ndarray | None = None
    """Part of each edge where links are scored: 0 train, 1 validation, 2 test; None: the source does not say."""
    unread: tuple[str, ...] = ()
    """Names of what the source has of each edge beside its ends."""
    payload: EdgePayload | None = None
    """A row for each edge; None: nothing of its edges is read but their ends."""

    @property
    def key(self) -> str:
        return f"{self.source} {self.name} {self.target}"


class NoLabelsError(InputError):
    """No node has a class: nothing can be classified, and links may be scored all the same."""


def assemble(
    source: HeterogeneousSource,
    digest: str,
    types: Sequence[GivenType],
    relations: Sequence[GivenRelation],
    findings: Sequence[Finding] = (),
    *,
    needs_labels: bool = True,
) -> GraphData:
    """Raises InputError for parts that do not fit together. `needs_labels`: and where no type has labels; without them
    the first type comes first."""
    by_name = {given.kind.name: given for given in types}
    check_node_count(FIELD, sum(given.kind.nodes for given in types))
    _check_types(by_name)
    _check_relations(by_name, relations)
    found = list(findings)
    target, labelled = _target(source, by_name, found) if needs_labels else _unlabelled(source, types)
    ordered = (by_name[target], *(given for given in types if given.kind.name != target))
    kinds = tuple(_without_features(source, by_name, given, found).kind for given in ordered)
    built = _with_reverses(source, by_name, relations, found)
    order = [kind.name for kind in kinds]
    alone = [name for name in order if all(name not in {one.source, one.target} for one in built)]
    found += [Finding("types of nodes without a relation", len(alone), ", ".join(alone))] if alone else []
    return GraphData(
        source=source.described(),
        digest=digest,
        types=kinds,
        relations=without_unused_payload(sorted(built, key=lambda relation: order.index(relation.target))),
        labels=labelled.labels,
        classes=labelled.classes,
        splits=labelled.splits,
        findings=tuple(found),
    )


def _check_types(types: Mapping[str, GivenType]) -> None:
    if not types:
        raise InputError(FIELD, "has no type of nodes", "write at least one")
    for name, given in types.items():
        if not given.kind.nodes:
            raise InputError(given.place, f"type {name!r} has no nodes", "write its nodes, or leave the type out")


def _check_relations(types: Mapping[str, GivenType], relations: Sequence[GivenRelation]) -> None:
    if not relations:
        raise InputError(FIELD, "has no relation", "write at least one: without edges a type is a table of features")
    seen: dict[str, str] = {}
    for relation in relations:
        if relation.key in seen:
            problem = f"is relation {relation.key!r} again, which {seen[relation.key]} is already"
            raise InputError(relation.place, problem, "give one of them another name")
        seen[relation.key] = relation.place
        for role, name in (("source", relation.source), ("target", relation.target)):
            if name not in types:
                raise InputError(
                    relation.place, f"names the {role} type {name!r}, which no table of nodes has; types are "
                    f"{', '.join(types)}", "correct the name, or add the nodes of that type",
                )  # fmt: skip
        if len(relation.sources) != len(relation.targets):
            raise InputError(
                relation.ends[1], f"has {len(relation.targets):,} entries, and {relation.ends[0]} has "
                f"{len(relation.sources):,}", "write one of each for every edge",
            )  # fmt: skip
        if relation.payload is not None and len(relation.payload.features) != len(relation.sources):
            raise InputError(
                relation.place, f"has features or times of {len(relation.payload.features):,} edges, and "
                f"{len(relation.sources):,} edges", "write one row for every edge",
            )  # fmt: skip
        if not len(relation.sources):
            problem = f"relation {relation.key!r} has no edges"
            raise InputError(relation.place, problem, "write its edges, or leave the relation out")
        ends = ((relation.source, relation.sources), (relation.target, relation.targets))
        for (name, positions), where in zip(ends, relation.ends, strict=True):
            _check_ends(where, positions, types[name].kind)


def _check_ends(where: str, positions: np.ndarray, kind: NodeType) -> None:
    outside = np.flatnonzero((positions < 0) | (positions >= kind.nodes))
    if len(outside):
        first = int(outside[0])
        raise InputError(
            f"{where}[{first}]", f"is {positions[first]}, expected 0 to {kind.nodes - 1}, the nodes of type "
            f"{kind.name!r} ({len(outside):,} such values)", "remove the edge, or add the node",
        )  # fmt: skip


def _target(
    source: HeterogeneousSource, types: Mapping[str, GivenType], findings: list[Finding]
) -> tuple[str, LabelledNodes]:
    """The type that is classified, and its labels."""
    with_labels = {name: given.labelled for name, given in types.items() if given.labelled is not None}
    field, there = f"{FIELD}.target", ", ".join(with_labels) or "none"
    if not with_labels:
        raise NoLabelsError(
            FIELD, f"no type has labels; types are {', '.join(types)}",
            "write the classes of the nodes of one type, -1 where one is unknown, or score links (spec.task.links)",
        )  # fmt: skip
    name = source.target
    if name is None:
        if len(with_labels) > 1:
            raise InputError(field, f"is absent, and several types have labels: {there}", "name one of them")
        (name,) = with_labels
    if name not in types:
        raise InputError(field, f"is {name!r}, which is no type; types are {', '.join(types)}", "name one of these")
    if (labelled := with_labels.get(name)) is None:
        raise InputError(field, f"is {name!r}, whose nodes have no labels; labels have {there}", "name one of these")
    others = [other for other in with_labels if other != name]
    findings += [Finding("types whose labels are not used", len(others), ", ".join(others))] if others else []
    return name, labelled


def _unlabelled(source: HeterogeneousSource, types: Sequence[GivenType]) -> tuple[str, LabelledNodes]:
    """The type that comes first where none is classified."""
    if source.target is not None:
        raise InputError(f"{FIELD}.target", f"is {source.target!r}, and nothing is classified", "leave it out")
    first = types[0].kind
    nodes = np.arange(first.nodes, dtype=np.int64)
    return first.name, LabelledNodes(np.full(first.nodes, -1, np.int64), (), Splits(nodes, nodes[:0], nodes[:0]))


def _without_features(
    source: HeterogeneousSource, types: Mapping[str, GivenType], given: GivenType, findings: list[Finding]
) -> GivenType:
    for place, name in enumerate(source.without_features):
        if name not in types:
            raise InputError(
                f"{FIELD}.withoutFeatures[{place}]", f"is {name!r}, which is no type; types are {', '.join(types)}",
                "name one of these, or leave it out",
            )  # fmt: skip
    kind = given.kind
    if kind.name not in source.without_features or kind.features is None:
        return given
    findings.append(Finding(f"feature columns of type {kind.name} not read", kind.features.shape[1]))
    return replace(given, kind=replace(kind, features=None, feature_columns=()))


def _with_reverses(
    source: HeterogeneousSource,
    types: Mapping[str, GivenType],
    relations: Sequence[GivenRelation],
    findings: list[Finding],
) -> list[Relation]:
    adds = source.reverse is ReverseRelations.ADD
    built = []
    keys = {relation.key for relation in relations}
    for relation in relations:
        findings += unread_edge_data(relation.unread, relation.key)
        sizes = types[relation.source].kind.nodes, types[relation.target].kind.nodes
        rules = relation.rules
        if relation.source == relation.target and adds:
            # A link that is listed both ways would count twice, were its reverse added and repeats kept.
            rules = EdgeRules(Direction.UNDIRECTED, Duplicates.MERGE, rules.self_loops)
        lists, told = _lists(relation.sources, relation.targets, sizes, rules, relation.payload)
        findings += starmap(Finding, ((f"{what} ({relation.key})", count) for what, count in told))
        given = None if relation.parts is None else EdgeSplits(relation.sources, relation.targets, relation.parts)
        built.append(
            Relation(relation.source, relation.name, relation.target, lists, None, rules, given, relation.payload)
        )
        if not adds or relation.source == relation.target:
            continue
        reverse = f"{_REVERSE}{relation.name}"
        if (key := f"{relation.target} {reverse} {relation.source}") in keys:
            raise InputError(
                f"{FIELD}.reverse", f"is Add, and the reverse {key!r} of {relation.place} is a relation of the source",
                "set it to Disabled, or leave that relation out of the source",
            )  # fmt: skip
        lists, _ = _lists(relation.targets, relation.sources, sizes[::-1], rules, relation.payload)
        back = Relation(relation.target, reverse, relation.source, lists, relation.name, rules)
        built.append(replace(back, payload=relation.payload))
    return built


def _lists(
    sources: np.ndarray, targets: np.ndarray, sizes: tuple[int, int], rules: EdgeRules, payload: EdgePayload | None
) -> tuple[Graph, list[tuple[str, int]]]:
    """Lists of the targets, ascending. `sizes`: nodes of the source's type and of the target's."""
    has_payload = payload is not None
    edges = EdgeList(max(sizes), rules.direction, rules.duplicates, rules.self_loops, has_payload=has_payload)
    edges.add(sources, targets)
    graph, counts = edges.to_graph(payload)
    indptr = np.ascontiguousarray(graph.indptr[: sizes[1] + 1])
    told = [(finding.what, finding.count) for finding in counts.findings()]
    return Graph(indptr, graph.indices, payload_rows=graph.payload_rows), told
