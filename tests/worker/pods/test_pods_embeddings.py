"""The program of an embeddings Job, and the publishing under it: index and rows of one computation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psycopg
import pytest
from tests.support.changes.postgres import PostgresServer, postgres_server, programs_with_pgvector
from tests.support.graphs.graphs import network_manifest

from gnnserve_api.files.embeddings import IndexKind, IndexMetric, Neighbours
from gnnserve_api.pods.interface import PodExit
from gnnserve_api.spec.task import Decoder
from gnnserve_api.variants import Storage
from gnnserve_worker.generation.embeddings import index as building
from gnnserve_worker.generation.embeddings.compute import embedding_blocks
from gnnserve_worker.inference.made_up import MadeUpVariant, made_up_graph, publish_made_up
from gnnserve_worker.models.decoder import build_decoder, score_all
from gnnserve_worker.models.pair_queries import Products
from gnnserve_worker.nearest.comparison import ByScore
from gnnserve_worker.nearest.files import index_folder, open_index, read_manifest
from gnnserve_worker.nearest.search import ProductLists, unit
from gnnserve_worker.opening.revision import build_exact, load_revision
from gnnserve_worker.pods.embeddings import main
from gnnserve_worker.progress import silent
from gnnserve_worker.repository.repository import Repository

NODES = 400
NONE = np.zeros(0, np.int64)
VARIANTS = [
    MadeUpVariant("x1", 1, "features", Storage.FLOAT32, "float32"),
    MadeUpVariant("x2", 2, "features", Storage.FLOAT32, "float32"),
]


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with postgres_server(programs_with_pgvector()) as running:
        yield running


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    stored = Repository(tmp_path / "repository", "default", "digits")
    publish_made_up(stored, made_up_graph(NODES, 4, 7, 3), network_manifest("GraphSAGE", (3, 2)), VARIANTS)
    return stored


def run(
    repository: Repository, tmp_path: Path, embeddings: dict[str, object], uri: str | None = None
) -> tuple[int, str]:
    """Its exit code, and the message that it leaves."""
    secrets, message = tmp_path / "secrets", tmp_path / "message"
    (secrets / "0").mkdir(parents=True, exist_ok=True)
    if uri is not None:
        (secrets / "0" / "uri").write_text(uri)
    (revision,) = repository.revisions()
    manifest = {
        "apiVersion": "gnnserve.dev/v1alpha1",
        "kind": "GNNService",
        "metadata": {"name": "digits"},
        "spec": {"graph": {"source": {"builtin": "Digits"}}, "embeddings": embeddings},
    }
    environ = {
        "GNNSERVE_MANIFEST": json.dumps(manifest),
        "GNNSERVE_REPOSITORY": str(tmp_path / "repository"),
        "GNNSERVE_EMBEDDED_REVISION": revision.revision,
        "GNNSERVE_TERMINATION_MESSAGE": str(message),
    }
    return main(environ, secrets), message.read_text()


def computed(repository: Repository, tmp_path: Path, variant: str = "x1") -> np.ndarray:
    (revision,) = repository.revisions()
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    loaded = load_revision(repository, revision.revision, build=build_exact)
    return np.concatenate([*embedding_blocks(loaded, variant, None, Neighbours.ALL, 0, scratch)])


def folder_of(repository: Repository) -> Path:
    (revision,) = repository.revisions()
    return index_folder(repository.folder / "revisions" / revision.revision)


def test_one_computation_becomes_an_index_and_rows(
    repository: Repository, tmp_path: Path, server: PostgresServer
) -> None:
    server.execute("CREATE DATABASE whole")
    sinks = {"sinks": [{"postgres": {"secretName": "vectors", "view": "digits"}}]}

    code, message = run(repository, tmp_path, sinks, server.uri("whole"))

    assert (code, message) == (PodExit.OK, "embeddings by x1")
    values = computed(repository, tmp_path)
    with psycopg.connect(server.uri("whole")) as connection:
        rows = connection.execute(
            "SELECT id, embedding::text, revision FROM gnnserve_embeddings.digits ORDER BY id"
        ).fetchall()
    assert [row[0] for row in rows] == [*range(NODES)]
    assert np.allclose([json.loads(row[1]) for row in rows], values, atol=1e-6)
    manifest = read_manifest(folder_of(repository))
    assert manifest is not None
    assert (manifest.kind, manifest.variant, manifest.nodes, manifest.recall) == (IndexKind.EXACT, "x1", NODES, 1)
    found = open_index(folder_of(repository), manifest).search(Products(unit(values[3:4])), 5, np.array([3]), None)
    cosines = unit(values) @ unit(values[3])
    cosines[3] = -2
    assert np.allclose(found.products, np.sort(cosines)[::-1][:5], atol=1e-6)
    assert [*repository.folder.glob("revisions/*/.embeddings-*")] == []
    assert load_revision(repository, manifest.revision).manifest is not None


def test_a_database_that_is_away_fails_the_job_and_leaves_the_index(repository: Repository, tmp_path: Path) -> None:
    sinks = {"sinks": [{"postgres": {"secretName": "vectors"}}]}
    code, message = run(repository, tmp_path, sinks, "postgresql://u:secret@127.0.0.1:1/d")
    assert code == PodExit.RESOURCE
    assert message.startswith("spec.embeddings.sinks[0]: the PostgreSQL for embeddings went away")
    assert "secret" not in message
    assert read_manifest(folder_of(repository)) is not None


def test_what_is_there_is_not_made_again(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(repository, tmp_path, {})[0] == PodExit.OK
    monkeypatch.setattr("gnnserve_worker.generation.embeddings.publishing.published_blocks", None)
    assert run(repository, tmp_path, {}) == (PodExit.OK, "embeddings by x1")


def test_another_variant_takes_the_place_of_the_one_before(repository: Repository, tmp_path: Path) -> None:
    assert run(repository, tmp_path, {})[0] == PodExit.OK
    assert run(repository, tmp_path, {"variant": "x2"}) == (PodExit.OK, "embeddings by x2")
    manifest = read_manifest(folder_of(repository))
    assert manifest is not None
    assert manifest.variant == "x2"


def test_an_unknown_variant_is_refused(repository: Repository, tmp_path: Path) -> None:
    code, message = run(repository, tmp_path, {"variant": "x9"})
    assert code == PodExit.BAD_INPUT
    assert "spec.embeddings: variant x9 is none that spec.variants generates; name one of x1, x2, " in message


def test_many_vectors_are_found_by_lists_and_the_recall_is_told(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(building, "MOST_EXACT_BYTES", 0)
    assert run(repository, tmp_path, {})[0] == PodExit.OK
    manifest = read_manifest(folder_of(repository))
    assert manifest is not None
    assert manifest.kind is IndexKind.APPROXIMATE
    assert manifest.recall >= 0.99
    assert manifest.recall_queries > 0
    index = open_index(folder_of(repository), manifest)
    assert isinstance(index, ProductLists)
    values = computed(repository, tmp_path)
    allowed = np.zeros(NODES, bool)
    allowed[::40] = True
    found = index.search(Products(unit(values[5:6])), 4, np.array([5, 40]), allowed)
    assert len(found.positions) == 4
    assert all(allowed[found.positions])
    assert 40 not in found.positions


@pytest.mark.parametrize("kind", [Decoder.DOT, Decoder.DIST_MULT, Decoder.MLP])
def test_lists_of_links_find_the_best_scores_of_vectors_of_any_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Decoder
) -> None:
    draw = np.random.default_rng(4)
    weights = {
        "relation": draw.normal(size=8), "first": draw.normal(size=(6, 8)), "second": draw.normal(size=(6, 8)),
        "bias": draw.normal(size=6), "out": draw.normal(size=6), "end": draw.normal(size=1),
    }  # fmt: skip
    decoder = build_decoder(kind, {key: one.astype(np.float32) for key, one in weights.items()}, 8)
    monkeypatch.setattr(building, "MOST_EXACT_BYTES", 0)
    draw = np.random.default_rng(2)
    items = draw.normal(size=(2000, 8)).astype(np.float32) * draw.uniform(0.5, 3, (2000, 1)).astype(np.float32)
    users = draw.normal(size=(300, 8)).astype(np.float32)
    origin = building.EmbeddingsOrigin("r1", "g1", "x1", "", None, "a test", IndexMetric.SCORE, "item", 40)
    made = building.build_index(items, origin, tmp_path / "index", silent, users, ByScore(decoder, stand_first=False))
    assert (made.metric, made.type, made.first, made.kind) == ("Score", "item", 40, "Approximate")
    assert made.recall >= 0.98
    query = decoder.queries(users[:1], rows_stand_first=False)
    index = open_index(tmp_path / "index", made)
    found = index.search(query, 10, NONE, None)
    scores = score_all(decoder, users[:1], items)[0]
    assert np.count_nonzero(np.isclose(found.products, np.sort(scores)[::-1][:10], atol=1e-4)) >= 9
    assert np.allclose(found.products, scores[found.positions], atol=1e-4)

    allowed = np.zeros(2000, bool)  # the worst ones, which lie in lists that are far from the query
    allowed[np.argsort(scores)[:30]] = True
    few = index.search(query, 25, np.flatnonzero(allowed)[:5], allowed)
    assert len(few.positions) == 25
    assert allowed[few.positions].all()

    for share in (0.1, 0.4, 0.6):  # of those that one column lets pass, which lie together
        passing = items[:, 0] < np.quantile(items[:, 0], share)
        found = index.search(query, 10, NONE, passing)
        best = np.sort(scores[passing])[::-1][:10]
        assert passing[found.positions].all()
        assert np.count_nonzero(np.isclose(np.sort(found.products)[::-1], best, atol=1e-4)) >= 9
