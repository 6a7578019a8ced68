"""Profiles that once made a report say what is not so, and answers of servers that are none."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.machine.fake_server import Told, fake_server, refusal
from tests.support.pages.report_pages import (
    Page,
    graph_manifest,
    printed,
    report_of,
    run,
    served_answer,
    write_repository,
)
from tests.support.pages.reports import drifting, subject_of, untested
from tests.support.profiles import latency, revision_manifest, variant
from typer.testing import CliRunner

from gnnserve_api.files.edges import Direction, EdgeRules
from gnnserve_api.files.factors import ChosenFactors
from gnnserve_api.files.profile import VariantProfile
from gnnserve_api.files.repository import AttentionManifest, NetworkManifest, sealed
from gnnserve_api.files.stability import RankStability, TopStability
from gnnserve_api.files.training import Majority, TrainingAttempt, TrainingManifest, TrainingRun
from gnnserve_api.variants import Storage
from gnnserve_cli.main import app
from gnnserve_cli.report import tables
from gnnserve_cli.report.data import Drift, DriftVerdict
from gnnserve_cli.report.facts import made_facts, model_facts
from gnnserve_cli.report.html import build_page
from gnnserve_cli.report.subject import ReportSubject


def with_provenance(subject: ReportSubject, **changes: Any) -> ReportSubject:
    return replace(subject, provenance=msgspec.structs.replace(subject.provenance, **changes))


def with_network(subject: ReportSubject, **changes: Any) -> ReportSubject:
    network: NetworkManifest = msgspec.structs.replace(subject.provenance.network, **changes)
    return with_provenance(subject, network=network)


def at_1024(one: VariantProfile, **times: float) -> VariantProfile:
    """Measured at that size alone."""
    points = tuple(msgspec.structs.replace(p, **times) for p in one.latency if p.seeds == 1024)
    return msgspec.structs.replace(one, latency=points)


def timed(factor: int, gather_ms: float, compute_ms: float, window_ms: float, **changes: float) -> VariantProfile:
    times = {"gather_ms": gather_ms, "compute_ms": compute_ms, "window_p50_ms": window_ms, "p50_ms": window_ms + 0.5}
    one = variant(factor, validation=0.9 - 0.001 * factor)
    return at_1024(one, **{**times, "p99_ms": 2 * times["p50_ms"], **changes})


# --- drift


def on_test(
    *accuracies: tuple[float, float], nodes: int = 10_000, test_nodes: int | None = None, **changes: Any
) -> Drift:
    made = [
        msgspec.structs.replace(variant(2**i, validation=validation), test_accuracy=test)
        for i, (validation, test) in enumerate(accuracies)
    ]
    subject = subject_of(*made, validation_nodes=nodes, test_nodes=test_nodes or nodes)
    drift = report_of(with_provenance(subject, **changes)).drift
    assert drift is not None
    return drift


def test_one_variant_that_differs_far_more_than_chance_is_drift_though_the_others_hold() -> None:
    drift = on_test((0.90, 0.75), (0.89, 0.89))
    assert drift.verdict is DriftVerdict.DRIFT
    assert [row.verdict for row in drift.rows] == [DriftVerdict.DRIFT, DriftVerdict.WITHIN_CHANCE]
    assert drift.says.startswith("x1 differs by −15.00 points between 10,000 validation and 10,000 test nodes")
    assert "That is more than chance; the other one holds. Validation nodes are not like" in drift.says
    assert "can be chance too" not in drift.says


def test_a_verdict_shows_the_row_that_it_is_about() -> None:
    """The most accurate variant holds, and the one below it does not."""
    drift = on_test((0.90, 0.899), (0.89, 0.80), (0.88, 0.82))
    assert drift.says.startswith("x2 differs by −9.00 points")
    assert "x2 and x4 differ by more than chance, the other one holds" in drift.says


def test_of_many_variants_one_that_a_single_comparison_would_call_outside_is_chance() -> None:
    accuracies = [(0.90, 0.9115), *[(0.9, 0.9)] * 3]
    assert on_test(accuracies[0], nodes=5000).verdict is not DriftVerdict.WITHIN_CHANCE
    drift = on_test(*accuracies, nodes=5000)
    assert drift.verdict is DriftVerdict.WITHIN_CHANCE
    # What is drawn and what is said are one thing.
    assert all(row.low_points < 0 < row.high_points for row in drift.rows)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"scope": "Inductive"}, "held on nodes that had no part in training"),
        ({"scope": "Transductive"}, "held on nodes whose labels training did not use; their features and edges it saw"),
        ({"checkpoint": "ab" * 32}, "whether these had a part in training the given weights is not known"),
    ],
)
def test_what_test_nodes_show_depends_on_what_training_saw(changes: dict[str, str], says: str) -> None:
    assert says in on_test((0.90, 0.90), **changes).says


def test_validation_that_was_still_rising_is_a_caution_and_the_length_of_training_a_fact() -> None:
    run = TrainingRun(name="x1", epochs=30, steps=60, best_epoch=30, validation=0.29, rising=True)
    made = with_provenance(subject_of(), training=TrainingManifest(epochs=30, runs=(run,)))

    report = report_of(made)

    assert (
        "More training would give better variants: validation was still rising at epoch 30 of 30: use "
        "spec.model.training.epochs: Auto or more."
    ) in report.cautions
    assert ("Trained for", "30 epochs, 60 steps; the best at epoch 30") in made_facts(report)


def test_a_network_that_learnt_nothing_is_a_caution_and_its_attempts_a_fact() -> None:
    attempts = tuple(TrainingAttempt(0, rate, 200, 10, 0.3) for rate in (0.01, 0.0025))
    run = TrainingRun("x1", 200, 200, best_epoch=10, validation=0.3, rising=False, attempts=attempts)
    training = TrainingManifest(epochs=None, runs=(run,), majority=Majority(score=0.29, nodes=100))

    report = report_of(with_provenance(subject_of(), training=training))

    assert (
        "Little was learnt: x1 reached 0.300 on 100 validation nodes, which is not told from the 0.290 of always "
        "giving the most frequent class: 2 trainings with other learning rates and seeds found none, so look at "
        "features and labels."
    ) in report.cautions
    said = "validation 0.300 with seed 0 and learning rate 0.01, 0.300 with seed 0 and learning rate 0.0025"
    assert ("x1 was trained again", said) in made_facts(report)


def test_factors_that_were_left_out_are_a_fact_with_the_reason() -> None:
    chosen = ChosenFactors((2, 4), "x2 and x4 were not trained: projected is predicted to be faster", 0.1)

    report = report_of(with_provenance(subject_of(), chosen_factors=chosen))

    assert ("Factors", chosen.why) in made_facts(report)


def test_of_given_weights_and_of_older_revisions_nothing_is_said_about_the_length_of_training() -> None:
    report = report_of(with_provenance(subject_of(), training=None))

    assert not any("rising" in caution for caution in report.cautions)
    assert "Trained for" not in dict(made_facts(report))


@pytest.mark.parametrize(
    ("changes", "says", "is_silent_of"),
    [
        ({"scope": "Inductive"}, "by which training picked its best epoch, so", "features"),
        ({"scope": "Transductive"}, "and whose features and edges it saw", "not known"),
        ({"checkpoint": "ab" * 32}, "had a part in training the given weights is not known", "best epoch"),
    ],
)
def test_without_test_nodes_the_caution_depends_on_the_training(
    changes: dict[str, str], says: str, is_silent_of: str
) -> None:
    subject = subject_of(untested(variant(1)), test_nodes=0)
    (caution,) = [c for c in report_of(with_provenance(subject, **changes)).cautions if "no test nodes" in c]
    assert says in caution
    assert is_silent_of not in caution


def splits(validation_nodes: int, test_nodes: int, test_ms: float, rows: float) -> str:
    one = variant(1)
    largest = one.latency[-1]
    made = msgspec.structs.replace(
        one, test_latency=latency(1024, test_ms * largest.p50_ms, round(rows * largest.gathered_bytes))
    )
    drift = report_of(subject_of(made, validation_nodes=validation_nodes, test_nodes=test_nodes)).drift
    assert drift is not None
    return drift.says


def test_splits_smaller_than_a_batch_say_nothing_of_neighbours() -> None:
    """As Cora: 500 validation nodes are repeated more often in a batch than 1,000 test nodes."""
    says = splits(500, 1000, test_ms=1.3, rows=1.4)
    assert "there are 500 validation nodes and 1,000 test nodes, so a batch of 1,024 repeats some" in says
    assert "expect" not in says
    assert "times the rows" not in says
    assert "there are 500 validation nodes, so" in splits(500, 5000, test_ms=1.3, rows=1.4)


@pytest.mark.parametrize(
    ("test_ms", "rows", "says"),
    [
        (1.3, 1.4, "took 1.30 times as long as one of validation nodes and read 1.40 times the rows: expect higher"),
        (0.5, 1.0, "took 0.500 times as long as one of validation nodes and read 1.00 times the rows: expect lower"),
        (1.02, 1.4, "the profile's latencies hold for test nodes too"),
        (1.5, 1.0, "expect higher"),
    ],
)
def test_times_that_were_measured_decide_what_latencies_to_expect(test_ms: float, rows: float, says: str) -> None:
    assert says in splits(5000, 5000, test_ms, rows)


# --- the performance model


def test_the_model_is_held_against_variants_that_its_rates_are_not_of() -> None:
    made = [timed(1, 0.3, 1.2, 1.5), timed(4, 0.2, 0.8, 1.0), timed(16, 0.15, 0.6, 0.75)]
    (fit,) = report_of(subject_of(*made)).models
    assert [p.calibrated_with for p in fit.predictions] == [True, False, True]
    missed = abs(fit.predictions[1].corrected_error_percent or 0)
    assert f"The model has its rates from x1 and x16 and misses the only other by {missed:.0f} %." in fit.says
    assert ["(fitted)" in row[4] for row in tables.model_table(fit).rows] == [True, False, True]


def test_a_model_that_predicts_no_other_variant_was_calibrated_all_the_same() -> None:
    made = [timed(1, 0.3, 1.2, 1.5), timed(16, 0.15, 0.6, 0.75)]
    (fit,) = report_of(subject_of(*made)).models
    assert "The model has its rates from x1 and x16, and no other variant to check it against." in fit.says
    assert "could not be calibrated" not in fit.says


def test_a_fitted_variant_agrees_with_its_window_though_its_stages_do_not_add_up_to_it() -> None:
    made = [timed(1, 0.361, 1.17, 1.86), timed(4, 0.25, 0.9, 1.3), timed(16, 0.2, 0.7, 1.0)]
    (fit,) = report_of(subject_of(*made)).models
    errors = {p.variant: p.corrected_error_percent for p in fit.predictions}
    assert (errors["x1"], errors["x16"]) == (pytest.approx(0, abs=1e-9), pytest.approx(0, abs=1e-9))


@pytest.mark.parametrize("fanouts", [(-1, -1), (-1,), (25, 10)])
def test_a_batch_that_reads_fewer_rows_than_it_has_nodes_is_predicted(fanouts: tuple[int, ...]) -> None:
    """100 nodes, of which a batch of 1,024 reads 200 rows."""
    made = []
    for k in (1, 2, 4):
        rows = 200 * 4 * (64 // k)
        points = tuple(msgspec.structs.replace(point, gathered_bytes=rows) for point in variant(k).latency)
        made.append(msgspec.structs.replace(variant(k, validation=0.9 - 0.01 * k), latency=points))
    (fit,) = report_of(with_network(subject_of(*made), fanouts=fanouts)).models
    assert fit.rows_per_seed < 1
    assert all(len(value) < 60 for _, value in model_facts(fit))


# --- latencies


def test_curves_are_judged_by_what_was_measured_and_not_by_what_was_smoothed() -> None:
    """Slower with fewer columns: smoothing makes them all alike, and alike they would miss nothing."""
    made = [variant(k, validation=0.9 - 0.01 * k, p50_ms=0.1 * k) for k in (1, 2, 4, 8)]
    (curve,) = report_of(subject_of(*made)).latencies.curves
    assert curve.worst_left_out_percent is not None
    assert curve.worst_left_out_percent > 10


def test_a_latency_beyond_the_widest_variant_promises_no_width() -> None:
    made = [variant(k, validation=0.9 - 0.01 * k, p50_ms=0.2 / k) for k in (2, 4)]
    report = report_of(subject_of(*made), latencies_ms=[1000])
    (answer,) = report.latencies.answers
    (width,) = answer.widths
    assert (width.columns, width.factor, width.capped, width.model_capped) == (32, None, True, True)
    assert "32 columns fit, as wide as was measured; more may fit" in answer.says
    assert "k = " not in answer.says
    assert tables.widths_table(report).rows[0][-3:] == ("≥ 32", "–", "≥ 32")
    assert "≥ As wide as was measured; more may fit." in build_page(report)


def test_the_widest_variant_with_all_columns_is_as_wide_as_any() -> None:
    made = [variant(k, validation=0.9 - 0.01 * k, p50_ms=0.2 / k) for k in (1, 2)]
    (answer,) = report_of(subject_of(*made), latencies_ms=[1000]).latencies.answers
    assert (answer.widths[0].capped, answer.widths[0].model_capped, answer.widths[0].factor) == (False, False, 1)


def test_by_p99_is_said_to_be_the_median_times_what_is_typical() -> None:
    """x1's own p99 is within 10 ms, the one that routing takes for it is not."""
    made = [
        at_1024(variant(1, validation=0.9), p50_ms=6.0, p99_ms=7.0),
        at_1024(variant(2, validation=0.8), p50_ms=4.0, p99_ms=8.0),
        at_1024(variant(4, validation=0.7), p50_ms=2.0, p99_ms=4.0),
    ]
    report = report_of(subject_of(*made), latencies_ms=[10])
    assert report.latencies.tail_ratio == 2
    assert report.latencies.answers[0].by_p99 == "x2"
    assert "its median times the typical p99/median, 2.00, as routing takes it" in report.latencies.says
    assert "99 of 100" not in report.latencies.answers[0].says
    assert tables.widths_table(report).headers[2] == "By median × 2.00"


