"""The five parts of the time of an exchange, or of the mean of many, for people and as JSON."""

from __future__ import annotations

from typing import Any

from gnnserve_cli.render import format_ms
from gnnserve_client.timing import Parts


def format_parts(parts: Parts) -> str:
    """`client send 0.02, network and server receive/send 0.31 (…), …`, in milliseconds."""
    transfer = f" (of it on the server {format_ms(parts.server_transfer_ms)})" if parts.server_transfer_ms else ""
    stages = ", ".join(f"{stage} {format_ms(ms)}" for stage, ms in parts.stages_ms.items())
    named = {
        "client send": format_ms(parts.client_send_ms),
        "network and server receive/send": format_ms(parts.network_ms) + transfer,
        "wait": format_ms(parts.wait_ms),
        "compute": format_ms(parts.compute_ms) + (f" ({stages})" if stages else ""),
        "client receive": format_ms(parts.client_receive_ms),
    }
    return ", ".join(f"{name} {value}" for name, value in named.items())


def parts_to_builtins(parts: Parts) -> dict[str, Any]:
    return {
        "clientSend": round(parts.client_send_ms, 3),
        "network": round(parts.network_ms, 3),
        "wait": round(parts.wait_ms, 3),
        "compute": round(parts.compute_ms, 3),
        "clientReceive": round(parts.client_receive_ms, 3),
    }
