"""Labels and annotations in a spec: by Kubernetes' rules, and without those that are gnnserve's own.

Sizes are bounded, so that the API server can tell the cost of the rules over them. What the names and values of a map
must look like is too costly for it: the API server tells that when the operator tries the objects out, before anything
is trained.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated

from pydantic import AfterValidator, Field

from gnnserve_api.spec.rules import Rule, rule_of_each

LABEL_VALUE = r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?"
_LABEL_NAME = r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
SUBDOMAIN = r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*"
LABEL_KEY = rf"({SUBDOMAIN}/)?{_LABEL_NAME}"
LABEL_KEY_LENGTH = 316
A_KEY = "the name of a label, as in gpu or nvidia.com/gpu.present"
A_VALUE = "the value of a label: at most 63 letters, digits, '.', '_' and '-'"
_AN_ANNOTATION = "the name of an annotation, as in example.com/owner"


def _check_label_key(key: str) -> str:
    if re.fullmatch(LABEL_KEY, key) is None:
        raise ValueError(f"{key!r} must be {A_KEY}")
    return key


def _check_labels(labels: dict[str, str]) -> dict[str, str]:
    for key, value in labels.items():
        _check_label_key(key)
        if re.fullmatch(LABEL_VALUE, value) is None:
            raise ValueError(f"the value {value!r} of {key} must be {A_VALUE}")
    return labels


def _check_annotations(annotations: dict[str, str]) -> dict[str, str]:
    for key in annotations:
        # Annotations may be named in upper case too, which the API server folds.
        if re.fullmatch(LABEL_KEY, key, re.IGNORECASE) is None:
            raise ValueError(f"{key!r} must be {_AN_ANNOTATION}")
    return annotations


LabelKey = Annotated[str, Field(max_length=LABEL_KEY_LENGTH), AfterValidator(_check_label_key)]
Labels = Annotated[
    dict[str, Annotated[str, Field(max_length=253)]], Field(max_length=32), AfterValidator(_check_labels)
]
Annotations = Annotated[
    dict[str, Annotated[str, Field(max_length=8192)]], Field(max_length=32), AfterValidator(_check_annotations)
]

OWN_PREFIX = "gnnserve.dev/"
OWN_LABELS = (
    "app.kubernetes.io/name", "app.kubernetes.io/instance", "app.kubernetes.io/component",
    "app.kubernetes.io/managed-by",
)  # fmt: skip
"""Labels of every child, besides those under `OWN_PREFIX`."""
_KUBERNETES_PREFIX = "batch.kubernetes.io/"
_KUBERNETES_LABELS = ("pod-template-hash", "controller-uid", "job-name")
"""Labels that controllers give to pods, besides those under `_KUBERNETES_PREFIX`."""
_SCRAPE_PREFIX = "prometheus.io/"
"""Annotations that tell Prometheus where workers have their metrics."""

RESERVED_LABELS = (*OWN_LABELS, *_KUBERNETES_LABELS)
LABEL_PREFIXES = (OWN_PREFIX, _KUBERNETES_PREFIX)
ANNOTATION_PREFIXES = (OWN_PREFIX, _SCRAPE_PREFIX)
LABELS_ARE_RESERVED = (
    f"podLabels must not have {', '.join(RESERVED_LABELS)}, nor names under "
    f"{' or '.join(LABEL_PREFIXES)}, which select and describe the pods"
)
POD_ANNOTATIONS_ARE_RESERVED = f"podAnnotations must not have names under {' or '.join(ANNOTATION_PREFIXES)}"
ANNOTATIONS_ARE_RESERVED = f"annotations must not have names under {OWN_PREFIX}"


def none_is_reserved(field: str, message: str, prefixes: Iterable[str], names: Iterable[str] = ()) -> Rule:
    """The rule that no name in the map `field` is one of `names` or begins with one of `prefixes`."""
    begins = [f"!key.startsWith('{prefix}')" for prefix in prefixes]
    listed = ", ".join(f"'{name}'" for name in names)
    condition = " && ".join([*begins, *([f"!(key in [{listed}])"] if listed else [])])
    return rule_of_each(f"self.{field}", "key", condition, f"{message}[: remove {{key}}]")
