"""The socket that a worker listens on, and what is wrong with an address, in words."""

from __future__ import annotations

import errno
import socket

from gnnserve_api.errors import ResourceError

_MAX_PORT = 65_535
GRPC_PORT_OPTION = "--grpc-port"


def bind(host: str, port: int, option: str = "--port") -> socket.socket:
    """Bind the address without listening yet, so that a busy port is noticed before hours of training. `option` chooses
    the port."""
    if not 0 <= port <= _MAX_PORT:
        # getaddrinfo would silently use the port modulo 65,536.
        raise ResourceError(f"{host}:{port}: no such port; choose {option} from 0 to {_MAX_PORT}, 0 for any free one")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (socket.gaierror, UnicodeError) as error:
        raise ResourceError(f"{host}: not an address of this machine ({error}); choose another --host") from error
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)  # `::` means every address
        sock.bind(address)
    except OSError as error:
        sock.close()
        raise address_error(host, port, error, option) from error
    return sock


def address_error(host: str, port: int, error: OSError, option: str = "--port") -> ResourceError:
    where = f"{host}:{port}"
    match error:
        case OSError(errno=errno.EADDRINUSE):
            return ResourceError(
                f"{where}: the port is in use; stop the process that listens there, or choose {option}"
            )
        case OSError(errno=errno.EACCES):
            return ResourceError(f"{where}: ports below 1024 need privileges; choose a {option} from 1024 on")
        case OSError(errno=errno.EADDRNOTAVAIL):
            return ResourceError(f"{where}: this machine does not have the address; choose another --host")
        case _:
            return ResourceError(f"{where}: cannot listen there ({error}); choose another --host or {option}")
