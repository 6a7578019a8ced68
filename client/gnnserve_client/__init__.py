"""A client of gnnserve's servers: numpy arrays in and out, over kept connections, with retries that mind deadlines.

    from gnnserve_client import Client

    with Client("http://127.0.0.1:8080") as client:
        answer = client.predict([3, 7], outputs="scores", latency_ms=5)

It imports the contract (`gnnserve_api`) and neither the server nor the operator. What a name brings along, such as
numpy and httpx, is imported when the name is first used, so that the command line starts without them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gnnserve_api.errors import GnnserveError, InputError
    from gnnserve_client.async_client import AsyncClient
    from gnnserve_client.changes import Changes
    from gnnserve_client.client import Client
    from gnnserve_client.errors import (
        AccessError,
        BadRequestError,
        NoAnswerError,
        NotGnnserveError,
        NotTrustedError,
        ObjectiveError,
        OverloadedError,
        RefusedError,
        ServerFailedError,
        TimedOutError,
        UnavailableError,
    )
    from gnnserve_client.overlay import Overlay, TypedOverlay
    from gnnserve_client.prediction import Prediction
    from gnnserve_client.recommending import Recommendation
    from gnnserve_client.sending import Applied

_HOMES = {
    "AccessError": "gnnserve_client.errors",
    "Applied": "gnnserve_client.sending",
    "AsyncClient": "gnnserve_client.async_client",
    "BadRequestError": "gnnserve_client.errors",
    "Changes": "gnnserve_client.changes",
    "Client": "gnnserve_client.client",
    "GnnserveError": "gnnserve_api.errors",
    "InputError": "gnnserve_api.errors",
    "NoAnswerError": "gnnserve_client.errors",
    "NotGnnserveError": "gnnserve_client.errors",
    "NotTrustedError": "gnnserve_client.errors",
    "ObjectiveError": "gnnserve_client.errors",
    "OverloadedError": "gnnserve_client.errors",
    "Overlay": "gnnserve_client.overlay",
    "Prediction": "gnnserve_client.prediction",
    "Recommendation": "gnnserve_client.recommending",
    "RefusedError": "gnnserve_client.errors",
    "ServerFailedError": "gnnserve_client.errors",
    "TimedOutError": "gnnserve_client.errors",
    "TypedOverlay": "gnnserve_client.overlay",
    "UnavailableError": "gnnserve_client.errors",
}
"""The module of each public name."""

__all__ = [
    "AccessError",
    "Applied",
    "AsyncClient",
    "BadRequestError",
    "Changes",
    "Client",
    "GnnserveError",
    "InputError",
    "NoAnswerError",
    "NotGnnserveError",
    "NotTrustedError",
    "ObjectiveError",
    "Overlay",
    "OverloadedError",
    "Prediction",
    "Recommendation",
    "RefusedError",
    "ServerFailedError",
    "TimedOutError",
    "TypedOverlay",
    "UnavailableError",
]


def __getattr__(name: str) -> Any:
    try:
        home = _HOMES[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    return getattr(import_module(home), name)
