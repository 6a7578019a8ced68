"""Asking workers: what they answer, and every way in which they do not."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.machine.fake_server import Asked, Told, fake_server
from tests.support.operator.operator import KEY
from tests.support.operator.running_operator import OneAddress
from tests.support.serving.certificates import make_key_pair
from tests.support.serving.secured_worker import started as secured_worker

from gnnserve_api.pods.change_log import UpdatesProblem, UpdatesState
from gnnserve_api.pods.routing import Damage, Route
from gnnserve_operator.kinds import ServiceKey
from gnnserve_operator.observed import ObservedPod
from gnnserve_operator.probe import Addresses, Answers, Prober
from gnnserve_worker.serving.security.credentials import Credentials

ROUTE = Route("r1", "x4", "the most accurate", ("x1", "x4"))


def pod(name: str = "w-0", *, ready: bool = True, **fields: Any) -> ObservedPod:
    return ObservedPod(
        name, "worker", **{"phase": "Running", "ip": "10.0.0.1", "ready": ready, "running": True, **fields}
    )


def ask(answer: Callable[[Asked], Told], *pods: ObservedPod) -> tuple[Answers, list[str]]:
    async def run(url: str) -> Answers:
        async with Prober(OneAddress(url)) as prober:
            return await prober.ask(KEY, pods)

    with fake_server(answer) as server:
        return asyncio.run(run(server.url)), [asked.path for asked in server.asked]


def tell(told: Told) -> Callable[[Asked], Told]:
    return lambda _: told


SERVED = Told(body=msgspec.json.encode(ROUTE))


def test_every_running_worker_and_the_endpoint_are_asked() -> None:
    answers, paths = ask(tell(SERVED), pod("w-0"), pod("w-1", ready=False))
    assert [(answer.pod, answer.route) for answer in answers.workers] == [("w-0", ROUTE), ("w-1", ROUTE)]
    assert answers.endpoint == ROUTE
    assert paths == ["/v1/route"] * 3


def test_a_worker_tells_of_damage_whether_it_answers_or_not() -> None:
    damage = Damage("r1", repair=2)
    answering = msgspec.structs.replace(ROUTE, problem="was altered", damaged=damage)
    answers, _ = ask(tell(Told(body=msgspec.json.encode(answering))), pod())
    assert answers.workers[0].damaged == damage
    refused = Told(503, {"error": {"code": "Loading"}, "damaged": {"revision": "r1", "repair": 2}})
    answers, _ = ask(readiness(refused, Told(503, b"was altered\n")), pod(ready=False))
    assert (answers.workers[0].damaged, answers.workers[0].problem) == (damage, "was altered")


@pytest.mark.parametrize("damaged", ["r1", {"revision": 1}, 7, None])
def test_what_is_no_word_of_damage_is_none(damaged: Any) -> None:
    refused = Told(503, {"error": {"code": "Loading"}, "damaged": damaged})
    answers, _ = ask(readiness(refused, Told(503, b"away\n")), pod(ready=False))
    assert (answers.workers[0].damaged, answers.workers[0].problem) == (None, "away")


class _Apart(Addresses):
    """Two workers, and the Service, each at an address of its own."""

    def __init__(self, pods: dict[str, str], service: str) -> None:
        super().__init__("cluster.local")
        self._pods, self._service = pods, service

    def of_pod(self, pod: ObservedPod) -> str:
        return self._pods[pod.name]

    def of_service(self, key: ServiceKey) -> str:
        return self._service


@pytest.mark.parametrize(
    ("second", "silences", "asked", "answers"),
    [
        pytest.param(Told(hang_up=True), 2, 3, True, id="a silent worker, which the Service led to twice"),
        pytest.param(Told(hang_up=True), 9, 4, False, id="a silent worker, and a silent Service"),
        pytest.param(SERVED, 1, 2, True, id="one answer that is late"),
        pytest.param(SERVED, 9, 2, False, id="a silent Service alone"),
    ],
)
def test_an_endpoint_whose_silence_may_be_a_worker_s_is_asked_again(
    second: Told, silences: int, asked: int, answers: bool
) -> None:
    left = iter([Told(500, b"away")] * silences)

    async def run(pods: dict[str, str], service: str) -> Answers:
        async with Prober(_Apart(pods, service)) as prober:
            return await prober.ask(KEY, [pod(name) for name in pods])

    with (
        fake_server(tell(SERVED)) as one,
        fake_server(tell(second)) as other,
        fake_server(lambda _: next(left, SERVED)) as service,
    ):
        found = asyncio.run(run({"w-0": one.url, "w-1": other.url}, service.url))
        assert len(service.asked) == asked
    assert (found.endpoint is not None) is answers
    assert [worker.is_silent for worker in found.workers] == [False, second is not SERVED]


def test_a_service_without_a_ready_worker_is_not_asked() -> None:
    answers, paths = ask(tell(SERVED), pod(ready=False))
    assert answers.endpoint is None
    assert len(paths) == 1


@pytest.mark.parametrize(
    "silent",
    [
        pytest.param(pod(running=False), id="one that does not run"),
        pytest.param(pod(ip=""), id="one without an address"),
        pytest.param(pod(deleting=True), id="one that is ending"),
        pytest.param(ObservedPod("g-0", "generation", ip="10.0.0.1", running=True), id="one that generates"),
    ],
)
def test_pods_that_cannot_answer_are_not_asked(silent: ObservedPod) -> None:
    answers, paths = ask(tell(SERVED), silent)
    assert answers == Answers()
    assert paths == []


def readiness(route: Told, readyz: Told) -> Callable[[Asked], Told]:
    return lambda asked: readyz if asked.path == "/readyz" else route


LOADING = Told(503, {"error": {"code": "Loading", "message": "no revision yet"}})


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        pytest.param(readiness(LOADING, Told(503, b"loading revision r2 from /repository\n")),
                     "loading revision r2 from /repository", id="its readiness says why"),
        pytest.param(readiness(LOADING, Told(200, b"ok\n")), "no revision yet", id="it became ready in between"),
        pytest.param(readiness(LOADING, Told(503, b"")), "it answers 503", id="it says nothing"),
        pytest.param(tell(Told(503, {"reason": "draining"})), "draining", id="it says so in JSON"),
        pytest.param(tell(Told(500, b"oh")), "oh", id="it fails"),
        pytest.param(tell(Told(404, b"x" * 1000)), "x" * 300, id="it tells a story"),
        pytest.param(tell(Told(302, b"", {"Location": "http://elsewhere"})), "it answers 302", id="it sends us away"),
        pytest.param(tell(Told(hang_up=True)), "it hung up without an answer", id="it hangs up"),
    ],
)  # fmt: skip
def test_a_worker_without_a_route_says_why(answer: Callable[[Asked], Told], problem: str) -> None:
    answers, _ = ask(answer, pod())
    assert [(told.route, told.problem) for told in answers.workers] == [(None, problem)]
    assert answers.endpoint is None


def test_a_worker_tells_how_far_it_has_followed_changes() -> None:
    state = UpdatesState(9, 7, 20, 1.5, UpdatesProblem("LogUnavailable", "the database is away"))
    route = msgspec.structs.replace(ROUTE, updates=state)
    (told,) = ask(tell(Told(body=msgspec.json.encode(route))), pod())[0].workers
    assert told.route == route


@pytest.mark.parametrize(
    "changes", [{"last": 2**63}, {"applied": -1}, {"stalenessSeconds": 1e300}, {"changesBehind": "many"}]
)
def test_figures_that_a_status_could_not_hold_are_not_understood(changes: dict[str, Any]) -> None:
    state = {"last": 9, "applied": 7, "changesBehind": 20, "stalenessSeconds": 1.5} | changes
    route = {**msgspec.to_builtins(ROUTE), "updates": state}
    (told,) = ask(tell(Told(body=json.dumps(route).encode())), pod())[0].workers
    assert (told.route, "not understood" in str(told.problem)) == (None, True)


@pytest.mark.parametrize("body", [b"hello", json.dumps({"revision": 3}).encode(), b"{}"])
def test_an_answer_that_is_no_route_is_a_problem(body: bytes) -> None:
    (told,) = ask(tell(Told(body=body)), pod())[0].workers
    assert told.route is None
    assert "not understood" in str(told.problem)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b'{"revision":"\xff"}', id="no UTF-8"),
        pytest.param(b'{"x":' + b"[" * 60_000, id="nested without end"),
        pytest.param(b'{"reason":' + b"[" * 60_000, id="nested in a field that is read"),
    ],
)
@pytest.mark.parametrize("code", [200, 503])
def test_what_a_compromised_worker_may_send_ends_nothing(body: bytes, code: int) -> None:
    (told,) = ask(tell(Told(code, body)), pod())[0].workers
    assert told.route is None
    assert told.problem
    assert len(told.problem) <= 300


def test_an_answer_without_an_end_is_not_read_to_it() -> None:
    (told,) = ask(tell(Told(body=b" " * 70_000)), pod())[0].workers
    assert told.problem == "its answer is not understood: longer than 65,536 bytes"


def test_an_answer_that_is_packed_is_not_unpacked() -> None:
    packed = gzip.compress(msgspec.json.encode(ROUTE))
    (told,) = ask(tell(Told(body=packed, headers={"Content-Encoding": "gzip"})), pod())[0].workers
    assert "not understood" in str(told.problem)


def test_an_answer_may_come_in_parts() -> None:
    async def run() -> Answers:
        body = msgspec.json.encode(ROUTE)

        async def in_parts(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body))
            for byte in body:
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(0)
            writer.close()
            await writer.wait_closed()
            answered.release()

        answered = asyncio.Semaphore(0)
        server = await asyncio.start_server(in_parts, "127.0.0.1", 0)
        async with server, Prober(OneAddress(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")) as prober:
            answers = await prober.ask(KEY, [pod()])
            # It was asked as a pod and as the Service.
            for _ in range(2):
                await answered.acquire()
            return answers

    answers = asyncio.run(run())
    assert [told.route for told in answers.workers] == [ROUTE]


@pytest.mark.parametrize(
    ("ready", "late", "asked", "problem"),
    [
        pytest.param(True, 1, 2, None, id="one answer that is late"),
        pytest.param(True, 9, 2, "it does not answer in time", id="two in a row"),
        pytest.param(False, 1, 1, "it does not answer in time", id="of a worker that is not ready"),
    ],
)
def test_a_ready_worker_whose_answer_is_late_is_asked_again(
    ready: bool, late: int, asked: int, problem: str | None
) -> None:
    body = msgspec.json.encode(ROUTE)
    came = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal came
        came += 1
        if came > late:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
        await reader.read()  # until the operator hangs up
        writer.close()

    async def run(service: str) -> Answers:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        worker = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server, Prober(_Apart({"w-0": worker}, service), timeout_s=1) as prober:
            return await prober.ask(KEY, [pod(ready=ready)])

    with fake_server(tell(SERVED)) as service:
        (told,) = asyncio.run(run(service.url)).workers
    assert (told.problem, came) == (problem, asked)


def test_a_worker_that_is_slow_costs_the_others_nothing() -> None:
    async def run() -> Answers:
        with fake_server(tell(SERVED)) as server:

            async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                await reader.read()
                writer.close()

            silent = await asyncio.start_server(never, "127.0.0.1", 0)
            port = silent.sockets[0].getsockname()[1]

            class Places(OneAddress):
                def of_pod(self, pod: ObservedPod) -> str:
                    return server.url if pod.name == "w-0" else f"http://127.0.0.1:{port}"

            async with Prober(Places(server.url), timeout_s=0.2) as prober:
                answers = await prober.ask(KEY, [pod("w-0"), pod("w-1")])
            silent.close()
            return answers

    answers = asyncio.run(run())
    assert [told.problem for told in answers.workers] == [None, "it does not answer in time"]
    assert answers.endpoint == ROUTE


def test_addresses_are_those_of_the_cluster() -> None:
    addresses = Addresses("cluster.local")
    assert addresses.of_pod(pod()) == "http://10.0.0.1:8080"
    assert addresses.of_pod(pod(ip="fd00::1")) == "http://[fd00::1]:8080"
    assert addresses.of_pod(pod(speaks_tls=True)) == "https://10.0.0.1:8080"
    assert addresses.of_tls_service(KEY) == "https://digits.default.svc.cluster.local"
    assert addresses.of_service(KEY) == "http://digits.default.svc.cluster.local"


class _Both(Addresses):
    """Tells which address was asked for."""

    def __init__(self, plain: str, secured: str) -> None:
        super().__init__("cluster.local")
        self._plain, self._secured = plain, secured

    def of_pod(self, pod: ObservedPod) -> str:
        return self._secured if pod.speaks_tls else self._plain

    def of_service(self, key: ServiceKey) -> str:
        return self._plain

    def of_tls_service(self, key: ServiceKey) -> str:
        return self._secured


def test_while_pods_are_replaced_each_is_asked_as_it_speaks_and_the_endpoint_once_one_is_behind_it(
    tmp_path: Path,
) -> None:
    """And whoever signed its certificate: this one signed itself, for another name."""
    pair = make_key_pair(tmp_path, "somebody-else")

    async def run(plain: str, secured: str) -> tuple[Answers, Answers]:
        old, new = pod("old"), pod("new", speaks_tls=True)
        async with Prober(_Both(plain, secured)) as prober:
            begun = await prober.ask(KEY, [old, pod("new", speaks_tls=True, ready=False)], tls=True)
            return begun, await prober.ask(KEY, [old, new], tls=True)

    with fake_server(tell(SERVED)) as server, secured_worker(Credentials(pair)) as worker:
        begun, done = asyncio.run(run(server.url, f"https://127.0.0.1:{worker.port}"))
    of_new = "f0eae20c16c00ac0-1"
    assert [answer.route and answer.route.revision for answer in begun.workers] == ["r1", of_new]
    assert begun.endpoint is None
    assert done.endpoint is not None
    assert done.endpoint.revision == of_new
