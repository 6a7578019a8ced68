"""What `make bench-protocol` measures and concludes: its load over gRPC, medians of runs, and verdicts that fail."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import grpc
import pytest
from benchmarks.answers.protocol import LOADS
from benchmarks.answers.protocol_client import ask
from benchmarks.answers.protocol_requests import REQUESTS
from benchmarks.answers.protocol_verdicts import (
    ALONE,
    BINARY,
    CONNECTED,
    ECHO,
    GRPC,
    MLSERVER,
    MULTIPLEXED,
    OURS,
    SEEDS,
    TRITON_BACKEND,
    V2_BINARY,
    V2_JSON,
    Figure,
    figure_of,
    verdicts,
)
from benchmarks.page.protocol_figures import render_protocol
from benchmarks.verdicts import judge

from gnnserve_worker.serving.grpc.messages import ModelInferRequest


def runs(*rates: float) -> dict[str, list[float]]:
    others = {"p50_ms": 1.0, "p99_ms": 2.0, "processor_us": 30.0}
    return {"requests_per_s": [*rates], **{name: [value] * len(rates) for name, value in others.items()}}


def measured(seeds_asked: Iterable[int] = SEEDS.values(), **rates: float) -> dict[str, Any]:
    """All that verdicts read; `rates`: requests/s of some, in place of 100."""
    subjects = {
        "arrays": (f"{OURS}, {BINARY}", (ALONE, CONNECTED)),
        "v2": (f"{OURS}, {V2_BINARY}", (ALONE, CONNECTED)),
        "v2_json": (f"{OURS}, {V2_JSON}", (ALONE, CONNECTED)),
        "triton_bytes": (f"{TRITON_BACKEND}, {V2_BINARY}", (ALONE, CONNECTED)),
        "triton_json": (f"{TRITON_BACKEND}, {V2_JSON}", (ALONE, CONNECTED)),
        "triton_grpc": (f"{TRITON_BACKEND}, {GRPC}", LOADS),
        "mlserver_json": (f"{MLSERVER}, {V2_JSON}", (ALONE, CONNECTED)),
        "grpc": (f"{OURS}, {GRPC}", LOADS),
        "echo": (ECHO, LOADS),
    }
    return {
        "figures": {
            label: {
                f"{seeds}": {load.name: runs(1.0, rates.get(name, 100.0), 1000.0) for load in loads}
                for seeds in seeds_asked
            }
            for name, (label, loads) in subjects.items()
        },
        "limits": {"Triton": "It has limits."},
    }


def test_a_figure_is_the_median_of_runs_with_their_range() -> None:
    found = {"figures": {"one": {"1": {MULTIPLEXED.name: runs(30.0, 10.0, 11.0)}}}}
    assert figure_of(found, "one", 1, MULTIPLEXED, "requests_per_s") == Figure(11.0, 10.0, 30.0)
    with pytest.raises(LookupError, match="16 connections"):
        figure_of(found, "one", 1, CONNECTED, "requests_per_s")


def test_verdicts_are_of_medians_and_each_can_fail() -> None:
    assert [one["passed"] for one in judge(verdicts(), measured()).values()] == [True] * 12
    slow = judge(verdicts(), measured(v2=83.0, grpc=64.9, v2_json=94.0)).values()
    assert [one["passed"] for one in slow] == [False] * 12
    assert [one["measured"] for one in slow] == [1.205, 0.649, 0.649, 0.94, 0.83, 0.649] * 2
    noisy = judge(verdicts(), measured(v2=95.0, grpc=95.0, v2_json=95.0))
    assert [one["passed"] for one in noisy.values()] == [True] * 12
    assert {one["wanted"] for one in noisy.values()} == {
        "at most 1.2 (1.15, and 0.05 for noise)", "at least 0.65 (0.7, and 0.05 for noise)",
        "at least 0.95 (1, and 0.05 for noise)",
    }  # fmt: skip


def test_a_part_that_was_not_measured_has_no_verdict() -> None:
    assert len(judge(verdicts(), measured([1]))) == 6


def test_the_fastest_other_server_is_compared_with() -> None:
    found = judge(verdicts(), measured(mlserver_json=200.0))
    assert found["v2 JSON over the fastest other server, requests/s, 16 connections, 1 seed"]["measured"] == 0.5
    without = measured()
    without["figures"] = {name: of for name, of in without["figures"].items() if not name.startswith(TRITON_BACKEND)}
    assert not [name for name in judge(verdicts(), without) if "other server" in name]


def test_the_page_shows_both_ways_of_16_calls_the_range_and_what_a_peer_cannot() -> None:
    page = render_protocol(measured(grpc=70.0))
    assert f"| {OURS}, {GRPC} | 1 | 1.000 / 2.000 | 70 (1 to 1,000) | 1.000 / 2.000 | 70 (1 to 1,000) |" in page
    assert f"| {OURS}, {BINARY} | 1,024 | 1.000 / 2.000 | 100 (1 to 1,000) | 1.000 / 2.000 | – | – | 30 |" in page
    assert "Medians of 3 runs" in page
    assert page.endswith("It has limits.")


@pytest.mark.parametrize("channels", [1, 4])
def test_calls_go_over_as_many_connections_as_there_are_channels(channels: int) -> None:
    peers: set[str] = set()

    async def echo(raw: bytes, context: Any) -> bytes:
        peers.add(context.peer())
        return raw

    class Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, handler_call_details: Any) -> Any:
            return grpc.unary_unary_rpc_method_handler(echo)

    async def scenario() -> dict[str, Any]:
        server = grpc.aio.server(handlers=(Handlers(),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            return await ask(port, [b"1", b"2"], channels, 4, 0.05)
        finally:
            await server.stop(None)

    found = asyncio.run(scenario())
    assert found["requests_per_s"] > 0
    assert len(peers) == channels


def test_a_server_that_takes_rows_is_asked_by_a_batch_of_rows() -> None:
    message = ModelInferRequest.FromString(REQUESTS[GRPC](0, [5, 6, 3], [3, 1]))
    assert list(message.inputs[0].shape) == [3, 1]
