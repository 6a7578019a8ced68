"""Where spans are sent, and of which requests: by the variables that OpenTelemetry names for every program.

The exporter itself reads the others of them: `OTEL_EXPORTER_OTLP_HEADERS`, `…_CERTIFICATE`, `…_COMPRESSION` and
`…_TIMEOUT`, and `OTEL_RESOURCE_ATTRIBUTES`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from gnnserve_api.errors import InputError
from gnnserve_api.extras import TRACING, is_missing
from gnnserve_api.pods.tracing import (
    DEFAULT_SAMPLED_PERMILLE,
    ENDPOINT_VARIABLE,
    SAMPLER_ARGUMENT_VARIABLE,
    SAMPLER_VARIABLE,
    TraceSampler,
)

_OF_SAMPLER = {TraceSampler.ALL: 1000.0, TraceSampler.NONE: 0.0}


@dataclass(frozen=True, slots=True)
class TracingOptions:
    endpoint: str
    """Base URL of a receiver of OTLP over HTTP, such as `http://collector:4318`."""
    sampled_permille: float = DEFAULT_SAMPLED_PERMILLE
    """Share of the requests without a `traceparent` that is traced; those with one are traced as it says."""
    namespace: str = ""
    """`service.namespace` of the spans; empty: none."""

    @property
    def url(self) -> str:
        return f"{self.endpoint.rstrip('/')}/v1/traces"


def read_tracing(environ: Mapping[str, str], namespace: str = "") -> TracingOptions | None:
    """The options that the environment states; None: nothing is traced. Raises InputError."""
    endpoint = environ.get(ENDPOINT_VARIABLE, "").strip()
    if not endpoint or is_switched_off(environ):
        return None
    return check_tracing(TracingOptions(endpoint, _sampled_permille(environ), namespace), ENDPOINT_VARIABLE)


def is_switched_off(environ: Mapping[str, str]) -> bool:
    """Whether the environment switches tracing off, whatever else states it."""
    return environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"


def check_tracing(options: TracingOptions, source: str) -> TracingOptions:
    """The options. Raises InputError where nothing could be sent; `source`: what gave the endpoint."""
    try:
        found = urlsplit(options.endpoint)
        is_url = found.scheme in {"http", "https"} and bool(found.hostname) and (found.port is None or found.port > 0)
    except ValueError:
        is_url = False
    if not is_url:
        raise InputError(source, f"{options.endpoint!r} is no URL", "give one such as http://collector:4318")
    if any(is_missing(package) for package in TRACING.packages):
        raise InputError(source, "traces need a package that is not installed", TRACING.remedy)
    return options


def _sampled_permille(environ: Mapping[str, str]) -> float:
    name = environ.get(SAMPLER_VARIABLE, "").strip() or TraceSampler.SHARE
    if name in _OF_SAMPLER:
        return _OF_SAMPLER[TraceSampler(name)]
    if name != TraceSampler.SHARE:
        raise InputError(
            f"environment variable {SAMPLER_VARIABLE}", f"{name!r} is none that a server has",
            f"set it to {', '.join(TraceSampler)}, or leave it out",
        )  # fmt: skip
    text = environ.get(SAMPLER_ARGUMENT_VARIABLE, "").strip()
    if not text:
        return DEFAULT_SAMPLED_PERMILLE
    try:
        share = float(text)
    except ValueError:
        share = math.nan
    if not 0 <= share <= 1:
        raise InputError(
            f"environment variable {SAMPLER_ARGUMENT_VARIABLE}", f"{text!r} is no share of requests",
            "set it to a number from 0 to 1, or leave it out",
        )  # fmt: skip
    return 1000 * share
