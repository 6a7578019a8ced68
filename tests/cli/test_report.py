"""What a report works out, says, prints and writes."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from tests.support.machine.fake_server import Told, fake_server
from tests.support.pages.report_pages import Page, printed, report_of, run, served_answer, write_repository
from tests.support.pages.reports import (
    CASES,
    drifting,
    every_storage,
    manifest_of,
    page_of,
    subject_of,
    without_test_nodes,
)
from tests.support.profiles import latency, revision_manifest, variant
from tests.support.serving.serving import without_overlays

from gnnserve_api.errors import InputError
from gnnserve_api.files.profile import LinkScores
from gnnserve_api.files.repository import (
    NOT_RANKED,
)
from gnnserve_api.http.live_accuracy import ObservedShare
from gnnserve_api.variants import Storage
from gnnserve_cli.report.data import DriftVerdict, Report
from gnnserve_cli.report.html import build_page
from gnnserve_cli.report.words import number, plain_ms, points

# --- every form of every case


@pytest.mark.campaign
@pytest.mark.parametrize("case", CASES)
def test_every_case_is_a_whole_page_that_asks_for_nothing(case: str) -> None:
    report = report_of(CASES[case]())
    text = page_of(case)
    page = Page(text)
    assert page.open == []
    assert {link[0] for link in page.links} == {"#"}
    assert {link[1:] for link in page.links} <= set(page.names)
    assert not re.search(r"https?://|@import|url\(", text)
    assert not page.tags & {"script", "img", "link", "iframe", "object", "form"}
    assert {row.name for row in report.variants} <= set(page.cells)
    assert len(page.names) == len(set(page.names))
    assert all(page.labels)
    colours = set(re.findall(r"var\(--([\w-]+)\)", text))
    assert colours <= set(re.findall(r"--([\w-]+):", text))
    assert "#0000" not in text
    for word in ("nan", "inf", "None", "Infinity"):
        assert not re.search(rf"\b{word}\b", text), word


@pytest.mark.campaign
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("seeds", [1, 32, 1024])
def test_every_case_is_valid_json_with_numbers_only(case: str, seeds: int) -> None:
    report = report_of(CASES[case](), seeds=seeds, latencies_ms=[0.01, 5, 1e6], tolerances_permille=[0, 5.5, 1000])
    told = msgspec.json.encode(report)
    json.loads(told, parse_constant=pytest.fail)
    assert msgspec.json.decode(told, type=Report) == report
    assert report.seeds == seeds
    assert [answer.latency_ms for answer in report.latencies.answers] == [0.01, 5, 1e6]


@pytest.mark.campaign
@pytest.mark.parametrize("case", CASES)
def test_the_terminal_says_what_the_page_says(case: str) -> None:
    report = report_of(CASES[case]())
    lines = " ".join(printed(report).split())
    for text in (report.summary.says, report.tolerances.says_tiers, report.stability.says, *report.cautions):
        assert " ".join(text.replace("`", "").split()) in lines
    assert all(row.name in lines for row in report.variants)


def test_the_same_report_is_the_same_page() -> None:
    assert build_page(report_of(CASES["one variant"]())) == page_of("one variant")


def test_names_of_a_user_are_no_markup() -> None:
    bad = '<script>alert("x")</script>&\'[bold]'
    subject = subject_of(
        msgspec.structs.replace(variant(1), name=bad), variant(2), service=bad, source=bad, machine=bad
    )
    report = report_of(subject)
    text = build_page(report)
    assert "<script" not in text
    assert "script" not in Page(text).tags
    assert "&lt;script&gt;" in text
    assert bad in printed(report)


def test_the_page_allows_its_own_style_alone() -> None:
    policy = re.search(r'content="(default-src[^"]*)"', page_of("all neighbours"))
    assert policy is not None
    assert re.fullmatch(r"default-src 'none'; style-src 'sha256-[\w+/=]{44}'", policy.group(1))


# --- what is worked out


def test_the_summary_names_the_best_the_cheap_and_the_fastest() -> None:
    summary = report_of(subject_of()).summary
    assert (summary.best.variant, summary.within_one_point.variant, summary.fastest.variant) == ("x1", "x1", "x1")
    made = [variant(k, validation=0.99 - 0.004 * k, p50_ms=1 / k) for k in (1, 2, 4, 8)]
    summary = report_of(subject_of(*made)).summary
    assert (summary.best.variant, summary.within_one_point.variant, summary.fastest.variant) == ("x1", "x2", "x8")
    assert summary.fastest.relative_latency == pytest.approx(1 / 8)
    assert "x2 loses 0.40 points and is 2.00 times as fast" in summary.says
    assert "x8 loses 2.80 points and is 8.00 times as fast" in summary.says
    assert "; x2, the fastest within one point, takes " in summary.headline
    assert summary.headline.endswith(" and loses 0.40 points.")
    (alone,) = made[:1]
    assert report_of(subject_of(alone)).summary.headline.count(";") == 0


def test_losses_that_few_nodes_cannot_tell_are_said_to_be_chance() -> None:
    made = [variant(1, validation=0.98), variant(2, validation=0.97), variant(4, validation=0.80)]
    few = report_of(subject_of(*made))  # 360 validation nodes
    assert {row.name: row.loss_may_be_chance for row in few.variants} == {"x1": True, "x2": True, "x4": False}
    assert "The distance to x2 may be chance" in few.says.frontier
    many = report_of(subject_of(*made, validation_nodes=100_000))
    assert not many.variants[1].loss_may_be_chance
    assert "All others lose more than chance explains" in many.says.frontier
    assert any("360 validation nodes" in caution for caution in few.cautions)
    assert not any("validation nodes" in caution for caution in many.cautions)


def test_tiers_are_stated_so_that_they_reach_their_variant() -> None:
    made = [variant(1, validation=0.98, p50_ms=2), variant(2, validation=0.9745, p50_ms=1)]
    tiers = report_of(subject_of(*made)).tolerances.tiers
    assert [(tier.tolerance_permille, tier.answer.variant) for tier in tiers] == [(0, "x1"), (6, "x2")]


def test_a_batch_size_that_was_not_measured_is_refused() -> None:
    with pytest.raises(InputError, match=r"--seeds: 100 is no batch size that was measured; use 1, 32 and 1024"):
        report_of(subject_of(), seeds=100)


def test_a_missing_x1_of_very_wide_features_is_explained() -> None:
    narrow = subject_of(variant(4), variant(8), variant(1, 128, projected=True))
    wide = replace(narrow, nodes=28_281, features=31_241)

    (said,) = [caution for caution in report_of(wide).cautions if "no x1" in caution]
    assert said.startswith("There is no x1, whose table would take 3.29 GiB: projected computes what it would.")
    assert "spec.variants.pruning.wideTables: Keep" in said
    complete = replace(wide, profile=subject_of(variant(1, 31_241), variant(1, 128, projected=True)).profile)
    for subject in (narrow, complete):
        assert not any("no x1" in caution for caution in report_of(subject).cautions)


def test_a_batch_that_repeats_its_nodes_is_said_to() -> None:
    assert any("so its nodes repeat" in caution for caution in report_of(subject_of()).cautions)
    assert not any("repeat" in caution for caution in report_of(subject_of(), seeds=32).cautions)


def test_test_nodes_like_validation_nodes_are_within_chance() -> None:
    drift = report_of(subject_of()).drift
    assert drift is not None
    assert drift.verdict is DriftVerdict.WITHIN_CHANCE
    assert "No variant differs by more than chance" in drift.says


def test_test_nodes_unlike_validation_nodes_are_drift_in_accuracy_and_in_latency() -> None:
    drift = report_of(drifting()).drift
    assert drift is not None
    assert drift.verdict is DriftVerdict.DRIFT
    assert {row.verdict for row in drift.rows} == {DriftVerdict.DRIFT}
    assert drift.rows[0].difference_points == pytest.approx(-12)
    assert drift.rows[0].low_points < -12 < drift.rows[0].high_points < 0
    assert "expect lower" in drift.says.replace("\n", " ") or "expect higher" in drift.says


def test_a_real_difference_of_little_weight_is_called_small() -> None:
    one = variant(1, validation=0.9)
    made = msgspec.structs.replace(one, test_accuracy=0.897)
    drift = report_of(subject_of(made, validation_nodes=1_000_000, test_nodes=1_000_000)).drift
    assert drift is not None
    assert drift.verdict is DriftVerdict.SMALL


def test_one_of_many_that_is_outside_by_a_little_is_no_drift() -> None:
    made = [variant(k, validation=0.9) for k in (1, 2, 4, 8)]
    made[2] = msgspec.structs.replace(made[2], test_accuracy=0.85)
    drift = report_of(subject_of(*made)).drift
    assert drift is not None
    assert drift.verdict is DriftVerdict.WITHIN_CHANCE
    assert "No variant differs by more than chance" in drift.says


def test_without_test_nodes_nothing_is_said_of_drift() -> None:
    report = report_of(without_test_nodes())
    assert report.drift is None
    assert any("no test nodes" in caution for caution in report.cautions)
    assert "The graph has no test nodes" in page_of("no test nodes")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"ranking_method": "Greedy"}, "set `spec.variants.pruning.stabilitySeeds` to 2 or more"),
        ({"ranking_method": "Random"}, "ranked by chance"),
        ({"checkpoint": "ab" * 32}, "there is no seed to compare"),
        ({"ranking_method": NOT_RANKED}, "no variant was made by leaving some of them out"),
    ],
)
def test_where_no_ranking_is_compared_the_report_says_why(changes: dict[str, str], says: str) -> None:
    subject = subject_of()
    report = report_of(replace(subject, provenance=msgspec.structs.replace(subject.provenance, **changes)))
    assert report.stability.measured is None
    assert says in report.stability.says


def test_rankings_of_other_seeds_are_compared() -> None:
    stability = report_of(subject_of(others=2)).stability
    assert stability.measured is not None
    assert stability.measured.seeds == (1, 2)
    assert [top.columns for top in stability.measured.top] == [4, 8, 16, 32]
    assert "Of the 4 columns of the narrowest variant two seeds agree on 100 %; chance would give 6 %" in stability.says


def test_the_models_are_held_against_what_was_measured() -> None:
    """Times that the corrected model explains: it must find them, at the widths that it was not fitted to."""
    made = []
    for k in (1, 2, 4, 8):
        columns = 64 // k
        point = msgspec.structs.replace(
            latency(1024, 1.0, 301 * 4 * columns * 1024),
            sample_ms=0.5, gather_ms=0.1 + 0.01 * columns, compute_ms=0.3 + 0.02 * columns,
            window_p50_ms=0.4 + 0.03 * columns, p50_ms=0.9 + 0.03 * columns, p99_ms=1.8 + 0.06 * columns,
        )  # fmt: skip
        made.append(msgspec.structs.replace(variant(k, validation=0.99 - 0.01 * k), latency=(point,)))
    report = report_of(subject_of(*made), latencies_ms=[2.0])
    (fit,) = report.models
    assert fit.rows_per_seed == pytest.approx(301)
    assert [p.calibrated_with for p in fit.predictions] == [True, False, False, True]
    assert [p.corrected_error_percent for p in fit.predictions] == pytest.approx([0, 0, 0, 0], abs=1e-6)
    assert fit.gather_fixed_ms == pytest.approx(0.1)
    # 2 ms = 0.5 sampling + 0.4 + 0.03 · columns: 36 columns, by the curve and by the model alike; k = 2 has 32.
    (answer,) = report.latencies.answers
    (width,) = answer.widths
    assert (width.columns, width.model_columns, width.factor) == (36, 36, 2)
    assert (answer.by_median, answer.by_p99) == ("x2", None)


def test_variants_of_fewer_neighbours_have_marks_of_their_own_and_are_on_no_curve() -> None:
    fewer = msgspec.structs.replace(variant(1, p50_ms=0.1), name="x1-f15x5", family="fanouts", fanouts=(15, 5))
    report = report_of(subject_of(variant(1), variant(4), fewer))

    page = build_page(report)

    assert 'class="s-float32 triangle"' in page
    assert "samples fewer neighbours" in page
    assert [p.variant for fit in report.models for p in fit.predictions] == ["x1", "x4"]
    assert [row.family for row in report.variants] == ["pruned", "pruned", "fanouts"]


def test_storages_are_fitted_apart_and_projected_variants_only_predicted() -> None:
    report = report_of(every_storage())
    assert [fit.storage for fit in report.models] == list(Storage)
    bfloat16 = report.models[2]
    assert bfloat16.predictions[-1].variant == "projected-bfloat16"
    assert not bfloat16.predictions[-1].calibrated_with
    assert {width.storage for width in report.latencies.answers[0].widths} == set(Storage)


def test_times_far_apart_get_a_logarithmic_axis_and_near_ones_a_linear_one() -> None:
    assert "logarithmic" in page_of("seventeen variants")
    assert "logarithmic" not in page_of("all neighbours")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.02134, "0.0213"),
        (1.0, "1.00"),
        (12.345, "12.3"),
        (999.6, "1,000"),
        (1234.5, "1,230"),
        (9.999, "10.0"),
    ],
)
def test_numbers_have_three_digits_and_no_exponent(value: float, text: str) -> None:
    assert number(value) == text


def test_times_are_never_finer_than_they_were_measured() -> None:
    assert [plain_ms(value) for value in (0.0081, 0.0279, 0.2831, 2.705)] == ["0.0081", "0.0279", "0.283", "2.71"]


def test_points_agree_with_their_number() -> None:
    assert [points(value) for value in (1, 0.5, -0.001)] == ["1.00 point", "0.50 points", "0.00 points"]


# --- the command


def test_a_repository_is_reported_in_all_three_forms(tmp_path: Path) -> None:
    write_repository(tmp_path, manifest_of(others=1))
    assert "default/digits: accuracy against latency" in run(tmp_path)
    told = json.loads(run(tmp_path, "--json", "--latency-ms", "5", "--latency-ms", "4", "--seeds", "32"))
    assert told["seeds"] == 32
    assert [answer["latencyMs"] for answer in told["latencies"]["answers"]] == [4, 5]
    assert told["provenance"]["edges"] == 24_680
    page = tmp_path / "report.html"
    page.write_text("what was there before")
    assert run(tmp_path, "--out", page) == f"{page}: report of default/digits, revision f0eae20c16c00ac0-1\n"
    assert page.read_text().startswith("<!doctype html>")
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".unfinished"] == []


def test_json_and_a_page_come_together(tmp_path: Path) -> None:
    write_repository(tmp_path, revision_manifest())
    json.loads(run(tmp_path, "--json", "--out", tmp_path / "r.html"))
    assert (tmp_path / "r.html").exists()


def test_of_several_revisions_the_newest_is_reported(tmp_path: Path) -> None:
    write_repository(tmp_path, revision_manifest("old", created_at="2026-01-01T00:00:00Z"))
    write_repository(tmp_path, revision_manifest("new", created_at="2026-02-01T00:00:00Z"))
    assert json.loads(run(tmp_path, "--json"))["revision"] == "new"
    assert json.loads(run(tmp_path, "--json", "--revision", "old"))["revision"] == "old"
    assert "has no 'other'; name one of new, old" in run(tmp_path, "--revision", "other", code=2)


def test_of_several_services_one_must_be_named(tmp_path: Path) -> None:
    write_repository(tmp_path, revision_manifest())
    write_repository(tmp_path, revision_manifest(), service="papers")
    problem = run(tmp_path, code=2)
    assert f"--service: is not given, and {tmp_path} holds default/digits, default/papers" in problem
    for name in ("papers", "default/papers"):
        assert json.loads(run(tmp_path, "--json", "--service", name))["service"] == "default/papers"
    assert "holds no 'else'; name one of default/digits, default/papers" in run(tmp_path, "--service", "else", code=2)


def test_a_damaged_revision_that_is_asked_for_is_named(tmp_path: Path) -> None:
    write_repository(tmp_path, revision_manifest("good"))
    write_repository(tmp_path, revision_manifest("bad"))
    file = tmp_path / "default" / "digits" / "revisions" / "bad" / "revision.json"
    file.write_bytes(file.read_bytes()[:-10])
    assert json.loads(run(tmp_path, "--json"))["revision"] == "good"
    assert f"{file}: is not valid JSON" in run(tmp_path, "--revision", "bad", code=3)


@pytest.mark.parametrize(
    ("out", "problem"),
    [("report.pdf", "does not end in .html"), ("folder.html", "is a folder"), ("none/report.html", "is no folder")],
)
def test_a_page_that_cannot_be_written_is_refused_before_anything_is_read(
    tmp_path: Path, out: str, problem: str
) -> None:
    (tmp_path / "folder.html").mkdir()
    assert problem in run("nowhere", "--out", tmp_path / out, code=2)


@pytest.mark.parametrize("package", ["matplotlib", "jinja2"])
def test_only_a_page_needs_the_extra_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    problem = run("nowhere", "--out", tmp_path / "report.html", code=4)
    assert f"--out: needs {package}, which is not installed; `pip install 'gnnserve[pictures]'` brings it" in problem
    write_repository(tmp_path, revision_manifest())
    assert "accuracy against latency" in run(tmp_path)
    assert json.loads(run(tmp_path, "--json"))["revision"]


def test_a_page_that_fails_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_repository(tmp_path, revision_manifest())
    page = tmp_path / "report.html"
    page.write_text("before")

    def full(path: Path, text: str, **_: object) -> int:
        path.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    assert "cannot be written: No space left on device" in run(tmp_path, "--out", page, code=2)
    monkeypatch.undo()
    assert page.read_text() == "before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["default", "report.html"]


def test_a_server_is_reported() -> None:
    with fake_server(lambda _: Told(body=msgspec.to_builtins(served_answer()))) as server:
        told = json.loads(run(server.url, "--json"))
        refused = run(server.url, "--service", "default/digits", code=2)
    assert (told["service"], told["revision"]) == ("default/digits", "r1")
    assert told["stability"]["measured"]["seeds"] == [1]
    assert "--service: selects within a folder" in refused


@pytest.mark.parametrize(
    "arguments", [["--latency-ms", "0"], ["--accuracy-tolerance-permille", "1001"], ["--latency-ms", "nan"]]
)
def test_options_out_of_range_are_refused(arguments: list[str]) -> None:
    assert "is not between" in run("nowhere", *arguments, code=2)


def test_a_report_of_links_speaks_of_links() -> None:
    scores = LinkScores(840, 0.9, 0.9, 460, 240, 0.2, 0.7, 0.4, 20)
    plain = subject_of(variant(1), variant(4))
    figures = {"validation_figures": scores, "test_figures": scores}
    made = [msgspec.structs.replace(one, **figures) for one in plain.profile.variants]
    # Named in files as earlier releases read them.
    assert {"validationLinks", "testLinks"} <= msgspec.json.decode(msgspec.json.encode(made[0])).keys()
    links = msgspec.structs.replace(plain.profile, metric="rocAuc", variants=tuple(made))
    report = report_of(replace(plain, profile=links))
    text = printed(report)
    assert "has a ROC-AUC of 98.89 % on 840 validation links" in text
    assert "held on test links, which training did not see" in text
    assert "Accuracies come from 840 validation links" in text
    assert "no share of links: its intervals are approximate, as if every link were right" in text
    assert "840 validation, 840 test links; training has the others" in text
    # Pairs are judged, and as many nodes of them are profiled as there are.
    assert "There are fewer nodes of validation links (360) than a batch of 1,024 has" in text
    assert "Average precision, test" in text and "ROC-AUC, test" not in text
    assert "A batch of 1,024 nodes of test links took" in text
    assert not re.search(r"(validation|test) nodes", text)
    page = build_page(report)
    assert "% on test links" in page and "worse on test links" in page
    assert "Average precision, test" in page and not re.search(r"(validation|test) nodes", page)


def test_without_two_widths_no_model_is_told() -> None:
    told = "There are not two widths of one storage, from which a model could have its rates."
    one, two = (report_of(subject_of(*variants)) for variants in ((variant(1),), (variant(1), variant(4))))
    assert told in printed(one) and "Rates come from" not in printed(one)
    assert told not in printed(two) and "Rates come from" in printed(two)


def test_a_report_of_links_counts_them_for_its_intervals() -> None:
    scores = LinkScores(100_000, 0.9, 0.9, 460, 240, 0.2, 0.7, 0.4, 20)
    plain = subject_of(variant(1), variant(4))
    made = [msgspec.structs.replace(one, validation_figures=scores) for one in plain.profile.variants]
    links = msgspec.structs.replace(plain.profile, metric="rocAuc", variants=tuple(made))
    few, many = (report_of(replace(plain, profile=of)).variants[0].validation for of in (plain.profile, links))
    assert (many.high - many.low) < 0.1 * (few.high - few.low)


def test_accuracy_in_service_stands_beside_the_profiles_where_a_server_got_labels() -> None:
    subject = subject_of(variant(1), variant(4))
    assert "In service" not in printed(report_of(subject))
    known = replace(subject, in_service={"x1": ObservedShare(0.912, 0.88, 0.93, 1500)})
    report = report_of(known)
    text = printed(report)
    assert "In service, by labels" in text
    assert "91.20 % (88.00 to 93.00; 1,500 nodes)" in text
    assert msgspec.to_builtins(report)["variants"][1]["inService"] is None
    assert "91.20 % (88.00 to 93.00; 1,500 nodes)" in Page(build_page(report)).cells


# --- where the graph changes


def test_a_report_beside_changes_is_of_the_variants_that_answer() -> None:
    subject = replace(every_storage(), profile=without_overlays(every_storage().profile, "x1"))
    whole, of_answering = report_of(subject), report_of(replace(subject, graph_changes=True))
    assert [row.name for row in whole.variants] == ["x1", *(row.name for row in of_answering.variants)]
    assert whole.summary.best.variant == "x1" != of_answering.summary.best.variant
    tier = of_answering.tolerances.tiers[0]
    assert (tier.tolerance_permille, tier.answer.relative_latency) == (0, 1)
    assert tier.answer.variant == of_answering.summary.best.variant
    assert of_answering.cautions[0].startswith("x1 holds the graph as it was generated, and answers nothing while it")
    assert not any("answers nothing" in caution for caution in whole.cautions)
    build_page(of_answering)


def test_a_server_says_whether_its_graph_changes_and_an_option_of_a_folder(tmp_path: Path) -> None:
    manifest = manifest_of()
    stands = without_overlays(manifest.profile, "x1")
    write_repository(tmp_path, msgspec.structs.replace(manifest, profile=stands))
    assert "answers nothing" not in run(tmp_path)
    assert "x1 holds the graph as it was" in run(tmp_path, "--with-updates")
    answer = msgspec.structs.replace(served_answer(), profile=stands, standing=("x1",))
    with fake_server(lambda _: Told(body=msgspec.to_builtins(answer))) as server:
        assert "x1 holds the graph as it was" in run(server.url)
        refused = run(server.url, "--with-updates", code=2)
    assert "--with-updates: is about a folder, and a server says it itself; leave it out" in refused
    nothing = without_overlays(manifest.profile, *(one.name for one in manifest.profile.variants))
    write_repository(tmp_path / "none", msgspec.structs.replace(manifest, profile=nothing))
    assert "no variant of revision" in run(tmp_path / "none", "--with-updates", code=2)