def test_the_latency_that_nobody_asked_for_is_one_that_the_only_variant_meets() -> None:
    report = report_of(subject_of(at_1024(variant(1), p50_ms=3.63, p99_ms=5.0)))
    (answer,) = report.latencies.answers
    assert (answer.latency_ms, answer.by_median) == (3.7, "x1")


@pytest.mark.parametrize("p50_ms", [0.0011, 0.7, 1.1, 3.6, 9.99, 123.4, 7.5e6])
def test_it_is_met_whatever_the_variant_takes(p50_ms: float) -> None:
    report = report_of(subject_of(at_1024(variant(1), p50_ms=p50_ms, p99_ms=2 * p50_ms)))
    assert report.latencies.answers[0].by_median == "x1"


# --- tiers, window, costs, stages


def test_of_two_tiers_with_one_permille_the_faster_is_the_answer() -> None:
    made = [
        variant(1, validation=0.9, p50_ms=3),
        variant(2, validation=0.8949, p50_ms=2),
        variant(4, validation=0.8941, p50_ms=1),
    ]
    report = report_of(subject_of(*made), tolerances_permille=[6])
    assert [(t.tolerance_permille, t.answer.variant) for t in report.tolerances.tiers] == [(0, "x1"), (6, "x4")]
    assert report.tolerances.rows[0].answer.variant == "x4"
    assert "x2 loses less than a permille less than a faster one" in report.tolerances.says_tiers
    assert "never the answer" not in report.tolerances.says_tiers


