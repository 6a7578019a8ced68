"""Watch that follows a ConfigMap over the Kubernetes API: with a service's routing table, or a pool's services.

It is a thread that lists the one object, then watches it for as long as the pod lives: a change arrives within
milliseconds, where a mounted copy takes a minute. No error ends the thread, and nothing discards the last good content:
neither a lost connection, nor an unreadable text, nor a deletion. A listener applies what it says.
"""

from __future__ import annotations

import logging
import random
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import httpx
import msgspec

from gnnserve_api import decoding
from gnnserve_api.errors import ResourceError
from gnnserve_api.pods.pool import SERVICES_KEY, PoolServices
from gnnserve_api.pods.routing import ROUTING_KEY, RoutingTable
from gnnserve_worker.following.pool_services import parse_services
from gnnserve_worker.following.routing import parse_routing

_log = logging.getLogger(__name__)

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_CONNECT_TIMEOUT_S = 5.0
_READ_TIMEOUT_S = 90.0
"""Bookmarks come about every minute: a connection that is silent for longer counts as dead."""
_WATCH_S = 280
"""Seconds after which the API server is asked to end a watch; shorter than the five minutes after which load balancers
cut connections."""
_BACKOFF_S = (0.25, 10.0)
_SHORT_WATCH_S = 1.0
"""A watch that ends sooner counts as a failure: otherwise a broken proxy would be asked without pause."""
_KEEP_ALIVE = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
]
"""Socket options: a dead peer is noticed after 25 seconds."""


@dataclass(frozen=True, slots=True)
class ApiServer:
    """How to reach the Kubernetes API."""

    url: str
    token_file: Path
    """File of the token. It is read for every connection: the kubelet replaces it every hour."""
    ca_file: Path | None = None
    """File of the certificate authority; None only for a URL without TLS."""

    @staticmethod
    def in_cluster(environ: Mapping[str, str]) -> ApiServer:
        host = environ.get("KUBERNETES_SERVICE_HOST", "")
        port = environ.get("KUBERNETES_SERVICE_PORT", "")
        if not host or not port:
            raise ResourceError(
                "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set: this program follows its routing "
                "over the Kubernetes API and runs in a pod; elsewhere use `gnnserve serve`"
            )
        named = f"[{host}]" if ":" in host else host
        return ApiServer(f"https://{named}:{port}", _ACCOUNT / "token", _ACCOUNT / "ca.crt")


class _Metadata(msgspec.Struct, rename="camel"):
    resource_version: str = ""


class _Object(msgspec.Struct):
    """The fields of a ConfigMap, or of a Status, that are needed; others are skipped."""

    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    data: dict[str, str] = {}
    code: int = 0
    """Code of a Status, which an ERROR event carries."""
    message: str = ""


class _List(msgspec.Struct):
    metadata: _Metadata
    items: list[_Object] | None = None


class _Event(msgspec.Struct):
    type: str
    object: _Object


class _ApiError(Exception):
    """The API server answered with an error."""


class _ListAgainError(_ApiError):
    """The API server no longer has the changes since our last version: list again."""


Content = TypeVar("Content")


