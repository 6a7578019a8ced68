"""The load generator: what it counts, and that no trouble of the server's keeps it from ending."""

from __future__ import annotations

import json
import math
import re
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.support.machine.fake_server import (
    NODES,
    Asked,
    FakeServer,
    Told,
    answer_like_gnnserve,
    fake_server,
    nodes_body,
    refusal,
    variants_body,
)
from tests.support.machine.waiting import WAIT_S
from tests.support.profiles import profile
from typer.testing import CliRunner

from gnnserve_api.files.links import EndManifest, LinksManifest
from gnnserve_api.files.repository import NodeIdKind
from gnnserve_api.http.protocol import VariantsAnswer
from gnnserve_api.objective import Objective
from gnnserve_cli.commands.load import nodes_to_ask_for
from gnnserve_cli.loadgen import record as records
from gnnserve_cli.loadgen.generator import generate_load
from gnnserve_cli.loadgen.record import LoadRecord, TimedRows
from gnnserve_cli.loadgen.requests import build_predictions
from gnnserve_cli.loadgen.schedule import Arrivals, build_schedule
from gnnserve_cli.loadgen.statistics import LoadPlan, compute_percentiles, percentile, summarize
from gnnserve_cli.loadgen.unseen import Unseen, build_unseen
from gnnserve_cli.main import app
from gnnserve_client.address import parse_url


def predictions(server: FakeServer) -> list[list[int]]:
    return [asked.body["nodes"] for asked in server.asked if asked.path == "/v1/predict"]


@pytest.mark.parametrize(
    "options", [["--concurrency", "2"], ["--rate", "200"], ["--sweep", "2,4"]], ids=["closed", "open", "sweep"]
)
def test_an_interrupted_run_tells_what_it_measured(options: list[str]) -> None:
    seen = threading.Event()

    def answer(asked: Asked) -> Told:
        if asked.path == "/v1/predict" and len(predictions(server)) > 20:
            seen.set()
        return answer_like_gnnserve(asked)

    with fake_server(answer) as server:
        command = [sys.executable, "-m", "gnnserve_cli", "load", server.url, "--duration", "600", "--json", *options]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert seen.wait(WAIT_S)
            process.send_signal(signal.SIGINT)
            printed, problem = process.communicate(timeout=WAIT_S)
    assert (process.returncode, problem) == (130, "")
    told = json.loads(printed)
    report = told["points"][0] if "--sweep" in options else told
    assert report["answers"] == report["requests"] == report["statuses"]["200"] >= 10
    assert 0 < report["durationS"] < 600
    assert re.match(r"interrupted after [0-9.]+ of 600 s: the figures are of what was measured", report["warnings"][0])
    assert "--sweep" not in options or len(told["points"]) == 1


def test_a_closed_loop_reports_rates_latency_and_shares() -> None:
    with fake_server() as server:
        result = CliRunner().invoke(
            app,
            ["load", server.url, "--concurrency", "2", "--duration", "0.2", "--seeds-per-request", "5", "--json"],
        )
        asked = predictions(server)
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.output)
    assert report["mode"] == "closed"
    assert report["answers"] == report["requests"] == report["statuses"]["200"] == len(asked) > 0
    assert report["seedsPerSecond"] == pytest.approx(5 * report["answersPerSecond"], rel=1e-5)
    assert report["variants"] == {"x4": 1.0}
    assert report["objectiveMetShare"] == 1.0
    assert report["latencyMs"]["p50"] <= report["latencyMs"]["p99"] <= report["latencyMs"]["max"]
    assert report["errors"] == {}
    assert all(len(set(nodes)) == 5 and min(nodes) >= 0 and max(nodes) < NODES for nodes in asked)


