"""Comparing with peers: ratios, protocols, and what is started."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest
from benchmarks.peers.contestants import Contestant, Effort, measure
from benchmarks.peers.processes import Running, descendants, running
from benchmarks.peers.protocols import BINARY, ECHO, GNNSERVE_BINARY, GNNSERVE_JSON, SEEDS_JSON, V2_JSON, Protocol
from benchmarks.peers.ratios import Figures, compute_echo_ratios, compute_ratios, lowest_of, median_of
from benchmarks.peers.servers import (
    ECHO_SERVER,
    FULL_GROUPS,
    GROUPS,
    QUICK_GROUPS,
    Groups,
    choose_groups,
    free_ports,
    gnnserve_server,
    projected_server,
    service_manifest,
    with_ports,
    x1_server,
)
from benchmarks.shapes import SHAPES, ShapeFiles
from benchmarks.wrk import Load

from gnnserve_api.manifest import load_manifest
from gnnserve_api.spec.service import GNNService


def _measured(one_ms: float, busy_per_s: float, busy_p99_ms: float, many_ms: float) -> dict[str, Figures]:
    return {
        "one_seed": Figures(one_ms, 2 * one_ms, 1000 / one_ms),
        "throughput_32": Figures(1.0, busy_p99_ms, busy_per_s),
        "seeds_1024": Figures(many_ms, 2 * many_ms, 1000 / many_ms),
    }


OURS = _measured(0.15, 20_000, 4.0, 10.0)
PEER_FIGURES = {"quick": _measured(0.6, 1_500, 20.0, 150.0), "wide": _measured(1.8, 3_000, 24.0, 80.0)}


def test_each_ratio_is_against_the_best_peer_by_that_measure() -> None:
    compared = compute_ratios(OURS, PEER_FIGURES)
    assert compared.ratios == {"one_seed_p50": 4.0, "throughput_32": 6.667, "seeds_1024": 8.0}
    assert compared.against == {"one_seed_p50": "quick", "throughput_32": "wide", "seeds_1024": "wide"}
    assert compared.throughput_32_p99 == 6.0


def test_a_better_peer_gives_a_ratio_below_one() -> None:
    compared = compute_ratios(PEER_FIGURES["quick"], {"ours": OURS})
    assert all(ratio < 1 for ratio in compared.ratios.values())


def test_over_several_groups_each_measure_is_of_the_group_where_a_peer_comes_nearest() -> None:
    slower = _measured(0.3, 10_000, 8.0, 20.0)
    groups = [
        compute_ratios(OURS, {"quick": PEER_FIGURES["quick"]}),
        compute_ratios(slower, {"wide": PEER_FIGURES["wide"]}),
    ]
    assert [group.ratios["throughput_32"] for group in groups] == [13.333, 3.333]
    compared = lowest_of(groups)
    assert compared.ratios == {"one_seed_p50": 4.0, "throughput_32": 3.333, "seeds_1024": 4.0}
    assert compared.against == {"one_seed_p50": "quick", "throughput_32": "wide", "seeds_1024": "wide"}
    assert compared.throughput_32_p99 == 3.0


def test_one_group_is_compared_as_it_is() -> None:
    compared = compute_ratios(OURS, PEER_FIGURES)
    assert lowest_of([compared]) == compared


def test_echo_ratios_are_latency_over_the_floor_and_share_of_the_ceiling() -> None:
    echo = _measured(0.1, 40_000, 2.0, 0.2)
    assert compute_echo_ratios(OURS, echo) == {"one_seed_p50_over_echo": 1.5, "throughput_32_of_echo": 0.5}


def test_repetitions_come_to_their_median() -> None:
    loads = [Load(10, rate, p50, p50, p50 * 2, p50, p50 * 3, {}) for rate, p50 in ((1.0, 9.0), (5.0, 1.0), (3.0, 4.0))]
    assert median_of(loads) == Figures(p50_ms=4.0, p99_ms=8.0, requests_per_s=3.0)


@pytest.mark.parametrize(
    ("protocol", "seeds", "body"),
    [
        (GNNSERVE_JSON, [7, 8], b'{"nodes":[7,8],"return":["scores"]}'),
        (GNNSERVE_BINARY, [1], b"\1\0\0\0\0\0\0\0"),
        (SEEDS_JSON, [7], b'{"seeds":[7]}'),
        (V2_JSON, [7], b'{"inputs":[{"name":"seeds","shape":[1,1],"datatype":"INT64","data":[7]}]}'),
    ],
)
def test_seeds_are_encoded_as_each_protocol_wants_them(protocol: Protocol, seeds: list[int], body: bytes) -> None:
    assert protocol.encode(seeds) == body


@pytest.mark.parametrize(
    ("protocol", "body"),
    [
        (GNNSERVE_JSON, b'{"variant":"x1","scores":[[1,2],[3,4]]}'),
        (GNNSERVE_BINARY, np.array([1, 2, 3, 4], dtype="<f4").tobytes()),
        (SEEDS_JSON, b'{"scores":[[1,2],[3,4]]}'),
        (SEEDS_JSON, b"[[1,2],[3,4]]"),
        (V2_JSON, b'{"outputs":[{"name":"scores","data":[1,2,3,4]}]}'),
    ],
)
def test_scores_are_read_from_each_protocol(protocol: Protocol, body: bytes) -> None:
    assert protocol.decode(body, 2).tolist() == [[1, 2], [3, 4]]


def test_the_binary_form_is_asked_for_by_its_content_type() -> None:
    assert b"Content-Type: " + BINARY.encode() in GNNSERVE_BINARY.request(1, [0])


def test_ports_are_filled_in_and_differ() -> None:
    ports = free_ports(3)
    assert len(set(ports)) == 3
    assert with_ports("--port {port} {port1}:{port2}", (1, 2, 3)) == "--port 1 2:3"


def _names(groups: Groups) -> list[list[str]]:
    return [[peer.name for peer in group] for group in groups]


def test_a_quick_run_is_tuned_pyg_alone_and_names_are_unique() -> None:
    assert _names(QUICK_GROUPS) == [["pyg"]]
    full, default = ([name for group in _names(groups) for name in group] for groups in (FULL_GROUPS, GROUPS))
    names = [*full, ECHO_SERVER.name, "gnnserve", "gnnserve_binary", "gnnserve_x1"]
    assert len(set(names)) == len(names)
    assert {"triton", "graphbolt", "litserve", "ray", "mlserver", "bentoml"} <= set(names)
    assert set(default) < set(full)


@pytest.mark.parametrize("peer", ["triton", "litserve", "ray"])
def test_one_instance_and_two_of_a_server_are_in_one_group_and_differ_by_the_last_argument(peer: str) -> None:
    (group,) = ({one.name: one for one in group} for group in FULL_GROUPS if peer in {one.name for one in group})
    one, two = group[peer], group[f"{peer}_2_instances"]
    assert (one.command[:-1], one.command[-1]) == (two.command[:-1], "1")
    assert two.command[-1] == "2"
    assert (one.protocol, one.environment, one.variables) == (two.protocol, two.environment, two.variables)


def test_some_peers_are_chosen_by_name_from_all_groups() -> None:
    assert _names(choose_groups(["ray", "triton", "pyg"])) == [["pyg"], ["triton", "ray"]]
    assert _names(choose_groups(["ray_2_instances"])) == [["ray_2_instances"]]


def test_the_manifest_that_serves_a_shape_is_valid_and_unpruned() -> None:
    files = ShapeFiles(SHAPES["arxiv"], Path("/data/arrays"))
    service = GNNService.model_validate(service_manifest(files, Path("/data/sources"), "float32"))
    assert service.spec.variants.pruning.factors == (1,)
    assert service.spec.model.fanouts == (25, 10)
    assert service.spec.routing.variant is None


def test_pinned_to_either_variant_the_same_revision_is_served() -> None:
    files, sources = ShapeFiles(SHAPES["arxiv"], Path("/data/arrays")), Path("/data/sources")
    projected, x1 = (
        GNNService.model_validate(service_manifest(files, sources, "float32", variant))
        for variant in ("projected", "x1")
    )
    assert (x1.spec.routing.mode, x1.spec.routing.variant) == ("Static", "x1")
    assert x1.spec.recipe() == projected.spec.recipe()


@pytest.mark.parametrize(
    ("storage", "variants"),
    [("float32", ["projected", "x1", None]), ("int8", ["projected-int8", "x1-int8", None])],
)
def test_our_own_servers_are_pinned_to_the_variant_that_their_label_names(
    storage: str, variants: list[str | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sources").mkdir()
    monkeypatch.setattr("benchmarks.peers.servers.prepare_sources", lambda files: tmp_path / "sources")
    files = ShapeFiles(SHAPES["arxiv"], Path("/data/arrays"))
    servers = [build(files, storage) for build in (projected_server, x1_server, gnnserve_server)]
    assert [server.name for server in servers] == ["gnnserve", "gnnserve_x1", "gnnserve"]
    assert [server.label for server in servers] == [
        *(f"gnnserve, JSON, {name}" for name in variants[:2]),
        "gnnserve, JSON",
    ]
    manifests = [load_manifest(Path(server.command[server.command.index("run") + 1])) for server in servers]
    assert [manifest.spec.routing.variant for manifest in manifests] == variants


def test_a_server_that_ends_before_it_answers_is_reported_with_its_last_words(tmp_path: Path) -> None:
    def never() -> None:
        raise ConnectionRefusedError

    command = [sys.executable, "-c", "raise SystemExit('no such graph')"]
    with (
        pytest.raises(RuntimeError, match=r"ended with 1.*no such graph"),
        running(command, {}, tmp_path / "log", 1, never, 60.0),
    ):
        pass


def test_a_servers_children_end_with_it(tmp_path: Path) -> None:
    program = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    log = tmp_path / "log"
    with running([sys.executable, "-c", program], {}, log, 1, lambda: int(log.read_text()), 60.0) as server:
        child = int(log.read_text())
        assert child in descendants(server.pid)
    status = Path(f"/proc/{child}/status")
    assert not status.exists() or "State:\tZ" in status.read_text()


def test_an_echo_has_no_scores_to_verify() -> None:
    assert ECHO.decode(b"{}", 3).shape == (3, 0)


@pytest.mark.parametrize(
    ("load", "words"),
    [
        (Load(0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, {}), "pyg, one seed, one connection: no answer within 1 s"),
        (Load(9, 9.0, 1.0, 1.0, 1.0, 1.0, 1.0, {"status": 2}), "errors {'status': 2}: no figure to report"),
    ],
    ids=["no answer", "errors"],
)
def test_a_run_without_answers_or_with_errors_is_not_reported(
    load: Load, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.peers.contestants.generate_load", lambda *arguments: load)
    monkeypatch.setattr("benchmarks.peers.contestants.prepare_requests", lambda *arguments: tmp_path)
    monkeypatch.setattr("benchmarks.peers.contestants.busy_cores", lambda during: 0.0)
    contestant = Contestant("pyg", "PyG", SEEDS_JSON, Running(pid=1, port=1, boot_s=1.0), largest_error=0.0)
    files = ShapeFiles(SHAPES["arxiv"], Path("/data/arrays"))
    with pytest.raises(SystemExit, match=re.escape(words)):
        measure([contestant], files, Effort(repetitions=1, seconds=1), tmp_path)
