"""Requests to the API server: get, list, server-side apply, create, update, delete. Watching is kopf's.

They go over a `Transport`, one HTTP exchange without interpreting it, so that tests can put an API server in memory in
its place. It is aiohttp alone, which kopf brings: the package `kubernetes` would add two clients, of which these
requests need nothing. There is no discovery, because the kinds are fixed (`kinds.py`). Each request is tried once, with
a timeout: the loop decides when to try again. Failures become the errors of `errors.py`.

Every write goes through one place, which checks right before sending whether this process may still write.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Literal, Protocol
from urllib.parse import urlencode

import aiohttp
import kopf

from gnnserve_api.errors import ResourceError
from gnnserve_operator.desired.metadata import FIELD_MANAGER, STATUS_FIELD_MANAGER, TERM_ANNOTATION
from gnnserve_operator.errors import AlreadyExistsError, ConflictError, GoneError, RefusedError, RetryLaterError
from gnnserve_operator.kinds import POD_MONITOR, Manifest, ObjectRef, ResourceKind, kind_of, observed_ref
from gnnserve_operator.login import ClusterLogin, load_access
from gnnserve_operator.metrics import Metrics

REQUEST_LIMIT_S = 15
"""Seconds to wait for an answer."""
CONNECTIONS = 16
"""Most connections at once; the client's default is 100, but asyncio keeps 256 KiB of buffers for each TLS
connection."""
_TIMEOUT = aiohttp.ClientTimeout(total=REQUEST_LIMIT_S, sock_connect=5)
_UNAUTHORIZED = 401


@dataclass(frozen=True, slots=True)
class ApiAnswer:
    code: int
    headers: Mapping[str, str]
    body: bytes


class Transport(Protocol):
    async def send(self, method: str, url: str, headers: Mapping[str, str], body: Manifest | None) -> ApiAnswer:
        """`url` is a path with its query. Raises OSError, TimeoutError or aiohttp.ClientError where there is no answer;
        whether the request was carried out is not known then."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _Way:
    """An access, with connections that were opened by it."""

    connection: kopf.ConnectionInfo
    session: aiohttp.ClientSession
    ends_s: float
    """Time at which it is to be loaded again."""


class HttpTransport:
    """Transport over aiohttp. Requests beyond `connections` wait. Credentials are loaded again when they end, and once
    when the API server refuses them."""

    def __init__(
        self, access: ClusterLogin, connections: int = CONNECTIONS, load: Callable[[],
        Awaitable[ClusterLogin]] = load_access,
        now: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """Opens its first session, which an event loop has to run for."""
        self._connections, self._load, self._now = connections, load, now
        self._opened = AsyncExitStack()
        self._loading = asyncio.Lock()
        self._way = _Way(access.connection, self._session_of(access.connection), now() + access.lasts_s)

    async def send(self, method: str, url: str, headers: Mapping[str, str], body: Manifest | None) -> ApiAnswer:
        way = self._way
        if self._now() >= way.ends_s:
            way = await self._loaded_after(way)
        answer = await _exchange(way, method, url, headers, body)
        if answer.code != _UNAUTHORIZED:
            return answer
        renewed = await self._loaded_after(way)
        # A refused request was not carried out.
        is_another = renewed.connection != way.connection
        return await _exchange(renewed, method, url, headers, body) if is_another else answer

    async def close(self) -> None:
        await self._opened.aclose()

    async def _loaded_after(self, used: _Way) -> _Way:
        """The way by credentials that were loaded after those of `used`."""
        async with self._loading:
            if self._way is used:
                try:
                    access = await self._load()
                except ResourceError as error:
                    raise ConnectionError(str(error)) from error
                session = used.session
                if _without_token(access.connection) != _without_token(used.connection):
                    # Requests may be under way in the other one, which is closed at the end.
                    session = self._session_of(access.connection)
                self._way = _Way(access.connection, session, self._now() + access.lasts_s)
            return self._way

    def _session_of(self, connection: kopf.ConnectionInfo) -> aiohttp.ClientSession:
        is_encrypted = connection.server.startswith("https:")
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=self._connections, ssl=connection.as_ssl_context() if is_encrypted else True
            ),
            timeout=_TIMEOUT,
            headers={"User-Agent": "gnnserve-operator"},
            proxy=connection.proxy_url,
            trust_env=connection.trust_env,
        )
        self._opened.push_async_callback(session.close)
        return session


async def _exchange(way: _Way, method: str, url: str, headers: Mapping[str, str], body: Manifest | None) -> ApiAnswer:
    async with way.session.request(
        method,
        way.connection.server + url,
        headers={**headers, **way.connection.as_http_headers()},
        data=None if body is None else json.dumps(body).encode(),
    ) as response:
        return ApiAnswer(response.status, response.headers, await response.read())


def _without_token(connection: kopf.ConnectionInfo) -> kopf.ConnectionInfo:
    return replace(connection, token=None, expiration=None)


_METADATA_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
_APPLY = "application/apply-patch+yaml"
_JSON = "application/json"
_PAGE = 500
_FORBIDDEN = 403

