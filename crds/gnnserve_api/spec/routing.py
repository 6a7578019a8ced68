"""Which variant answers which request."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gnnserve_api.pods.routing import RoutingMode
from gnnserve_api.spec.audience import Audience
from gnnserve_api.spec.canary import CanarySpec
from gnnserve_api.spec.fields import ApiModel, text, with_defaults
from gnnserve_api.spec.rules import rule
from gnnserve_api.variants import MAX_VARIANT_NAME

MOST_SHADOW_PERMILLE = 100
_VariantName = Annotated[str, Field(max_length=MAX_VARIANT_NAME)]
_Weights = Annotated[dict[str, Annotated[int, Field(ge=0, le=1_000_000)]], Field(min_length=1, max_length=48)]


class PrometheusSpec(ApiModel):
    url: (
        Annotated[
            str,
            text(
                r"^https?://[^\s/@?#]+(/[^\s?#]*)?$", "the address of a Prometheus, as in http://prometheus:9090", 512
            ),
        ]
        | None
    ) = None
    """URL of Prometheus, without a user or password. Absent: the operator's setting."""


class RoutingSpec(ApiModel):
    """Which variant answers which request."""

    mode: Annotated[RoutingMode, Audience.WORKERS] = RoutingMode.ADAPTIVE
    """Method by which the variant for a request is chosen."""
    variant: Annotated[_VariantName | None, Audience.WORKERS] = None
    """Name of the variant that answers, in mode Static. Absent in every other mode."""
    weights: Annotated[_Weights | None, Audience.WORKERS] = None
    """Weights of the variants by name, in mode Weights: shares of the requests, as in `{x1: 9, x4: 1}`. Absent in every
    other mode."""
    interval_seconds: Annotated[int, Field(ge=1, le=3600), Audience.OPERATOR] = 15
    """Interval at which the operator looks at the measured load and latency, in seconds."""
    shadow_permille: Annotated[int, Field(ge=0, le=MOST_SHADOW_PERMILLE), Audience.WORKERS] = 0
    """Largest share of a worker's time, in permille, for computing answers again by the most accurate variant while no
    request waits, to tell how often the variants agree. 5 cannot be noticed in the 99th percentile; 0: nothing is
    computed again."""
    prometheus: Annotated[PrometheusSpec, Audience.OPERATOR] = with_defaults(PrometheusSpec)
    """Prometheus that measures the load and latency of the workers."""
    canary: CanarySpec | None = None
    """Second revision that answers a share of the requests. Absent: one revision answers all of them."""

    @property
    def second_revision(self) -> str | None:
        """Name of the revision that answers a share of the requests; None: there is none."""
        return None if self.canary is None else self.canary.revision

    @property
    def named_variants(self) -> tuple[str, ...]:
        return tuple(self.weights or ()) if self.variant is None else (self.variant,)

    _variant_is_of_mode_static = rule(
        "(self.mode == 'Static') == has(self.variant)",
        "variant must be given in mode Static, and only there[; mode is {self.mode}]",
    )

    _weights_are_of_mode_weights = rule(
        "(self.mode == 'Weights') == has(self.weights)",
        "weights must be given in mode Weights, and only there[; mode is {self.mode}]",
    )

    _a_weight_counts = rule(
        "!has(self.weights) || self.weights.exists(name, self.weights[name] > 0)",
        "one of the weights must be above 0[, and {self.weights} are all 0]",
    )
