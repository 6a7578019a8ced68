"""A program over several types, one of whose relations has features and times, from the repository to answers."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch
from tests.support.generation.repository import RANKING, repository_in, tiny_profile
from tests.support.programs.program_types import (
    CLASSES,
    COLUMNS,
    COUNTS,
    FEATURES,
    PROGRAM,
    RELATIONS,
    USERS,
    Model,
    program_of,
    whole_graph,
)
from tests.support.programs.programs import check_program_file

from gnnserve_api.errors import RepositoryError
from gnnserve_api.files.repository import VariantManifest, program_network
from gnnserve_api.spec.model import FULL_NEIGHBOURHOOD
from gnnserve_api.variants import Storage
from gnnserve_worker.graph.store import GraphData, NodeType, Splits
from gnnserve_worker.inference.batch import infer_batch, infer_each, warm_up
from gnnserve_worker.inference.opening import served_revision
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.programs.race import check_repeats
from gnnserve_worker.repository.repository import Repository

TABLE = "features-float32"


DATA = GraphData(
    source="a test",
    digest="abcd",
    types=tuple(NodeType(name, COUNTS[name], FEATURES[name]) for name in COUNTS),
    relations=RELATIONS,
    labels=np.arange(USERS, dtype=np.int64) % CLASSES,
    classes=(0, 1, 2),
    splits=Splits(np.arange(30), np.arange(30, 60), np.arange(60, USERS)),
)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[Repository, str]:
    root = tmp_path_factory.mktemp("types")
    repository, brought = repository_in(root), root / "brought"
    brought.mkdir()
    shutil.copy(program_of(tmp_path_factory), brought / "model.onnx")
    check_program_file(brought / "model.onnx", PROGRAM)
    width = max(COLUMNS.values())
    rows = [np.pad(rows, ((0, 0), (0, width - rows.shape[1]))) for rows in FEATURES.values()]
    with repository.locked(None):
        repository.put_graph(DATA)
        with repository.stage("recipe", DATA.digest) as staged:
            staged.write_table(TABLE, "features", Storage.FLOAT32, width, rows)
            network = program_network(staged.write_program("x1", brought, PROGRAM))
            assert network.program
            variant = VariantManifest(
                name="x1", family="pruned", table=TABLE, columns=width, fanouts=network.fanouts,
                network=network, compute="float32", weights=network.program.file,
            )  # fmt: skip
            manifest = staged.commit(
                scope="Inductive", ranking=RANKING, variants=[variant], profile=tiny_profile({"x1": width}),
                generator="a test", created_at="2026-01-01T00:00:00Z",
            )  # fmt: skip
    return repository, manifest.revision


@pytest.fixture(scope="module")
def model() -> Model:
    return Model().eval()


@pytest.fixture(scope="module")
def loaded(published: tuple[Repository, str]) -> LoadedRevision:
    return load_revision(*published)


def test_nodes_are_scored_as_over_the_whole_graph(loaded: LoadedRevision, model: Model) -> None:
    with torch.no_grad():
        found = model(**{name: torch.tensor(array) for name, array in whole_graph().items()})
    scores, hidden = (each.numpy() for each in found)
    tolerance = 1e-5 * float(np.abs(scores).max())
    warm_up(loaded)
    assert loaded.variants["x1"].fanouts == (FULL_NEIGHBOURHOOD,) * 2
    for seeds in (np.array([7]), np.array([3, 3, 9, 3]), np.arange(USERS)):
        for infer in (infer_batch, infer_each):
            answer = infer(loaded, "x1", seeds.astype(np.int64), 1)
            np.testing.assert_allclose(answer.scores, scores[seeds], rtol=0, atol=tolerance)
            assert answer.embeddings is not None
            np.testing.assert_allclose(answer.embeddings, hidden[seeds], rtol=0, atol=1e-5 * np.abs(hidden).max())


def test_changes_of_a_revision_that_keeps_nothing_of_rows_are_refused(published: tuple[Repository, str]) -> None:
    with pytest.raises(RepositoryError, match=r"kept nothing of how rows of new nodes are made; generate it again"):
        load_revision(*published, max_delta_bytes=1 << 20)


def test_requests_bring_nothing_along(loaded: LoadedRevision) -> None:
    overlays = served_revision(loaded).compute.overlays
    assert not overlays.takes_json


def test_twenty_runs_over_types_are_equal(loaded: LoadedRevision) -> None:
    (runner,) = loaded.programs
    check_repeats(runner, whole_graph(), PROGRAM.outputs, USERS)