def test_the_fastest_by_the_window_need_not_be_the_fastest() -> None:
    made = [timed(1, 0.3, 0.6, 0.9, p50_ms=3.0, p99_ms=4.0), timed(2, 0.4, 0.6, 1.0, p50_ms=2.0, p99_ms=4.0)]
    says = report_of(subject_of(*made)).says.window
    assert "It is the fastest by the window; by the whole request x2 is, with 2.00 ms" in says
    assert "by either" not in says


def test_what_fewer_columns_shorten_is_said_from_the_numbers() -> None:
    says = report_of(subject_of(timed(1, 0.36, 1.17, 1.5), timed(16, 0.2, 1.18, 1.4))).says.stages
    assert "gathering goes from 0.360 ms to 0.200 ms and computing from 1.17 ms to 1.18 ms" in says
    assert "shorten" not in says


def test_projected_variants_are_said_to_add_a_table() -> None:
    projected = variant(1, 128, projected=True, storage=Storage.INT8)
    assert "add tables of their own" in report_of(subject_of(variant(1), projected)).says.costs
    assert "add tables of their own" not in report_of(subject_of(variant(1))).says.costs


def test_equally_accurate_variants_are_told_apart_in_one_way() -> None:
    """The faster one is the best everywhere, and no distance of 0 may be chance."""
    made = [variant(1, p50_ms=0.4), variant(2, p50_ms=0.2), variant(4, validation=0.5, p50_ms=0.1)]
    report = report_of(subject_of(*made))
    assert report.summary.best.variant == "x2"
    assert "tell the accuracy of x2 more exactly" in report.says.frontier
    assert "x1 is exactly as accurate" in report.says.frontier
    assert "may be chance" not in report.says.frontier
    assert any("that of x2 is within about" in caution for caution in report.cautions)


