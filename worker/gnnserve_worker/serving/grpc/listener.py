"""The gRPC listener of a service: its address, limits, certificate, and an orderly end.

It is gRPC's own server on the event loop of everything else; what calls have in common is in `router.py`.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import time
from collections.abc import Callable
from typing import Any

import grpc
from grpc import aio

from gnnserve_worker.serving.grpc.calls import Health
from gnnserve_worker.serving.grpc.limits import DEFAULT_GRPC_LIMITS, GrpcLimits
from gnnserve_worker.serving.grpc.predictions import GrpcPredictions
from gnnserve_worker.serving.grpc.router import Router
from gnnserve_worker.serving.http.app import ServingApp
from gnnserve_worker.serving.http.predict import MAX_BODY_BYTES
from gnnserve_worker.serving.listening_socket import GRPC_PORT_OPTION, address_error
from gnnserve_worker.serving.security.tls import ListeningTls

_PING_TIMEOUT_MS = 20_000
_FASTEST_PINGS_MS = 10_000
_MOST_METADATA_BYTES = 16 * 1024
_MOST_STREAMS = 1024
"""Calls of one connection."""
_POLL_S = 0.02
_FOREVER_S = 86_400.0


def _options(limits: GrpcLimits) -> dict[str, int]:
    return {
        # Up to here a message is refused in our words (`codec.py`); gRPC refuses what is larger, also when unpacked.
        "grpc.max_receive_message_length": 2 * MAX_BODY_BYTES,
        "grpc.max_send_message_length": -1,  # what a request may ask for is bounded
        "grpc.max_metadata_size": _MOST_METADATA_BYTES,
        "grpc.absolute_max_metadata_size": _MOST_METADATA_BYTES,
        "grpc.max_concurrent_streams": _MOST_STREAMS,
        "grpc.max_allowed_incoming_connections": limits.connections,
        "grpc.server_handshake_timeout_ms": round(limits.handshake_s * 1000),
        "grpc.keepalive_time_ms": round(limits.silent_s * 1000),
        "grpc.keepalive_timeout_ms": _PING_TIMEOUT_MS,
        "grpc.http2.min_ping_interval_without_data_ms": _FASTEST_PINGS_MS,
        "grpc.max_connection_idle_ms": round(limits.idle_s * 1000),
        # Another process at the same port would get half of the connections.
        "grpc.so_reuseport": 0,
    }


class GrpcListener:
    """Belongs to the event loop's thread."""

    def __init__(
        self,
        app: ServingApp,
        sock: socket.socket,
        tls: ListeningTls | None,
        limits: GrpcLimits = DEFAULT_GRPC_LIMITS,
    ) -> None:
        """`sock`: bound to the address to listen on, with SO_REUSEADDR; it keeps the port, at which gRPC listens with
        sockets of its own. `tls`: None: connections are not encrypted."""
        self._limits = limits
        self._app = app
        self._sock = sock
        self._tls = tls
        self._server: Any = None
        self._predictions: GrpcPredictions | None = None
        self._health: Health | None = None

    async def open(self) -> None:
        """Accept connections from now on. Raises ResourceError where the address is not free any more."""
        # Otherwise gRPC writes what clients do wrong to standard error, in lines of its own form.
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
        self._predictions, self._health = GrpcPredictions(self._app), Health(self._app)
        router = Router(self._app, self._predictions, self._health, self._limits)
        self._server = aio.server(handlers=(router,), options=tuple(_options(self._limits).items()))
        host, port = self._sock.getsockname()[:2]
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            if self._tls is None:
                self._server.add_insecure_port(address)
            else:
                self._server.add_secure_port(address, _credentials(self._tls))
        except RuntimeError as error:
            # It does not say why; the socket that keeps the port has all rights that are needed.
            busy = OSError(errno.EADDRINUSE, str(error))
            raise address_error(host, port, busy, GRPC_PORT_OPTION) from error
        await self._server.start()

    async def close(self, linger_s: float, is_forced: Callable[[], bool]) -> None:
        """Accept no more calls: clients are told to connect anew, elsewhere. Requests are answered, however long it
        takes; other calls have `linger_s` to end. If `is_forced` becomes true, nothing is waited for."""
        self._sock.close()
        if self._server is None or self._predictions is None or self._health is None:
            return
        self._health.drain()
        self._predictions.drain()
        until_s = time.monotonic() + linger_s
        # A server that stops cancels the calls that it has not handed over. Clients send others once they are answered,
        # so they are answered when they know that they are to connect anew.
        await self._predictions.hold()
        stopping = asyncio.ensure_future(self._server.stop(_FOREVER_S))
        await asyncio.sleep(0)  # it begins
        self._predictions.release()
        while not (await asyncio.wait({stopping}, timeout=_POLL_S))[0]:
            if is_forced() or (time.monotonic() > until_s and not self._predictions.waiting):
                await self._server.stop(None)
                await stopping
                return


def _credentials(tls: ListeningTls) -> grpc.ServerCredentials:
    """Credentials that follow the certificate: each handshake is made with the pair of the moment."""
    shown = tls.pair

    def renew() -> grpc.ServerCertificateConfiguration | None:
        nonlocal shown
        pair = tls.pair
        if pair is shown:
            return None
        shown = pair
        return configured()

    def configured() -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration(((shown.key, shown.certificate),))

    return grpc.dynamic_ssl_server_credentials(configured(), renew)
