"""The part of Kubernetes' PodSpec that a user may set on generation and worker pods, in Kubernetes' own words.

Sizes are bounded, so that the API server can tell the cost of the rules over them.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic.alias_generators import to_camel


class ApiModel(BaseModel):
    """What every part of the resource is: camelCase outside, strict, immutable, documented by its docstrings."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True, use_attribute_docstrings=True
    )


def cel(*rules: tuple[str, str]) -> dict[str, Any]:
    """Rules that the API server checks, each with its message."""
    return {"x-kubernetes-validations": [{"rule": rule, "message": message} for rule, message in rules]}


def text(pattern: str, requirement: str, max_length: int) -> Any:
    """A string that must match; the API server says what is required instead of showing a regular expression."""
    rule = (f"self.matches(r'{pattern}')", f"must be {requirement}")
    return Field(pattern=pattern, max_length=max_length, json_schema_extra=cel(rule))


_QUANTITY = 'a quantity: a whole number, or a string as in "500m" or "4Gi"'
QUANTITY = r"^[0-9]+(m|(\.[0-9]+)?(k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)|(\.[0-9]{1,3})?)$"
"""Nothing finer than thousandths, which Kubernetes would round."""


def _parse_quantity(value: object) -> str:
    """Kubernetes takes whole numbers and strings, which mean the same."""
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(text, str) or re.match(QUANTITY, text) is None or len(text) > 32:
        raise ValueError(f"must be {_QUANTITY}")
    return text


Quantity = Annotated[
    str,
    BeforeValidator(_parse_quantity),
    WithJsonSchema(
        {
            "x-kubernetes-int-or-string": True,
            "maxLength": 32,
            **cel((f"type(self) == string ? self.matches(r'{QUANTITY}') : self >= 0", f"must be {_QUANTITY}")),
        }
    ),
]
Text = Annotated[str, Field(max_length=253)]
Quantities = Annotated[dict[str, Quantity], Field(max_length=16)]
NodeSelector = Annotated[dict[str, Text], Field(max_length=32)]


class Resources(ApiModel):
    requests: Quantities = {}
    """What the scheduler reserves, as in `{cpu: 2, memory: 4Gi}`."""
    limits: Quantities = {}
    """What the pod may use at most; `cpu` also is the number of threads that compute."""


class TolerationOperator(StrEnum):
    EXISTS = "Exists"
    """Any value of the key."""
    EQUAL = "Equal"
    """The stated value only."""


class TaintEffect(StrEnum):
    NO_SCHEDULE = "NoSchedule"
    """Pods that do not tolerate it are not placed there."""
    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    """Pods that do not tolerate it are rather placed elsewhere."""
    NO_EXECUTE = "NoExecute"
    """Pods that do not tolerate it are evicted."""


class Toleration(ApiModel):
    key: Annotated[str, Field(max_length=316)] | None = None
    """The taint's key. Absent: every taint."""
    operator: TolerationOperator = TolerationOperator.EQUAL
    """How the value is compared."""
    value: Annotated[str, Field(max_length=63)] | None = None
    """The taint's value."""
    effect: TaintEffect | None = None
    """The taint's effect. Absent: every effect."""


class PodSettings(ApiModel):
    resources: Resources = Resources()
    """Processors and memory."""
    node_selector: NodeSelector = {}
    """Labels that a node must have."""
    tolerations: Annotated[tuple[Toleration, ...], Field(max_length=16)] = ()
    """Taints of nodes that are put up with."""
    runtime_class_name: Annotated[str, Field(max_length=253)] | None = None
    """RuntimeClass of the pods, such as `nvidia`. Absent: the cluster's default."""


class Gpu(ApiModel):
    resource_name: Annotated[
        str, text(r"^[a-z0-9.-]+/[A-Za-z0-9._-]+$", "a name with a domain, as in nvidia.com/gpu", 253)
    ] = "nvidia.com/gpu"
    """The extended resource to ask for; of a MIG slice, such as `nvidia.com/mig-1g.10gb`."""
    count: Annotated[int, Field(ge=1, le=64)] = 1
    """How many."""