def test_how_sure_accuracies_are_is_said_of_the_best_and_of_the_least_sure() -> None:
    report = report_of(subject_of(variant(1, validation=0.97), variant(16, validation=0.5)))
    (caution,) = [
        caution for caution in report.cautions if "360 validation nodes" in caution and "come from" in caution
    ]
    assert (
        "at 95 % confidence that of x1 is within about 1.82 points of the true one, that of x16 within 5.14" in caution
    )


def test_the_best_of_several_that_are_alike_is_said_to_be_lucky() -> None:
    alike = report_of(subject_of(variant(1, validation=0.98), variant(2, validation=0.97)))
    assert any("part of its lead may be luck" in caution for caution in alike.cautions)
    apart = report_of(subject_of(variant(1, validation=0.98), variant(2, validation=0.5)))
    assert not any("luck" in caution for caution in apart.cautions)


def test_a_tolerance_is_allowed_and_nothing_is_given_up() -> None:
    made = [variant(1, validation=0.98, p50_ms=2), variant(2, validation=0.97, p50_ms=1)]
    assert "Who allows 1.00 point gets an answer" in report_of(subject_of(*made)).tolerances.says


# --- stability


def ranked(*common: float, others: int = 1) -> str:
    tops = tuple(
        TopStability(
            columns=8 * 2**i, in_common=share, least_in_common=share, jaccard=share, by_chance=0.125 * 2**i, in_every=1
        )
        for i, share in enumerate(common)
    )
    measured = RankStability(seeds=tuple(range(1, others + 1)), features=64, rank_correlation=0.5, top=tops)
    return report_of(with_provenance(subject_of(), stability=measured)).stability.says


