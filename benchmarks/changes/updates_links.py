"""Links of a graph that changes: scores beside those of the graph that has the changes, and what recommendations pay.

Answers: ten thousand changes of all kinds, and scores of random pairs beside those of the graph built anew with the
same weights, over one type and over several; of LightGCN beside sums over what nodes are joined to.

A service: purchases come and go, of LightGCN on gowalla (its leading eigenvectors) and of GraphSAGE over a made-up
graph of users, items and tags. How many changes a second last, and the p99 of recommendations at 70 % of the capacity
beside them: the index is searched, and beside it the rows that were made anew since.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.support.changes.living_links import ChangingLinks, JoinedLinks, LinksOfOneType, LinksOfTypes, largest_error
from tests.support.generation.new_ends import made
from tests.support.generation.recommended_links import of_users, service_of

from benchmarks.accuracy.links import SHARED
from benchmarks.changes.updates_answers import short_profile
from benchmarks.changes.updates_graph import REPOSITORY
from benchmarks.changes.updates_measured import LinkErrors, RecommendingFigures
from benchmarks.changes.updates_relations import TypedStream, typed_manifest
from benchmarks.changes.updates_service import Bench, ServedSubject, ServiceEffort
from benchmarks.wrk import encode_post
from gnnserve_api.spec.service import GNNService
from gnnserve_cli.loadgen.requests import Requests
from gnnserve_client.address import Endpoint
from gnnserve_worker.generation.embeddings.publishing import publish_embeddings
from gnnserve_worker.generation.pipeline import generate
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.progress import silent
from gnnserve_worker.repository.repository import Repository

_PAIRS = 5000
_ROOM_BYTES = 1 << 33
_COUNT, _ASKED = 20, 1024
"""Nodes of a recommendation, and different requests."""
_BATCHES = (100, 1000)
_DIMENSIONS = 64
SERVICES = ("gowalla", "typed")


# --- answers


def _of_one_type(architecture: str, folder: Path, patched: pytest.MonkeyPatch) -> ChangingLinks:
    return LinksOfOneType(folder, architecture, room_bytes=_ROOM_BYTES)


def _of_types(folder: Path, patched: pytest.MonkeyPatch) -> ChangingLinks:
    given = made(folder, "GraphSAGE", patched)
    assert given.loaded.manifest is not None  # noqa: S101
    repository = Repository(folder / "repository", "default", "shop")
    return LinksOfTypes(repository, given.loaded.manifest.revision, given.data, given.model.float())


def _of_light_gcn(folder: Path, patched: pytest.MonkeyPatch) -> ChangingLinks:
    repository = Repository(folder / "repository", "default", "shop")
    revision = generate(service_of(of_users(folder)), repository, silent).revision
    return JoinedLinks(repository, revision, _ROOM_BYTES)


ANSWERED: Mapping[str, Callable[[Path, pytest.MonkeyPatch], ChangingLinks]] = {
    "GraphSAGE": partial(_of_one_type, "GraphSAGE"),
    "GCN": partial(_of_one_type, "GCN"),
    "GraphSAGE over types": _of_types,
    "LightGCN": _of_light_gcn,
}


def measure_link_answers(name: str, changes: int) -> LinkErrors:
    draw, done = np.random.default_rng(31), 0
    with (
        tempfile.TemporaryDirectory(prefix="gnnserve-links-") as folder,
        pytest.MonkeyPatch.context() as patched,
        short_profile(),
    ):
        links = ANSWERED[name](Path(folder), patched)
        while done < changes:
            done += links.change(draw)
        errors = largest_error(links, _PAIRS, draw)
    print(f"{name}: scores of pairs off by {max(errors.values()):.1e} at most after {done:,} changes", flush=True)
    return LinkErrors(name, done, _PAIRS, errors)


# --- a service


def _gowalla() -> dict[str, Any]:
    source = SHARED / "typed" / "gowalla"
    links = {"relation": "interacts", "comparedWith": "Nothing", "dimensions": _DIMENSIONS}
    return {
        "graph": {"source": {"typed": {"npz": {"uri": source.resolve().as_uri()}}}},
        "task": {"links": links},
        "model": {"architecture": "LightGCN", "fanouts": [0]},
        "variants": {"pruning": {"factors": [1]}},
    }


def _typed() -> dict[str, Any]:
    """One epoch of large batches: what the weights are makes no difference to what changes take."""
    spec = typed_manifest()["spec"]
    training = {"epochs": 1, "batchSize": 1 << 16}
    return {
        "graph": spec["graph"],
        "task": {"links": {"relation": "buys", "dimensions": _DIMENSIONS}},
        "model": {"hidden": _DIMENSIONS, "fanouts": spec["model"]["fanouts"], "training": training},
        "variants": {"pruning": {"factors": [1]}},
    }


_SPECS: Mapping[str, Callable[[], dict[str, Any]]] = {"gowalla": _gowalla, "typed": _typed}


def measure_recommending(name: str, effort: ServiceEffort) -> RecommendingFigures:
    manifest = {
        "apiVersion": "gnnserve.dev/v1alpha1", "kind": "GNNService", "metadata": {"name": f"links-{name}"},
        "spec": {**_SPECS[name](), "embeddings": {}},
    }  # fmt: skip
    loaded, variant = _published(manifest)
    subject = ServedSubject(manifest, partial(TypedStream, loaded.graph), partial(_recommendations, loaded))
    with tempfile.TemporaryDirectory(prefix="gnnserve-links-") as folder:
        bench = Bench(subject, Path(folder))
        rates = tuple(bench.durable_rate(batch, effort.seconds) for batch in _BATCHES)
        best_per_s = max(rate.changes_per_s for rate in rates)
        costs = tuple(bench.prediction_cost(share, best_per_s, effort) for share in effort.shares)
    return RecommendingFigures(variant, loaded.graph.nodes, loaded.graph.edges, rates, costs)


def _published(manifest: Mapping[str, Any]) -> tuple[LoadedRevision, str]:
    """The revision with its index, made unless an earlier run did, and the variant that the index is of."""
    service = GNNService.model_validate(manifest)
    repository = Repository(REPOSITORY, service.metadata.namespace, service.metadata.name)
    revision = generate(service, repository, silent).revision
    name = f"{service.metadata.namespace}/{service.metadata.name}"
    publish_embeddings(repository, name, revision, None, {}, "make bench-updates", silent)
    loaded = load_revision(repository, revision)
    return loaded, next(iter(loaded.variants))


def _recommendations(loaded: LoadedRevision, endpoint: Endpoint) -> Requests:
    """For users that are drawn."""
    schema = loaded.graph.schema
    users = schema.types[schema.place_of("user")].nodes
    drawn = np.random.default_rng(5).integers(0, users, _ASKED).tolist()
    bodies = (msgspec.json.encode({"node": f"user/{user}", "count": _COUNT}) for user in drawn)
    return Requests(
        [encode_post(endpoint.port, "/v1/recommend", "application/json", body) for body in bodies], seeds_each=1
    )
