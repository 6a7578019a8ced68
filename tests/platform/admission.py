"""Admission policies that play a platform: they change or refuse pods in namespaces that have a label.

Their objects belong to the whole cluster, so each has a name and a label of its own.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.cluster.harness.client import Cluster, Namespace

API_VERSION = "admissionregistration.k8s.io/v1"
PODS = [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}]


@dataclass(frozen=True, slots=True)
class Policy:
    """A label of namespaces, in which the policy holds."""

    label: str

    def hold_in(self, namespace: Namespace) -> None:
        namespace.cluster.kubectl("label", f"namespace/{namespace}", f"{self.label}=", "--overwrite")

    def end_in(self, namespace: Namespace) -> None:
        namespace.cluster.kubectl("label", f"namespace/{namespace}", f"{self.label}-")


@contextmanager
def mutating(cluster: Cluster, patch: str, conditions: Sequence[str] = ()) -> Iterator[Policy]:
    """`patch`: CEL of the JSON patch that pods get. `conditions`: CEL that holds for those that get it."""
    rest = {
        "reinvocationPolicy": "Never",
        "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": patch}}],
    }
    with _policy(cluster, "MutatingAdmissionPolicy", rest, conditions, {}) as made:
        yield made


@contextmanager
def validating(cluster: Cluster, expression: str, message: str) -> Iterator[Policy]:
    """`expression`: CEL that is true of the pods that are let in."""
    rest = {"validations": [{"expression": expression, "message": message}]}
    with _policy(cluster, "ValidatingAdmissionPolicy", rest, (), {"validationActions": ["Deny"]}) as made:
        yield made


@contextmanager
def _policy(
    cluster: Cluster, kind: str, rest: dict[str, Any], conditions: Sequence[str], binding: dict[str, Any]
) -> Iterator[Policy]:
    name = f"gnnserve-tests-{uuid.uuid4().hex[:6]}"
    label = f"tests.gnnserve.dev/{name}"
    cluster.apply(
        {
            "apiVersion": API_VERSION,
            "kind": kind,
            "metadata": {"name": name},
            "spec": {
                "failurePolicy": "Fail",
                "matchConstraints": {
                    "resourceRules": PODS,
                    "namespaceSelector": {"matchExpressions": [{"key": label, "operator": "Exists"}]},
                },
                "matchConditions": [
                    {"name": f"condition-{number}", "expression": condition}
                    for number, condition in enumerate(conditions)
                ],
                **rest,
            },
        },
        {
            "apiVersion": API_VERSION,
            "kind": f"{kind}Binding",
            "metadata": {"name": name},
            "spec": {"policyName": name, **binding},
        },
    )
    try:
        yield Policy(label)
    finally:
        cluster.kubectl("delete", f"{kind.lower()}/{name}", f"{kind.lower()}binding/{name}", "--ignore-not-found")