_OURS = {"fieldManager": FIELD_MANAGER}
_READS = frozenset({"get", "list"})

Verb = Literal["get", "list", "apply", "delete", "create", "update"]


@dataclass(frozen=True, slots=True)
class _Answer:
    code: int
    body: Manifest


class Leadership(Protocol):
    @property
    def term(self) -> int: ...

    @property
    def fence(self) -> str:
        """Name of the ValidatingAdmissionPolicy that refuses what an overtaken leader applies, where there is one."""
        ...

    def remaining_s(self) -> float:
        """Seconds that a write may take from now. Raises LostLeadershipError when none may begin."""
        ...

    def note_unanswered(self) -> None:
        """Note a write that ended without an answer: the API server may still carry it out."""
        ...


class Cluster:
    """Requests to the API server. `leadership` None: there is no other operator."""

    def __init__(
        self, transport: Transport, metrics: Metrics, leadership: Leadership | None = None
    ) -> None:  # fmt: skip
        self._transport = transport
        self._metrics = metrics
        self._leadership = leadership

    async def get(self, ref: ObjectRef) -> Manifest | None:
        kind = kind_of(ref.api_version, ref.kind)
        answer = await self._request("get", kind, kind.path(ref.namespace, ref.name), _shown(ref))
        return None if answer.code == 404 else answer.body

    async def apply(self, manifest: Manifest, *, is_trial: bool = False) -> Manifest:
        """Apply all fields that the operator owns, and no others; fields that others changed become the operator's
        again.

        For a trial the API server does everything (schema, quotas, admission webhooks) except storing the object."""
        if self._leadership is not None:
            metadata = manifest["metadata"]
            annotations = {**(metadata.get("annotations") or {}), TERM_ANNOTATION: str(self._leadership.term)}
            manifest = {**manifest, "metadata": {**metadata, "annotations": annotations}}
        try:
            return await self._apply(manifest, None, FIELD_MANAGER, is_trial=is_trial)
        except RefusedError as error:
            if self._leadership is None or f"ValidatingAdmissionPolicy '{self._leadership.fence}'" not in error.message:
                raise
            # Another operator leads, which the next renewal finds; or the Lease is missing, and is about to be made
            # again.
            raise RetryLaterError(str(error)) from error

    async def apply_status(self, manifest: Manifest) -> Manifest:
        return await self._apply(manifest, "status", STATUS_FIELD_MANAGER)

    async def _apply(
        self, manifest: Manifest, subresource: str | None, manager: str, *, is_trial: bool = False
    ) -> Manifest:
        ref = observed_ref(manifest)
        kind = kind_of(ref.api_version, ref.kind)
        path = kind.path(ref.namespace, ref.name, subresource)
        query = {"fieldManager": manager, "force": "true", **({"dryRun": "All"} if is_trial else {})}
        answer = await self._request("apply", kind, path, _shown(ref), query, manifest, _APPLY)
        return _written(ref, answer)  # 404: perhaps the object itself is missing, not only its status

    async def delete(self, live: Manifest) -> None:
        """Delete the object and, in the background, its dependents. Raises ConflictError where it has changed since; a
        missing object counts as success."""
        ref, metadata = observed_ref(live), live["metadata"]
        kind = kind_of(ref.api_version, ref.kind)
        options: Manifest = {
            "kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background",
            "preconditions": {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]},
        }  # fmt: skip
        await self._request("delete", kind, kind.path(ref.namespace, ref.name), _shown(ref), body=options)

    async def create(self, manifest: Manifest) -> Manifest:
        """Create an object. Raises AlreadyExistsError where one of that name exists."""
        ref = observed_ref(manifest)
        kind = kind_of(ref.api_version, ref.kind)
        path = kind.path(ref.namespace)
        return _written(ref, await self._request("create", kind, path, _shown(ref), _OURS, manifest))

    async def update(self, manifest: Manifest) -> Manifest:
        """Replace the whole object. Raises ConflictError where its resourceVersion is no longer that of the
        manifest."""
        ref = observed_ref(manifest)
        kind = kind_of(ref.api_version, ref.kind)
        path = kind.path(ref.namespace, ref.name)
        return _written(ref, await self._request("update", kind, path, _shown(ref), _OURS, manifest))

    async def create_event(self, event: Manifest) -> None:
        """Post an event. An existing one of that name is this one, posted before; another conflict, as of a quota, is
        raised."""
        with contextlib.suppress(AlreadyExistsError):
            await self.create(event)

    async def list_versions(
        self, kind: ResourceKind, namespace: str | None, label_selector: str = ""
    ) -> dict[str, str]:
        """The resourceVersion of each object by uid, from the API server's cache; of all namespaces where none is
        given."""
        query = {"limit": str(_PAGE), "resourceVersion": "0", "labelSelector": label_selector}
        return {
            item["metadata"]["uid"]: item["metadata"]["resourceVersion"]
            async for item in self._list(kind, namespace, query, _METADATA_ONLY)
        }

    async def list_objects(
        self, kind: ResourceKind, namespace: str | None, label_selector: str = "", *, field_selector: str = ""
    ) -> list[Manifest]:
        """Objects as they are now; of all namespaces where none is given."""
        query = {"limit": str(_PAGE), "labelSelector": label_selector, "fieldSelector": field_selector}
        whose = {"apiVersion": kind.api_version, "kind": kind.name}  # lists of some kinds leave these out
        return [whose | item async for item in self._list(kind, namespace, query, _JSON)]

    async def _list(
        self, kind: ResourceKind, namespace: str | None, query: Mapping[str, str], accept: str
    ) -> AsyncIterator[Manifest]:  # fmt: skip
        """List objects page by page."""
        asked = dict(query)
        while True:
            given = {name: value for name, value in asked.items() if value}
            answer = await self._request("list", kind, kind.path(namespace), kind.plural, given, accept=accept)
            if answer.code == 404:
                raise RetryLaterError(f"the API server has no {kind.plural} of {kind.api_version}")
            for item in answer.body["items"] or ():  # null where there is none
                yield item
            token = answer.body["metadata"].get("continue")
            if not token:
                return
            asked = {**query, "resourceVersion": "", "continue": token}

    async def refusal_of_list(self, kind: ResourceKind, namespace: str) -> str | None:
        """The API server's sentence where the operator has no right to list the kind; None: it may."""
        try:
            await self._request("list", kind, kind.path(namespace), kind.plural, {"limit": "1"}, accept=_METADATA_ONLY)
        except RefusedError as error:
            if error.code != _FORBIDDEN:
                raise
            return error.message
        return None

    async def has_kind(self, kind: ResourceKind) -> bool:
        """Whether the API server serves the kind now."""
        answer = await self._request("get", kind, kind.api_path, f"API {kind.api_version}")
        return answer.code != 404 and any(found["name"] == kind.plural for found in answer.body["resources"])

    async def has_pod_monitors(self) -> bool:
        return await self.has_kind(POD_MONITOR)

    async def _request(
        self, verb: Verb, kind: ResourceKind, path: str, what: str,
        query: Mapping[str, str] | None = None, body: Manifest | None = None, content_type: str = _JSON,
        accept: str = _JSON,
    ) -> _Answer:  # fmt: skip
        method = {"list": "GET", "apply": "PATCH", "create": "POST", "update": "PUT"}.get(verb, verb.upper())
        url = f"{path}?{urlencode(query)}" if query else path
        headers = {"Content-Type": content_type, "Accept": accept}
        # A connection that takes long to open must not send the write when another operator leads already.
        limit_s = None if verb in _READS or self._leadership is None else self._leadership.remaining_s()
        code = "none"
        try:
            async with asyncio.timeout(limit_s):
                answer = await self._transport.send(method, url, headers, body)
            code = str(answer.code)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            problem = str(error) or type(error).__name__
            raise RetryLaterError(f"{verb} {what}: the API server does not answer: {problem}") from error
        finally:
            if limit_s is not None and self._leadership is not None and code == "none":
                self._leadership.note_unanswered()
            self._metrics.api_requests.labels(verb, kind.name, code).inc()
        return _Answer(answer.code, _body_of(verb, what, answer.code, answer.headers, answer.body))


