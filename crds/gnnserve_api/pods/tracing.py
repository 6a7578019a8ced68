"""How traces are asked for: by the variables that OpenTelemetry names for every program.

The operator sets them in worker pods, and servers read them.
"""

from __future__ import annotations

from enum import StrEnum

ENDPOINT_VARIABLE = "OTEL_EXPORTER_OTLP_ENDPOINT"
"""Base URL of a receiver of OTLP over HTTP; unset or empty: nothing is traced."""
SAMPLER_VARIABLE = "OTEL_TRACES_SAMPLER"
"""A `TraceSampler`; unset: SHARE."""
SAMPLER_ARGUMENT_VARIABLE = "OTEL_TRACES_SAMPLER_ARG"
"""With SHARE: the share, from 0 to 1."""
DEFAULT_SAMPLED_PERMILLE = 10.0


class TraceSampler(StrEnum):
    """Rules for requests whose clients send no trace; a client's trace says itself whether its requests are traced."""

    SHARE = "parentbased_traceidratio"
    """A share of them, drawn at random."""
    ALL = "parentbased_always_on"
    NONE = "parentbased_always_off"