def test_the_parts_of_the_latency_add_up_to_it() -> None:
    with fake_server() as server:
        arguments = ["--concurrency", "2", "--duration", "0.2", "--json"]
        result = CliRunner().invoke(app, ["load", server.url, *arguments])
        timed = [asked.headers.get("gnnserve-timing") for asked in server.asked if asked.method == "POST"]
    parts = json.loads(result.output)["parts"]
    # Of eight requests one asks for its times.
    assert parts["answers"] == timed.count("all") == math.ceil(len(timed) / 8)
    assert parts["waitMs"] == pytest.approx(0.012)
    assert parts["stagesMs"] == pytest.approx({"sample": 0.021, "gather": 0.064, "compute": 0.128})
    assert parts["computeMs"] == pytest.approx(0.213)
    names = ("clientSendMs", "networkMs", "waitMs", "computeMs", "clientReceiveMs")
    assert parts["sumMs"] == pytest.approx(sum(parts[name] for name in names), rel=1e-4)
    # More than that where the server, which always tells the same, was faster.
    assert parts["sumMs"] >= parts["totalMs"] * (1 - 1e-4)


def test_very_many_timed_answers_are_thinned_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "MOST_TIMED", 4)
    rows = TimedRows()
    for number in range(7):
        rows.add(float(number), 0.0, 0.0, b"%d" % number)
    assert (list(rows.totals_ms), rows.told, rows.every) == ([0.0, 4.0, 6.0], [b"0", b"4", b"6"], 32)
    assert len(rows) == len(rows.sends_ms) == len(rows.receives_ms)


def test_an_open_loop_sends_what_is_due_and_reports_its_own_lag() -> None:
    with fake_server() as server:
        result = CliRunner().invoke(
            app, ["load", server.url, "--rate", "100", "--arrivals", "fixed", "--duration", "0.2", "--json"]
        )
    report = json.loads(result.output)
    assert report["mode"] == "open"
    assert report["requests"] == report["answers"] == 20
    assert 0 <= report["lagMs"]["p50"] <= report["lagMs"]["max"] <= report["latencyMs"]["max"]


def test_the_report_for_people_has_every_figure() -> None:
    with fake_server() as server:
        result = CliRunner().invoke(app, ["load", server.url, "--rate", "50", "--duration", "0.1"])
    assert all(line == line.rstrip() for line in result.output.splitlines())
    for name in ("loop", "requests", "answers", "latency ms", "own lag ms", "variants", "objective met", "statuses"):
        assert name in result.output


def test_a_second_revision_among_the_answers_is_said() -> None:
    def told(asked: Asked) -> Told:
        answer = answer_like_gnnserve(asked)
        if asked.path == "/v1/route":
            answer.body["canary"] = {"revision": "r2", "percent": 30, "answers": True}
        return answer

    with fake_server(told) as server:
        result = CliRunner().invoke(app, ["load", server.url, "--duration", "0.05", "--latency-ms", "500"])
    assert result.stderr.startswith("note: revision r2 answers 30 % of the requests (spec.routing.canary): its answers")


def test_objectives_are_passed_on() -> None:
    with fake_server() as server:
        arguments = ["--duration", "0.05", "--latency-ms", "5", "--accuracy-tolerance-permille", "10"]
        CliRunner().invoke(app, ["load", server.url, *arguments])
    assert server.asked[-1].body["objective"] == {"latencyMs": 5.0, "accuracyTolerancePermille": 10.0}


def test_a_stalled_server_cannot_hide_behind_requests_that_wait_for_it() -> None:
    """Coordinated omission: with one connection the second and third requests are sent after the first is answered,
    and their latency must count from when they were due."""
    all_due = threading.Event()

    def stall(asked: Asked) -> Told:
        assert all_due.wait(timeout=WAIT_S)
        return answer_like_gnnserve(asked)

    def schedule() -> Iterator[float]:
        yield from (0.0, 0.001, 0.002)
        all_due.set()

    with fake_server(stall) as server:
        endpoint = parse_url(server.url)
        plan = LoadPlan(connections=1, duration_s=0.003, seeds_per_request=1, rate_per_s=1000)
        record = generate_load(endpoint, build_predictions(endpoint, NODES, 1, None, 0), plan, schedule(), 30)
    first, second, third = record.latencies_ms
    assert record.held_back == 2
    assert second >= first - 1.0
    assert third >= first - 2.0
    assert record.lags_ms[1] >= first - 1.0
    assert "due while every connection was busy" in summarize(plan, record).warnings[0]