def _shown(ref: ObjectRef) -> str:
    return f"{ref.kind} {ref.namespace}/{ref.name}"


def _written(ref: ObjectRef, answer: _Answer) -> Manifest:
    if answer.code == 404:  # the object, or its namespace
        raise GoneError(f"{_shown(ref)}: {answer.body.get('message', 'not found')}")
    return answer.body


def _body_of(verb: Verb, what: str, code: int, headers: Mapping[str, str], text: bytes) -> Manifest:
    """The answer's JSON, also of a 404; raises for every other failure."""
    body: Manifest
    try:
        parsed = json.loads(text)
    except ValueError:
        parsed = None
    if isinstance(parsed, dict):
        body = parsed
    else:
        body = {"message": text[:200].decode(errors="replace").strip()}
        if code < 400:
            raise RetryLaterError(f"{verb} {what}: the API server answered {code} without JSON: {body['message']!r}")
    if code < 400 or code == 404:
        return body
    message = str(body.get("message") or f"no message, code {code}")
    causes = (body.get("details") or {}).get("causes") or ()
    if any(cause.get("reason") == "NamespaceTerminating" for cause in causes):
        raise RetryLaterError(f"{verb} {what}: {message}")  # our object is about to go too
    # A webhook that cannot be reached is an internal error of the API server, but for users it is a refusal.
    if code in {400, 403, 405, 413, 415, 422} or (code == 500 and "webhook" in message):
        raise RefusedError(f"{verb} {what}", message, code)
    if code == 409:
        error = AlreadyExistsError if body.get("reason") == "AlreadyExists" else ConflictError
        raise error(f"{verb} {what}: {message}")
    raise RetryLaterError(f"{verb} {what}: {message} ({code})", _retry_after_s(headers, body))


def _retry_after_s(headers: Mapping[str, str], body: Manifest) -> float | None:
    asked: object = headers.get("Retry-After") or (body.get("details") or {}).get("retryAfterSeconds")
    try:
        return float(str(asked)) if asked is not None else None
    except ValueError:  # a date: the backoff does as well
        return None
