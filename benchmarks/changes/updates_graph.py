"""Changes of a shape's graph in one process, by one thread: how many a second, where the time goes, what readers pay.

The revision is the published one of the shape, with x1, projected and stored1 in float32, opened for changes. A batch
is decoded and applied as a worker that follows the log does it. Run as a program, it measures one shape in a process of
its own, so that memory is that of its changes alone.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial, wraps
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks.changes.updates_changes import FEW_NEW_NODES, ChangeStream, Mix
from benchmarks.changes.updates_measured import TOGETHER, ApplyRate, ExactSums, Gathering, GraphFigures, MemoryPoint
from benchmarks.engine.engine import draw_batches
from benchmarks.memory import read_memory
from benchmarks.pairs import compute_ratio
from benchmarks.peers.servers import service_manifest
from benchmarks.shapes import CACHE, PROBES, SHAPES, prepare, prepare_sources
from gnnserve_api.limits import RefreshBudget
from gnnserve_api.spec.service import GNNService
from gnnserve_worker.generation.pipeline import generate
from gnnserve_worker.graph.change_batch import BatchEffect, decode_batch, encode_batch
from gnnserve_worker.graph.living_graph import LivingGraph
from gnnserve_worker.graph.store import Graph
from gnnserve_worker.inference.batch import infer_batch, warm_up
from gnnserve_worker.inference.living import LivingRevision
from gnnserve_worker.models.living_sums import LivingSums
from gnnserve_worker.models.rows import RowMaker
from gnnserve_worker.models.stored_layers import write_layer
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.repository.repository import Repository

ROOT = Path(__file__).parents[2]
REPOSITORY = CACHE / "updates"
BATCHES = (1, 100, 1000)
STORED = "stored1"
_DEEPER = 2
GATHERED = ("x1", STORED)
"""Variants whose rows are gathered by the readers."""
SHARES = (0.0, 0.01, 0.1)
MAX_DELTA_BYTES = 1 << 37
"""More than a machine has: what ends a run is how much is asked for."""
_SEEDS = 1024
_ROWS = 1 << 16
"""Rows of stored layers that are written at a time."""
_LATE_TOGETHER = 8192
"""Items that a follower applies in one go where nothing is asked and the worker is late."""
_OTHERS = 1 << 40
"""Ids of new nodes that one stream of changes leaves to another."""
_SAMPLED = 20_000
"""Nodes whose sums are compared."""
_CHUNK = 50_000
"""Changes that are made at a time, before the clock runs."""
_NO_LIMIT = float("inf")


class GraphEffort(msgspec.Struct, frozen=True):
    seconds: float
    """Time of applying, at first and then for each batch size."""
    sum_changes: int
    """Changes after which sums are compared with those that are made anew."""
    pairs: int
    """Pairs of batches of predictions, by variant and share of changed rows."""
    batches: tuple[int, ...] = BATCHES


QUICK = GraphEffort(seconds=0.2, sum_changes=5_000, pairs=2, batches=(1000,))
FULL = {
    "arxiv": GraphEffort(seconds=10.0, sum_changes=10_000_000, pairs=60),
    # Most of the time a change here makes the first sum of a node, from 50 neighbours.
    "products": GraphEffort(seconds=20.0, sum_changes=50_000, pairs=40),
}


def living_manifest(name: str, more: Mapping[str, Any] | None = None, *, layers: int = 1) -> dict[str, Any]:
    """The GNNService of a shape, with so many stored layers that follow changes. `more`: fields of its spec that no
    recipe depends on."""
    files = prepare(SHAPES[name])
    manifest: dict[str, Any] = service_manifest(files, prepare_sources(files), "float32")
    spec = manifest["spec"]
    spec["variants"]["stored"] = [*range(1, layers + 1)]
    if layers > 1:
        spec["variants"]["storedFollowChanges"] = True
    spec.update(more or {})
    return manifest


def publish(name: str, layers: int = 1) -> tuple[Repository, str]:
    """The repository of a shape and its revision, generated unless an earlier run did. `layers`: stored ones."""
    service = GNNService.model_validate(living_manifest(name, layers=layers))
    repository = Repository(REPOSITORY, service.metadata.namespace, service.metadata.name)
    return repository, generate(service, repository).revision


def measure_elsewhere(name: str, *, quick: bool) -> GraphFigures:
    command = [sys.executable, "-m", "benchmarks.changes.updates_graph", name, *(["--quick"] if quick else [])]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=GraphFigures)


def measure_shape(name: str, effort: GraphEffort) -> GraphFigures:
    shape = Subject(*publish(name))
    rates = [rate for stored in (True, False) for rate in shape.rates(effort, stored=stored)]
    rates += Subject(*publish(name, _DEEPER)).deeper_rates(effort)
    memory, sums = shape.grow(effort.sum_changes)
    gathering = shape.gather(effort.pairs)
    nodes, edges = shape.graph.nodes, shape.graph.edges
    return GraphFigures(nodes, edges, tuple(shape.variants), tuple(rates), tuple(gathering), tuple(memory), sums)


class Subject:
    """The revision that changes are applied to, opened anew for each measurement."""

    def __init__(self, repository: Repository, revision: str) -> None:
        self._repository, self._revision = repository, revision
        loaded = load_revision(repository, revision)
        self.graph: Graph = loaded.graph
        self.variants = [*loaded.variants]
        self._features = loaded.new_nodes.features

    def stream(self, seed: int, mix: Mix | None = None, *, by_degree: bool = False) -> ChangeStream:
        return ChangeStream(self.graph, self._features, seed, mix or Mix(), by_degree=by_degree)

    def open(
        self, *, stored: bool = True, refresh: RefreshBudget | None = None
    ) -> tuple[LoadedRevision, LivingRevision]:
        """`refresh`: as of `LivingRevision`."""
        gc.collect()
        loaded = load_revision(self._repository, self._revision, MAX_DELTA_BYTES)
        if not stored:
            kept = {name: variant for name, variant in loaded.variants.items() if not name.startswith(STORED)}
            loaded = replace(loaded, variants=kept)
        return loaded, LivingRevision(loaded, MAX_DELTA_BYTES, refresh=refresh)

    def rates(self, effort: GraphEffort, *, stored: bool) -> Iterator[ApplyRate]:
        _, living = self.open(stored=stored)
        stream, largest = self.stream(1), max(effort.batches)
        changes, took_s = apply_for(living, stream, largest, effort.seconds)
        at_first_per_s = round(changes / took_s)
        print(f"{'with' if stored else 'without'} {STORED}, at first: {at_first_per_s:,} changes/s", file=sys.stderr)
        reach_all(living)
        for batch in effort.batches:
            rate = _rate(living, stream, batch, effort.seconds)
            yield msgspec.structs.replace(
                rate, stored=stored, at_first_per_s=at_first_per_s if batch == largest else None
            )
        if stored:
            stream = self.stream(2, by_degree=True)
            stream.skip_ids(_OTHERS)
            yield msgspec.structs.replace(_rate(living, stream, largest, effort.seconds), by_degree=True)

    def deeper_rates(self, effort: GraphEffort, refresh: RefreshBudget | None = None) -> Iterator[ApplyRate]:
        """With two layers that are kept exact, which is what RIPPLE++ does; with a budget, rows of the second are
        marked as stale."""
        _, living = self.open(refresh=refresh)
        reach_all(living)
        stream = self.stream(1)
        measured = [*((batch, TOGETHER) for batch in effort.batches[-2:]), (effort.batches[-1], _LATE_TOGETHER)]
        for batch, together in measured:
            rate = _rate(living, stream, batch, effort.seconds, together)
            right_s = None if refresh is None else _make_right(living)
            yield msgspec.structs.replace(rate, layers=_DEEPER, stale=refresh is not None, right_s=right_s)

    def grow(self, changes: int) -> tuple[list[MemoryPoint], ExactSums]:
        """Memory while changes go on, and whether sums are still exact after all of them."""
        _, living = self.open()
        stream, batch = self.stream(7, FEW_NEW_NODES), max(BATCHES)
        sampled = np.sort(np.random.default_rng(9).permutation(self.graph.nodes)[:_SAMPLED])
        first = []
        for sums in living.drafting.sums.values():
            sums.begin(sampled)
            first.append(sums.residuals(sampled)[0])
        before, points, done = _anonymous_bytes(), [], 0
        for until in (changes // 100, changes // 10, changes):
            while done < until:
                done += apply_for(living, stream, batch, _NO_LIMIT, most=until - done)[0]
            points.append(MemoryPoint(done, living.delta_bytes, _anonymous_bytes() - before))
            print(f"{done:,} changes", file=sys.stderr)
        kept = living.drafting.sums.values()
        return points, ExactSums(
            done, all(_are_exact(sums, sampled, begun) for sums, begun in zip(kept, first, strict=True))
        )

    def gather(self, pairs: int) -> Iterator[Gathering]:
        mapped = load_revision(self._repository, self._revision)
        loaded, living = self.open()
        nodes = self.graph.nodes
        batches = draw_batches(nodes - PROBES, _SEEDS, 16)
        order = np.random.default_rng(3).permutation(nodes)
        stream, overridden, reached = self.stream(8), 0, np.zeros(nodes, np.bool_)
        for revision in (mapped, loaded):
            warm_up(revision)
        for share in SHARES:
            until = int(share * nodes)
            if share == SHARES[-1]:
                # That many reach nearly all rows, which are written many times faster all at once.
                reach_all(living)
                reached[:] = True
            for start in range(overridden, until, max(BATCHES)):
                chosen = order[start : min(start + max(BATCHES), until)]
                _apply(living, [encode_batch(stream.overriding(chosen))])
                reached[chosen] = True
                reached[living.graph.readers_of(chosen)] = True
            overridden = until
            for variant in GATHERED:
                yield self._compare(mapped, loaded, variant, batches, pairs, share, float(reached.mean()))

    def _compare(
        self, mapped: LoadedRevision, living: LoadedRevision, variant: str, batches: Sequence[np.ndarray], pairs: int,
        share: float, reached: float,
    ) -> Gathering:  # fmt: skip
        """Each pair is a batch of predictions over both, in an order that changes."""
        both, found = (mapped, living), []
        for number in range(-3, pairs):
            took_s = [0.0, 0.0]
            for which in (0, 1) if number % 2 else (1, 0):
                began_s = time.perf_counter()
                infer_batch(both[which], variant, batches[number % len(batches)], number + 3, with_embeddings=False)
                took_s[which] = time.perf_counter() - began_s
            if number >= 0:
                found.append((took_s[0], took_s[1]))
        ratio = compute_ratio(found)
        median_ms = round(1e3 * float(np.median([before for before, _ in found])), 3)
        return Gathering(variant, share, round(reached, 3), median_ms, ratio.ratio, ratio.low, ratio.high, ratio.pairs)


def _rate(
    living: LivingRevision, stream: ChangeStream, batch: int, seconds: float, together: int = TOGETHER
) -> ApplyRate:
    apply = partial(apply_for, living, stream, batch, together=together)
    apply(seconds / 10)
    changes, took_s = apply(seconds)
    with timed_stages() as spent_s:
        _, of_stages_s = apply(seconds / 2)
    per_s = round(changes / took_s)
    print(f"batches of {batch}, {together:,} at a time: {per_s:,} changes/s", file=sys.stderr)
    shares = shares_of(spent_s, of_stages_s)
    return ApplyRate(batch, True, False, None, changes, per_s, shares, together=together)


def _make_right(living: LivingRevision) -> float:
    """Make all stale rows, turn by turn: the seconds that it takes."""
    began_s = time.perf_counter()
    while living.refreshing.is_any_stale:
        living.refresh_worst()
    took_s = time.perf_counter() - began_s
    print(f"all rows made right in {took_s:.1f} s", file=sys.stderr)
    return round(took_s, 2)


def reach_all(living: LivingRevision) -> None:
    """Write all rows of stored layers, so that their pages are copied and sums are made: as after changes that have
    reached every node once."""
    count = living.graph.ids.count
    for layer in (one for layers in living.drafting.layers for one in layers):
        for start in range(0, count, _ROWS):
            nodes = np.arange(start, min(start + _ROWS, count))
            if layer.sums is not None:
                layer.sums.begin(nodes)
            write_layer(layer.maker, nodes, layer.sums)
            if layer.into is not None:
                write_layer(layer.into, nodes, layer.sums)


def apply_for(
    living: LivingRevision, stream: ChangeStream, batch: int, seconds: float, most: float = _NO_LIMIT, *,
    together: int = TOGETHER,
) -> tuple[int, float]:  # fmt: skip
    """Apply batches for about so long, or so many changes: how many, and the seconds that applying them took.
    `together`: changes that are applied in one go."""
    done, took_s = 0, 0.0
    while took_s < seconds and done < most:
        count = max(1, int(min(_CHUNK, most - done)) // batch)
        bodies = [encode_batch(made) for made in stream.batches(batch, count)]
        step = max(1, together // batch)
        for start in range(0, count, step):
            began_s = time.perf_counter()
            done += _apply(living, bodies[start : start + step])
            took_s += time.perf_counter() - began_s
            if took_s >= seconds:
                break
    return done, took_s


def _are_exact(sums: LivingSums, nodes: np.ndarray, first: np.ndarray) -> bool:
    """Whether what rounding left of these sums is what it was at first, to the bit, and nothing of those that were made
    from lists since."""
    now, from_list = sums.residuals(nodes)
    is_kept = (now != -1).any(axis=1)
    same = (now == np.where(from_list[:, None], 0, first)).all(axis=1)
    return bool(is_kept.any() and same[is_kept].all())


def _apply(living: LivingRevision, bodies: Sequence[bytes]) -> int:
    batches = [decode_batch(body) for body in bodies]
    for said in living.apply(living.offset + 1, batches):
        if not isinstance(said, BatchEffect):
            raise SystemExit(f"a batch was refused: {said.field}: {said.message}")
    return sum(batch.counts.items for batch in batches)


_STAGES: tuple[tuple[str, type, str], ...] = (
    ("finding", LivingRevision, "_find_next"),
    ("finding", LivingGraph, "entries_reading"),
    ("finding", LivingGraph, "readers_of"),
    ("lists", LivingGraph, "apply"),
    ("rows", RowMaker, "renew"),
    ("sums", LivingSums, "begin"),
    ("sums", LivingSums, "move"),
    ("sums", LivingSums, "change"),
    ("deriving", LivingRevision, "_publish"),
)
"""What applying a batch consists of: nodes and readers that are found, neighbour lists, rows of features and products,
sums by increments, rows of stored layers derived from them and written, with the lists, to what predictions read."""


@contextmanager
def timed_stages() -> Iterator[dict[str, float]]:
    """Seconds by stage while inside. What a stage calls of another one is the other's alone."""
    spent_s = dict.fromkeys((stage for stage, _, _ in _STAGES), 0.0)
    of_others_s = [0.0]
    """Seconds of stages within the one that is on, and within those that it is part of."""
    kept = [(owner, name, getattr(owner, name)) for _, owner, name in _STAGES]

    def timed(stage: str, original: Any) -> Any:
        @wraps(original)
        def call(*arguments: Any, **named: Any) -> Any:
            began_s = time.perf_counter()
            of_others_s.append(0.0)
            try:
                return original(*arguments, **named)
            finally:
                took_s = time.perf_counter() - began_s
                spent_s[stage] += took_s - of_others_s.pop()
                of_others_s[-1] += took_s

        return call

    try:
        for stage, owner, name in _STAGES:
            setattr(owner, name, timed(stage, getattr(owner, name)))
        yield spent_s
    finally:
        for owner, name, original in kept:
            setattr(owner, name, original)


def shares_of(spent_s: Mapping[str, float], took_s: float) -> dict[str, float]:
    """Shares of the time by stage; `rest` is what no stage has."""
    shares = {stage: round(spent / took_s, 3) for stage, spent in spent_s.items()}
    return {**shares, "rest": round(1 - sum(shares.values()), 3)}


def _anonymous_bytes() -> int:
    return read_memory([os.getpid()]).anonymous_bytes


if __name__ == "__main__":
    figures = measure_shape(sys.argv[1], QUICK if "--quick" in sys.argv else FULL[sys.argv[1]])
    print(msgspec.json.encode(figures).decode())
