"""Where the time of an exchange went: five parts of the client's own measure."""

from __future__ import annotations

import pytest
from tests.support.machine.fake_server import fake_server

from gnnserve_client.address import parse_url
from gnnserve_client.direct import DirectConnection
from gnnserve_client.exchange import Call, Send
from gnnserve_client.timing import ALL_TIMES, TIMING_HEADER, ClientTimes, Parts, parts_of
from gnnserve_worker.asking import question

TOLD = {"receive": 0.5, "queue": 2.0, "overlay": 1.0, "sample": 1.0, "gather": 1.5, "compute": 0.5, "send": 0.25}


def test_what_is_left_of_the_clients_measure_is_the_network() -> None:
    parts = parts_of(ClientTimes(total_ms=10.0, send_ms=1.0, receive_ms=0.5), TOLD)
    assert parts == Parts(
        client_send_ms=1.0,
        network_ms=2.5,
        wait_ms=2.0,
        compute_ms=4.0,
        client_receive_ms=0.5,
        server_transfer_ms=0.75,
        stages_ms={"overlay": 1.0, "sample": 1.0, "gather": 1.5, "compute": 0.5},
    )
    assert parts.sum_ms == 10.0


def test_a_server_that_tells_nothing_leaves_all_of_it_to_the_network() -> None:
    assert parts_of(ClientTimes(3.0, 1.0, 0.5), {}) == Parts(1.0, 1.5, 0.0, 0.0, 0.5)


def test_a_client_that_was_interrupted_behind_its_last_byte_was_not_sending() -> None:
    parts = parts_of(ClientTimes(total_ms=8.0, send_ms=4.0, receive_ms=0.5), TOLD)
    assert (parts.client_send_ms, parts.network_ms, parts.sum_ms) == (0.75, 0.75, 8.0)


def test_a_server_that_tells_of_more_time_than_there_was_shows_in_the_sum() -> None:
    parts = parts_of(ClientTimes(total_ms=5.0, send_ms=1.0, receive_ms=0.5), TOLD)
    assert parts.client_send_ms == 0.0
    assert parts.sum_ms == 7.25


def test_an_exchange_measures_what_the_parts_are_made_of() -> None:
    with fake_server() as server:
        connection = DirectConnection(parse_url(server.url))
        first, second = (connection.exchange(Send(Call("GET", "/healthz"), None, 5.0)) for _ in range(2))
        connection.close()
    assert first.times is not None
    assert second.times is not None
    assert first.times.connect_ms > 0
    assert first.elapsed_ms == pytest.approx(first.times.connect_ms + first.times.total_ms)
    for times in (first.times, second.times):
        assert 0 < times.send_ms < times.total_ms
        assert 0 < times.receive_ms < times.total_ms
        assert times.send_ms + times.receive_ms <= times.total_ms


def test_the_header_is_the_servers() -> None:
    assert question.TIMING_HEADER.decode() == TIMING_HEADER
    assert question.wishes_of_head({question.TIMING_HEADER: ALL_TIMES.encode()}).all_times
