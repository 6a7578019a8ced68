"""Whole repositories that earlier releases generated: opened, answered from, changed and compacted as they are.

`tests/golden/` has them, with what their own worker answered (`README.md` there says how they were made)."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import yaml
from tests.support.serving.serving import OpenedWorker, running

from gnnserve_api.errors import RepositoryError
from gnnserve_api.http.changes import CHANGES_TYPE
from gnnserve_api.manifest import parse_manifest
from gnnserve_api.spec.paths import ManifestFolder
from gnnserve_api.spec.service import GNNService
from gnnserve_worker.changes.log import Entry
from gnnserve_worker.changes.options import SqliteFile, UpdatesOptions
from gnnserve_worker.changes.registry import opened_log
from gnnserve_worker.compaction.compact import compact
from gnnserve_worker.graph.change_batch import BatchEffect
from gnnserve_worker.graph.sources.load import LAYOUTS, source_digest
from gnnserve_worker.inference.batch import infer_batch
from gnnserve_worker.inference.living import LivingRevision
from gnnserve_worker.inference.opening import served_revision
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.serving.http.changes.reading import read_changes
from gnnserve_worker.tasks.generation import task_of

GOLDEN = Path(__file__).parents[2] / "golden"
KEY = 43
"""Key that the releases' workers drew neighbours by."""
ROOM_BYTES = 1 << 22
UID = "f7b4c2a0-0000-4000-8000-000000000043"
MADE = sorted(path.parent.relative_to(GOLDEN).as_posix() for path in GOLDEN.glob("*/*/manifest.yaml"))
CHANGED = [name for name in MADE if (GOLDEN / name / "change.json").exists()]
PAIRS = ["04c9885/links", "04c9885/buys"]
OLDEST = [name for name in MADE if name.startswith("4c3f189")]
CLOSE = 1e-6
ASKED: Mapping[str, Mapping[str, Any]] = {
    "plain": {"nodes": [0, 7]},
    "named": {"nodes": ["n00", "n07"]},
    "types": {"nodes": ["user/0", 7]},
    "links": {"pairs": [[0, 59], [3, 50]]},
    "buys": {"pairs": [["user/0", "item/17"], ["user/3", "item/14"]]},
}
"""A request for each kind of repository."""
ASKED_AFTER: Mapping[str, list[Any]] = {"plain": [0, 4, 100, 59], "types": ["user/0", "user/100", "user/29"]}
"""Nodes that a change touched, and one behind a node that left."""


@dataclass(frozen=True)
class Release:
    """A copy of what a release left, and its source, which lies elsewhere than it did."""

    made: Path
    root: Path

    @cached_property
    def service(self) -> GNNService:
        """The release's manifest as it was."""
        return self._service(yaml.safe_load((self.made / "manifest.yaml").read_text()))

    @property
    def moved(self) -> GNNService:
        """The manifest of a user whose files lie in another place, so that its recipe is another: it names the revision
        in place of that."""
        text = (self.made / "manifest.yaml").read_text().replace("file:///data/golden", (GOLDEN / "sources").as_uri())
        stated = yaml.safe_load(text)
        stated["spec"]["revision"] = self.revision
        return self._service(stated)

    def _service(self, stated: Mapping[str, Any]) -> GNNService:
        return parse_manifest(yaml.safe_dump(stated), "manifest.yaml", ManifestFolder(self.root, None))

    @cached_property
    def repository(self) -> Repository:
        shutil.copytree(self.made / "repository", self.root / "repository")
        return Repository(self.root / "repository", "golden", self.made.name)

    @property
    def revision(self) -> str:
        (one,) = [path.name for path in (self.made / "repository/golden" / self.made.name / "revisions").iterdir()]
        return one

    @cached_property
    def scores(self) -> Mapping[str, np.ndarray]:
        with np.load(self.made / "scores.npz") as arrays:
            return dict(arrays)

    def load(self, max_delta_bytes: int | None = None) -> LoadedRevision:
        return load_revision(self.repository, self.revision, max_delta_bytes)

    def living(self) -> LivingRevision:
        return LivingRevision(self.load(ROOM_BYTES), ROOM_BYTES)


@pytest.fixture
def release(request: pytest.FixtureRequest, tmp_path: Path) -> Release:
    return Release(GOLDEN / request.param, tmp_path)


def whole(loaded: LoadedRevision, variant: str, nodes: np.ndarray) -> np.ndarray:
    """Scores over all neighbours: numbers of new nodes, by which neighbours are drawn, are no promise."""
    every = replace(loaded.variants[variant], fanouts=(-1, -1))
    return infer_batch(replace(loaded, variants={variant: every}), variant, nodes.copy(), KEY).scores