def test_refusals_are_counted_by_reason_and_decide_the_exit_code() -> None:
    def refuse(asked: Asked) -> Told:
        return answer_like_gnnserve(asked) if asked.method == "GET" else refusal(429, "queueFull", "full")

    with fake_server(refuse) as server:
        result = CliRunner().invoke(app, ["load", server.url, "--duration", "0.05", "--json"])
    report = json.loads(result.output)
    assert result.exit_code == 6
    assert report["answers"] == 0
    assert report["latencyMs"] is None
    assert report["statuses"] == {"429": report["requests"]}
    assert report["errors"] == {"429 queueFull": report["requests"]}
    assert report["sentences"] == {"429 queueFull": "full"}


@pytest.mark.parametrize("loop", [[], ["--rate", "200"]], ids=["closed loop", "open loop"])
def test_a_server_that_dies_in_the_middle_is_counted_and_the_run_ends(loop: list[str]) -> None:
    answered = 0

    def die_after_five(asked: Asked) -> Told:
        nonlocal answered
        if asked.method == "GET":
            return answer_like_gnnserve(asked)
        answered += 1
        if answered == 6:
            threading.Thread(target=server.stop).start()
        return Told(hang_up=True) if answered > 5 else answer_like_gnnserve(asked)

    with fake_server(die_after_five) as server:
        arguments = ["--concurrency", "1", "--duration", "0.5", "--json"]
        result = CliRunner().invoke(app, ["load", server.url, *arguments, *loop])
    report = json.loads(result.output)
    assert result.exit_code == 0
    assert report["answers"] == 5
    assert report["errors"]["connection lost"] >= 1
    # Until the listening socket is gone, a new connection may also be reset.
    assert set(report["errors"]) <= {"connection lost", "connection refused", "no connection: Connection reset by peer"}
    assert sum(report["errors"].values()) == report["requests"] - 5


def test_a_server_that_hangs_up_between_answers_is_asked_again() -> None:
    def close_politely(asked: Asked) -> Told:
        told = answer_like_gnnserve(asked)
        return Told(told.status, told.body, {"Connection": "close"}) if asked.method == "POST" else told

    with fake_server(close_politely) as server:
        result = CliRunner().invoke(app, ["load", server.url, "--concurrency", "1", "--duration", "0.1", "--json"])
    report = json.loads(result.output)
    assert report["errors"] == {}
    assert report["answers"] > 1


def test_a_silent_server_costs_one_timeout() -> None:
    done = threading.Event()

    def never(asked: Asked) -> Told:
        if asked.method == "POST":
            done.wait(timeout=WAIT_S)
        return answer_like_gnnserve(asked)

    with fake_server(never) as server:
        arguments = ["--concurrency", "1", "--duration", "0.05", "--timeout", "0.1", "--json"]
        result = CliRunner().invoke(app, ["load", server.url, *arguments])
        done.set()
    assert result.exit_code == 4
    assert json.loads(result.output)["errors"] == {"no answer within 0.1 s": 1}


def test_bytes_that_are_no_http_are_an_error_of_the_run() -> None:
    def write_nonsense(asked: Asked) -> Told:
        return answer_like_gnnserve(asked) if asked.method == "GET" else Told(raw=b"SSH-2.0-OpenSSH_9.2\r\n")

    with fake_server(write_nonsense) as server:
        result = CliRunner().invoke(app, ["load", server.url, "--duration", "0.05", "--json"])
    assert result.exit_code == 4
    assert set(json.loads(result.output)["errors"]) == {"not HTTP"}


@pytest.mark.parametrize(
    ("percent", "value"),
    [pytest.param(50, 5, id="half"), pytest.param(90, 9, id="nine of ten"), pytest.param(99, 10, id="the last one"),
     pytest.param(0, 1, id="the first one")],
)  # fmt: skip
def test_percentiles_are_times_that_happened(percent: float, value: float) -> None:
    assert percentile([1, 2, 3, 4, 5, 6, 7, 8, 9, 10], percent) == value


def test_no_answers_have_no_percentiles() -> None:
    assert compute_percentiles([]) is None


def test_rates_count_the_time_until_the_last_answer() -> None:
    record = LoadRecord(started=40, last_answer_s=4.0)
    for _ in range(40):
        record.rows.add(0.0, 1.0, record.position_of("x1"), 3, last_try_ms=1.0)
    report = summarize(LoadPlan(connections=8, duration_s=2.0, seeds_per_request=3), record)
    assert report.answers_per_second == 10.0
    assert report.seeds_per_second == 30.0


