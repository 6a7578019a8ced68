"""`gnnserve cache simulate` by what it prints and writes."""

from __future__ import annotations

import json
import os
import re
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tests.support.graphs import npz_arrays, planted_graph, write_npz
from typer.testing import CliRunner

from gnnserve_api.errors import InputError
from gnnserve_cli.cache_page import draw_timeline
from gnnserve_cli.cache_simulation import CapacityFound, PolicyFound, TraceFound, says_of
from gnnserve_cli.commands import cache
from gnnserve_cli.exits import ExitCode
from gnnserve_cli.main import app
from gnnserve_cli.report.drawing import show
from gnnserve_worker.caching.simulation import traces
from gnnserve_worker.repository.repository import Repository

NARROW = ["--fanouts", "6,3"]
"""A tenth of the reads that the default fan-outs take."""
SHORT = ["--requests", "200", "--seeds-per-request", "4", "--hot-nodes", "40", "--moves", "1"]


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["cache", "simulate", *arguments], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.stderr
    return result.stdout


def refused(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["cache", "simulate", *arguments], env={"COLUMNS": "200"})
    assert result.exit_code == ExitCode.BAD_INPUT
    return result.stderr


def test_a_table_shows_every_policy_for_every_trace_and_capacity() -> None:
    shown = run("Digits", *SHORT, *NARROW)
    assert "1,797 nodes, 24,680 edges" in shown
    assert re.search(r"Trace +Capacity +Nodes +Frequency +Degree +Presampled +FIFO +LFU +None +Belady", shown)
    rows = re.findall(r"^(uniform|zipf|moving) +(5|10|20) % +(90|180|359)((?: +[\d.]+){7})$", shown, re.MULTILINE)
    assert len(rows) == 9
    for *_, rates in rows:
        frequency, *others, none, bound = map(float, rates.split())
        assert none == 0
        assert bound > max(frequency, *others)


def test_equal_arguments_print_the_same_and_another_seed_does_not() -> None:
    first, again, other = (
        run("Digits", *SHORT, *NARROW, "--trace", "moving", "--seed", seed, "--json") for seed in ("4", "4", "5")
    )
    assert first == again
    assert json.loads(first)["traces"][0]["reads"] != json.loads(other)["traces"][0]["reads"]


def test_json_says_what_was_simulated() -> None:
    found = json.loads(
        run("Digits", *SHORT, "--trace", "moving", "--capacity", "12.5", "--policy", "LFU", "--policy", "Belady",
            "--fanouts", "4,3", "--json")
    )  # fmt: skip
    (trace,) = found["traces"]
    assert (found["nodes"], found["fanouts"], trace["moving"], trace["moves"]) == (1797, [4, 3], True, [100])
    assert (trace["requests"], trace["seeds"], trace["warmUpRequests"]) == (200, 800, 40)
    (at,) = trace["capacities"]
    assert (at["capacityPercent"], at["capacityNodes"]) == (12.5, 225)
    lfu, belady = at["policies"]
    assert (lfu["policy"], belady["policy"]) == ("LFU", "Belady")
    assert 0 < lfu["hitRatePercent"] < belady["hitRatePercent"] < 100
    assert lfu["admissionsPerRead"] > 0
    assert belady["admissionsPerRead"] is None
    assert len(lfu["timelinePercent"]) == 100


def _own_manifest(folder: Path) -> Path:
    """Of a graph of 60 nodes, with fan-outs of its own."""
    data = planted_graph([0, 1], nodes=60, columns=4, classes=(4, 9))
    path = write_npz(folder / "graph.npz", npz_arrays(data))
    manifest = folder / "own.yaml"
    manifest.write_text(
        "apiVersion: gnnserve.dev/v1alpha1\nkind: GNNService\nmetadata: {name: own}\n"
        f"spec: {{graph: {{source: {{npz: {{uri: {path.as_uri()}}}}}}}, "
        "model: {hidden: 8, fanouts: [3, 2], training: {epochs: 1}}, "
        "variants: {pruning: {method: Random, factors: [1]}, storage: [float32], projection: Disabled}}\n"
    )
    return manifest


