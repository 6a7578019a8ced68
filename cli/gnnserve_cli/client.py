"""Asks a running server one question at a time; load is made by `loadgen/`.

What connects is imported with the first question, since most commands ask none.
"""

from __future__ import annotations

import ipaddress
import os
import sys
from collections.abc import Iterable, Mapping
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from gnnserve_api.errors import InputError
from gnnserve_api.families import point_of
from gnnserve_api.files.profile import Profile
from gnnserve_api.files.programs import MAX_HOPS
from gnnserve_api.files.repository import PROGRAM, NetworkManifest
from gnnserve_api.http.changes import ChangesPage
from gnnserve_api.http.pairs import PairsAnswer, PairsRequest
from gnnserve_api.http.protocol import Id, NodesAnswer, PredictAnswer, PredictRequest, VariantsAnswer
from gnnserve_api.http.recommend import RecommendAnswer, RecommendRequest
from gnnserve_api.http.tokens import check_token, read_client_token
from gnnserve_api.objective import Objective
from gnnserve_api.pods.routing import Route
from gnnserve_api.variants import MAX_LAYERS
from gnnserve_cli.told_tasks import told_task
from gnnserve_client.address import CA_FILE, Endpoint, ServerAccess, parse_url
from gnnserve_client.errors import NotGnnserveError
from gnnserve_client.timing import ALL_TIMES, TIMING_HEADER

if TYPE_CHECKING:
    from gnnserve_client.asking import ClientState
    from gnnserve_client.exchange import ServerReply

T = TypeVar("T")
NO_HEADERS: Mapping[str, str] = {}
TIMEOUT_S = 60.0
_MOST = 2**53
"""Largest number that an answer may state: a float holds it exactly."""
_MOST_DRAWN = 1_000_000
"""Largest fan-out that an answer may state: far above what a manifest may."""
TOKEN_VARIABLE = "GNNSERVE_TOKEN"  # noqa: S105 - its name
"""A token for servers that want one; what a program's arguments are, every user of a machine can see."""


def read_access(token_file: Path | None, ca_file: Path | None) -> ServerAccess:
    if token_file is not None:
        token: str | None = read_client_token(token_file)
    else:
        # One that is set and empty is none, as shells leave it.
        given = os.environ.get(TOKEN_VARIABLE)
        token = check_token(given, f"environment variable {TOKEN_VARIABLE}") if given else None
    return ServerAccess(token, ca_file)


def stated_objective(latency_ms: float | None, tolerance_permille: float | None) -> Objective | None:
    objective = Objective(latency_ms=latency_ms, accuracy_tolerance_permille=tolerance_permille)
    return None if objective.is_empty() else objective


def open_url(text: str, access: ServerAccess) -> Endpoint:
    """`parse_url` for commands: messages name the option, and standard error is told where a token can be read."""
    try:
        endpoint = parse_url(text, access)
    except InputError as error:
        where = "--ca-file" if error.where == CA_FILE else error.where
        raise InputError(where, error.problem, error.remedy) from None
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


def fetch_variants(endpoint: Endpoint) -> VariantsAnswer:
    answer = _fetched(endpoint, "/v1/variants", VariantsAnswer)
    if misfit := _misfit(answer):
        raise NotGnnserveError(endpoint.url, misfit)
    return answer


def _misfit(answer: VariantsAnswer) -> str | None:
    """What no gnnserve says: what is shown of an answer divides by its numbers, and pairs one with another. Limits of
    single numbers are the profile's own, and were checked while it was read."""
    told = told_task(answer)
    for number, what, least in (
        (answer.nodes, "nodes", 1), (answer.features, "features", told.least_features),
        (len(answer.classes), "classes", told.least_classes),
    ):  # fmt: skip
        if not least <= number < _MOST:
            return f"a graph of {number} {what}"
    return _network_misfit(answer.provenance.network) or _profile_misfit(answer.profile, answer.features)


