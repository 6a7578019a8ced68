"""The operator's `Cluster` over an API server in the same thread: no sockets, and every exchange a test's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlsplit

import msgspec
from tests.support.kubernetes.api_server import Request, Response
from tests.support.kubernetes.fake_cluster import copied

from gnnserve_operator.cluster import ApiAnswer
from gnnserve_operator.kinds import Manifest


@dataclass(frozen=True, slots=True)
class InProcessTransport:
    respond: Callable[[Request], Response]
    """May raise OSError or TimeoutError (no answer), or any other BaseException: the operator crashed there."""

    async def send(self, method: str, url: str, headers: Mapping[str, str], body: Manifest | None) -> ApiAnswer:
        split = urlsplit(url)
        sent = None if body is None else copied(body)
        request = Request(method, split.path, dict(parse_qsl(split.query)), dict(headers), sent)
        response = self.respond(request)
        return ApiAnswer(response.code, response.headers, msgspec.json.encode(response.body))

    async def close(self) -> None:
        pass
