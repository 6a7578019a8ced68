"""Which of the listed factors networks are made for, from a model of latencies and one short trial."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.generation.steps import HeardSteps
from tests.support.graphs.graphs import npz_arrays, planted_graph, random_graph, service_of, write_npz

from gnnserve_api.files.factors import ColumnsTrial
from gnnserve_api.files.provenance import provenance_of
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_worker.generation.pipeline import generate
from gnnserve_worker.generation.profile import BUDGET_VARIABLE
from gnnserve_worker.generation.search import made_up
from gnnserve_worker.generation.search.candidates import Shapes
from gnnserve_worker.generation.search.factors import choose_factors, slow_factors
from gnnserve_worker.generation.search.latency_model import LatencyModel
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.repository.repository import Repository

COLUMNS = 600
BY_BYTES = LatencyModel({1: (1e-9, 0.0, 1e-6, 0.0), 1024: (1e-9, 0.0, 1e-6, 0.0)}, error=0.1)
"""A machine on which nothing but bytes takes time."""
CONSTANT = LatencyModel({1: (1.0, 0.0, 0.0, 0.0), 1024: (1.0, 0.0, 0.0, 0.0)}, error=0.1)
"""One on which every batch takes as long as any other."""


def shapes(validation_nodes: int = 400, **listed: Any) -> Shapes:
    spec = GNNServiceSpec.model_validate(
        {
            "graph": {"source": {"builtin": "Digits"}},
            "model": {"fanouts": [4, 3], "hidden": 128},
            "variants": {**listed, "pruning": {"choice": "Auto", **listed.get("pruning", {})}},
        }
    )
    return Shapes(spec, random_graph(120, 0), COLUMNS, 3, validation_nodes)


def no_trial(_: int) -> None:
    return None


def test_factors_whose_rows_are_wider_than_products_are_left_out_and_said() -> None:
    chosen = choose_factors(shapes(), BY_BYTES, COLUMNS, no_trial)

    assert chosen.left_out == (2, 4)  # x8 reads 75 numbers, and products are 128 wide
    assert chosen.why == (
        "x2 and x4 were not trained: projected is predicted to be 1.17 to 2.3 times as fast, by batch size, where the "
        "model mostly errs by 10 %, and reads all columns, as 128 numbers a row in place of 300 and 150"
    )


def test_what_decided_is_said_where_a_factor_is_hardly_slower() -> None:
    certain = LatencyModel({1: (0.05, 0.0, 1e-6, 0.0)}, error=0.001)

    said = choose_factors(shapes(), certain, COLUMNS, no_trial).why

    assert "predicted to be 1.021 to 1.16 times as fast, by batch size, where the model mostly errs by 0.1 %" in said


def test_what_a_factor_must_be_slower_by_is_as_much_as_the_model_errs() -> None:
    doubtful = LatencyModel(BY_BYTES.costs_ms, error=0.5)

    assert choose_factors(shapes(), doubtful, COLUMNS, no_trial).left_out == (2,)


def test_where_nothing_is_slower_every_factor_is_made_and_nothing_is_tried() -> None:
    def never(factor: int) -> ColumnsTrial:
        raise AssertionError(factor)

    chosen = choose_factors(shapes(), CONSTANT, COLUMNS, never)

    assert (chosen.left_out, chosen.trial) == ((), None)
    assert chosen.why.startswith("every factor is trained")


@pytest.mark.parametrize(("fewer", "left_out"), [(0.72, (2, 4)), (0.85, ())])
def test_fewer_columns_that_are_more_accurate_are_a_reason_to_make_all(fewer: float, left_out: tuple[int, ...]) -> None:
    tried: list[int] = []

    def trial(factor: int) -> ColumnsTrial:
        tried.append(factor)
        return ColumnsTrial(factor, epochs=7, all_columns=0.7, fewer_columns=fewer)

    chosen = choose_factors(shapes(), BY_BYTES, COLUMNS, trial)

    assert (tried, chosen.left_out) == ([2], left_out)
    assert f"in a trial of 7 epochs x2 reached {fewer:.3f} on validation nodes, and all columns 0.700" in chosen.why


def test_factors_that_others_are_made_of_are_made() -> None:
    channels = [{"factor": 2, "columnFactor": 4}]
    cascades = [{"first": "x2", "then": "x1", "passOnPercents": [20]}]

    for listed in ({"channels": channels}, {"cascades": cascades}):
        found = [one.factor for one in slow_factors(shapes(**listed), BY_BYTES, COLUMNS)]
        assert found == ([2] if "channels" in listed else [4])


def test_a_storage_without_a_projected_variant_of_its_own_is_compared_in_none() -> None:
    stored = shapes(storage=["float32", "int8"], fanouts=[[2, 2]])

    assert [one.factor for one in slow_factors(stored, BY_BYTES, COLUMNS)] == [2, 4]


@pytest.fixture
def generated_auto(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Repository, Any, HeardSteps]:
    monkeypatch.setenv(BUDGET_VARIABLE, "0.02")
    monkeypatch.setattr(made_up, "measure_made_up", lambda *_: BY_BYTES)
    uri = write_npz(tmp_path / "graph.npz", npz_arrays(planted_graph((2, 5, 7), nodes=130, columns=40))).as_uri()
    model = {"hidden": 8, "fanouts": [4, 3], "training": {"epochs": 3, "batchSize": 64}}
    service = service_of(uri, model=model, variants={"pruning": {"choice": "Auto"}})
    repository, heard = Repository(tmp_path / "repository", "default", "tiny"), HeardSteps()
    return repository, generate(service, repository, heard), heard


def test_generation_trains_what_was_chosen_and_records_why(generated_auto: tuple[Repository, Any, HeardSteps]) -> None:
    repository, manifest, heard = generated_auto
    heard.check()
    chosen = manifest.ranking.chosen
    assert chosen.left_out == (2, 4)  # 20 and 10 numbers, and products are 8 wide
    assert (chosen.trial.factor, chosen.trial.epochs) == (2, 1)
    assert {variant.factor for variant in manifest.profile.variants} == {1, 8}
    assert [run.name for run in manifest.training.runs] == ["x1", "x8"]
    assert any(each.stage == "choose factors" and each.detail == chosen.why for each in heard.heard)
    loaded = load_revision(repository, manifest.revision)
    assert loaded.manifest is not None
    assert provenance_of(loaded.manifest, "made up", 1, 1).chosen_factors == chosen
    assert np.isfinite(chosen.model_error)
