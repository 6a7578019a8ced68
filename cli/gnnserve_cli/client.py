"""Asks a running server one question at a time; load is made by `loadgen/`."""

from __future__ import annotations

import ipaddress
import os
import re
import ssl
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from gnnserve_api.changes import CLIENT_HEADER, SEQUENCE_HEADER, ChangesAnswer, ChangesPage, ChangesRequest
from gnnserve_api.errors import GnnserveError, InputError, ResourceError, remedy_of
from gnnserve_api.families import family_of
from gnnserve_api.objective import Objective
from gnnserve_api.profile import Profile
from gnnserve_api.protocol import (
    ErrorAnswer,
    ErrorDetail,
    Id,
    NodesAnswer,
    PredictAnswer,
    PredictRequest,
    VariantsAnswer,
)
from gnnserve_api.repository import NetworkManifest
from gnnserve_api.routing import Route
from gnnserve_api.tokens import check_token, read_client_token
from gnnserve_api.variants import MAX_LAYERS
from gnnserve_cli.exits import ServerRefusedError
from gnnserve_cli.http_client import Connected, NoAnswerError, NotTrustedError, exchange, prepare
from gnnserve_cli.printable import printable_line

T = TypeVar("T")
TIMEOUT_S = 60.0
_FOREIGN = "does another program listen on that port?"
_OTHER_VERSION = "is the server an older or a newer gnnserve than this command?"
_PORTS = {"http": 80, "https": 443}
_MOST = 2**53
"""Largest number that an answer may state: a float holds it exactly."""
_MOST_DRAWN = 1_000_000
"""Largest fan-out that an answer may state: far above what a manifest may."""


_PASSWORD = re.compile(r"^([a-z]+://)?.*@", re.DOTALL | re.IGNORECASE)
TOKEN_VARIABLE = "GNNSERVE_TOKEN"  # noqa: S105 - its name
"""A token for servers that want one; what a program's arguments are, every user of a machine can see."""


@dataclass(frozen=True, slots=True)
class ServerAccess:
    """Credentials for a server that needs them."""

    token: str | None = field(default=None, repr=False)
    ca_file: Path | None = None
    """Certificates that are trusted instead of the machine's."""


NO_ACCESS = ServerAccess()


def read_access(token_file: Path | None, ca_file: Path | None) -> ServerAccess:
    if token_file is not None:
        token: str | None = read_client_token(token_file)
    else:
        # One that is set and empty is none, as shells leave it.
        given = os.environ.get(TOKEN_VARIABLE)
        token = check_token(given, f"environment variable {TOKEN_VARIABLE}") if given else None
    return ServerAccess(token, ca_file)