class ConfigMapWatch(Generic[Content]):
    """Follows one ConfigMap. `listener` gets every content that differs from the one before, in this watch's thread."""

    def __init__(
        self,
        api: ApiServer,
        namespace: str,
        name: str,
        listener: Callable[[Content], None],
        *,
        key: str,
        parse: Callable[[str], Content],
        what: str,
        on_missing: Callable[[], None] = lambda: None,
        backoff_s: tuple[float, float] = _BACKOFF_S,
        read_timeout_s: float = _READ_TIMEOUT_S,
    ) -> None:
        """`key`: that of the ConfigMap's data which `parse` reads; it raises ValueError. `what`: what it reads, for
        messages."""
        self.answered = threading.Event()
        """Set once the API server has answered the first list."""
        self._api = api
        self._name = name
        self._object = f"ConfigMap {namespace}/{name}"
        self._path = f"/api/v1/namespaces/{namespace}/configmaps"
        self._listener = listener
        self._key, self._parse, self._what = key, parse, what
        self._on_missing = on_missing
        self._backoff_s = backoff_s
        self._timeout = httpx.Timeout(_CONNECT_TIMEOUT_S, read=read_timeout_s)
        self._stopped = threading.Event()
        self._version: str | None = None
        """Resource version to watch from; None: list first."""
        self._seen: str | None = None
        """The text that was parsed last, good or bad, so that each is parsed once."""
        self._failures = 0
        self._socket: socket.socket | None = None
        """Socket of the watch's connection."""
        self._thread = threading.Thread(target=self._run, name="configmap-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread soon, whatever it waits for."""
        self._stopped.set()
        if (watched := self._socket) is not None:
            with suppress(OSError):
                # The plain socket's method, also under TLS: it ends the other thread's read and has no other effect.
                socket.socket.shutdown(watched, socket.SHUT_RDWR)
        if self._thread.ident is not None:
            self._thread.join(_CONNECT_TIMEOUT_S)

    def _run(self) -> None:
        while not self._stopped.is_set():
            started_s = time.monotonic()
            try:
                # A new client for each round: certificates and tokens are replaced while a pod lives.
                with self._connect() as client:
                    self._list_and_watch(client)
                if time.monotonic() - started_s >= _SHORT_WATCH_S:
                    self._failures = 0
                    continue
                problem = "the watch ended at once"
            except _ApiError as error:
                problem = str(error)
                if isinstance(error, _ListAgainError):
                    self._version = None
            except Exception as error:  # noqa: BLE001  (a watch that died would leave the worker deaf)
                problem = f"{type(error).__name__}: {error}"
                if not isinstance(error, (httpx.HTTPError, OSError, msgspec.DecodeError)):
                    _log.exception("%s: unexpected error while watching it", self._object)
            if not self._stopped.is_set():
                self._wait(problem)

    def _wait(self, problem: str) -> None:
        shortest_s, longest_s = self._backoff_s
        delay_s = min(longest_s, shortest_s * 2 ** min(self._failures, 16))
        # Jitter: when the API server comes back, the cluster's workers should not ask all at once.
        delay_s *= 0.5 + random.random() / 2  # noqa: S311 - no secret
        self._failures += 1
        _log.warning("%s: %s; asking again in %.1f s", self._object, problem, delay_s)
        self._stopped.wait(delay_s)

    def _connect(self) -> httpx.Client:
        verify: ssl.SSLContext | bool = False
        if self._api.ca_file is not None:
            verify = ssl.create_default_context(cafile=self._api.ca_file)
        transport = httpx.HTTPTransport(verify=verify, socket_options=_KEEP_ALIVE)
        headers = {
            "authorization": f"Bearer {self._api.token_file.read_text().strip()}",
            "accept-encoding": "identity",  # a compressed watch could hold events back
        }
        return httpx.Client(
            base_url=self._api.url, headers=headers, transport=transport, timeout=self._timeout, trust_env=False
        )

    def _list_and_watch(self, client: httpx.Client) -> None:
        if self._version is None:
            self._list(client)
        for event in self._events(client):
            if self._stopped.is_set():
                return
            self._handle(event)

    def _list(self, client: httpx.Client) -> None:
        response = client.get(self._path, params={"fieldSelector": f"metadata.name={self._name}"})
        _require_ok(response)
        listed = decoding.decode(response.content, _List)
        for found in listed.items or ():
            self._look_at(found)
        if not listed.items:
            _log.warning("%s does not exist yet", self._object)
            self._on_missing()
        self._version = listed.metadata.resource_version
        self.answered.set()

    def _events(self, client: httpx.Client) -> Iterator[_Event]:
        parameters: dict[str, Any] = {
            "watch": "1",
            "fieldSelector": f"metadata.name={self._name}",
            "resourceVersion": self._version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": _WATCH_S,
        }
        with client.stream("GET", self._path, params=parameters) as response:
            if response.status_code != httpx.codes.OK:
                response.read()
            _require_ok(response)
            self._socket = response.extensions["network_stream"].get_extra_info("socket")
            try:
                if self._stopped.is_set():  # `stop` may have come before there was a connection to end
                    return
                for line in _lines(response.iter_bytes()):
                    yield decoding.decode(line, _Event)
            finally:
                self._socket = None

    def _handle(self, event: _Event) -> None:
        found = event.object
        match event.type:
            case "ADDED" | "MODIFIED":
                self._look_at(found)
            case "DELETED":
                _log.warning("%s was deleted; the last table stays in effect", self._object)
            case "ERROR" if found.code == httpx.codes.GONE:
                raise _ListAgainError(found.message or "its history is gone")
            case "ERROR":
                self._version = None
                raise _ApiError(f"the API server ended the watch with {found.code}: {found.message}")
        if found.metadata.resource_version:
            self._version = found.metadata.resource_version
        self._failures = 0

    def _look_at(self, found: _Object) -> None:
        text = found.data.get(self._key, "")
        if text == self._seen:
            return
        self._seen = text
        try:
            content = self._parse(text)
        except ValueError as error:
            _log.error("%s: %s is not %s: %s; the last good one stays", self._object, self._key, self._what, error)
            return
        self._listener(content)


class RoutingWatch(ConfigMapWatch[RoutingTable]):
    """Follows the ConfigMap with the routing table of one service."""

    def __init__(
        self,
        api: ApiServer,
        namespace: str,
        name: str,
        listener: Callable[[RoutingTable], None],
        *,
        on_missing: Callable[[], None] = lambda: None,
        backoff_s: tuple[float, float] = _BACKOFF_S,
        read_timeout_s: float = _READ_TIMEOUT_S,
    ) -> None:
        super().__init__(
            api, namespace, name, listener, key=ROUTING_KEY, parse=parse_routing, what="a routing table",
            on_missing=on_missing, backoff_s=backoff_s, read_timeout_s=read_timeout_s,
        )  # fmt: skip


class ServicesWatch(ConfigMapWatch[PoolServices]):
    """Follows the ConfigMap with the services of a pool."""

    def __init__(
        self,
        api: ApiServer,
        namespace: str,
        name: str,
        listener: Callable[[PoolServices], None],
        *,
        on_missing: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(
            api, namespace, name, listener, key=SERVICES_KEY, parse=parse_services, what="a list of services",
            on_missing=on_missing,
        )  # fmt: skip


def _require_ok(response: httpx.Response) -> None:
    if response.status_code == httpx.codes.GONE:
        raise _ListAgainError("its history is gone")
    if response.status_code != httpx.codes.OK:
        remedy = {
            401: "; is the ServiceAccount's token mounted?",
            403: "; the pod's Role must allow list and watch on it",
        }.get(response.status_code, "")
        raise _ApiError(f"the API server answered {response.status_code}{remedy}: {response.text[:300].strip()}")


def _lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Split into lines at line feeds alone: texts in the JSON may contain Unicode's other line ends."""
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (line for line in lines if line.strip())
