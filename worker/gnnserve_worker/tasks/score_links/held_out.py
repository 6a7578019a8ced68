"""Links that are learnt and links that are held out, over the list of a graph that is read as one of one type, or over
its relations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from gnnserve_api.files.graph_schema import NAMES_OF_TYPES, WITHOUT_NAMES, GraphSchema, SchemaNames
from gnnserve_api.files.profile import Metric
from gnnserve_api.spec.heterogeneous_rules import keeps_types_of_rows, reads_products, reads_relations
from gnnserve_api.spec.scoring import MetricChoice
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.spec.task import Links
from gnnserve_api.spec.variants import Variants
from gnnserve_worker.graph.ids import NodeIds
from gnnserve_worker.graph.links import (
    GraphOfLinks,
    HeldOut,
    LinkSet,
    PartedLinks,
    digest_of,
    message_relations,
    relations_without_held_out,
)
from gnnserve_worker.graph.relation_lists import joined_lists
from gnnserve_worker.graph.sources.load import kind_of
from gnnserve_worker.graph.store import Finding, Graph, GraphData
from gnnserve_worker.tasks.generated import Course, EmbeddingCourse, ImportedGraph, TeacherOutputs, Visible
from gnnserve_worker.tasks.score_links.judge import LinkJudge
from gnnserve_worker.tasks.score_links.metrics import least_score, metric_of_links
from gnnserve_worker.tasks.score_links.reach import check_ends_are_reached


@dataclass(frozen=True, slots=True)
class HeldOutLinks:
    """Links that are learnt and links that are held out: the `LearningProblem` over any graph."""

    links: LinkSet
    settings: Links
    choice: MetricChoice
    lists_of: Callable[[np.ndarray | None], Visible]
    """Relations of the graph with some of the links that are learnt from: bool [links]; None: all."""
    judged: Graph | None = None
    """Lists without held-out links, where those that are served have all; None: those that are served have none."""
    source: GraphData | None = None
    """The graph with held-out links; None: it is the one that is served, or is not asked for."""
    stored: GraphData | None = None
    """The graph over its relations, where embeddings of its nodes are learnt over one list of each; None: it is stored
    as it is learnt over."""
    majority: None = None
    compares_shortly: bool = False
    """False: scores of pairs are no shares of nodes."""
    keeps_outputs: bool = True

    @property
    def items(self) -> int:
        return len(self.links.train)

    @property
    def metric(self) -> Metric:
        return metric_of_links(self.choice)

    def whole(self, graph: GraphData) -> GraphData:
        return graph if self.source is None else self.source

    def learnt_graph(self, graph: GraphData) -> GraphData:
        if self.judged is None:
            return graph
        relations = message_relations(graph, self.links) if self.links.relation else self.lists_of(None)
        return replace(graph, relations=tuple(relations))

    @property
    def least_score(self) -> float:
        return least_score(self.metric)

    def answered_types(self, graph: GraphSchema) -> tuple[int, ...]:
        """Types at the ends of links."""
        return self.links.end_types(graph)

    def check(self, variants: Variants) -> None:
        """Do nothing: the spec permits no variants that need classes."""

    def course(self, visible: Visible, seed: int, decoder: Mapping[str, np.ndarray] | None = None) -> Course:
        """`visible`: all links that are learnt from, of which a course hides those of each part."""
        # Imported here: torch takes seconds.
        from gnnserve_worker.tasks.score_links.course import LinkCourse  # noqa: PLC0415

        return LinkCourse(self.links, self.settings, seed, self.lists_of, decoder)

    def one_row_courses(self, visible: Visible, taught: TeacherOutputs) -> Iterator[Course]:
        """`visible`: as of `course`."""
        from gnnserve_worker.tasks.score_links.course import one_row_courses  # noqa: PLC0415

        return one_row_courses(self.links, self.settings, self.lists_of, taught)

    def embedding_course(self) -> EmbeddingCourse:
        from gnnserve_worker.tasks.score_links.comparison import ComparedLinks  # noqa: PLC0415

        return ComparedLinks(self.links, self.settings, self.stored)

    def judge(self, decoder: Mapping[str, np.ndarray]) -> LinkJudge:
        return LinkJudge(self.links, self.settings, self.metric, decoder, self.judged)


def hold_out_links(
    spec: GNNServiceSpec, settings: Links, graph: GraphData, version: GraphData | None = None
) -> ImportedGraph:
    """`graph`: as it was imported, with all links. `version`: that graph with changes and without the links that were
    held out of it, which stay held out; None: `graph` itself is learnt from. Raises InputError for links that cannot
    be held out."""
    part_links = partial(kind_of(spec.graph.source).part_links, reads_features=not spec.model.learns_embeddings)
    parted = part_links(graph, settings)
    if spec.is_all_given:
        return _hold_out_while_judged(spec, settings, parted)
    if version is not None:
        before = HeldOut(parted.links.validation, parted.links.test)
        parted = part_links(version, settings, held_out=before.over(graph, version))
    data = parted.graph
    lists_of: Callable[[np.ndarray | None], Visible] = partial(_with_lists, parted)
    if reads_relations(spec):
        data = _over_relations(spec, settings, parted)
        lists_of = partial(message_relations, data, parted.links)
    stored = _of_bare_types(settings, parted) if keeps_types_of_rows(spec) else None
    # Expected scores of given variants are those over all links.
    whole = replace(parted.imported, names=data.names) if spec.variants.given else None
    problem = HeldOutLinks(parted.links, settings, spec.variants.metric, lists_of, source=whole, stored=stored)
    return ImportedGraph(data, problem, parted.graph.findings)


_NAMES_OF_ALL: Mapping[SchemaNames, Callable[[NodeIds | None], NodeIds | None]] = {
    WITHOUT_NAMES: lambda _: None,
    NAMES_OF_TYPES: lambda ids: ids,
}
"""`GraphData.names`, of the ids that nodes have in one numbering, by the names that the graph has."""


def _hold_out_while_judged(spec: GNNServiceSpec, settings: Links, parted: PartedLinks) -> ImportedGraph:
    """Links of a given model. Nothing learns from them here, so that the graph is served with all of its links, as the
    model was used; held-out ones are hidden while variants are judged, who would else be told the answer."""
    without, links, imported = parted
    _check_ends(spec, settings, parted)
    data = replace(
        imported,
        digest=digest_of(imported, settings, GraphOfLinks.WHOLE),
        labels=np.full(imported.target.nodes, -1, np.int64),
        classes=(),
        splits=without.splits,
        names=_NAMES_OF_ALL[imported.schema.names](without.ids),
    )
    judged = replace(data, relations=relations_without_held_out(imported, links))
    lists_of: Callable[[np.ndarray | None], Visible] = partial(_with_lists, parted)
    problem = HeldOutLinks(links, settings, spec.variants.metric, lists_of, joined_lists(judged))
    hidden = Finding("links hidden while variants are judged", len(links.validation) + len(links.test))
    return ImportedGraph(data, problem, (*imported.findings, hidden))


def _of_bare_types(settings: Links, parted: PartedLinks) -> GraphData:
    """The graph with its relations, and without features and held-out links."""
    whole = parted.imported
    bare = replace(whole, types=tuple(replace(kind, features=None, feature_columns=()) for kind in whole.types))
    return _without_held_out(settings, parted._replace(imported=bare), GraphOfLinks.BARE_TYPES)


def _over_relations(spec: GNNServiceSpec, settings: Links, parted: PartedLinks) -> GraphData:
    """The graph with its relations, and without held-out links. Raises InputError where links join nodes for which the
    network gives nothing."""
    _check_ends(spec, settings, parted)
    return _without_held_out(settings, parted, GraphOfLinks.TYPES)


def _check_ends(spec: GNNServiceSpec, settings: Links, parted: PartedLinks) -> None:
    """Raises InputError for an end that an architecture gives nothing for; listed layers are checked by themselves."""
    if reads_products(spec):
        check_ends_are_reached(spec.model, settings, parted.links, parted.imported)


def _without_held_out(settings: Links, parted: PartedLinks, kept: GraphOfLinks) -> GraphData:
    without_types, links, whole = parted
    return replace(
        whole,
        digest=digest_of(whole, settings, kept),
        relations=message_relations(whole, links),
        labels=np.full(whole.target.nodes, -1, np.int64),
        classes=(),
        splits=without_types.splits,
        names=without_types.ids,
    )


def _with_lists(parted: PartedLinks, kept: np.ndarray | None) -> Visible:
    """`HeldOutLinks.lists_of` of one list of each node."""
    return parted.graph.with_lists(parted.links.message_graph(kept)).relations
