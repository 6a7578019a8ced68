"""Links of a graph, parted into those that are learnt from and those that are held out.

Only links that are learnt from are in neighbour lists: a held-out link that were aggregated would tell its own answer.
Nodes of a graph of several types are numbered type after type, and called `user/17`.

Where a graph is served with all of its links, and the model is given, lists lack those that are held out while variants
are judged: such a model learns nothing here, so that its graph needs to lack nothing; but a held-out link that is
aggregated would tell its own answer. Lists lose its entries then, and stay as they are otherwise, with what edges have.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple, Protocol

import msgspec
import numpy as np

from gnnserve_api.errors import InputError
from gnnserve_api.files.edges import Direction, Duplicates, EdgeRules
from gnnserve_api.files.graph_schema import GraphSchema
from gnnserve_api.spec.task import Links
from gnnserve_worker.graph.edges import EdgeList
from gnnserve_worker.graph.ids import NodeIds, lay_out, string_ids
from gnnserve_worker.graph.store import EdgeSplits, Finding, Graph, GraphData, NodeType, Relation, Splits

_FIELD = "spec.task.links"
_TRAIN, _VALIDATION, _TEST = 0, 1, 2
_MOST_TRIES = 100
"""Rounds in which pairs without a link are drawn; each fills about the share of pairs that have none."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """Pairs of nodes by position, int64 both."""

    first: np.ndarray
    second: np.ndarray

    def __len__(self) -> int:
        return len(self.first)

    def at(self, places: np.ndarray) -> Pairs:
        return Pairs(self.first[places], self.second[places])


@dataclass(frozen=True, slots=True)
class LinkEnd:
    """The nodes that may stand at one end of a link: positions from `start` to `end` - 1."""

    type: str
    """Empty in a graph of one type."""
    start: int
    end: int

    @property
    def nodes(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class LinkSet:
    """The links of one relation."""

    relation: str
    """Empty in a graph of one type."""
    first: LinkEnd
    second: LinkEnd
    nodes: int
    """Nodes of the whole graph."""
    direction: Direction
    """How links become neighbour lists."""
    train: Pairs
    validation: Pairs
    validation_negatives: Pairs
    """As many pairs without a link, drawn uniformly."""
    test: Pairs
    test_negatives: Pairs
    others: Pairs
    """What is aggregated beside the links: self-loops, and edges of other relations as (source, target)."""

    def message_graph(self, kept: np.ndarray | None = None) -> Graph:
        """Neighbour lists of the links that are learnt from. `kept`: bool [links], which are in them; None: all."""
        links = self.train if kept is None else self.train.at(np.flatnonzero(kept))
        edges = EdgeList(self.nodes, self.direction)
        edges.add(links.first, links.second)
        edges.add(self.others.first, self.others.second)
        return edges.to_graph()[0]

    def end_types(self, graph: GraphSchema) -> tuple[int, ...]:
        """Places of the types at its ends, ascending, each once."""
        return tuple(sorted({graph.place_of(end.type) for end in (self.first, self.second)}))

    @property
    def is_symmetric(self) -> bool:
        """Whether a link and its reverse are the same."""
        return self.direction is Direction.UNDIRECTED and self.first == self.second

    def known_keys(self) -> np.ndarray:
        """A number for each known link, in all parts, ascending."""
        parts = [self.train, self.validation, self.test]
        found = [pair_keys(part.first, part.second, self.nodes) for part in parts]
        if self.is_symmetric:
            found += [pair_keys(part.second, part.first, self.nodes) for part in parts]
        return np.unique(np.concatenate(found))


def pair_keys(first: np.ndarray, second: np.ndarray, nodes: int) -> np.ndarray:
    """A number for each pair, int64: different for different pairs of a graph of so many nodes."""
    keys: np.ndarray = first.astype(np.int64) * nodes + second
    return keys


def are_known(keys: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Whether each key (int64) is among `known`, ascending; bool."""
    places = np.minimum(np.searchsorted(known, keys), max(0, len(known) - 1))
    found: np.ndarray = known[places] == keys if len(known) else np.zeros(len(keys), bool)
    return found


class GraphOfLinks(StrEnum):
    """Edges that are kept of a source's graph where links are scored."""

    LISTS = "links"
    """One list of each node, without held-out links: types are in ids alone."""
    TYPES = "typed links"
    """Types and relations, without held-out links."""
    BARE_TYPES = "bare typed links"
    """The same without features of nodes, which are not read."""
    WHOLE = "whole links"
    """All of it: links are held out while variants are judged."""


