"""Profile of stored layers that may be stale: answers that differ, accuracy and latency by the share of stale rows that
a request makes anew, after 1, 5 and 20 % of the edges have come, of nodes that had no edges before, and of the same
nodes where requests bring them with their edges.

Changes are played on the revision as a worker would open it, in memory: edges of its own are taken out, rows are made
right without them, and the edges come back. They are taken out for as long as a batch size is measured, so that a large
graph loses less than 26 % of them; the profile says how many came. In all it takes about six times as long, whatever
the size of the graph.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace as replaced

from gnnserve_api.families import point_of
from gnnserve_api.files.profile import (
    StaleChanges,
    StaleKind,
    StaleLayerProfile,
    StalePoint,
    VariantProfile,
    WholeNeighbours,
)
from gnnserve_api.files.repository import RevisionManifest
from gnnserve_api.limits import RefreshBudget
from gnnserve_worker.generation.played_changes import EDGES_OF_BATCH, Edges, PlayedChanges, without
from gnnserve_worker.graph.found_nodes import distinct
from gnnserve_worker.graph.living_graph import LivingGraph
from gnnserve_worker.graph.overlay import Overlay
from gnnserve_worker.inference.batch import Infer, Inference, draw_sample, infer_each, warm_up
from gnnserve_worker.inference.latency import rounded_ms
from gnnserve_worker.inference.living import LivingRevision
from gnnserve_worker.inference.opening import served_revision
from gnnserve_worker.inference.refreshed import refreshed
from gnnserve_worker.models.rows import ReachesRows
from gnnserve_worker.models.stored_layers import MadeForNodes, MakesLayer
from gnnserve_worker.opening.loaded import LoadedRevision, LoadedVariant
from gnnserve_worker.opening.revision import open_revision
from gnnserve_worker.repository.revision_files import RevisionFiles
from gnnserve_worker.repository.room import room_of
from gnnserve_worker.sampling.batch_view import BatchView, Part, view_of
from gnnserve_worker.sampling.neighbours import Scratch
from gnnserve_worker.staleness.refreshing import StaleLayer
from gnnserve_worker.staleness.stale_rows import StaleRows

SHARES = (0.0, 0.05, 0.2, 1.0)
"""Shares of the stale rows that a request reads which it makes anew."""
EDGE_SHARES = (0.01, 0.05, 0.2)
"""Shares of the edges that come, one after the other."""
_ROOM_BYTES = 1 << 31
"""Memory that changes may take. Where it is full no further edges are taken out."""
_MOST_ASKED, _FEWEST_ASKED = 512, 16
"""Items that are asked about, where there are as many."""
_NEW_NODES, _MOST_NEW_EDGES = 64, 1 << 14
"""Nodes that come with their edges at most, and how many edges they may have together."""
_SCENE_SHARE = 0.5
"""Time in which layers are asked after each of the changes, of that of a batch size."""
_WHOLE_SHARE, _MOST_WHOLE = 0.2, 100
"""The same of whole neighbourhoods, and how often they are asked about at most."""
_PARTS = len(EDGE_SHARES) + 3
"""Edges leave, they come in parts, then those of new nodes, and then requests bring these nodes."""
_NOTHING = RefreshBudget(rows=0, microseconds=10**9, background_permille=0)


def measure_stale_layers(
    files: RevisionFiles, report: Callable[[int, int], None], budget_s: float
) -> tuple[StaleLayerProfile, ...]:
    """Measure each stored layer behind the first that follows changes. Empty: there is none, there is nothing to ask
    about, or edges have features or times, which would be lost with them. `report(done, total)` is told of parts.
    `budget_s`: time of a batch size."""
    is_deep = any(one.stored is not None and one.stored.followed is not None for one in files.variants)
    if files.manifest is None or not is_deep or files.graph.schema.has_payload:
        return ()
    room = room_of(files.tables, files.graph.nodes, files.graph.edges, _ROOM_BYTES)
    loaded = open_revision(replace(files, room=room))
    living = LivingRevision(loaded, _ROOM_BYTES, refresh=_NOTHING)
    if not living.refreshing.layers:
        return ()
    report(0, _PARTS)
    warm_up(loaded)
    found = _Experiment(loaded, files.manifest, living, report, budget_s).run()
    report(_PARTS, _PARTS)
    return found


class _Item(NamedTuple):
    """An item that is asked about."""

    nodes: np.ndarray
    """int64"""
    form: Any
    """As of `LiveLabels.asked`."""


class _Answer(NamedTuple):
    took_ms: float
    scores: np.ndarray
    made: int
    """Rows that were made anew, beside own rows of nodes that a request brings."""
    error: float = 0.0
    """Mean estimated error of the rows that were read."""


@dataclass(frozen=True, slots=True)
class _AskedLayer:
    """A stored layer, and the variant by which it is asked."""

    layer: StaleLayer
    variant: LoadedVariant
    maker: MakesLayer
    """Maker of the rows of the variant's table."""
    below: tuple[StaleRows, ...]
    """Marks of the layers that its rows are made of, the nearest first."""
    changes: list[StaleChanges] = field(default_factory=list)
    """What was found."""
    exact_ms: list[float] = field(default_factory=list)
    """Times of requests where no row is stale."""

    @property
    def hops(self) -> int:
        """Hops within which the variant reads rows."""
        return sum(fanout != 0 for fanout in self.variant.fanouts)