@dataclass(frozen=True, slots=True)
class Endpoint:
    host: str
    port: int
    token: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    """TLS settings; None: plain HTTP."""

    @property
    def authority(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{'http' if self.tls is None else 'https'}://{self.authority}"

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.token is None else {"Authorization": f"Bearer {self.token}"}


@dataclass(frozen=True, slots=True)
class ServerReply:
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes
    elapsed_ms: float
    """Connecting included: what this one call cost."""


def stated_objective(latency_ms: float | None, tolerance_permille: float | None) -> Objective | None:
    objective = Objective(latency_ms=latency_ms, accuracy_tolerance_permille=tolerance_permille)
    return None if objective.is_empty() else objective


def open_url(text: str, access: ServerAccess) -> Endpoint:
    """`parse_url` for commands, which warns on standard error that a token can be read on its way."""
    endpoint = parse_url(text, access)
    if endpoint.token is not None and endpoint.tls is None and not _is_loopback(endpoint.host):
        print(
            f"note: the token goes to {endpoint.url} in plain HTTP, where anyone on the way can read it; "
            "use https:// where the server has it",
            file=sys.stderr,
        )
    return endpoint


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def parse_url(given: str, access: ServerAccess = NO_ACCESS) -> Endpoint:
    # A password may stand before the last @; messages show none.
    text = _PASSWORD.sub(r"\1…@", given)
    try:
        parts = urlsplit(given)
        port = parts.port
    except ValueError as error:
        what = f": {error}" if text == given else " is not the address of a server"
        raise InputError("URL", f"{text!r}{what}", "write http://host:port") from None
    if parts.scheme not in _PORTS or not parts.hostname:
        raise InputError("URL", f"{text!r} is not the address of a server", "write http://host:port")
    if parts.path not in {"", "/"} or parts.query or parts.fragment or parts.username is not None:
        raise InputError(
            "URL", f"{text!r} has more than host and port", f"write {parts.scheme}://{parts.netloc.split('@')[-1]}"
        )
    if port == 0:
        raise InputError(
            "URL", f"{text!r} has port 0, on which no server listens", "write the port that the server names"
        )
    if access.ca_file is not None and parts.scheme == "http":
        raise InputError(
            "--ca-file", f"says whom to trust, and {text!r} proves nothing", "write https://, or leave it out"
        )
    tls = _client_context(access.ca_file) if parts.scheme == "https" else None
    return Endpoint(
        _ascii_host(text, parts.hostname), _PORTS[parts.scheme] if port is None else port, access.token, tls
    )


def _client_context(ca_file: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except ssl.SSLError:
        raise InputError("--ca-file", f"{str(ca_file)!r} holds no certificate in PEM", "name one that does") from None
    except OSError as error:
        raise InputError(
            "--ca-file", f"{str(ca_file)!r} cannot be read: {error.strerror}", remedy_of(error, "check the path")
        ) from None


def _ascii_host(text: str, host: str) -> str:
    try:
        ascii_host = host.encode("idna").decode()
    except UnicodeError:
        ascii_host = ""  # a part is empty, or longer than the 63 characters of DNS
    if not re.fullmatch(r"[\w.:%~-]+", ascii_host, re.ASCII):
        raise InputError("URL", f"{text!r} has no valid host name", "write http://host:port")
    return ascii_host


def fetch_variants(endpoint: Endpoint) -> VariantsAnswer:
    answer = _decode(endpoint, _fetch(endpoint, "GET", "/v1/variants").body, VariantsAnswer)
    if misfit := _misfit(answer):
        raise _not_ours(endpoint, misfit)
    return answer


def _misfit(answer: VariantsAnswer) -> str | None:
    """What no gnnserve says: what is shown of an answer divides by its numbers, and pairs one with another. Limits of
    single numbers are the profile's own, and were checked while it was read."""
    for number, what in ((answer.nodes, "nodes"), (answer.features, "features"), (len(answer.classes), "classes")):
        if not 1 <= number < _MOST:
            return f"a graph of {number} {what}"
    return _network_misfit(answer.provenance.network) or _profile_misfit(answer.profile, answer.features)


def _network_misfit(network: NetworkManifest) -> str | None:
    drawn = network.fanouts
    is_full = all(fanout == -1 for fanout in drawn)
    if not 1 <= len(drawn) <= MAX_LAYERS or not (
        is_full or not any(drawn) or all(1 <= fanout <= _MOST_DRAWN for fanout in drawn)
    ):
        return f"a network of fan-outs {list(drawn)[:10]}"
    widths = (network.hidden, network.classes, 1 if network.mlp_hidden is None else network.mlp_hidden)
    if not all(1 <= width < _MOST for width in widths):
        return f"a network of widths {list(widths)}"
    if network.attention is not None:
        heads = (network.attention.heads, network.attention.output_heads)
        if not all(1 <= count <= network.hidden * network.classes for count in heads):
            return f"a network of {list(heads)} attention heads"
    return None


def _profile_misfit(profile: Profile, features: int) -> str | None:
    if not profile.variants:
        return "a profile without variants"
    names = [variant.name for variant in profile.variants]
    if len(set(names)) != len(names):
        return "two variants of one name"
    sizes = [point.seeds for point in profile.variants[0].latency]
    if any(low >= high for low, high in pairwise(sizes)):
        return f"batch sizes {sizes}, which do not ascend"
    for variant in profile.variants:
        found = [point.seeds for point in variant.latency]
        if found != sizes:
            return f"batch sizes {found} of {variant.name}, and {sizes} of {names[0]}"
        if not family_of(variant).stores_product and variant.columns > features:
            return f"{variant.columns} columns of {variant.name}, of {features} features"
    return None


def fetch_route(endpoint: Endpoint) -> Route:
    return _decode(endpoint, _fetch(endpoint, "GET", "/v1/route").body, Route)


def fetch_nodes(endpoint: Endpoint, start: int = 0, count: int = 1) -> NodesAnswer:
    return _decode(endpoint, _fetch(endpoint, "GET", f"/v1/nodes?start={start}&count={count}").body, NodesAnswer)


def fetch_prediction(endpoint: Endpoint, request: PredictRequest[Id]) -> tuple[PredictAnswer, ServerReply]:
    reply = _fetch(endpoint, "POST", "/v1/predict", msgspec.json.encode(request))
    answer = _decode(endpoint, reply.body, PredictAnswer)
    for name in request.outputs:
        rows = getattr(answer, name)
        found = 0 if isinstance(rows, msgspec.UnsetType) else len(rows)
        if found != len(request.nodes):
            raise _not_ours(endpoint, f"{found} {name} for {len(request.nodes)} nodes")
    return answer, reply


def fetch_changes(
    endpoint: Endpoint, after: int | None, *, limit: int, with_content: bool = False, wait_s: int = 0
) -> ChangesPage:
    """A page of the log of changes. `after`: None begins with the first record that the log still has."""
    query = f"limit={limit}&content={'true' if with_content else 'false'}&wait={wait_s}"
    if after is not None:
        query += f"&after={after}"
    return _decode(endpoint, _fetch(endpoint, "GET", f"/v1/changes?{query}").body, ChangesPage)


def send_changes(
    endpoint: Endpoint, server: Connected, changes: ChangesRequest[Any], client: str, sequence: int
) -> ChangesAnswer:
    """Send one batch. Raises ServerRefusedError, and ResourceError where no answer came."""
    headers = {
        **endpoint.headers,
        "Content-Type": "application/json",
        CLIENT_HEADER: client,
        SEQUENCE_HEADER: str(sequence),
    }
    with _no_answer_in_words(endpoint):
        status, answered, content = server.ask(
            "POST", f"{endpoint.url}/v1/changes", headers, msgspec.json.encode(changes)
        )
    if status != 200:
        raise parse_refusal(endpoint, status, answered, content)
    return _decode(endpoint, content, ChangesAnswer)


def _fetch(endpoint: Endpoint, method: str, path: str, body: bytes | None = None) -> ServerReply:
    headers = endpoint.headers | ({"Content-Type": "application/json"} if body else {})
    prepare()
    started = time.perf_counter()
    with (
        _no_answer_in_words(endpoint),
        exchange(
            method, endpoint.url + path, timeout_s=TIMEOUT_S, headers=headers, body=body, tls=endpoint.tls
        ) as response,
    ):
        content = response.read()
    elapsed_ms = (time.perf_counter() - started) * 1000
    answered = dict(response.headers)
    if response.status_code != 200:
        raise parse_refusal(endpoint, response.status_code, answered, content)
    return ServerReply(answered, content, elapsed_ms)


class UnansweredError(ResourceError):
    """No complete answer came from the server."""


@contextmanager
def _no_answer_in_words(endpoint: Endpoint) -> Iterator[None]:
    try:
        yield
    except NotTrustedError as error:
        raise ResourceError(
            f"{endpoint.url}: its certificate is not trusted: {error}; give the certificate of its issuer with "
            "--ca-file, or ask by a name that it is for"
        ) from error
    except NoAnswerError as error:
        raise UnansweredError(
            f"{endpoint.url}: no answer: {error}; is the server up? `gnnserve run MANIFEST` starts one"
        ) from error


def _decode(endpoint: Endpoint, body: bytes, answer: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=answer)
    except msgspec.ValidationError as error:
        raise _not_ours(endpoint, str(error), _OTHER_VERSION if _has_profile(body) else _FOREIGN) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _not_ours(endpoint, str(error)) from error


def _has_profile(body: bytes) -> bool:
    """Whether it is the answer of some gnnserve, if not of this one."""
    try:
        answer = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False  # what did not fit came before what is no JSON
    return isinstance(answer, dict) and isinstance(answer.get("profile"), dict) and "revision" in answer


def _not_ours(endpoint: Endpoint, why: str, likely: str = _FOREIGN) -> ResourceError:
    return ResourceError(f"{endpoint.url}: the answer is not gnnserve's: {printable_line(why)}; {likely}")


def parse_refusal(endpoint: Endpoint, status: int, headers: Mapping[str, str], body: bytes) -> GnnserveError:
    try:
        detail = msgspec.json.decode(body, type=ErrorAnswer).error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        words = " ".join(body[:200].decode(errors="replace").split())
        said = printable_line(words) or "without an explanation"
        if status < 500 and status != 429:
            return _not_ours(endpoint, f"{status} {said}")
        # A proxy's own: it says nothing of what is behind it.
        detail = ErrorDetail("error", said)
    texts = (detail.code, detail.field, detail.message, headers.get("retry-after"))
    code, about, message, retry_after = (None if text is None else printable_line(text) for text in texts)
    return ServerRefusedError(status, code or "error", about, message or "", retry_after)


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
