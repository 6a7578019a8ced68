"""Commands in messages. Who reads one in an alert, an event or a list of all services is in another namespace.

Messages are written where something is decided, without the namespace; it is filled in here, for all of them at once.
"""

from __future__ import annotations

import re
from dataclasses import replace

from gnnserve_operator.decide.readiness import Conditions

_COMMAND = re.compile(r"`kubectl (?![^`]*(?<!\S)(?:-n|-A|--namespace|--all-namespaces)\b)")
"""The beginning of a `kubectl` command that names no namespace."""


def with_namespace(conditions: Conditions, namespace: str) -> Conditions:
    """`kubectl logs x` becomes `kubectl --namespace shop logs x`."""
    return {
        kind: replace(verdict, message=_COMMAND.sub(f"`kubectl --namespace {namespace} ", verdict.message))
        for kind, verdict in conditions.items()
    }
