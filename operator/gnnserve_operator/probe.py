"""Asking workers which revision answers: each pod by its address, and the Service as a client would.

Kubernetes' readiness says that a pod answers; only the pod knows with which revision. Questions are read-only and
short, and a worker that does not answer is an observation, not an error. The plan decides what follows.

Certificates are not verified: a pod is asked by its address, which no certificate names, and the operator does not know
the authority of the Service's certificate. Nothing secret is sent; a process that could answer in a worker's place
could make it look ready, no more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import aiohttp
import msgspec

from gnnserve_api import decoding
from gnnserve_api.pods.routing import Damage, Route
from gnnserve_operator.desired.metadata import service_name
from gnnserve_operator.kinds import ServiceKey
from gnnserve_operator.observed import Answers, ObservedPod, WorkerAnswer

_AT_ONCE = 64
_LONGEST_PROBLEM = 300
_MORE_ATTEMPTS = 3
"""Times that the endpoint is asked again where a ready worker does not answer either: each goes to any ready one."""
_MOST_ANSWER_BYTES = 65_536
"""Largest answer; a route of a dozen variants has 4,000 bytes, and its messages end up in a status."""


class _TooLongError(Exception):
    pass


class Addresses:
    """Addresses of workers; tests replace it."""

    def __init__(self, cluster_domain: str) -> None:
        self._cluster_domain = cluster_domain

    def of_pod(self, pod: ObservedPod) -> str:
        host = f"[{pod.ip}]" if ":" in pod.ip else pod.ip
        return f"{'https' if pod.speaks_tls else 'http'}://{host}:{pod.port}"

    def of_service(self, key: ServiceKey) -> str:
        return f"http://{service_name(key.name)}.{key.namespace}.svc.{self._cluster_domain}"

    def of_tls_service(self, key: ServiceKey) -> str:
        return f"https://{service_name(key.name)}.{key.namespace}.svc.{self._cluster_domain}"


@dataclass(frozen=True, slots=True)
class _Reply:
    route: Route | None = None
    problem: str | None = None
    damaged: Damage | None = None
    is_silent: bool = False
    is_late: bool = False
    """Whether nothing came back in time."""


@dataclass(slots=True)
class Prober:
    """Asks workers over one HTTP session; to be used with `async with`."""

    addresses: Addresses
    timeout_s: float = 2
    _session: aiohttp.ClientSession | None = None
    _slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_AT_ONCE))

    async def __aenter__(self) -> Self:
        # A new connection for each question: a kept one could lead to a pod that the Service no longer has.
        connector = aiohttp.TCPConnector(force_close=True, ssl=False)
        self._session = aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(total=self.timeout_s),
            trust_env=False,
            auto_decompress=False,  # not requested, and a few compressed bytes could expand to many
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def ask(self, key: ServiceKey, pods: Iterable[ObservedPod], *, tls: bool = False) -> Answers:
        """Ask the pods and the Service. `tls`: whether clients are to reach the Service over TLS."""
        asked = [pod for pod in pods if pod.can_be_asked]
        endpoint = self.addresses.of_tls_service(key) if tls else self.addresses.of_service(key)
        # A Service without ready pods does not answer: asking it would only cost the timeout.
        with_endpoint = [endpoint] if any(pod.ready and pod.speaks_tls == tls for pod in asked) else []
        replies = await asyncio.gather(*map(self._ask_pod, asked), *map(self._ask_one, with_endpoint))
        workers = tuple(
            WorkerAnswer(pod.name, reply.route, reply.problem, reply.damaged, reply.is_silent)
            for pod, reply in zip(asked, replies, strict=False)
        )
        if not with_endpoint:
            return Answers(workers)
        ready = {pod.name for pod in asked if pod.ready}
        answered = [worker.route is not None for worker in workers if worker.pod in ready]
        # A worker that does not answer while others do is no outage, and neither is one answer that is late.
        attempts = 0 if not any(answered) else 1 if all(answered) else _MORE_ATTEMPTS
        return Answers(workers, replies[-1].route or await self._ask_again(endpoint, attempts))

    async def _ask_pod(self, pod: ObservedPod) -> _Reply:
        url = self.addresses.of_pod(pod)
        reply = await self._ask_one(url)
        # The kubelet hears it: on a busy node one late answer would take Ready away, and the next bring it back.
        return await self._ask_one(url) if reply.is_late and pod.ready else reply

    async def _ask_again(self, url: str, attempts: int) -> Route | None:
        for _ in range(attempts):
            reply = await self._ask_one(url)
            if reply.route is not None:
                return reply.route
        return None

    async def _ask_one(self, url: str) -> _Reply:
        async with self._slots:
            try:
                code, text = await self._get(f"{url}/v1/route")
                if code == 200:
                    route = decoding.decode(text, Route)
                    return _Reply(route, damaged=route.damaged if isinstance(route.damaged, Damage) else None)
                ready_code, ready_text = await self._get(f"{url}/readyz") if code == 503 else (code, text)
                # It may have become ready between the two requests.
                problem = _problem(*((ready_code, ready_text) if ready_code != 200 else (code, text)))
                return _Reply(problem=problem, damaged=_damaged(text) if code == 503 else None)
            except TimeoutError:
                return _Reply(problem="it does not answer in time", is_silent=True, is_late=True)
            except aiohttp.ClientConnectorError:
                return _Reply(problem="it takes no connection", is_silent=True)
            except aiohttp.ClientError:
                return _Reply(problem="it hung up without an answer", is_silent=True)
            except _NOT_UNDERSTOOD as error:
                return _Reply(problem=f"its answer is not understood: {error}"[:_LONGEST_PROBLEM])

    async def _get(self, url: str) -> tuple[int, bytes]:
        if self._session is None:
            raise RuntimeError("use `async with Prober(…)`")
        async with self._session.get(url, allow_redirects=False) as response:
            answer = bytearray()
            # A read returns what has arrived so far, which may be a part.
            while part := await response.content.read(_MOST_ANSWER_BYTES):
                answer += part
                if len(answer) > _MOST_ANSWER_BYTES:
                    raise _TooLongError(f"longer than {_MOST_ANSWER_BYTES:,} bytes")
            return response.status, bytes(answer)


_NOT_UNDERSTOOD = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, _TooLongError)
"""Errors of decoding a worker's answer; a compromised worker must not end a reconcile."""


class _Status(msgspec.Struct):
    """Either body of an unready worker: `{"status": "starting", "reason": …}`, or an error with a message."""

    reason: str | None = None
    message: str | None = None
    error: _Status | str | None = None


class _Refusal(msgspec.Struct):
    """The body of a 503 of `/v1/route`: the worker serves no revision."""

    damaged: Damage | None = None


def _damaged(text: bytes) -> Damage | None:
    try:
        return decoding.decode(text, _Refusal).damaged
    except _NOT_UNDERSTOOD:
        return None


def _problem(code: int, text: bytes) -> str:
    """The problem that a body states, without numbers that change by the second, since it is written into the
    status."""
    try:
        body = decoding.decode(text, _Status)
    except _NOT_UNDERSTOOD:
        said = text.decode(errors="replace").strip()
    else:
        error = body.error
        said = body.reason or body.message or (error.message if isinstance(error, _Status) else error) or ""
    return said[:_LONGEST_PROBLEM] or f"it answers {code}"