@pytest.mark.parametrize(
    ("lag_ms", "warned"),
    [pytest.param(0.05, False, id="a small lag is no news"), pytest.param(0.5, True, id="a large lag is a warning")],
)
def test_a_generator_that_is_late_itself_says_so(lag_ms: float, warned: bool) -> None:
    record = LoadRecord(started=2, last_answer_s=1.0)
    for _ in range(2):
        record.rows.add(0.0, 1.0, record.position_of("x1"), 1, last_try_ms=1.0)
    record.lags_ms.extend([0.01, lag_ms])
    warnings = summarize(LoadPlan(1, 1.0, 1, rate_per_s=2.0), record).warnings
    assert bool(warnings) is warned


def test_a_fixed_schedule_has_equal_gaps_and_ends() -> None:
    assert list(build_schedule(Arrivals.FIXED, 4, 1.0, seed=0)) == [0.0, 0.25, 0.5, 0.75]


def test_poisson_arrivals_repeat_with_their_seed_and_keep_the_rate() -> None:
    arrivals = list(build_schedule(Arrivals.POISSON, 1000, 10.0, seed=7))
    assert arrivals == list(build_schedule(Arrivals.POISSON, 1000, 10.0, seed=7))
    assert arrivals == sorted(arrivals)
    assert arrivals[-1] < 10.0
    # Four standard deviations of a Poisson count of 10,000.
    assert abs(len(arrivals) - 10_000) < 400


def test_more_seeds_than_nodes_are_drawn_with_repetition() -> None:
    requests = build_predictions(parse_url("http://localhost:1"), 3, 10, None, seed=0)
    body = json.loads(requests[0].partition(b"\r\n\r\n")[2])
    assert len(body["nodes"]) == 10
    assert set(body["nodes"]) <= {0, 1, 2}


@pytest.mark.parametrize(
    ("rate", "duration", "problem"),
    [
        pytest.param("1e6", "3600", "are more than 10,000,000 requests", id="endless"),
        pytest.param("1", "0.3", "no request is due at 1/s within 0.3 s", id="over before the first request is due"),
    ],
)
def test_an_open_loop_of_no_use_is_refused(rate: str, duration: str, problem: str) -> None:
    result = CliRunner().invoke(app, ["load", "http://localhost:1", "--rate", rate, "--duration", duration])
    assert result.exit_code == 2
    assert result.stderr.startswith("error: --rate: ")
    assert problem in result.stderr


def test_a_service_of_links_is_refused_before_anything_is_sent() -> None:
    end = EndManifest("", 0, 9)
    links = msgspec.to_builtins(LinksManifest("Dot", 8, "", end, end, 1, 1))

    def answer(asked: Asked) -> Told:
        assert asked.path == "/v1/variants"
        return Told(body={**variants_body(profile()), "links": links})

    with fake_server(answer) as server:
        result = CliRunner().invoke(app, ["load", server.url])
    assert result.exit_code == 2
    assert "error: URL: default/digits scores pairs of nodes, and requests of this command are about nodes" in (
        result.stderr
    )


