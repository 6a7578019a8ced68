"""Construction that clients of threads and of event loops share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from gnnserve_api.errors import InputError
from gnnserve_api.http.tokens import check_token, read_client_token
from gnnserve_client.address import Endpoint, ServerAccess, parse_url
from gnnserve_client.asking import ClientState, TokenSource
from gnnserve_client.changes import Changes
from gnnserve_client.direct import DirectConnection
from gnnserve_client.exchange import Connection
from gnnserve_client.sending import Applied, BatchBody

if TYPE_CHECKING:
    import httpx

DEFAULT_TIMEOUT_S = 30.0


def open_asking(
    url: str,
    tokens: TokenSource,
    write_tokens: TokenSource,
    ca_file: str | Path | None,
    timeout_s: float,
    retry: bool,
) -> ClientState:
    """`write_tokens`: a source without a token stands for `tokens`. Raises InputError."""
    if timeout_s <= 0:
        raise InputError("timeout_s", f"{timeout_s:g} s", "give more than 0")
    endpoint = parse_url(url, ServerAccess(ca_file=None if ca_file is None else Path(ca_file)))
    writing = tokens if write_tokens.token is None else write_tokens
    return ClientState(endpoint, tokens, writing, timeout_s, is_retrying=retry)


def open_token(token: str | None, file: str | Path | None, where: str) -> TokenSource:
    """`where`: the argument's name. Raises InputError."""
    if token is not None and file is not None:
        raise InputError(where, f"there is a {where}_file as well", "give one of them")
    if file is not None:
        return TokenSource(read_client_token(Path(file)), Path(file))
    return TokenSource(None if token is None else check_token(token, where))


def connected(endpoint: Endpoint, transport: httpx.BaseTransport | None) -> Connection:
    if transport is None:
        return DirectConnection(endpoint)
    # Imported here: only a user who brings a transport has to have it.
    from gnnserve_client.httpx_exchange import HttpxConnection  # noqa: PLC0415

    return HttpxConnection(endpoint, transport)


def batches_of(changes: Changes | Iterable[Changes], most: int | None) -> Iterator[BatchBody]:
    """Batches in order, made one after the other."""
    for one in (changes,) if isinstance(changes, Changes) else changes:
        for part in (one,) if most is None else one.split(most):
            yield part.to_batch()


def ignore(_applied: Applied) -> None:
    """Tell no one."""
