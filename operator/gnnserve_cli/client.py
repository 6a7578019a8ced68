"""Asks a running server one question at a time; load is made by `loadgen/`.

The standard library's HTTP client is enough here, and starts faster than any other.
"""

from __future__ import annotations

import http.client
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec

from gnnserve_api.errors import InputError, ResourceError
from gnnserve_api.objective import Objective
from gnnserve_api.protocol import ErrorAnswer, ErrorDetail, PredictAnswer, PredictRequest, VariantsAnswer
from gnnserve_cli.exits import RefusedError

T = TypeVar("T")
TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Endpoint:
    host: str
    port: int

    @property
    def authority(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        return f"http://{self.authority}"


@dataclass(frozen=True, slots=True)
class Reply:
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes
    elapsed_ms: float
    """Connecting included: what this one call cost."""


def stated_objective(latency_ms: float | None, tolerance_permille: float | None) -> Objective | None:
    objective = Objective(latency_ms=latency_ms, accuracy_tolerance_permille=tolerance_permille)
    return None if objective.is_empty() else objective


def parse_url(text: str) -> Endpoint:
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise InputError("URL", f"{text!r}: {error}", "write http://host:port") from None
    if parts.scheme == "https":
        raise InputError("URL", f"{text!r} is https, and gnnserve answers plain HTTP", "write http://host:port")
    if parts.scheme != "http" or not parts.hostname:
        raise InputError("URL", f"{text!r} is not the address of a server", "write http://host:port")
    if parts.path not in {"", "/"} or parts.query or parts.fragment or parts.username is not None:
        raise InputError("URL", f"{text!r} has more than host and port", f"write http://{parts.netloc.split('@')[-1]}")
    return Endpoint(parts.hostname, port or 80)


def fetch_variants(endpoint: Endpoint) -> VariantsAnswer:
    return _decode(endpoint, _fetch(endpoint, "GET", "/v1/variants").body, VariantsAnswer)


def fetch_prediction(endpoint: Endpoint, request: PredictRequest) -> tuple[PredictAnswer, Reply]:
    reply = _fetch(endpoint, "POST", "/v1/predict", msgspec.json.encode(request))
    return _decode(endpoint, reply.body, PredictAnswer), reply


def _fetch(endpoint: Endpoint, method: str, path: str, body: bytes | None = None) -> Reply:
    connection = http.client.HTTPConnection(endpoint.host, endpoint.port, timeout=TIMEOUT_S)
    started = time.perf_counter()
    try:
        connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
        response = connection.getresponse()
        content = response.read()
    except (OSError, http.client.HTTPException) as error:
        problem = str(error) or type(error).__name__
        raise ResourceError(
            f"{endpoint.url}: no answer: {problem}; is the server up? `gnnserve run MANIFEST` starts one"
        ) from error
    finally:
        connection.close()
    elapsed_ms = (time.perf_counter() - started) * 1000
    headers = {name.lower(): value for name, value in response.getheaders()}
    if response.status != 200:
        raise parse_refusal(response.status, headers, content)
    return Reply(headers, content, elapsed_ms)


def _decode(endpoint: Endpoint, body: bytes, answer: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=answer)
    except msgspec.DecodeError as error:
        raise ResourceError(
            f"{endpoint.url}: the answer is not gnnserve's: {error}; does another program listen on that port?"
        ) from error


def parse_refusal(status: int, headers: Mapping[str, str], body: bytes) -> RefusedError:
    try:
        detail = msgspec.json.decode(body, type=ErrorAnswer).error
    except msgspec.DecodeError:
        detail = ErrorDetail("error", body[:200].decode(errors="replace").strip() or "without an explanation")
    return RefusedError(status, detail.code, detail.field, detail.message, headers.get("retry-after"))


def parse_server_timing(header: str) -> dict[str, float]:
    """`queue;dur=0.1, sample;dur=0.2` → milliseconds by stage; entries without a duration are left out."""
    durations: dict[str, float] = {}
    for entry in header.split(","):
        name, *parameters = (part.strip() for part in entry.split(";"))
        for parameter in parameters:
            key, _, value = parameter.partition("=")
            if key == "dur":
                try:
                    durations[name] = float(value)
                except ValueError:
                    continue
    return durations