def _network_misfit(network: NetworkManifest) -> str | None:
    drawn = network.fanouts
    most = MAX_HOPS + 1 if network.architecture == PROGRAM else MAX_LAYERS
    is_full = all(fanout == -1 for fanout in drawn)
    if not 1 <= len(drawn) <= most or not (
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
        if not point_of(variant).stores_product and variant.columns > features:
            return f"{variant.columns} columns of {variant.name}, of {features} features"
    return None


def fetch_route(endpoint: Endpoint) -> Route:
    return _fetched(endpoint, "/v1/route", Route)


def fetch_nodes(endpoint: Endpoint, start: int = 0, count: int = 1) -> NodesAnswer:
    return _fetched(endpoint, f"/v1/nodes?start={start}&count={count}", NodesAnswer)


def fetch_prediction(endpoint: Endpoint, request: PredictRequest[Id]) -> tuple[PredictAnswer, ServerReply]:
    reply = _fetch(endpoint, "POST", "/v1/predict", msgspec.json.encode(request), {TIMING_HEADER: ALL_TIMES})
    answer = _decoded(endpoint, reply, PredictAnswer)
    _require_rows(endpoint, answer, request.outputs, len(request.nodes), "nodes")
    return answer, reply


def fetch_pairs(endpoint: Endpoint, request: PairsRequest[Id]) -> tuple[PairsAnswer, ServerReply]:
    reply = _fetch(endpoint, "POST", "/v1/predict", msgspec.json.encode(request), {TIMING_HEADER: ALL_TIMES})
    answer = _decoded(endpoint, reply, PairsAnswer)
    _require_rows(endpoint, answer, request.outputs, len(request.pairs or ()), "pairs")
    return answer, reply


def _require_rows(
    endpoint: Endpoint, answer: PredictAnswer | PairsAnswer, outputs: Iterable[str], asked: int, what: str
) -> None:
    """Refuse an answer in which an output has not one row for each node or pair that was asked about."""
    for name in outputs:
        rows = getattr(answer, name)
        found = 0 if isinstance(rows, msgspec.UnsetType) else len(rows)
        if found != asked:
            raise NotGnnserveError(endpoint.url, f"{found} {name} for {asked} {what}")


def fetch_recommendation(endpoint: Endpoint, request: RecommendRequest[Id]) -> tuple[RecommendAnswer, ServerReply]:
    reply = _fetch(endpoint, "POST", "/v1/recommend", msgspec.json.encode(request), {TIMING_HEADER: ALL_TIMES})
    return _decoded(endpoint, reply, RecommendAnswer), reply


def fetch_changes(
    endpoint: Endpoint, after: int | None, *, limit: int, with_content: bool = False, wait_s: int = 0
) -> ChangesPage:
    """A page of the log of changes. `after`: None begins with the first record that the log still has."""
    query = f"limit={limit}&content={'true' if with_content else 'false'}&wait={wait_s}"
    if after is not None:
        query += f"&after={after}"
    return _fetched(endpoint, f"/v1/changes?{query}", ChangesPage)


def opened(endpoint: Endpoint, *, is_retrying: bool = False) -> ClientState:
    from gnnserve_client.asking import ClientState, TokenSource  # noqa: PLC0415

    tokens = TokenSource(endpoint.token)
    return ClientState(endpoint, tokens, tokens, TIMEOUT_S, is_retrying)


def _fetched(endpoint: Endpoint, path: str, kind: type[T]) -> T:
    return _decoded(endpoint, _fetch(endpoint, "GET", path), kind)


def _decoded(endpoint: Endpoint, reply: ServerReply, kind: type[T]) -> T:
    from gnnserve_client.asking import decode  # noqa: PLC0415

    return decode(endpoint.url, reply.body, kind)


def _fetch(
    endpoint: Endpoint, method: str, path: str, body: bytes | None = None, wishes: Mapping[str, str] = NO_HEADERS
) -> ServerReply:
    """One attempt, over a connection of its own: an error is for the user to see."""
    from gnnserve_client.direct import DirectConnection  # noqa: PLC0415
    from gnnserve_client.exchange import Call  # noqa: PLC0415

    call = Call(method, path, {"Content-Type": "application/json", **wishes} if body else wishes, body)
    with closing(DirectConnection(endpoint)) as connection:
        return connection.run(opened(endpoint).answered(call))