def test_a_manifest_brings_its_fanouts_and_a_file_its_requests(tmp_path: Path) -> None:
    asked = tmp_path / "asked.npy"
    np.save(asked, np.tile(np.arange(5), (30, 1)))
    found = json.loads(
        run(str(_own_manifest(tmp_path)), "--repository", str(tmp_path / "none"), "--trace", str(asked),
            "--capacity", "50", "--warm-up", "0", "--json")
    )  # fmt: skip
    (trace,) = found["traces"]
    assert found["fanouts"] == [3, 2]
    assert (trace["trace"], trace["requests"], trace["seeds"], trace["moving"]) == ("asked.npy", 30, 150, False)


def test_a_repository_is_simulated_without_its_source(tmp_path: Path) -> None:
    manifest, root = _own_manifest(tmp_path), tmp_path / "repository"
    made = CliRunner().invoke(app, ["generate", str(manifest), "--repository", str(root)])
    assert made.exit_code == 0, made.stderr
    (tmp_path / "graph.npz").unlink()
    by_folder = json.loads(run(str(root), *SHORT, "--trace", "zipf", "--json"))
    assert by_folder["source"].startswith("default/own, revision ")
    assert by_folder["fanouts"] == [3, 2]


def test_the_graph_of_a_published_manifest_is_not_imported_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []

    def find(self: Repository, recipe: str) -> SimpleNamespace:
        opened.append((self.folder.name, recipe))
        return SimpleNamespace(revision="r1")

    data = planted_graph([0, 1], nodes=60, columns=4, classes=(4, 9))
    variant = SimpleNamespace(fanouts=(2,))
    labels = SimpleNamespace(splits=data.splits)
    loaded = SimpleNamespace(graph=data.graph, labels=labels, variants={"x1": variant}, manifest=None)
    monkeypatch.setattr(Repository, "find", find)
    monkeypatch.setattr("gnnserve_cli.cache_subject.load_revision", lambda _stored, _revision: loaded)
    manifest = _own_manifest(tmp_path)
    (tmp_path / "graph.npz").unlink()
    found = json.loads(run(str(manifest), "--repository", str(tmp_path), *SHORT, "--trace", "zipf", "--json"))
    assert (found["source"], found["fanouts"], len(opened)) == ("default/own, revision r1", [2], 1)


def test_a_synthetic_shape_is_made_by_its_name() -> None:
    found = json.loads(
        run("flickr", "--within", "0.5", "--requests", "40", "--trace", "uniform", "--policy", "Degree", "--json")
    )
    assert found["source"] == "synthetic, of the shape of flickr, 50% of the links within communities"
    assert found["nodes"] == 89_250


def test_a_page_draws_every_trace_and_needs_nothing_else(tmp_path: Path) -> None:
    page = tmp_path / "cache.html"
    shown = run("Digits", *SHORT, *NARROW, "--capacity", "5", "--capacity", "10", "--out", str(page))
    assert f"{page}: the same, with plots over time" in shown
    text = page.read_text()
    assert text.count("<figure>") == 6
    assert text.count('stroke="var(--float32)" stroke-width="2.5"') == 12
    assert "p-None" not in re.sub(r"<style>.*</style>", "", text, flags=re.DOTALL)
    assert "<script" not in text
    assert "http" not in text.replace("http-equiv", "")
    assert "Who knew all requests to come would hit" in text