@pytest.mark.parametrize("release", MADE, indirect=True)
def test_its_recipe_is_still_the_recipe_of_its_manifest(release: Release) -> None:
    """Nothing is trained anew."""
    found = release.repository.find_served(release.service.spec.recipe(), None)
    assert found is not None
    assert found.revision == release.revision


@pytest.mark.parametrize("release", MADE, indirect=True)
def test_its_source_is_still_the_graph_that_it_was_made_of(release: Release) -> None:
    """Digests name graphs for good: by another one it would be trained anew, and changes could not be folded."""
    spec = release.moved.spec
    found = task_of(spec).graph_digest(source_digest(spec.graph.source))
    assert found == release.load().manifest.graph  # type: ignore[union-attr]


def test_layouts_of_several_types_have_the_names_in_digests_that_they_had() -> None:
    names = {kind.__name__: layout().name for kind, layout in LAYOUTS.items()}
    assert names == {
        "NpzFolder": "TypedFolder", "HeteroDataFile": "HeteroDataFile", "ParquetByType": "TypedParquet",
        "CsvByType": "TypedCsv",
    }  # fmt: skip


@pytest.mark.parametrize("release", MADE, indirect=True)
def test_every_variant_answers_as_the_worker_of_the_release_did(release: Release) -> None:
    loaded = release.load()
    assert {name for name in release.scores if "." not in name} == {"seeds", *loaded.variants}
    for name in loaded.variants:
        found = infer_batch(loaded, name, release.scores["seeds"].copy(), KEY).scores
        np.testing.assert_allclose(found, release.scores[name], rtol=CLOSE, atol=CLOSE, err_msg=name)


@pytest.mark.parametrize("release", PAIRS, indirect=True)
def test_pairs_have_the_scores_of_the_release(release: Release) -> None:
    task: Any = served_revision(release.load()).task
    first = np.arange(len(release.scores["seeds"]))
    for name in [name for name in release.scores if name.endswith(".pairs")]:
        found = task.links.score(release.scores[name.removesuffix(".pairs")], first, first[::-1].copy())
        np.testing.assert_allclose(found, release.scores[name], rtol=CLOSE, atol=CLOSE, err_msg=name)


@pytest.mark.parametrize("release", MADE, indirect=True)
def test_requests_are_answered(release: Release) -> None:
    async def ask() -> httpx.Response:
        worker = OpenedWorker(served=served_revision(release.load()))
        async with running(worker, release.service) as client:
            asked = {**ASKED[release.made.name], "return": ["scores"]}
            return await client.http.post("/v1/predict", json=asked)

    answer = asyncio.run(ask())
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["scores"]) == 2


@pytest.mark.parametrize("release", CHANGED, indirect=True)
def test_a_change_that_the_release_took_is_read_alike_and_makes_the_same_scores(release: Release) -> None:
    living = release.living()
    served = served_revision(living.loaded, living)
    written, _ = read_changes((release.made / "change.json").read_bytes(), b"application/json", served)
    kept = (release.made / "change.bin").read_bytes()
    assert written == kept, "the log of a service goes on from one release to the next"
    (said,) = living.apply(1, [read_changes(kept, CHANGES_TYPE.encode(), served)[1]])
    assert isinstance(said, BatchEffect), said
    for name in living.loaded.variants:
        found = whole(living.loaded, name, release.scores["seeds"])
        np.testing.assert_allclose(found, release.scores[f"changed.{name}"], rtol=CLOSE, atol=CLOSE, err_msg=name)


@pytest.mark.parametrize("release", CHANGED, indirect=True)
def test_a_log_that_the_release_wrote_is_folded_into_its_graph(release: Release) -> None:
    updates = UpdatesOptions(SqliteFile(release.root / "log.sqlite"), UID, ROOM_BYTES)
    living = release.living()
    kept = (release.made / "change.bin").read_bytes()
    batch = read_changes(kept, CHANGES_TYPE.encode(), served_revision(living.loaded, living))[1]
    living.apply(1, [batch])
    with opened_log(updates.log, UID) as log:
        log.append([Entry("tests", 1, batch.counts.items, kept)])
    folded = compact(release.moved, release.repository, updates)
    assert (folded.revision != release.revision, folded.recipe) == (True, release.service.spec.recipe())
    loaded = load_revision(release.repository, folded.revision)
    ids = ASKED_AFTER[release.made.name]
    for name in loaded.variants:
        scores = [
            whole(one, name, served_revision(one, replica).graph.naming.find(ids))
            for one, replica in ((loaded, None), (living.loaded, living))
        ]
        np.testing.assert_allclose(*scores, rtol=CLOSE, atol=CLOSE, err_msg=name)


@pytest.mark.parametrize("release", OLDEST, indirect=True)
def test_where_rules_of_edges_were_not_kept_changes_are_refused_with_what_to_do(release: Release) -> None:
    with pytest.raises(RepositoryError, match=r"generate it again, or leave spec\.updates out"):
        release.load(ROOM_BYTES)