@pytest.mark.parametrize(
    ("nodes", "pages", "drawn_from"),
    [(1, 1, 1), (1000, 1, 1000), (1001, 2, 1001), (99_999, 100, 99_999), (250_000, 100, 100_000)],
)
def test_ids_of_a_graph_that_has_its_own_are_asked_for_before_the_run(nodes: int, pages: int, drawn_from: int) -> None:
    """All of them, or of a large graph some from everywhere."""
    with fake_server(lambda asked: Told(body=nodes_body(asked.path, Names(nodes), NodeIdKind.STRINGS))) as server:
        served = msgspec.convert(variants_body(profile(), nodes, NodeIdKind.STRINGS), VariantsAnswer)
        ids = nodes_to_ask_for(parse_url(server.url), served, binary=False)
    assert isinstance(ids, list)
    assert (len(server.asked), len(ids), len(set(ids))) == (pages, drawn_from, drawn_from)
    positions = [int(str(id_).removeprefix("user-")) for id_ in ids]
    assert positions == sorted(positions)
    assert positions[0] == 0
    assert positions[-1] >= 0.99 * (nodes - 1)
    assert max(np.diff(positions), default=0) <= max(1, nodes // pages)


def test_texts_are_sent_as_json() -> None:
    def answer(asked: Asked) -> Told:
        if asked.path == "/v1/variants":
            return Told(body=variants_body(profile(), 50, NodeIdKind.STRINGS))
        if asked.path.startswith("/v1/nodes"):
            return Told(body=nodes_body(asked.path, Names(50), NodeIdKind.STRINGS))
        if asked.path == "/v1/predict":
            labels = ["a"] * len(asked.body["nodes"])
            return Told(body={"labels": labels, "variant": "x4", "revision": "r1", "objectiveMet": True})
        return answer_like_gnnserve(asked)

    with fake_server(answer) as server:
        options = ["--duration", "0.2", "--seeds-per-request", "5", "--json"]
        result = CliRunner().invoke(app, ["load", server.url, *options])
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.output)
    assert report["statuses"] == {"200": report["requests"]}
    sent = [asked.body["nodes"] for asked in server.asked if asked.path == "/v1/predict"]
    assert all(len(set(nodes)) == 5 and set(nodes) <= set(Names(50)[:]) for nodes in sent)


class Names(Sequence[str]):
    """user-0, user-1, …"""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        return [f"user-{i}" for i in range(*index.indices(self._count))]


def test_ids_that_are_integers_of_the_source_are_sent_in_either_form() -> None:
    ids = [10**9 + 7 * position for position in range(50)]

    def answer(asked: Asked) -> Told:
        if asked.path == "/v1/variants":
            return Told(body=variants_body(profile(), len(ids), NodeIdKind.INTEGERS))
        if asked.path.startswith("/v1/nodes"):
            return Told(body=nodes_body(asked.path, ids, NodeIdKind.INTEGERS))
        return answer_like_gnnserve(asked)

    with fake_server(answer) as server:
        result = CliRunner().invoke(app, ["load", server.url, "--duration", "0.2", "--seeds-per-request", "3"])
    assert result.exit_code == 0, result.stderr
    assert {node for sent in predictions(server) for node in sent} <= set(ids)
    requests = build_predictions(parse_url("http://localhost:1"), ids, 3, None, seed=0, binary=True)
    assert set(memoryview(requests[0].partition(b"\r\n\r\n")[2]).cast("q")) <= set(ids)


def test_texts_have_no_binary_form() -> None:
    with fake_server(lambda _: Told(body=variants_body(profile(), 7, NodeIdKind.STRINGS))) as server:
        result = CliRunner().invoke(app, ["load", server.url, "--binary", "--latency-ms", "5"])
    assert result.exit_code == 2
    assert "--binary: the node ids of this graph are texts, which are no array; leave it out" in result.stderr


def test_binary_requests_carry_ids_as_bytes_and_the_objective_in_the_head() -> None:
    objective = Objective(latency_ms=5, accuracy_tolerance_permille=1.5)
    requests = build_predictions(parse_url("http://localhost:1"), NODES, 3, objective, seed=0, binary=True)
    head, _, body = requests[0].partition(b"\r\n\r\n")
    assert head.decode().split("\r\n") == [
        "POST /v1/predict HTTP/1.1",
        "Host: localhost:1",
        "Content-Type: application/octet-stream",
        "gnnserve-latency-ms: 5",
        "gnnserve-accuracy-tolerance-permille: 1.5",
        "Content-Length: 24",
    ]
    ids = struct.unpack("<3q", body)
    asked_in_json = build_predictions(parse_url("http://localhost:1"), NODES, 3, None, seed=0)[0]
    assert list(ids) == json.loads(asked_in_json.partition(b"\r\n\r\n")[2])["nodes"]


@pytest.mark.parametrize("new", [[], ["--new-nodes", "2"]], ids=["stored nodes", "new nodes"])
def test_requests_name_the_variant_that_is_asked_for(new: list[str]) -> None:
    with fake_server() as server:
        named = ["load", server.url, "--duration", "0.1", "--variant", "x4", *new]
        assert CliRunner().invoke(app, named).exit_code == 0
        unknown = CliRunner().invoke(app, ["load", server.url, "--variant", "x3"])
    assert {asked.body["variant"] for asked in server.asked if asked.method == "POST"} == {"x4"}
    assert unknown.exit_code == 2
    assert "--variant: there is no 'x3'; choose from x1, x2, x4" in unknown.stderr


