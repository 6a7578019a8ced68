"""`stabilitySeeds`: masters of other seeds are trained and ranked, and leave no other trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.graphs.graphs import npz_arrays, planted_graph, service_of, write_npz

from gnnserve_api.files.repository import RevisionManifest
from gnnserve_api.spec.service import GNNService
from gnnserve_worker.generation import profile as profile_module
from gnnserve_worker.generation.pipeline import generate
from gnnserve_worker.progress import Progress
from gnnserve_worker.repository.repository import Repository

INFORMATIVE = (2, 5, 7)


@pytest.fixture(autouse=True)
def short_profiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile_module, "ROUNDS", (2, 2))


def service(folder: Path, model: dict[str, Any] | None = None, **pruning: Any) -> GNNService:
    path = write_npz(folder / "graph.npz", npz_arrays(planted_graph(INFORMATIVE, nodes=200, columns=9)))
    training = {"epochs": 3, "batchSize": 64, "seed": 5}
    return service_of(
        path.as_uri(),
        model={"hidden": 8, "fanouts": [4, 3], "training": training} if model is None else model,
        variants={"projection": "Disabled", "pruning": {"method": "Greedy", "factors": [1, 2], **pruning}},
    )


def publish(folder: Path, **pruning: Any) -> tuple[RevisionManifest, list[str]]:
    reports: list[Progress] = []
    manifest = generate(
        service(folder, **pruning), Repository(folder / "repository", "default", "tiny"), reports.append
    )
    return manifest, list(dict.fromkeys(report.stage for report in reports))


def test_so_many_more_masters_are_ranked_and_progress_shows_them(tmp_path: Path) -> None:
    manifest, stages = publish(tmp_path, stabilitySeeds=2)

    assert [run.seed for run in manifest.ranking.others] == [6, 7]
    assert all(sorted(run.columns) == list(range(9)) for run in manifest.ranking.others)
    assert [stage for stage in stages if "seed" in stage] == [
        "train network of seed 6", "rank by Greedy, seed 6", "train network of seed 7", "rank by Greedy, seed 7",
    ]  # fmt: skip
    assert [variant.name for variant in manifest.profile.variants] == ["x1", "x2"]


def test_another_ranking_is_that_of_a_service_with_its_seed(tmp_path: Path) -> None:
    """So it is the seed that is compared, and nothing else."""
    for name in ("compared", "served"):
        (tmp_path / name).mkdir()
    compared, _ = publish(tmp_path / "compared", stabilitySeeds=1)
    model = {"hidden": 8, "fanouts": [4, 3], "training": {"epochs": 3, "batchSize": 64, "seed": 6}}
    served = generate(service(tmp_path / "served", model), Repository(tmp_path / "served" / "r", "default", "tiny"))

    assert compared.ranking.others[0].columns == served.ranking.columns


def test_what_is_served_is_the_same_without_them(tmp_path: Path) -> None:
    for name in ("with", "without"):
        (tmp_path / name).mkdir()
    with_others, _ = publish(tmp_path / "with", stabilitySeeds=1)
    without, stages = publish(tmp_path / "without")

    assert without.ranking.others == ()
    assert without.ranking.columns == with_others.ranking.columns
    assert not [stage for stage in stages if "seed" in stage]
    weights = [{n: f.sha256 for n, f in made.files.items() if "weights" in n} for made in (with_others, without)]
    assert weights[0] == weights[1]
