"""The part of Kubernetes' PodSpec that a user may set on generation and worker pods, in Kubernetes' own words.

Sizes are bounded, so that the API server can tell the cost of the rules over them.
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BeforeValidator, Field, WithJsonSchema

from gnnserve_api.spec.fields import ApiModel, text, with_defaults
from gnnserve_api.spec.labels import (
    ANNOTATION_PREFIXES,
    LABEL_PREFIXES,
    LABELS_ARE_RESERVED,
    POD_ANNOTATIONS_ARE_RESERVED,
    RESERVED_LABELS,
    SUBDOMAIN,
    Annotations,
    Labels,
    none_is_reserved,
)
from gnnserve_api.spec.placement import Affinity, Toleration
from gnnserve_api.spec.rules import Rule, rule_of_each, validations

_QUANTITY = 'a quantity: a whole number, or a string as in "500m" or "4Gi"'
QUANTITY = r"^[0-9]+(m|(\.[0-9]+)?(k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)|(\.[0-9]{1,3})?)$"
"""Pattern of a quantity with nothing finer than thousandths, which Kubernetes would round."""


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
            **validations((f"type(self) == string ? self.matches(r'{QUANTITY}') : self >= 0", f"must be {_QUANTITY}")),
        }
    ),
]
Quantities = Annotated[dict[str, Quantity], Field(max_length=16)]

_PLAIN_RESOURCES = ("cpu", "memory", "ephemeral-storage")
_HUGE_PAGES = "hugepages-"
RESOURCE_NAMES = "cpu, memory, ephemeral-storage, hugepages-<size>, or have a domain, as in nvidia.com/gpu"


def _names_are_known(field: str) -> Rule:
    names = ", ".join(f"'{name}'" for name in _PLAIN_RESOURCES)
    return rule_of_each(
        f"self.{field}",
        "name",
        f"name in [{names}] || name.startsWith('{_HUGE_PAGES}') || name.contains('/')",
        f"the names of {field} must be {RESOURCE_NAMES}[; found {{name}}]",
    )


class Resources(ApiModel):
    requests: Quantities = {}  # noqa: RUF012 - pydantic copies it
    """Quantities that the scheduler reserves for a pod, as in `{cpu: 2, memory: 4Gi}`: cores and bytes, at most the
    limits. Absent: the limits."""
    limits: Quantities = {}  # noqa: RUF012 - pydantic copies it
    """Quantities that a pod may use at most, in cores and bytes; `cpu` also is the number of threads that compute.
    Absent: no limit."""

    _requests_are_known = _names_are_known("requests")

    _limits_are_known = _names_are_known("limits")

    _requests_fit_limits = rule_of_each(
        f"[{', '.join(repr(name) for name in _PLAIN_RESOURCES)}]",
        "name",
        "!(name in self.requests) || !(name in self.limits) || "
        "!isQuantity(string(self.requests[name])) || !isQuantity(string(self.limits[name])) || "
        "quantity(string(self.requests[name])).compareTo(quantity(string(self.limits[name]))) <= 0",
        "requests must not be more than limits[, and {self.requests[name]} of {name} is more than "
        "{self.limits[name]}]: lower "
        "the request, or raise the limit",
        unless="!has(self.requests) || !has(self.limits)",
    )


class PodSettings(ApiModel):
    resources: Resources = with_defaults(Resources)
    """Processors and memory of each pod, as requests and limits."""
    node_selector: Labels = {}  # noqa: RUF012 - pydantic copies it
    """Labels of the nodes on which pods may be placed. Absent: any node."""
    tolerations: Annotated[tuple[Toleration, ...], Field(max_length=16)] = ()
    """Taints of nodes that the pods tolerate. Absent: none."""
    runtime_class_name: (
        Annotated[str, text(rf"^({SUBDOMAIN})?$", "the name of a RuntimeClass, as in nvidia", 253)] | None
    ) = None
    """RuntimeClass of the pods, such as `nvidia`. Absent: the cluster's default."""
    affinity: Affinity | None = None
    """Nodes and other pods that pods are placed near or far from. Absent: none."""
    priority_class_name: (
        Annotated[str, text(rf"^({SUBDOMAIN})?$", "the name of a PriorityClass, as in high-priority", 253)] | None
    ) = None
    """PriorityClass of the pods: which pods may be evicted for which. Absent: the cluster's default."""
    pod_labels: Labels = {}  # noqa: RUF012 - pydantic copies it
    """Further labels of the pods, as in `{team: search}`. Absent: none."""
    pod_annotations: Annotations = {}  # noqa: RUF012 - pydantic copies it
    """Further annotations of the pods, for service meshes and log collectors. Absent: none."""

    _labels_are_free = none_is_reserved("podLabels", LABELS_ARE_RESERVED, LABEL_PREFIXES, RESERVED_LABELS)

    _annotations_are_free = none_is_reserved("podAnnotations", POD_ANNOTATIONS_ARE_RESERVED, ANNOTATION_PREFIXES)


class Gpu(ApiModel):
    resource_name: Annotated[
        str, text(r"^[a-z0-9.-]+/[A-Za-z0-9._-]+$", "a name with a domain, as in nvidia.com/gpu", 253)
    ] = "nvidia.com/gpu"
    """Name of the extended resource that a pod asks for; for a MIG slice, such as `nvidia.com/mig-1g.10gb`."""
    count: Annotated[int, Field(ge=1, le=64)] = 1
    """Number of GPUs, or of MIG slices, for each pod."""