class _Experiment:
    def __init__(
        self, loaded: LoadedRevision, manifest: RevisionManifest, living: LivingRevision,
        report: Callable[[int, int], None], budget_s: float,
    ) -> None:  # fmt: skip
        self._loaded, self._manifest, self._living, self._budget_s = loaded, manifest, living, budget_s
        self._report = report
        self._graph, self._scratch, self._random = living.graph, Scratch(), np.random.default_rng(0)
        self._infer: Infer = refreshed(partial(infer_each, loaded), loaded, living)(math.inf)
        self._live = served_revision(loaded, living).task.live_labels
        self._measure = self._live.measure()
        self._layers = [*_asked_layers(loaded, living)]
        self._played = PlayedChanges(loaded, living)
        self._all_edges = self._played.count()

    def run(self) -> tuple[StaleLayerProfile, ...]:
        order, step = self._random.permutation(self._loaded.labels.splits.validation), self._live.ids_per_item
        items = order[: len(order) // step * step].reshape(-1, step)[:_MOST_ASKED]
        asked = [_Item(*self._live.asked(item[None])) for item in items]
        if not asked or not self._all_edges:
            return ()
        nodes = distinct([one.nodes for one in asked])
        self._kept_right = _within(self._graph, nodes, max(one.hops for one in self._layers))
        most_new = min(_NEW_NODES, len(asked) // 2)
        first, others = asked[:most_new], asked[most_new:]
        new = self._draw_new(first)
        of_new, drawn = self._played.joining(new), self._played.draw(self._random)
        drawn = without(drawn, new).part(slice(0, math.ceil(sum(EDGE_SHARES) * self._all_edges)))
        drawn = drawn.part(slice(0, self._take_out(of_new, drawn)))
        ends = np.round(np.cumsum((0.0, *EDGE_SHARES)) / sum(EDGE_SHARES) * len(drawn.ends)).astype(int).tolist()
        self._make_right()
        for done, (start, end) in enumerate(pairwise(ends), start=1):
            self._report(done, _PARTS)
            self._play("edges", drawn.part(slice(start, end)), others)
        asked_new = [one for one in first if np.isin(one.nodes, new).all()]
        self._report(_PARTS - 2, _PARTS)
        self._play("newNodes", of_new, asked_new)
        self._report(_PARTS - 1, _PARTS)
        self._bring(of_new, asked_new)
        whole = self._ask_whole(others)
        return tuple(
            StaleLayerProfile(
                one.layer.number,
                one.variant.name,
                self._living.variants_of(one.layer),
                rounded_ms(np.median(one.exact_ms)),
                whole,
                tuple(one.changes),
            )
            for one in self._layers
            if one.changes
        )

    def _draw_new(self, items: Sequence[_Item]) -> np.ndarray:
        """Nodes of the first items, as far as they have few enough edges, all of which they lose: int64, ascending."""
        chosen, graph = list[np.ndarray](), self._graph
        edges = 0
        for one in items:
            entries = (
                graph.readers_counts(one.nodes).sum() + graph.lists.lengths(graph.places.lists_of(one.nodes)).sum()
            )
            edges += int(entries)
            if edges > _MOST_NEW_EDGES:
                break
            chosen.append(one.nodes)
        return distinct(chosen)

    def _take_out(self, of_new: Edges, drawn: Edges) -> int:
        """Take edges out while there is time and room; how many of those that were drawn."""
        ends_s = time.perf_counter() + self._budget_s
        taken = 0
        has_room = self._played.leave(of_new)
        while has_room and taken < len(drawn.ends):
            end = min(len(drawn.ends), taken + EDGES_OF_BATCH)
            has_room = self._played.leave(drawn.part(slice(taken, end)))
            taken = end if has_room else taken
            if time.perf_counter() >= ends_s:
                break
        return taken

    def _make_right(self) -> None:
        """Leave no row stale that is read by what is asked about."""
        refreshing = self._living.refreshing
        refreshing.budget = None
        for layer in refreshing.layers:
            refreshing.refresh_read(layer, self._kept_right)
        refreshing.budget = _NOTHING

    def _play(self, kind: StaleKind, edges: Edges, asked: Sequence[_Item]) -> None:
        """Let these edges come, and ask each layer."""
        if not asked or not len(edges.ends):
            return
        before = [[*self._rows_before(one, asked)] for one in self._layers]
        if not self._played.come(edges):
            return
        ends_s = time.perf_counter() + _SCENE_SHARE * self._budget_s
        errors, answers = list[list[float]](), list[list[list[_Answer]]]()
        for one, rows in zip(self._layers, before, strict=True):
            errors.append([])
            answers.append([])
            for number, (item, made) in enumerate(zip(asked, rows, strict=False)):
                if number >= _FEWEST_ASKED and time.perf_counter() >= ends_s:
                    break
                errors[-1].append(one.layer.rows.mean_among(*self._read(one, item, number)))
                answers[-1].append([self._ask_stale(one, item, number, share, made) for share in SHARES])
        self._make_right()
        for one, of_layer, found in zip(self._layers, errors, answers, strict=True):
            exact = [self._ask(one.variant.name, asked[number], number) for number in range(len(found))]
            one.exact_ms.extend(answer.took_ms for answer in exact)
            one.changes.append(self._compare(one, kind, edges, asked, of_layer, found, exact))

    def _bring(self, edges: Edges, asked: Sequence[_Item]) -> None:
        """Take these edges out, and ask each layer about nodes that requests bring with them."""
        if not asked or not self._played.leave(edges):
            return
        self._make_right()
        ends_s = time.perf_counter() + _SCENE_SHARE * self._budget_s
        for one in self._layers:
            rows = one.variant.rows
            if rows is None or rows.reaching is None:
                continue
            answers = list[list[_Answer]]()
            for number, item in enumerate(asked):
                if number >= _FEWEST_ASKED and time.perf_counter() >= ends_s:
                    break
                overlay, seeds = self._played.brought(edges, item.nodes)
                answers.append([
                    self._ask_brought(one.variant, rows.reaching, overlay, seeds.copy(), number, share)
                    for share in SHARES
                ])  # fmt: skip
            errors, exact = [found[0].error for found in answers], [found[-1] for found in answers]
            one.changes.append(self._compare(one, "overlays", edges, asked, errors, answers, exact))

    def _ask_brought(
        self, variant: LoadedVariant, rows: ReachesRows, overlay: Overlay, seeds: np.ndarray, key: int, share: float
    ) -> _Answer:
        """Ask about nodes that an overlay brings (`seeds`, int64), with a budget for their own rows and that share of
        the others that it changes."""
        view = view_of(self._loaded.graph.nodes, [Part(len(seeds), overlay, seed=None)], seeds)
        assert view is not None  # noqa: S101 - there is an overlay
        sample = draw_sample(self._loaded, variant, seeds, key, view.sampling, self._scratch, share=True)
        is_first = rows.reached(view, sample).is_first
        first = int(is_first.sum())
        rows_made = first + math.ceil(share * (len(is_first) - first))
        took_ms, found = self._timed(variant.name, seeds, key, rows_made, view)
        assert found.stale is not None  # noqa: S101 - rows are made for what the request brings
        return _Answer(took_ms, found.scores, found.stale.brought - first, found.stale.error)

    def _rows_before(self, one: _AskedLayer, asked: Sequence[_Item]) -> Iterator[MadeForNodes]:
        """Rows of the layer that each item may read, as they are now; of fewer items where the time is over."""
        ends_s = time.perf_counter() + _SCENE_SHARE * self._budget_s
        for number, item in enumerate(asked):
            if number >= _FEWEST_ASKED and time.perf_counter() >= ends_s:
                return
            yield one.maker.make(_within(self._graph, distinct([item.nodes]), one.hops), None)

    def _read(self, one: _AskedLayer, item: _Item, key: int) -> tuple[np.ndarray, np.ndarray]:
        """Nodes whose rows the item reads by this key."""
        sample = draw_sample(self._loaded, one.variant, item.nodes, key, None, self._scratch, share=True)
        return sample.nodes.copy(), sample.neighbours.copy()

    def _ask(self, variant: str, item: _Item, key: int, rows: int = 0) -> _Answer:
        """`rows`: as of `_timed`."""
        took_ms, found = self._timed(variant, item.nodes, key, rows)
        return _Answer(took_ms, found.scores, 0 if found.stale is None else found.stale.made)

    def _timed(
        self, variant: str, nodes: np.ndarray, key: int, rows: int, view: BatchView | None = None
    ) -> tuple[float, Inference]:
        """Answer with a budget of so many rows; how long that took, in ms."""
        refreshing = self._living.refreshing
        refreshing.budget = replaced(_NOTHING, rows=rows)
        began_s = time.perf_counter()
        found = self._infer(variant, nodes, key, with_embeddings=False, view=view)
        took_ms = 1e3 * (time.perf_counter() - began_s)
        refreshing.budget = _NOTHING
        return took_ms, found

    def _ask_stale(self, one: _AskedLayer, item: _Item, key: int, share: float, before: MadeForNodes) -> _Answer:
        """Ask with a budget for a share of the stale rows that are read. Rows and marks are as they were afterwards, so
        that the next one finds as much to do. `before`: rows before the edges came."""
        reached = stale = one.layer.rows.among(*self._read(one, item, key))
        marked = [(one.layer.rows, stale, one.layer.rows.errors[stale].copy())]
        for rows in one.below:
            reached = distinct((reached, self._graph.lists.of(self._graph.places.lists_of(reached))))
            waiting = rows.among(reached)
            marked.append((rows, waiting, rows.errors[waiting].copy()))
        answer = self._ask(one.variant.name, item, key, math.ceil(share * len(stale)))
        one.maker.put(before)
        for rows, nodes, errors in marked:
            is_made = rows.errors[nodes] == 0
            rows.mark(nodes[is_made], errors[is_made])
        return answer

    def _compare(
        self, one: _AskedLayer, kind: StaleKind, edges: Edges, asked: Sequence[_Item], errors: Sequence[float],
        answers: Sequence[Sequence[_Answer]], exact: Sequence[_Answer],
    ) -> StaleChanges:  # fmt: skip
        name, measure = one.variant.name, self._measure
        if measure.compares_by_nodes:
            # The same rows stand on either side, whether they are right or not: what differs is told of the items.
            measure.note(name, 0, self._infer(name, measure.nodes, 0, with_embeddings=False).scores)
        points = list[StalePoint]()
        for place, share in enumerate(SHARES):
            found = [of_item[place] for of_item in answers]
            differing = list[float]()
            for item, answer, right in zip(asked, found, exact, strict=False):
                kept = measure.keep(name, item.nodes, answer.scores, item.form, len(item.nodes))
                agreement = np.zeros(0) if kept is None else measure.agreement(kept, name, right.scores)
                differing.extend((1 - agreement).tolist())
            points.append(
                StalePoint(
                    recomputed=share,
                    rows=round(float(np.mean([answer.made for answer in found])), 2),
                    p50_ms=rounded_ms(np.median([answer.took_ms for answer in found])),
                    differing=round(float(np.mean(differing)), 5) if differing else 0.0,
                    accuracy=self._accuracy(name, asked, found),
                )
            )
        return StaleChanges(
            kind=kind,
            edges=len(edges.ends),
            share=round(min(1.0, len(edges.ends) / self._all_edges), 6),
            answers=len(answers),
            read_error=round(min(1.0, float(np.mean(errors))), 6),
            exact_accuracy=self._accuracy(name, asked, exact),
            points=tuple(points),
        )

    def _accuracy(self, variant: str, asked: Sequence[_Item], answers: Sequence[_Answer]) -> float | None:
        """Share of right answers; None: an item is no node, whose label the graph could tell."""
        if self._live.ids_per_item != 1:
            return None
        nodes = np.concatenate([item.nodes for item, _ in zip(asked, answers, strict=False)])
        scores = np.concatenate([answer.scores for answer in answers])
        values = self._measure.values(variant, scores, None, np.asarray(self._loaded.labels.values[nodes]))
        return round(float(np.nanmean(values)), 5)

    def _ask_whole(self, asked: Sequence[_Item]) -> WholeNeighbours | None:
        profile = self._manifest.profile
        able = [one for one in profile.variants if one.factor == 1 and one.cascade is None and _reads_features(one)]
        if not able:
            return None
        usual = profile.variants[0].storage
        name = min(able, key=lambda one: (one.storage is not usual, one.latency[0].p50_ms)).name
        whole, took_ms = self._loaded.over_whole_lists(name), list[float]()
        ends_s = time.perf_counter() + _WHOLE_SHARE * self._budget_s
        for number, item in enumerate(asked[:_MOST_WHOLE]):
            began_s = time.perf_counter()
            infer_each(whole, name, item.nodes, number, with_embeddings=False)
            took_ms.append(1e3 * (time.perf_counter() - began_s))
            if time.perf_counter() >= ends_s:
                break
        return WholeNeighbours(name, rounded_ms(np.median(took_ms)))


def _reads_features(variant: VariantProfile) -> bool:
    """Whether it computes all layers of the model from features."""
    able = point_of(variant).capabilities
    return able.embeddings and able.changes


def _asked_layers(loaded: LoadedRevision, living: LivingRevision) -> Iterator[_AskedLayer]:
    refreshing = living.refreshing
    marks = [refreshing.first, *refreshing.layers]
    for layer in refreshing.layers:
        variant = next((one for one in loaded.variants.values() if refreshing.layer_of(one.table) is layer), None)
        if variant is not None:
            maker = next(one.makes for one in layer.makers if one.makes.table is variant.table)
            below = [one.rows for one in marks if one is not None and one.number < layer.number]
            yield _AskedLayer(layer, variant, maker, tuple(below[::-1]))


def _within(graph: LivingGraph, nodes: np.ndarray, hops: int) -> np.ndarray:
    """Nodes within so many hops of these (int64), which are among them: int64, ascending, distinct."""
    for _ in range(hops):
        nodes = distinct((nodes, graph.lists.of(graph.places.lists_of(nodes))))
    return nodes