def test_names_and_files_that_are_not_there_are_refused(tmp_path: Path) -> None:
    assert "--trace: 'nix' is neither a trace nor a file; name one of uniform, zipf" in refused(
        "Digits", "--trace", "nix"
    )
    assert "--policy: 'LRU' is none; name one of Frequency, Degree" in refused("Digits", "--policy", "LRU")
    assert "--within: applies to synthetic shapes, and 'Digits' is none" in refused("Digits", "--within", "0.5")
    assert "--service: selects within a folder" in refused("Digits", "--service", "a")
    assert "does not end in .html" in refused("Digits", "--out", "cache.svg")
    assert "is neither a manifest (.yaml), nor an .npz file, nor a folder of a typed graph" in refused("nix")
    assert "--trace: " in (told := refused("Digits", "--trace", str(tmp_path)))
    assert "is no regular file" in told
    assert "101 is not between" in refused("Digits", "--capacity", "101")
    far = tmp_path / "far.jsonl"
    far.write_text("[1797]")
    assert "node 1797 is not one of 0 to 1796" in refused("Digits", "--trace", str(far))


def test_a_pipe_that_nobody_writes_into_is_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.jsonl"
    os.mkfifo(pipe)
    assert f"--trace: '{pipe}' is no regular file; write the requests into one" in refused(
        "Digits", "--trace", str(pipe)
    )


@pytest.mark.parametrize(
    ("fanouts", "told"),
    [
        pytest.param("0", "fanouts [0] may be given with architectures SGC, SIGN and LightGCN only", id="nothing"),
        pytest.param("25,-1", "fanouts [25, -1] must be all positive, or all -1", id="some and all"),
        pytest.param("1024,1024", "would sample up to 1,049,601 nodes for one seed; the limit is", id="too large"),
        pytest.param("100000,100000", "found 100000, expected less than or equal to 1024", id="too large a number"),
        pytest.param("1,1,1,1,1,1,1,1,1", "'1,1,1,1,1,1,1,1,1' is 9 layers, expected at most 8", id="too deep"),
        pytest.param("25;10", "'25;10' is no list of integers; write them as 25,10", id="no numbers"),
    ],
)  # fmt: skip
def test_fanouts_are_refused_for_their_own_reason(fanouts: str, told: str) -> None:
    shown = refused("Digits", "--fanouts", fanouts)
    assert shown.startswith("error: --fanouts: ")
    assert told in shown


def test_a_file_called_as_a_trace_is_one_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "zipf").write_text("[1, 2, 3]\n[4]\n")
    ask = ["Digits", "--requests", "9", "--policy", "FIFO", "--json", "--trace"]
    assert json.loads(run(*ask, "zipf"))["traces"][0]["requests"] == 9
    assert json.loads(run(*ask, "./zipf"))["traces"][0]["requests"] == 2


def test_what_changes_nothing_is_said(tmp_path: Path) -> None:
    asked = tmp_path / "asked.jsonl"
    asked.write_text("[1, 2, 3]\n")
    options = ["--requests", "9", "--moves", "2", "--exponent", "3", "--hot-nodes", "9999", "--round-requests", "4"]
    result = CliRunner().invoke(
        app, ["cache", "simulate", "Digits", "--trace", str(asked), "--policy", "FIFO", *options]
    )
    assert result.exit_code == 0, result.stderr
    assert [line for line in result.stderr.splitlines() if line.startswith("note: ")] == [
        "note: --requests changes nothing: no trace is uniform, zipf, moving, recurring or drifting",
        "note: --exponent changes nothing: no trace is zipf or drifting",
        "note: --hot-nodes changes nothing: no trace is moving or recurring",
        "note: --moves changes nothing: no trace is moving, recurring or drifting",
        "note: --round-requests changes nothing: Frequency is not among the policies",
    ]


def test_a_default_that_does_not_fit_is_fitted_and_said(tmp_path: Path) -> None:
    ask = ["--trace", "moving", "--policy", "FIFO", "--capacity", "50", "--json"]
    result = CliRunner().invoke(
        app, ["cache", "simulate", str(_own_manifest(tmp_path)), "--repository", str(tmp_path), "--requests", "5", *ask]
    )
    assert result.exit_code == 0, result.stderr
    assert "note: --moves is 4: its default, 5, wants more --requests than that\n" in result.stderr
    assert "note: --hot-nodes is 30, half of the graph's: its default is 1,000\n" in result.stderr
    assert json.loads(result.stdout)["traces"][0]["moves"] == [1, 2, 3, 4]