def links_digest(graph: str, links: Links, kept: GraphOfLinks = GraphOfLinks.LISTS) -> str:
    """Identity of what is kept, by that of the source's graph."""
    parted = links.split.model_dump_json()
    return hashlib.sha256(f"{kept} {graph} {links.relation or ''} {parted}".encode()).hexdigest()[:16]


def digest_of(data: GraphData, links: Links, kept: GraphOfLinks = GraphOfLinks.LISTS) -> str:
    """`links_digest` of an imported graph. A version that changes are part of has its own."""
    return links_digest(data.digest, links, kept) if data.made_of is None else data.digest


class HeldOut(NamedTuple):
    """Links that are in no neighbour list."""

    validation: Pairs
    test: Pairs

    def over(self, before: GraphData, after: GraphData) -> HeldOut:
        """Those of them whose nodes are in another version of the graph too, by their numbers there."""
        numbers = _numbers_in(before, after)
        return HeldOut(*(_renumbered(part, numbers) for part in self))


def _numbers_in(before: GraphData, after: GraphData) -> np.ndarray:
    """The number that each node of a graph has in another version of it, int64; -1: it is not there."""
    # Imported here: a start that finds its revision reads no ids of two graphs.
    from gnnserve_worker.graph.living_ids import LivingIds  # noqa: PLC0415
    from gnnserve_worker.graph.names_by_id import ids_at  # noqa: PLC0415

    numbers, first = [], 0
    for old, new in zip(before.types, after.types, strict=True):
        found = LivingIds(new.ids, new.nodes, new.nodes).find(ids_at(old.ids, np.arange(old.nodes)))
        numbers.append(np.where(found < 0, -1, found + first))
        first += new.nodes
    return np.concatenate(numbers)


def _renumbered(pairs: Pairs, numbers: np.ndarray) -> Pairs:
    first, second = numbers[pairs.first], numbers[pairs.second]
    return Pairs(first, second).at(np.flatnonzero((first >= 0) & (second >= 0)))


class PartedLinks(NamedTuple):
    graph: GraphData
    """Without held-out links. A graph of several types is as one of one type here, without features."""
    links: LinkSet
    imported: GraphData
    """The graph as it was imported, held-out links in it; a version that changes are part of has none."""


class PartsLinks(Protocol):
    def __call__(
        self, data: GraphData, links: Links, *, reads_features: bool = True, held_out: HeldOut | None = None
    ) -> PartedLinks:  # pragma: no cover
        """Part the links of a graph, whose nodes are not classified. `reads_features`: whether the network reads what
        the source has of types. `held_out`: links that are held out beside those of the graph, which are all learnt
        from; None: some of the graph's are. Raises InputError for links that the graph does not have."""
        ...


def part_edges(
    data: GraphData, links: Links, *, reads_features: bool = True, held_out: HeldOut | None = None
) -> PartedLinks:
    """A `PartsLinks` of graphs whose one relation has no name."""
    if links.relation is not None:
        raise InputError(
            f"{_FIELD}.relation", f"is {links.relation!r}, and a graph of one type has no relations", "leave it out"
        )
    direction, graph = data.edge_rules.direction, data.graph
    targets, sources = graph.targets(), graph.indices.astype(np.int64)
    first, second = (targets, sources) if direction is Direction.REVERSED else (sources, targets)
    loops = first == second
    listed = first < second if direction is Direction.UNDIRECTED else ~loops
    pairs = Pairs(first[listed], second[listed])
    pairs = _distinct(pairs, graph.nodes)
    whole = LinkEnd("", 0, graph.nodes)
    others = Pairs(first[loops], second[loops])
    pairs, codes = _coded(pairs, links, held_out, graph.nodes)
    parted = _part("", whole, whole, graph.nodes, direction, pairs, codes, others, links)
    return PartedLinks(_link_graph(replace(data, digest=digest_of(data, links)), parted), parted, data)


def message_relations(data: GraphData, links: LinkSet, kept: np.ndarray | None = None) -> tuple[Relation, ...]:
    """A graph's relations with the links that are learnt from alone: neither the scored relation nor its reverse has
    another one, nor features or times of its edges; repeated ones count once. `kept`: bool [links], which of them;
    None: all."""
    scored = next(one for one in data.relations if one.key == links.relation)
    train = links.train if kept is None else links.train.at(np.flatnonzero(kept))
    sources, targets = train.first - links.first.start, train.second - links.second.start
    if scored.both_ways:
        sources, targets = np.concatenate([sources, targets]), np.concatenate([targets, sources])
    found = []
    for one in data.relations:
        if one is scored:
            found.append(_relisted(one, _lists(targets, sources, links.second.nodes)))
        elif (one.source, one.reverse_of, one.target) == (scored.target, scored.name, scored.source):
            found.append(_relisted(one, _lists(sources, targets, links.first.nodes)))
        else:
            found.append(one)
    return tuple(found)


