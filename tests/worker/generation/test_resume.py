"""A generation that was interrupted goes on: its revision is the same, and no network is trained twice."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate, count
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.support import campaigns
from tests.support.generation.steps import HeardSteps
from tests.support.graphs.graphs import npz_arrays, planted_graph, service_of, write_npz
from tests.support.machine.interruption import Interruption, in_child

from gnnserve_api.files.repository import RevisionManifest
from gnnserve_api.files.training import TrainingRun
from gnnserve_api.spec.service import GNNService
from gnnserve_worker.generation import learning
from gnnserve_worker.generation import profile as profile_module
from gnnserve_worker.generation import train as train_module
from gnnserve_worker.generation.learning import KeptNetworks, ResumedModels, Resumption
from gnnserve_worker.generation.pipeline import generate
from gnnserve_worker.generation.train import train
from gnnserve_worker.models.registry import Tensors
from gnnserve_worker.progress import Progress
from gnnserve_worker.repository import files
from gnnserve_worker.repository.repository import Repository

NETWORKS = {"x1": 1, "network of seed 6": 1, "x2": 1, "x4": 1, "channels2-x2": 1, "mlp1": 3}
"""The networks of `service` in the order of their training, and how often each is trained."""
TRAININGS = sum(NETWORKS.values())


@pytest.fixture(autouse=True)
def short_profiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile_module, "ROUNDS", (2, 2))


class StoppedError(Exception):
    """Raised in place of a training."""


class CountedTraining:
    """Trains, and ends with `stop` instead of the training with number `stops_at`."""

    def __init__(self, stops_at: int | None = None, stop: Callable[[], None] | None = None) -> None:
        self.trained = 0
        self._stops_at = stops_at
        self._stop = stop

    def __call__(self, *arguments: Any) -> Any:
        if self.trained == self._stops_at and self._stop is not None:
            self._stop()
        self.trained += 1
        return train(*arguments)


def stop() -> None:
    raise StoppedError


def service(folder: Path, seed: int = 5) -> GNNService:
    path = folder / "graph.npz"
    if not path.exists():
        write_npz(path, npz_arrays(planted_graph((2, 5, 7), nodes=200, columns=9)))
    return service_of(
        path.as_uri(),
        model={"hidden": 8, "fanouts": [4, 3], "training": {"epochs": 3, "batchSize": 64, "seed": seed}},
        variants={
            "projection": "Disabled",
            "pruning": {"method": "Greedy", "factors": [1, 2, 4], "stabilitySeeds": 1},
            "oneRow": [{"hops": 1}],
            "channels": [{"factor": 2, "columnFactor": 2}],
        },
    )


def repository_in(folder: Path) -> Repository:
    return Repository(folder / "repository", "default", "tiny")


def generate_counting(
    folder: Path, training: CountedTraining, seed: int = 5
) -> tuple[RevisionManifest, list[Progress]]:
    reports: list[Progress] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train_module, "train", training)
        return generate(service(folder, seed), repository_in(folder), reports.append), reports


def interrupt(folder: Path, after: int = 2, seed: int = 5) -> None:
    """Leave `after` trained networks."""
    with pytest.raises(StoppedError):
        generate_counting(folder, CountedTraining(after, stop), seed)


def digests(manifest: RevisionManifest) -> dict[str, str]:
    """All that is published but the profile, which is measured anew each time."""
    return {name: entry.sha256 for name, entry in manifest.files.items()}


def kept_folder(folder: Path) -> Path:
    (found,) = (repository_in(folder).folder / "trained").iterdir()
    return found


def details(reports: list[Progress], stage: str) -> list[str]:
    return [report.detail for report in reports if report.stage == stage]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[RevisionManifest, list[Progress]]:
    folder = tmp_path_factory.mktemp("uninterrupted")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(profile_module, "ROUNDS", (2, 2))
        manifest, reports = generate_counting(folder, CountedTraining())
    HeardSteps(reports).check()
    assert not (repository_in(folder).folder / "trained").exists()
    return manifest, reports


@pytest.fixture(scope="module")
def uninterrupted(whole: tuple[RevisionManifest, list[Progress]]) -> RevisionManifest:
    return whole[0]


# --- going on


def test_killed_at_every_step_in_turn_it_goes_on_there_and_learns_nothing_twice(
    tmp_path: Path, whole: tuple[RevisionManifest, list[Progress]]
) -> None:
    uninterrupted, heard = whole
    stages = [*dict.fromkeys(report.stage for report in heard)]
    assert stages[0] == "import graph"
    assert stages[-3:] == ["write tables", "profile", "publish"]
    repository = repository_in(tmp_path)
    for stage in stages[:-1]:
        interrupt_at(tmp_path, stage)
    assert repository.revisions() == []
    assert repository.count_kept_networks(service(tmp_path).spec.recipe()) == len(NETWORKS)

    training = CountedTraining()
    manifest, reports = generate_counting(tmp_path, training)

    assert training.trained == 0
    said = [report.stage for report in reports if report.detail.startswith("trained before, 20")]
    assert said == [f"train {name}" for name in NETWORKS]
    assert digests(manifest) == digests(uninterrupted)
    assert manifest.training == uninterrupted.training
    assert manifest.ranking == uninterrupted.ranking
    assert not (repository.folder / "trained").exists()


def interrupt_at(folder: Path, stage: str) -> None:
    """Stop a generation as it first reports this stage, which is not known from before."""

    def listen(progress: Progress) -> None:
        if progress.stage == stage and not progress.detail.startswith("trained before"):
            stop()

    with pytest.MonkeyPatch.context() as patch, pytest.raises(StoppedError):
        patch.setattr(train_module, "train", training := CountedTraining())
        generate(service(folder), repository_in(folder), listen)
    assert training.trained <= max(NETWORKS.values())  # of the stage before, and of this one


@pytest.mark.parametrize("after", [1, 7])
def test_what_was_trained_is_not_trained_again_and_the_revision_is_the_same(
    tmp_path: Path, uninterrupted: RevisionManifest, after: int
) -> None:
    interrupt(tmp_path, after)
    whole = [name for name, ends in zip(NETWORKS, accumulate(NETWORKS.values()), strict=True) if ends <= after]
    assert repository_in(tmp_path).count_kept_networks(service(tmp_path).spec.recipe()) == len(whole)

    training = CountedTraining()
    manifest, _ = generate_counting(tmp_path, training)

    assert training.trained == TRAININGS - sum(NETWORKS[name] for name in whole)
    assert digests(manifest) == digests(uninterrupted)


def test_a_failure_after_training_costs_no_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gnnserve_worker.generation.steps.measure_profile", lambda *_: stop())
    with pytest.raises(StoppedError):
        generate_counting(tmp_path, CountedTraining())
    monkeypatch.undo()
    monkeypatch.setattr(profile_module, "ROUNDS", (2, 2))

    training = CountedTraining()
    generate_counting(tmp_path, training)
    assert training.trained == 0


# --- what is not taken


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda folder: flip(folder / "weights.safetensors"), "is damaged: the SHA-256 of weights.safetensors is"),
        (lambda folder: (folder / "weights.safetensors").unlink(), "is damaged: [Errno 2] No such file"),
        (lambda folder: edit(folder / "network.json", "trainedAt", "2020"), "is damaged: the checksum of network.json"),
        (lambda folder: overwrite(folder / "network.json", b"{"), "is damaged: Input data was truncated"),
        (lambda folder: overwrite(folder / "network.json", b"\xff"), "is damaged: "),
        (lambda folder: edit(folder / "network.json", "pickled", True), "is damaged: Object contains unknown field"),
        (lambda folder: replace_by(folder, "network-of-seed-6"), "holds 'network of seed 6', expected 'x1'"),
    ],
    ids=["altered weights", "no weights", "edited", "cut short", "no text", "of another version", "another network"],
)  # fmt: skip
def test_a_damaged_network_is_trained_again(
    tmp_path: Path, uninterrupted: RevisionManifest, damage: Callable[[Path], None], said: str
) -> None:
    interrupt(tmp_path)
    damage(kept_folder(tmp_path) / "x1")

    training = CountedTraining()
    manifest, reports = generate_counting(tmp_path, training)

    assert training.trained == TRAININGS - 1
    (reason,) = details(reports, "kept x1 is not used")
    assert said in reason
    assert reason.endswith("; it is trained again")
    assert digests(manifest) == digests(uninterrupted)
    assert manifest.training == uninterrupted.training


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    overwrite(path, bytes(data))


def edit(path: Path, field: str, value: object) -> None:
    overwrite(path, json.dumps({**json.loads(path.read_bytes()), field: value}).encode())


def overwrite(path: Path, data: bytes) -> None:
    path.unlink()
    path.write_bytes(data)


def replace_by(folder: Path, other: str) -> None:
    shutil.rmtree(folder)
    shutil.copytree(folder.with_name(other), folder)


def test_half_of_a_network_is_written_over(tmp_path: Path, uninterrupted: RevisionManifest) -> None:
    interrupt(tmp_path, after=1)
    half = kept_folder(tmp_path) / "network-of-seed-6"
    half.mkdir()
    (half / "weights.safetensors").write_bytes(b"half")
    (half / "network.json.tmp").write_bytes(b"{")
    interrupt(tmp_path, after=1)

    assert sorted(path.name for path in half.iterdir()) == ["network.json", "weights.safetensors"]
    training = CountedTraining()
    assert digests(generate_counting(tmp_path, training)[0]) == digests(uninterrupted)
    assert training.trained == TRAININGS - 2


def test_networks_of_other_libraries_are_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt(tmp_path)
    monkeypatch.setattr(learning, "version", lambda package: "99.0")

    training = CountedTraining()
    _, reports = generate_counting(tmp_path, training)

    assert training.trained == TRAININGS
    assert "trained for generator 'gnnserve " in details(reports, "kept x1 is not used")[0]


def test_networks_of_another_recipe_under_a_wrong_name_are_not_taken(tmp_path: Path) -> None:
    interrupt(tmp_path)
    found = kept_folder(tmp_path)
    wanted = found.with_name(f"{service(tmp_path, seed=8).spec.recipe()}-{found.name.partition('-')[2]}")
    found.rename(wanted)

    training = CountedTraining()
    _, reports = generate_counting(tmp_path, training, seed=8)

    assert training.trained == TRAININGS
    assert "trained for recipe" in details(reports, "kept x1 is not used")[0]


def test_another_seed_takes_nothing_and_removes_it_when_it_writes(tmp_path: Path) -> None:
    interrupt(tmp_path)
    interrupt(tmp_path, after=1, seed=8)
    assert len(list((repository_in(tmp_path).folder / "trained").iterdir())) == 2

    training = CountedTraining()
    manifest, reports = generate_counting(tmp_path, training, seed=8)

    assert training.trained == TRAININGS - 1
    assert not [report for report in reports if "is not used" in report.stage]
    assert manifest.recipe == service(tmp_path, seed=8).spec.recipe()
    assert not (repository_in(tmp_path).folder / "trained").exists()


# --- where nothing can be kept


def assert_trains_without_keeping(folder: Path, uninterrupted: RevisionManifest, said: str) -> None:
    training = CountedTraining()
    manifest, reports = generate_counting(folder, training)

    assert training.trained == TRAININGS
    (reason,) = details(reports, "trained networks are not kept")
    assert said in reason
    assert digests(manifest) == digests(uninterrupted)
    assert manifest.training == uninterrupted.training


def test_where_their_folder_cannot_be_written_one_line_says_so(tmp_path: Path, uninterrupted: RevisionManifest) -> None:
    folder = repository_in(tmp_path).folder
    folder.mkdir(parents=True)
    (folder / "trained").write_bytes(b"a file")

    assert_trains_without_keeping(tmp_path, uninterrupted, "cannot be written: it is a file, expected a folder")


def test_a_full_disk_keeps_nothing_and_training_goes_on(
    tmp_path: Path, uninterrupted: RevisionManifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = files.create

    def full_for_networks(path: Path) -> int:
        if "trained" in path.parts:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return create(path)

    monkeypatch.setattr(files, "create", full_for_networks)
    assert_trains_without_keeping(tmp_path, uninterrupted, "the disk or its quota is full")


def test_the_tables_keep_the_space_that_they_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resumption = resumption_in(tmp_path, reports := [], spare_bytes=1_000)
    monkeypatch.setattr(files, "free_bytes", lambda _: 1_010)
    resumption.network("x1", {}, lambda: ({"weight": np.zeros(9, np.float32)}, ()))

    assert [report.stage for report in reports] == ["trained networks are not kept"]
    assert not (tmp_path / "trained").exists()


def test_what_cannot_be_removed_does_not_stand_in_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    interrupt(tmp_path)
    remove_tree = files.remove_tree

    def refused(path: Path) -> None:
        if "trained" in path.parts:
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
        remove_tree(path)

    monkeypatch.setattr(files, "remove_tree", refused)
    manifest, _ = generate_counting(tmp_path, CountedTraining())

    assert [found.revision for found in repository_in(tmp_path).revisions()] == [manifest.revision]
    assert "trained: cannot be removed, and is left" in caplog.text


# --- any source of weights


class FakeModels:
    """Makes networks of numbers, and records a run for each but those of other seeds."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self._runs: list[TrainingRun] = []
        self.decoder: Mapping[str, np.ndarray] = {}

    @property
    def runs(self) -> Sequence[TrainingRun]:
        return self._runs

    def use_decoder(self, decoder: Mapping[str, np.ndarray]) -> None:
        self.decoder = decoder

    def master(self, name: str) -> Tensors:
        return self._make(name, recorded=True)

    def pruned(self, columns: np.ndarray, name: str) -> Tensors:
        return self._make(name, recorded=True)

    def narrowed(self, wide: Tensors, columns: np.ndarray | None, factor: int, name: str) -> Tensors:
        return self._make(name, recorded=True)

    def another_master(self, seed: int, name: str) -> Tensors:
        return self._make(name, recorded=False)

    def _make(self, name: str, *, recorded: bool) -> Tensors:
        self.made.append(name)
        if recorded:
            self._runs.append(
                TrainingRun(name=name, epochs=3, steps=6, best_epoch=2, validation=1.0, rising=len(self.made) % 2 == 0)
            )
        return {"weight": np.full((2, 3), len(self.made), np.float32), "bias": np.arange(3, dtype=np.float64)}