def test_what_the_graph_has_no_room_for_is_refused() -> None:
    assert "--hot-nodes: found 1,797, expected fewer than the 1,797 nodes of the graph; ask for fewer" in refused(
        "Digits", "--hot-nodes", "1797"
    )
    assert "--capacity: 0.02 % of the graph's 1,797 nodes is less than one; ask for 0.0556 or more" in refused(
        "Digits", "--capacity", "0.02"
    )


def test_moves_that_a_trace_has_no_requests_for_are_refused() -> None:
    asked = ["Digits", "--requests", "10", "--moves", "10"]
    told = (
        "--moves: 10 are too many for the 10 requests of the moving trace; ask for more --requests, or for fewer moves"
    )
    assert told in refused(*asked)
    assert "10,000 are too many for the 5,000 requests (the default) of the" in refused("Digits", "--moves", "10000")
    run(*asked, "--trace", "drifting", "--policy", "Degree")


def test_what_does_not_fit_into_memory_ends_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError("Unable to allocate 7.28 TiB")

    monkeypatch.setattr(traces, "build_trace", fail)
    result = CliRunner().invoke(app, ["cache", "simulate", "Digits"])
    assert result.exit_code == ExitCode.RESOURCE
    assert "error: not enough memory: Unable to allocate 7.28 TiB; ask for fewer --requests" in result.stderr


def test_a_page_that_cannot_be_written_loses_no_figures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(path: Path, page: str) -> None:
        raise InputError("--out", "cannot be written", "name a file in a folder that can")

    monkeypatch.setattr(cache, "write_page", fail)
    result = CliRunner().invoke(
        app, ["cache", "simulate", "Digits", *SHORT, "--trace", "zipf", "--out", str(tmp_path / "cache.html")]
    )
    assert result.exit_code == ExitCode.BAD_INPUT
    assert "error: --out: cannot be written" in result.stderr
    assert "Hit rates, %" in result.stdout
    assert "cache.html" not in result.stdout


def test_a_plot_has_no_more_windows_than_it_shows_apart_and_a_log_says_how_far_it_is() -> None:
    result = CliRunner().invoke(
        app, ["cache", "simulate", "Digits", "--requests", "150", "--trace", "zipf", "--policy", "FIFO", "--json"]
    )
    (trace,) = json.loads(result.stdout)["traces"]
    assert trace["windowRequests"] == 2
    assert len(trace["capacities"][0]["policies"][0]["timelinePercent"]) == 75
    assert "sample zipf: 150/150" in result.stderr
    assert "replay zipf: 3/3" in result.stderr


def _found(policy: str, rate: float, recovery: int | None = None) -> PolicyFound:
    return PolicyFound(policy, rate, 0.1, recovery, [rate, rate])


def test_the_sentence_names_the_best_the_bound_and_how_fast_they_recover() -> None:
    at = CapacityFound(5, 10, [_found("FIFO", 20, 80), _found("Frequency", 31.5, 40), _found("Belady", 50)])
    trace = TraceFound("moving", True, [100], 200, 800, 9000, 40, 100, [at])
    assert says_of(trace, at) == (
        "Frequency hits 31.50 %, 11.50 points more than FIFO. Who knew all requests to come would hit 50.00 %. "
        "Requests after a move until nine tenths of what it cost are back: Frequency 40, FIFO 80."
    )


def test_names_of_lines_that_end_together_do_not_lie_over_each_other() -> None:
    at = CapacityFound(5, 10, [_found(name, 20) for name in ("Frequency", "Degree", "Presampled", "FIFO", "LFU")])
    trace = TraceFound("zipf", False, [], 200, 800, 9000, 40, 100, [at])
    wide, narrow, _ = show(partial(draw_timeline, trace, at)).split("</svg>")
    for drawing in (wide, narrow):
        heights = [float(y) for y in re.findall(r'y="([\d.]+)" [^>]*>[A-Z]', drawing)]
        assert len(heights) == 5
        assert min(np.diff(sorted(heights))) > 11.9