def _relisted(relation: Relation, lists: Graph) -> Relation:
    return replace(relation, lists=lists, payload=None, edge_rules=_counting_once(relation.edge_rules))


def _counting_once(rules: EdgeRules) -> EdgeRules:
    """How links become entries of lists, for those that come later."""
    return msgspec.structs.replace(rules, duplicates=Duplicates.MERGE)


def _lists(readers: np.ndarray, read: np.ndarray, nodes: int) -> Graph:
    """Neighbour lists of so many nodes."""
    order = np.lexsort((read, readers))
    counts = np.bincount(readers, minlength=nodes)
    return Graph(np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), read[order].astype(np.int32))


def _with_own_reverse(data: GraphData, links: Links) -> GraphData:
    """The graph in which a relation of the source that lists the scored one's edges the other way is known as its
    reverse, whatever it is called: what is held out of one must be held out of both."""
    scored = _relation_of(data, links)
    keys = _distinct_keys(scored.lists)

    def is_reverse(one: Relation) -> bool:
        turned = (one.source, one.target) == (scored.target, scored.source) and one is not scored
        return turned and one.reverse_of is None and np.array_equal(_distinct_keys(one.lists, turned=True), keys)

    relations = (replace(one, reverse_of=scored.name) if is_reverse(one) else one for one in data.relations)
    return replace(data, relations=tuple(relations))


def _distinct_keys(lists: Graph, *, turned: bool = False) -> np.ndarray:
    """A number for each edge, ascending; those of `turned` lists are of the edges the other way."""
    readers, read = lists.targets(), lists.indices.astype(np.int64)
    first, second = (readers, read) if turned else (read, readers)
    return np.unique((first << 32) | second)


def part_relation(
    data: GraphData, links: Links, *, reads_features: bool = True, held_out: HeldOut | None = None
) -> PartedLinks:
    """A `PartsLinks` of one of several relations: without the links that are held out, the graph is as one of one type
    without features, whose nodes are called `user/17`."""
    data = _with_own_reverse(data, links)
    starts = np.cumsum([0, *(kind.nodes for kind in data.types)]).tolist()
    ends = {kind.name: LinkEnd(kind.name, starts[i], starts[i + 1]) for i, kind in enumerate(data.types)}
    relation = _relation_of(data, links)
    nodes = data.nodes
    first, second = ends[relation.source], ends[relation.target]
    is_own = relation.source == relation.target
    is_read_both_ways = relation.both_ways if is_own else any(one.reverse_of is not None for one in data.relations)
    direction = Direction.UNDIRECTED if is_read_both_ways else Direction.DIRECTED
    if relation.edge_splits is None:
        pairs = _distinct(_listed(relation, ends), nodes)
        if relation.both_ways:
            pairs = pairs.at(np.flatnonzero(pairs.first < pairs.second))
        pairs, codes = _coded(pairs, links, held_out, nodes)
    else:
        pairs, codes = _parted_by_source(relation, relation.edge_splits, first, second, nodes)
    rest = [_listed(one, ends) for one in data.relations if one is not relation and one.reverse_of is None]
    others = Pairs(*(np.concatenate([getattr(one, end) for one in rest] or [np.empty(0, np.int64)]) for end in
                     ("first", "second")))  # fmt: skip
    parted = _part(relation.key, first, second, nodes, direction, pairs, codes, others, links)
    graph = GraphData.of_one_type(
        source=data.source,
        digest=digest_of(data, links),
        graph=Graph(np.zeros(1, np.int64), np.zeros(0, np.int32)),
        features=np.zeros((nodes, links.dimensions), np.float32),
        labels=np.zeros(0, np.int64),
        classes=(),
        splits=data.splits,
        edge_rules=EdgeRules(direction),
        ids=qualified_ids(data.types),
        findings=(*data.findings, *(() if reads_features else _unread(data.types))),
        made_of=data.made_of,
    )
    return PartedLinks(_link_graph(graph, parted), parted, data)


def names_of_all(types: Sequence[NodeType]) -> NodeIds | None:
    """`GraphData.names` where links are scored; None: types have no names."""
    return qualified_ids(types) if types[0].name else None


def qualified_ids(types: Sequence[NodeType]) -> NodeIds:
    """What nodes are called: their type, a slash, and their id within it."""
    texts = []
    for kind in types:
        own = range(kind.nodes) if kind.ids is None else kind.ids.shown(0, kind.nodes)
        texts += [f"{kind.name}/{one}" for one in own]
    return string_ids(*lay_out(texts))