def test_all_widths_decide_whether_the_choice_is_the_seeds() -> None:
    assert "mostly the seed's" in ranked(0.875, 0.25, 0.5)
    assert "The choice is the features'" in ranked(0.6, 0.9, 1.0)


def test_two_networks_are_one_pair() -> None:
    assert "the two agree on 88 %" in ranked(0.875)
    assert "That is one pair" in ranked(0.875)
    assert "one pair" not in ranked(0.875, others=2)


def test_more_seeds_are_said_to_train_all_again() -> None:
    assert "another recipe: the served network is trained again too" in report_of(subject_of()).stability.says


# --- facts


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, "GraphSAGE, hidden 128, fan-outs 25, 10, inductive training"),
        ({"fanouts": (10,)}, "GraphSAGE, fan-outs 10, inductive training"),
        (
            {"architecture": "GIN", "mlp_hidden": 64},
            "GIN, hidden 128, 64 between the two products of a layer, fan-outs 25, 10, inductive training",
        ),
        (
            {"architecture": "GAT", "attention": AttentionManifest(heads=8, output_heads=1, negative_slope=0.2)},
            "GAT, hidden 128, 8 heads, 1 in the last layer, fan-outs 25, 10, inductive training",
        ),
    ],
)
def test_a_network_has_the_widths_that_it_is_said_to_have(changes: dict[str, Any], says: str) -> None:
    assert dict(made_facts(report_of(with_network(subject_of(), **changes))))["Model"] == says


def test_given_weights_are_not_said_to_be_trained_in_a_scope() -> None:
    assert "training" not in dict(made_facts(report_of(with_provenance(subject_of(), checkpoint="ab"))))["Model"]


def test_embeddings_of_which_nothing_is_learnt_are_said_to_be_computed() -> None:
    made = with_provenance(subject_of(), training=None, scope="Transductive")
    computed = dict(made_facts(report_of(with_network(made, architecture="LightGCN", fanouts=(0,), hops=1))))
    assert computed["Weights"] == "embeddings computed of the graph, without training"
    assert "training" not in computed["Model"]


def test_relations_with_fan_outs_of_their_own_are_told() -> None:
    made = with_provenance(subject_of(), relation_fanouts={"user knows user": (5, 2)})
    assert ("Fan-outs of user knows user", "5, 2") in made_facts(report_of(made))