def resumption_in(folder: Path, reports: list[Progress], spare_bytes: int = 0) -> Resumption:
    return Resumption(KeptNetworks(folder / "trained", spare_bytes), {"recipe": "r"}, reports.append)


def make_all(models: ResumedModels) -> list[Tensors]:
    return [models.master("x1"), models.pruned(np.array([2, 0]), "x2"), models.another_master(6, "network of seed 6")]


def test_any_models_can_be_resumed(tmp_path: Path) -> None:
    first, second = FakeModels(), FakeModels()
    made = make_all(models := ResumedModels(first, resumption_in(tmp_path, [])))
    again = make_all(resumed := ResumedModels(second, resumption_in(tmp_path, [])))

    assert second.made == []
    assert resumed.runs == models.runs == first.runs
    for one, other in zip(made, again, strict=True):
        assert {key: (value.dtype, value.tobytes()) for key, value in one.items()} == {
            key: (value.dtype, value.tobytes()) for key, value in other.items()
        }
        assert all(value.flags.writeable for value in other.values())


@pytest.mark.campaign
def test_killed_at_any_step_of_keeping_the_next_process_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "sync", lambda _: None)
    expected = make_all(ResumedModels(FakeModels(), resumption_in(tmp_path / "whole", [])))

    def make_all_until(number: int, folder: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            Interruption(number, {"within", "after"}, lambda: os.kill(os.getpid(), signal.SIGKILL)).install(patch)
            make_all(ResumedModels(FakeModels(), resumption_in(folder, [])))

    made = []
    for number in count(*campaigns.stride()):
        folder = tmp_path / str(number)
        status = in_child(partial(make_all_until, number, folder))
        fake, reports = FakeModels(), list[Progress]()
        again = make_all(models := ResumedModels(fake, resumption_in(folder, reports)))
        assert [tensors["bias"].tobytes() for tensors in again] == [tensors["bias"].tobytes() for tensors in expected]
        assert [run.name for run in models.runs] == ["x1", "x2"]
        assert not [report for report in reports if "not" in report.stage]
        made.append(len(fake.made))
        if status == 0:
            break
        assert status == -signal.SIGKILL
    assert made == sorted(made, reverse=True)
    assert set(made) == {0, 1, 2, 3}


def test_other_columns_or_another_seed_are_another_network(tmp_path: Path) -> None:
    make_all(ResumedModels(FakeModels(), resumption_in(tmp_path, [])))
    fake, reports = FakeModels(), list[Progress]()
    models = ResumedModels(fake, resumption_in(tmp_path, reports))
    models.pruned(np.array([0, 2]), "x2")
    models.another_master(7, "network of seed 6")

    assert fake.made == ["x2", "network of seed 6"]
    assert [report.stage for report in reports] == ["kept x2 is not used", "kept network of seed 6 is not used"]


def test_fewer_channels_of_another_network_are_another_network(tmp_path: Path) -> None:
    wide = {"weight": np.zeros(3, np.float32)}
    ResumedModels(FakeModels(), resumption_in(tmp_path, [])).narrowed(wide, None, 2, "channels2")
    fake, reports = FakeModels(), list[Progress]()
    models = ResumedModels(fake, resumption_in(tmp_path, reports))
    models.narrowed(wide, None, 2, "channels2")
    assert [run.name for run in models.runs] == ["channels2"]
    assert fake.made == []

    ResumedModels(fake, resumption_in(tmp_path, reports)).narrowed({"weight": np.ones(3)}, None, 2, "channels2")
    assert fake.made == ["channels2"]
    assert reports[-1].stage == "kept channels2 is not used"


def test_what_is_kept_says_what_it_is_without_pickle(tmp_path: Path) -> None:
    make_all(ResumedModels(FakeModels(), resumption_in(tmp_path, [])))

    folder = tmp_path / "trained" / "network-of-seed-6"
    content = msgspec.json.decode((folder / "network.json").read_bytes())
    assert content["name"] == "network of seed 6"
    assert content["madeFor"] == {"recipe": "r", "columns": "all", "seed": "6"}
    assert content["runs"] == []
    assert sorted(path.name for path in folder.iterdir()) == ["network.json", "weights.safetensors"]