def test_binary_requests_name_the_variant_in_the_head() -> None:
    endpoint = parse_url("http://localhost:1")
    stored = build_predictions(endpoint, NODES, 3, None, seed=0, binary=True, variant="x4")
    new = build_unseen(endpoint, NODES, Unseen(1, 1, 1), None, 0, binary=True, variant="x4")
    for requests in (stored, new):
        assert b"\r\ngnnserve-variant: x4\r\n" in requests[0].partition(b"\r\n\r\n")[0]


def test_binary_answers_are_counted_by_what_their_heads_say() -> None:
    def tell(asked: Asked) -> Told:
        if asked.method == "GET":
            return answer_like_gnnserve(asked)
        return Told(body=b"\0" * 40, headers={"Gnnserve-Variant": "x4", "Gnnserve-Objective-Met": "false"})

    with fake_server(tell) as server:
        result = CliRunner().invoke(app, ["load", server.url, "--binary", "--duration", "0.1", "--json"])
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.output)
    assert (report["variants"], report["objectiveMetShare"], report["errors"]) == ({"x4": 1.0}, 0.0, {})


def test_new_nodes_come_with_features_and_edges_and_are_asked_for() -> None:
    with fake_server() as server:
        result = CliRunner().invoke(
            app,
            ["load", server.url, "--duration", "0.1", "--new-nodes", "2", "--new-edges", "3", "--json"],
        )
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.output)
    assert (report["newNodes"], report["newEdges"], report["seedsPerRequest"]) == (2, 3, 2)
    body = next(asked.body for asked in server.asked if asked.method == "POST")
    overlay = body["overlay"]
    assert body["nodes"] == [node["id"] for node in overlay["nodes"]]
    assert [len(node["features"]) for node in overlay["nodes"]] == [64, 64]
    assert [target for _, target in overlay["edges"]] == [body["nodes"][0]] * 3 + [body["nodes"][1]] * 3
    assert all(0 <= source < NODES for source, _ in overlay["edges"])


def test_new_nodes_are_the_same_in_both_forms() -> None:
    endpoint, objective = parse_url("http://localhost:1"), Objective(latency_ms=5)
    unseen = Unseen(nodes=2, edges=3, features=4)
    as_json = build_unseen(endpoint, NODES, unseen, objective, 0)[0].partition(b"\r\n\r\n")[2]
    head, _, body = build_unseen(endpoint, NODES, unseen, objective, 0, binary=True)[0].partition(b"\r\n\r\n")
    assert b"Content-Type: application/vnd.gnnserve.overlay\r\ngnnserve-latency-ms: 5\r\n" in head
    asked = json.loads(as_json)
    numbers = {id_: -1 - k for k, id_ in enumerate(asked["nodes"])}
    edges = [numbers.get(end, end) for edge in asked["overlay"]["edges"] for end in edge]
    features = [number for node in asked["overlay"]["nodes"] for number in node["features"]]
    assert body == struct.pack("<18q8f", 2, 2, 6, 0, -1, -2, *edges, *features)


def test_new_nodes_of_a_graph_of_texts_have_texts() -> None:
    requests = build_unseen(parse_url("http://localhost:1"), ["a", "b"], Unseen(1, 1, 1), None, 0)
    asked = json.loads(requests[0].partition(b"\r\n\r\n")[2])
    assert asked["nodes"] == ["gnnserve load 0"]
    assert asked["overlay"]["edges"][0][0] in {"a", "b"}


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--new-edges", "3"], "--new-edges: there are no new nodes to have edges; give --new-nodes too"),
        (
            ["--new-nodes", "3", "--seeds-per-request", "2"],
            "--seeds-per-request: requests with new nodes ask for these",
        ),
        (["--new-nodes", "3", "--sizes", "lognormal"], "--sizes: requests with new nodes ask for these"),
    ],
)
def test_options_that_do_not_go_with_new_nodes_are_refused(options: list[str], problem: str) -> None:
    result = CliRunner().invoke(app, ["load", "http://127.0.0.1:1", *options])
    assert result.exit_code == 2
    assert problem in result.stderr
