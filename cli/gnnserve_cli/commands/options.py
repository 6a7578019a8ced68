"""Arguments that several commands share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from gnnserve_api.device import CachePolicy, Device, size_bytes
from gnnserve_api.errors import InputError
from gnnserve_api.objective import DEFAULT_PRIORITY, HIGHEST_PRIORITY, LOWEST_PRIORITY

DEFAULT_REPOSITORY = Path(".gnnserve")
_OBJECTIVE = "Objective of the request"
Number = TypeVar("Number", int, float, int | None, float | None)
_SHOWN_CHARACTERS = 40
_LEAST_SHARE = 0.001


def between(low: float, high: float) -> Callable[[Number], Number]:
    """A check of a number's bounds. Unlike typer's own it refuses NaN, and adds nothing to `--help`."""

    def check(value: Number) -> Number:
        if value is not None and not low <= value <= high:
            raise typer.BadParameter(f"{_shown(value)} is not between {_shown(low)} and {_shown(high)}.")
        return value

    return check


def _shown(number: float) -> str:
    """Integers to the last digit: rounded, one beyond a bound may look like the bound. A long one is cut."""
    if not isinstance(number, int):
        return f"{number:,.10g}"
    text = f"{number:,}"
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…"


Manifest = Annotated[
    Path, typer.Argument(metavar="MANIFEST", help="A GNNService in YAML; - for standard input.", show_default=False)
]
ManifestFile = Annotated[Path, typer.Argument(metavar="MANIFEST", help="A GNNService in YAML.", show_default=False)]
Manifests = Annotated[
    list[Path],
    typer.Argument(metavar="MANIFEST", help="GNNServices in YAML; - for standard input.", show_default=False),
]
ServedManifests = Annotated[
    list[Path],
    typer.Argument(
        metavar="MANIFEST",
        help="A GNNService in YAML; - for standard input. Several get one server, each a port of its own.",
        show_default=False,
    ),
]
Shares = Annotated[
    list[str] | None,
    typer.Option(
        "--share",
        metavar="SERVICE=WEIGHT",
        help="Share of the server's time for a service where all could use more, beside 1 of every other; repeatable.",
        show_default=False,
    ),
]
Url = Annotated[str, typer.Argument(metavar="URL", help="Address of a server: http://host:port.", show_default=False)]
Host = Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all.")]
Port = Annotated[int, typer.Option(callback=between(0, 65_535), help="Port to listen on; 0 takes a free one.")]
OtlpEndpoint = Annotated[
    str | None,
    typer.Option(
        "--otlp-endpoint",
        metavar="URL",
        help="Send traces of predictions to this receiver of OTLP over HTTP, such as http://127.0.0.1:4318. Unset: to "
        "OTEL_EXPORTER_OTLP_ENDPOINT, or none.",
        show_default=False,
    ),
]
TracePermille = Annotated[
    float | None,
    typer.Option(
        "--trace-permille",
        callback=between(0, 1000),
        help="Share of the requests without a trace of the client's that is traced, in permille. Default: 10.",
        show_default=False,
    ),
]
GrpcPort = Annotated[
    int | None,
    typer.Option(
        "--grpc-port",
        callback=between(0, 65_535),
        help="Answer the Open Inference Protocol over gRPC too, at this port; 0 takes a free one. Unset: do not.",
        show_default=False,
    ),
]
RepositoryRoot = Annotated[
    Path, typer.Option("--repository", metavar="DIR", help="Folder of trained and profiled revisions.")
]
Revision = Annotated[
    str,
    typer.Argument(metavar="REVISION", help="Published revision, as `gnnserve variants` lists it.", show_default=False),
]
OfService = Annotated[
    str | None,
    typer.Option("--service", metavar="NAME", help="Service in a folder with several: namespace/name or name."),
]
Prometheus = Annotated[
    str | None,
    typer.Option(
        "--prometheus",
        metavar="URL",
        help="Judge the load by what this Prometheus scraped. Unset: by the server's own counters.",
        show_default=False,
    ),
]
OverlayFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="JSON file of an overlay for this request alone: nodes, edges and overrides beside the graph.",
        show_default=False,
    ),
]
_ACCESS = "Access"
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        rich_help_panel=_ACCESS,
        help="Send the token in the file's first line. Unset: the one in the variable GNNSERVE_TOKEN, if any.",
        show_default=False,
    ),
]
CaFile = Annotated[
    Path | None,
    typer.Option(
        "--ca-file",
        metavar="FILE",
        rich_help_panel=_ACCESS,
        help="Trust certificates signed by those in this file. Unset: those that the machine trusts.",
        show_default=False,
    ),
]
TlsCertificate = Annotated[
    Path | None,
    typer.Option(
        "--tls-cert",
        metavar="FILE",
        rich_help_panel=_ACCESS,
        help="Answer over HTTPS, with this certificate in PEM; a renewed one is followed. Unset: plain HTTP.",
        show_default=False,
    ),
]
TlsKey = Annotated[
    Path | None,
    typer.Option(
        "--tls-key",
        metavar="FILE",
        rich_help_panel=_ACCESS,
        help="Key of the certificate in PEM, unencrypted.",
        show_default=False,
    ),
]
AcceptedTokens = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        rich_help_panel=_ACCESS,
        help="Answer only requests with a token of this file, one in each line; changes are followed. Unset: all.",
        show_default=False,
    ),
]
WriteTokens = Annotated[
    Path | None,
    typer.Option(
        "--write-token-file",
        metavar="FILE",
        rich_help_panel=_ACCESS,
        help="Take labels and changes of the graph with a token of this file, one in each line; the file is followed. "
        "Unset: take none.",
        show_default=False,
    ),
]
PostgresUri = Annotated[
    Path | None,
    typer.Option(
        "--postgres-uri-file",
        metavar="FILE",
        help="Keep changes of the graph in the PostgreSQL of the address in this file, as in "
        "postgresql://user:pass@host/db. Unset: in a SQLite file of the repository.",
        show_default=False,
    ),
]
EmbeddingsUris = Annotated[
    list[Path] | None,
    typer.Option(
        "--embeddings-uri-file",
        metavar="FILE",
        help="Write embeddings to the PostgreSQL of the address in this file: for spec.embeddings.sinks[0], given "
        "again for the next.",
        show_default=False,
    ),
]
_DEVICE = "Device"


def _check_size(size: str | None) -> str | None:
    if size is not None:
        try:
            size_bytes(size)
        except ValueError as error:
            raise typer.BadParameter(f"{error}.") from None
    return size


DeviceName = Annotated[
    Device | None,
    typer.Option(
        "--device",
        case_sensitive=False,
        rich_help_panel=_DEVICE,
        help="Compute on the GPU if there is one (Auto), only on a GPU (GPU), or on the CPU. Unset: as "
        "spec.worker.device says.",
        show_default=False,
    ),
]
CacheName = Annotated[
    CachePolicy | None,
    typer.Option(
        "--cache",
        case_sensitive=False,
        rich_help_panel=_DEVICE,
        help="Choice of the rows that the GPU's memory keeps of a table that does not fit. Unset: as "
        "spec.worker.cache.policy says.",
        show_default=False,
    ),
]
GpuMemory = Annotated[
    str | None,
    typer.Option(
        "--gpu-memory",
        metavar="SIZE",
        callback=_check_size,
        rich_help_panel=_DEVICE,
        help="Most of the GPU's memory to use, as in 40Gi. Unset: as spec.worker.gpuMemory says, or else "
        "all that is free.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", metavar="", help="Print JSON for scripts.")]


def _latency_option(*names: str) -> Any:
    return typer.Option(
        *names,
        callback=between(0.001, 3_600_000),
        rich_help_panel=_OBJECTIVE,
        help="Longest time for an answer, in milliseconds. Without this and the tolerance the service's objective "
        "holds; either one replaces all of it.",
    )


LatencyMs = Annotated[float | None, _latency_option()]
ObjectiveMs = Annotated[float | None, _latency_option("--latency-ms", "--objective-ms")]
"""The latency with a second name, for commands that compare answers with it."""
TolerancePermille = Annotated[
    float | None,
    typer.Option(
        "--accuracy-tolerance-permille",
        callback=between(0, 1000),
        rich_help_panel=_OBJECTIVE,
        help="Accuracy that may be given up for speed; 10 is one point. Without this and the latency the service's "
        "objective holds; either one replaces all of it.",
    ),
]
Priority = Annotated[
    int | None,
    typer.Option(
        callback=between(HIGHEST_PRIORITY, LOWEST_PRIORITY),
        help="Priority of the request where not all can go first: 1 is the highest, 3 the lowest.",
        show_default=str(DEFAULT_PRIORITY),
    ),
]
Strict = Annotated[
    bool,
    typer.Option("--strict", metavar="", rich_help_panel=_OBJECTIVE, help="Fail if no variant can meet the objective."),
]


def read_shares(given: list[str] | None, services: Sequence[str]) -> dict[str, float]:
    """Weights by service. Raises InputError where one is no weight, or of no service."""
    shares: dict[str, float] = {}
    for text in given or ():
        name, _, weight = text.partition("=")
        try:
            share = float(weight)
        except ValueError:
            share = math.nan
        if name not in services or name in shares:
            why = "is given twice" if name in shares else "is of none of the manifests"
            raise InputError("--share", f"{text!r} {why}", f"name each of {', '.join(services)} once at most")
        if not _LEAST_SHARE <= share <= 1 / _LEAST_SHARE:
            bounds = f"{_LEAST_SHARE:g} to {1 / _LEAST_SHARE:g}"
            raise InputError("--share", f"{text!r} has no weight", f"write {name}= and a number from {bounds}")
        shares[name] = share
    return shares
