"""Times of requests that make stale rows anew, beside exact stored layers and whole neighbourhoods, in one run.

A network of three layers, learnt from a graph without a fifth of its edges, is served from stored layers over all
neighbours; then these edges come as changes. A request is given a budget of a share of the stale rows that it reads.
What it has made anew is stale again before the next one, so that each finds as much to do.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors.torch
from msgspec.structs import replace

from benchmarks.staleness.networks import HIDDEN, Edges, Network, Subject
from benchmarks.staleness.rules import SHARES, Scene
from gnnserve_api.limits import RefreshBudget
from gnnserve_api.spec.service import GNNService
from gnnserve_api.variants import fanouts_name, stored_layer_name, variant_name
from gnnserve_worker.generation.pipeline import generate
from gnnserve_worker.graph.change_batch import BatchEffect, ChangeBatch, ChangeCounts
from gnnserve_worker.graph.change_ids import IntegerIds
from gnnserve_worker.graph.store import GraphData
from gnnserve_worker.inference.batch import Infer, warm_up
from gnnserve_worker.inference.living import LivingRevision
from gnnserve_worker.inference.opening import served_revision
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.repository.repository import Repository

SAMPLED = (15, 10, 5)
STORED, WHOLE = stored_layer_name(2), variant_name(1)
ROOM_BYTES, _EDGES_OF_BATCH = 1 << 34, 4096
NOTHING = RefreshBudget(rows=0, microseconds=10**9, background_permille=0)


@dataclass(frozen=True, slots=True)
class Cost:
    """Requests for so many nodes through one variant."""

    variant: str
    seeds: int
    share: float | None
    """Share of the stale rows that a request reads which it makes anew; None: no row that it reads is stale."""
    rows_made: float
    """Mean of a request."""
    p50_us: float
    differing: float
    """Percent of the answers that differ from exact ones."""


@dataclass(frozen=True, slots=True)
class Costs:
    graph: str
    nodes: int
    changes: int
    """Edges that came."""
    stale_rows: int
    costs: tuple[Cost, ...]


@dataclass(frozen=True, slots=True)
class Effort:
    requests: int
    """Requests for one node."""
    repeats: int
    """Repeats of a request for many."""
    large: int = 1024


def publish_stored(
    data: GraphData, subject: Subject, edges: Edges, network: Network, scene: Scene, folder: Path
) -> tuple[Repository, str]:
    """The revision of the graph before the changes of a scene, with its network's own weights, and layers 1 and 2
    stored."""
    before, splits = edges.where(scene.is_old), data.splits
    masks = {name: np.zeros(edges.nodes, np.bool_) for name in ("train_mask", "val_mask", "test_mask")}
    for mask, chosen in zip(masks.values(), (splits.train, splits.validation, splits.test), strict=True):
        mask[chosen] = True
    order = np.lexsort((before.sources, before.targets))
    np.savez(
        folder / "graph.npz", indptr=np.concatenate(([0], np.cumsum(before.degrees()))),
        indices=before.sources[order].astype(np.int32), labels=subject.labels.numpy(),
        features=network.inputs(subject).detach().numpy(), **masks,
    )  # fmt: skip
    tensors = {
        f"convs.{place}.{key}": tensor.detach().contiguous()
        for place, (own, read) in enumerate(zip(network.own, network.read, strict=True))
        for key, tensor in (
            ("lin_l.weight", read[0].weight), ("lin_l.bias", own.bias), ("lin_r.weight", own.weight),
        )
    }  # fmt: skip
    safetensors.torch.save_file(tensors, folder / "weights.safetensors")
    spec = {
        "graph": {
            "source": {"npz": {"uri": (folder / "graph.npz").as_uri(), "direction": "Undirected"}},
            "normalization": "Disabled",
        },
        "model": {
            "checkpoint": {"uri": (folder / "weights.safetensors").as_uri()}, "hidden": HIDDEN,
            "fanouts": [-1] * network.layers,
        },
        "variants": {
            "pruning": {"factors": [1]}, "projection": "Disabled", "stored": [1, 2], "storedFollowChanges": True,
            "fanouts": [[*SAMPLED]],
        },
    }  # fmt: skip
    body = {"apiVersion": "gnnserve.dev/v1alpha1", "kind": "GNNService", "metadata": {"name": "stale"}, "spec": spec}
    repository = Repository(folder / "repository", "benchmarks", "stale")
    return repository, generate(GNNService.model_validate(body), repository).revision


class Served:
    """A revision that edges have come to since, with a budget of nothing."""

    def __init__(self, repository: Repository, revision: str, came: np.ndarray) -> None:
        """`came`: pairs of nodes, int64 [edges, 2]."""
        self.loaded = load_revision(repository, revision, ROOM_BYTES)
        self.living = LivingRevision(self.loaded, ROOM_BYTES, refresh=NOTHING)
        served = served_revision(self.loaded, self.living)
        within, comparison = served.compute.infer_within, served.changes.comparison
        assert within is not None and comparison is not None  # noqa: S101 - layers follow changes
        self.infer: Infer = served.compute.infer
        self.infer_within, self.comparison, self.manifest = within, comparison, served.manifest
        warm_up(self.loaded)
        (layer,) = self.living.refreshing.layers
        self.rows, table = layer.rows, self.loaded.variants[STORED].table
        self._maker = next(one.makes for one in layer.makers if one.makes.table is table)
        self._before = self._maker.make(np.arange(self.loaded.answered_nodes), None)
        self.apply(came)

    def apply(self, came: np.ndarray) -> None:
        """`came`: as of `__init__`."""
        for start in range(0, len(came), _EDGES_OF_BATCH):
            said = self.living.apply(self.living.offset + 1, [_edges_that_come(came[start : start + _EDGES_OF_BATCH])])
            assert all(isinstance(one, BatchEffect) for one in said)  # noqa: S101 - nothing else may come of these

    def ask(self, variant: str, seeds: np.ndarray, key: int) -> tuple[float, np.ndarray]:
        """Time in microseconds, and the class of each seed (int64)."""
        began_s = time.perf_counter()
        found = self.infer(variant, seeds, key, with_embeddings=False)
        return 1e6 * (time.perf_counter() - began_s), found.scores.argmax(1)

    def ask_within(self, share: float, seeds: np.ndarray, key: int) -> tuple[float, np.ndarray, int]:
        """Time and answers by stored layers, with a budget for that share of the stale rows that the request reads, and
        the number of rows that it made. These are as stale as before afterwards: else the answers of later requests
        would differ less."""
        errors = self.rows.errors
        read = np.unique(np.concatenate((seeds, self.living.graph.lists.of(seeds))))
        stale = read[errors[read] > 0]
        before = errors[stale].copy()
        budget = replace(NOTHING, rows=math.ceil(share * len(stale)))
        self.living.refreshing.budget = budget
        took_us, classes = self.ask(STORED, seeds, key)
        self.living.refreshing.budget = NOTHING
        is_made = errors[stale] == 0
        self._maker.put(self._before)
        self.rows.mark(stale[is_made], before[is_made])
        return took_us, classes, int(is_made.sum())


def _edges_that_come(pairs: np.ndarray) -> ChangeBatch:
    return ChangeBatch(ChangeCounts(edges=len(pairs)), IntegerIds(pairs.ravel()), np.zeros((0, 0), np.float32))


def measure_costs(
    name: str, repository: Repository, revision: str, edges: Edges, scene: Scene, effort: Effort
) -> Costs:
    came = edges.where(~scene.is_old)
    is_once = came.sources < came.targets
    pairs = np.stack((came.sources[is_once], came.targets[is_once]), axis=1)
    rng = np.random.default_rng(13)
    single = [*rng.choice(scene.asked, (effort.requests, 1), replace=False)]
    many, found = [np.sort(rng.choice(scene.asked, effort.large, replace=False))] * effort.repeats, list[Cost]()
    for requests in (single, many):
        served = Served(repository, revision, pairs)
        stale_rows = served.rows.count
        exact = [served.ask(WHOLE, seeds, 0)[1] for seeds in requests]
        for share in SHARES:
            # What a request has made anew stays right: each share begins with rows that are stale.
            of_share = served if share == 0 else Served(repository, revision, pairs)
            asked = [of_share.ask_within(share, seeds, key) for key, seeds in enumerate(requests)]
            first = asked if requests is single else asked[:1]
            differing = _differing([classes for _, classes, _ in first], exact)
            made = statistics.fmean(made for *_, made in asked)
            found.append(_cost(STORED, requests, share, made, [took_us for took_us, *_ in asked], differing))
        served.living.refreshing.budget = None
        served.infer(STORED, np.arange(edges.nodes), 0)
        for variant in (STORED, WHOLE, fanouts_name(WHOLE, SAMPLED)):
            answers = [served.ask(variant, seeds, key) for key, seeds in enumerate(requests)]
            differing = _differing([classes for _, classes in answers], exact)
            found.append(_cost(variant, requests, None, 0.0, [took_us for took_us, _ in answers], differing))
    return Costs(name, edges.nodes, len(pairs), stale_rows, tuple(found))


def _cost(
    variant: str, requests: Sequence[np.ndarray], share: float | None, made: float, took_us: Sequence[float],
    differing: float,
) -> Cost:  # fmt: skip
    return Cost(variant, len(requests[0]), share, round(made, 1), round(statistics.median(took_us), 1), differing)


def _differing(answers: Sequence[np.ndarray], exact: Sequence[np.ndarray]) -> float:
    found, wanted = np.concatenate(answers), np.concatenate(exact[: len(answers)])
    return round(100 * float((found != wanted).mean()), 3)