def test_how_edges_count_is_told_where_the_revision_says_it() -> None:
    assert "Edges" not in dict(made_facts(report_of(with_provenance(subject_of(), edge_rules=None))))
    made = with_provenance(subject_of(), edge_rules=EdgeRules(Direction.REVERSED))
    told = "Reversed, the source of an edge reads its target; repeated ones count once"
    assert ("Edges", told) in made_facts(report_of(made))


def test_the_device_of_a_server_is_shown_where_it_says_one() -> None:
    assert "Computed on" not in dict(made_facts(report_of(subject_of())))
    assert dict(made_facts(report_of(replace(subject_of(), device="NVIDIA H200"))))["Computed on"] == "NVIDIA H200"


# --- what is shown of names that others chose


MARKUP = "data/[/x]/graph.npz"
ESCAPE = "\x1b]0;owned\x07\x9b31m\u202e"
OBEYED = {"\x1b", "\x07", "\x9b", "\u202e"}


def test_a_path_that_looks_like_markup_is_a_path(tmp_path: Path) -> None:
    write_repository(tmp_path, revision_manifest())
    graph = next((tmp_path / "default" / "digits" / "graphs").iterdir()) / "graph.json"
    manifest = msgspec.structs.replace(graph_manifest(graph.parent.name), source=f"npz file:///{MARKUP}")
    graph.write_bytes(msgspec.json.encode(sealed(manifest)))
    assert MARKUP in run(tmp_path)
    folder = tmp_path / "d[" / "x]"
    folder.mkdir(parents=True)
    assert run(tmp_path, "--out", folder / "r.html").startswith(f"{folder}/r.html: report of")


@pytest.mark.parametrize("form", [[], ["--json"], ["--out", "r.html"]])
def test_nothing_that_a_terminal_might_obey_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = msgspec.to_builtins(served_answer())
    answer["service"] = answer["revision"] = f"a{ESCAPE}b"
    for key in ("source", "generator", "graph", "createdAt"):
        answer["provenance"][key] = f"a{ESCAPE}b"
    answer["provenance"]["rankingSettings"] = {f"a{ESCAPE}b": 1.0}
    answer["profile"]["machine"] = f"a{ESCAPE}b\nsecond line"
    answer["profile"]["variants"][0]["name"] = f"a{ESCAPE}b"
    with fake_server(lambda _: Told(body=answer)) as server:
        shown = run(server.url, *form)
    if "--out" in form:
        shown += (tmp_path / "r.html").read_text()
    assert "a?]0;owned??31m?b" in shown
    assert not OBEYED & set(shown)


def test_nothing_that_a_terminal_might_obey_is_shown_of_variants_or_errors() -> None:
    answer = msgspec.to_builtins(served_answer())
    answer["service"] = f"[/x]{ESCAPE}"
    answer["profile"]["machine"] = answer["profile"]["variants"][0]["name"] = f"[/x]{ESCAPE}"
    with fake_server(lambda _: Told(body=answer)) as server:
        shown = CliRunner().invoke(app, ["variants", server.url])
    assert shown.exit_code == 0, shown.output
    assert "[/x]?" in shown.stdout
    with fake_server(lambda _: Told(body=answer)) as server:
        as_json = CliRunner().invoke(app, ["variants", server.url, "--json"]).stdout
    assert not OBEYED & set(as_json)
    assert json.loads(as_json)["service"] == f"[/x]{ESCAPE}"
    answer["profile"]["variants"][0][f"new{ESCAPE}"] = 1
    for told in (Told(body=answer), refusal(422, "odd", f"said{ESCAPE}", f"field{ESCAPE}")):
        with fake_server(lambda _, told=told: told) as server:  # type: ignore[misc]
            refused = CliRunner().invoke(app, ["variants", server.url])
        assert refused.exit_code != 0
        assert not OBEYED & set(shown.stdout + refused.stderr)


# --- answers that are no gnnserve's


def _set(*path: str | int, to: Any) -> Callable[[dict[str, Any]], None]:
    def change(answer: dict[str, Any]) -> None:
        place: Any = answer
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = to

    return change