def _unread(types: Sequence[NodeType]) -> tuple[Finding, ...]:
    with_features = [kind.name for kind in types if kind.features is not None]
    told = Finding("types whose features are not read", len(with_features), ", ".join(with_features))
    return (told,) if with_features else ()


def _relation_of(data: GraphData, links: Links) -> Relation:
    own = [one for one in data.relations if one.reverse_of is None]
    there = ", ".join(one.key for one in own)
    field = f"{_FIELD}.relation"
    if links.relation is None:
        if len(own) > 1:
            raise InputError(field, f"is absent, and the source has {len(own)} relations: {there}", "name one of them")
        return own[0]
    named = [one for one in own if links.relation in {one.name, one.key}]
    if not named:
        raise InputError(field, f"is {links.relation!r}, which is no relation; there are {there}", "name one of these")
    if len(named) > 1:
        keys = ", ".join(one.key for one in named)
        raise InputError(
            field, f"is {links.relation!r}, which {len(named)} relations are called", f"name one of {keys}"
        )
    return named[0]


def _listed(relation: Relation, ends: dict[str, LinkEnd]) -> Pairs:
    sources = relation.lists.indices.astype(np.int64) + ends[relation.source].start
    return Pairs(sources, relation.lists.targets() + ends[relation.target].start)


def _parted_by_source(
    relation: Relation, split: EdgeSplits, first: LinkEnd, second: LinkEnd, nodes: int
) -> tuple[Pairs, np.ndarray]:
    """Distinct links and the part of each. Raises InputError where the source puts one link into two parts."""
    _check_codes(relation, split.parts)
    pairs = Pairs(split.sources.astype(np.int64) + first.start, split.targets.astype(np.int64) + second.start)
    if relation.both_ways:  # the same link, whichever end is named first
        pairs = Pairs(np.minimum(pairs.first, pairs.second), np.maximum(pairs.first, pairs.second))
    _, places, links = np.unique(pair_keys(pairs.first, pairs.second, nodes), return_index=True, return_inverse=True)
    codes = split.parts[places]
    torn = np.flatnonzero(codes[links] != split.parts)
    if len(torn):
        edge = int(torn[0])
        raise InputError(
            f"the split of relation {relation.key}",
            f"has the edge from {split.sources[edge]} to {split.targets[edge]} in part {split.parts[edge]} and in part "
            f"{codes[links][edge]}", "put every edge into one part, both ways of it where nodes of one type are joined",
        )  # fmt: skip
    return pairs.at(places), codes


def _distinct(pairs: Pairs, nodes: int) -> Pairs:
    _, places = np.unique(pair_keys(pairs.first, pairs.second, nodes), return_index=True)
    return pairs.at(places)


def _coded(pairs: Pairs, links: Links, held_out: HeldOut | None, nodes: int) -> tuple[Pairs, np.ndarray]:
    """Distinct links, and the part of each, int64. `pairs`: distinct links of the graph; `held_out`: as of
    `PartsLinks`, of which those are learnt from that the graph has too."""
    if held_out is None:
        return pairs, _drawn_codes(len(pairs), links)
    known = np.sort(pair_keys(pairs.first, pairs.second, nodes))
    parts, codes = [pairs], [np.full(len(pairs), _TRAIN)]
    for part, code in zip(held_out, (_VALIDATION, _TEST), strict=True):
        left = part.at(np.flatnonzero(~are_known(pair_keys(part.first, part.second, nodes), known)))
        parts.append(left)
        codes.append(np.full(len(left), code))
    joined = Pairs(*(np.concatenate([getattr(part, end) for part in parts]) for end in ("first", "second")))
    return joined, np.concatenate(codes)


def _drawn_codes(count: int, links: Links) -> np.ndarray:
    """The part of each link, drawn by the seed, int64 [links]."""
    split = links.split
    held_out = [round(count * percent / 100) for percent in (split.validation_percent, split.test_percent)]
    codes = np.full(count, _TRAIN)
    order = np.random.default_rng(split.seed).permutation(count)
    codes[order[: held_out[0]]] = _VALIDATION
    codes[order[held_out[0] : sum(held_out)]] = _TEST
    return codes


def _check_codes(relation: Relation, codes: np.ndarray) -> None:
    strange = np.flatnonzero((codes < _TRAIN) | (codes > _TEST))
    if len(strange):
        raise InputError(
            f"the split of relation {relation.key}", f"has {codes[strange[0]]}, expected 0 (train), 1 (validation) or "
            "2 (test)", "correct it",
        )  # fmt: skip