_FIRST = ("profile", "variants", 0)
_POINT = (*_FIRST, "latency", 0)
_TOP = ("provenance", "stability", "top", 0)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(_set("profile", "variants", to=[]), id="no variants"),
        pytest.param(_set(*_FIRST, "latency", to=[]), id="no latencies"),
        pytest.param(_set(*_POINT, "seeds", to=2), id="unequal sizes"),
        pytest.param(_set(*_POINT, "seeds", to=32), id="one size twice"),
        pytest.param(_set(*_POINT, "seeds", to=0), id="a batch of none"),
        pytest.param(_set(*_POINT, "p50Ms", to=0), id="no time"),
        pytest.param(_set(*_POINT, "p50Ms", to=1e308), id="longer than the world"),
        pytest.param(_set(*_POINT, "p99Ms", to=5e-324), id="shorter than anything"),
        pytest.param(_set(*_POINT, "gatherMs", to=-1), id="a negative time"),
        pytest.param(_set(*_POINT, "gatheredBytes", to=-1), id="negative bytes"),
        pytest.param(_set(*_POINT, "gatheredBytes", to=10**400), id="more bytes than there are"),
        pytest.param(_set(*_FIRST, "columns", to=0), id="no columns"),
        pytest.param(_set(*_FIRST, "columns", to=65), id="more columns than the graph"),
        pytest.param(_set(*_FIRST, "name", to="x2"), id="one name twice"),
        pytest.param(_set(*_FIRST, "validationAccuracy", to=5), id="better than all"),
        pytest.param(_set(*_FIRST, "testAccuracy", to=-0.1), id="worse than nothing"),
        pytest.param(_set("provenance", "network", "fanouts", to=[]), id="no layers"),
        pytest.param(_set("provenance", "network", "fanouts", to=[-7, 3]), id="fewer than no neighbours"),
        pytest.param(_set("provenance", "network", "fanouts", to=[10**400]), id="more neighbours than there are"),
        pytest.param(_set("provenance", "network", "hidden", to=0), id="no hidden columns"),
        pytest.param(_set(*_TOP, "byChance", to=1), id="certain by chance"),
        pytest.param(_set(*_TOP, "inCommon", to=2), id="more than all in common"),
        pytest.param(_set("features", to=0), id="no features"),
        pytest.param(_set("classes", to=[]), id="no classes"),
    ],
)
def test_an_answer_that_no_gnnserve_gives_is_no_gnnserves(change: Callable[[dict[str, Any]], None]) -> None:
    answer = msgspec.to_builtins(served_answer())
    change(answer)
    with fake_server(lambda _: Told(body=answer)) as server:
        problem = run(server.url, code=4)
    assert problem.startswith(f"error: {server.url}: the answer is not gnnserve's: ")


@pytest.mark.parametrize("variants", [slice(None), slice(1), slice(1, None)], ids=["all", "the first", "the others"])
def test_nothing_gathered_is_odd_and_no_failure(variants: slice) -> None:
    answer = msgspec.to_builtins(served_answer())
    for one in answer["profile"]["variants"][variants]:
        for point in one["latency"]:
            point["gatheredBytes"] = 0
    with fake_server(lambda _: Told(body=answer)) as server:
        json.loads(run(server.url, "--json"), parse_constant=pytest.fail)


@pytest.mark.parametrize(
    "change",
    [_set(*_FIRST, "newFigure", to=1), lambda answer: answer["profile"].pop("threads")],
    ids=["newer", "older"],
)
def test_a_profile_that_does_not_fit_is_likely_another_versions(change: Callable[[dict[str, Any]], None]) -> None:
    answer = msgspec.to_builtins(served_answer())
    change(answer)
    with fake_server(lambda _: Told(body=answer)) as server:
        assert "is the server an older or a newer gnnserve than this program?" in run(server.url, code=4)


@pytest.mark.parametrize("body", [b'{"service": 1, "profile": ', b"[" * 100_000], ids=["half an answer", "too deep"])
def test_an_answer_that_is_no_json_is_no_gnnserves(body: bytes) -> None:
    with fake_server(lambda _: Told(body=body)) as server:
        assert "the answer is not gnnserve's" in run(server.url, code=4)


def test_what_drifts_is_drawn_as_it_is_judged() -> None:
    page = Page(build_page(report_of(drifting())))
    assert "Joint 95 % interval" in page.cells
    assert "Verdict: drift" in printed(report_of(drifting()))