def _part(
    relation: str, first: LinkEnd, second: LinkEnd, nodes: int, direction: Direction,
    pairs: Pairs, codes: np.ndarray, others: Pairs, links: Links,
) -> LinkSet:  # fmt: skip
    parts = [pairs.at(np.flatnonzero(codes == code)) for code in (_TRAIN, _VALIDATION, _TEST)]
    for name, part in (("training", parts[_TRAIN]), ("validation", parts[_VALIDATION])):
        if not len(part):
            where = f"relation {relation!r}" if relation else "the graph"
            raise InputError(
                _FIELD, f"no {name} links are left of the {len(pairs):,} of {where}",
                "give more edges, or other shares in split",
            )  # fmt: skip
    empty = Pairs(np.empty(0, np.int64), np.empty(0, np.int64))
    train, validation, test = parts
    parted = LinkSet(relation, first, second, nodes, direction, train, validation, empty, test, empty, others)
    random = np.random.default_rng([links.split.seed, 1])
    known = parted.known_keys()
    negatives = [_draw_negatives(parted, known, len(part), random) for part in (validation, test)]
    return replace(parted, validation_negatives=negatives[0], test_negatives=negatives[1])


def _draw_negatives(links: LinkSet, known: np.ndarray, count: int, random: np.random.Generator) -> Pairs:
    """Pairs without a link, uniformly among all."""
    first, second = np.empty(0, np.int64), np.empty(0, np.int64)
    for _ in range(_MOST_TRIES):
        missing = count - len(first)
        if not missing:
            return Pairs(first, second)
        drawn = [random.integers(end.start, end.end, missing) for end in (links.first, links.second)]
        free = (drawn[0] != drawn[1]) & ~are_known(pair_keys(drawn[0], drawn[1], links.nodes), known)
        first, second = np.concatenate([first, drawn[0][free]]), np.concatenate([second, drawn[1][free]])
    raise InputError(
        _FIELD, f"nearly all pairs are links: of {count:,} pairs without one {len(first):,} were found",
        "score a relation that few pairs have",
    )  # fmt: skip


def _link_graph(data: GraphData, links: LinkSet) -> GraphData:
    """The graph with the links that are learnt from. Its nodes have no classes; those of held-out links are its
    validation and test nodes."""
    validation = np.unique(np.concatenate([links.validation.first, links.validation.second]))
    of_test = np.unique(np.concatenate([links.test.first, links.test.second]))
    test = np.setdiff1d(of_test, validation)
    train = np.setdiff1d(np.arange(links.nodes), np.concatenate([validation, of_test]))
    held_out = len(links.validation) + len(links.test)
    return replace(
        data.with_lists(links.message_graph(), _counting_once(data.edge_rules)),
        labels=np.full(links.nodes, -1, np.int64),
        classes=(),
        splits=Splits(train, validation, test),
        findings=(*data.findings, Finding("links held out", held_out)),
    )


# --- lists without links that are held out


def relations_without_held_out(data: GraphData, links: LinkSet) -> tuple[Relation, ...]:
    """A graph's relations without entries of links that are held out, whichever lists name them. `data`: as it was
    imported; what other edges have stays theirs."""
    parts = (links.validation, links.test)
    keys = np.unique(np.concatenate([pair_keys(part.first, part.second, links.nodes) for part in parts]))
    firsts = dict(zip((kind.name for kind in data.types), data.schema.first_nodes, strict=False))
    scored = next(one for one in data.relations if one.key == links.relation or not one.name)

    def kept(one: Relation) -> Graph:
        straight, turned = _ways_of(one, scored)
        if not straight and not turned:
            return one.lists
        read = one.lists.indices.astype(np.int64) + firsts[one.source]
        readers = one.lists.targets() + firsts[one.target]
        is_hidden = np.zeros(len(read), bool)
        if straight:
            is_hidden |= are_known(pair_keys(read, readers, links.nodes), keys)
        if turned:
            is_hidden |= are_known(pair_keys(readers, read, links.nodes), keys)
        return one.lists.of_entries(~is_hidden)

    return tuple(replace(one, lists=kept(one)) for one in data.relations)


def _ways_of(one: Relation, scored: Relation) -> tuple[bool, bool]:
    """Whether second nodes of scored links read first ones by the relation, and first nodes second ones."""
    if one is scored:
        is_reversed = one.edge_rules.direction is Direction.REVERSED
        return not is_reversed, one.both_ways or is_reversed
    return False, (one.source, one.reverse_of, one.target) == (scored.target, scored.name, scored.source)
