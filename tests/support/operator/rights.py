"""The rights that the operator needs, by the table of children and by what else it calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gnnserve_operator.desired.children import CHILDREN
from gnnserve_operator.kinds import EVENT, RECONCILED

Right = tuple[str, str, str]
"""API group, resource and verb."""


def needed_rights() -> set[Right]:
    needed = {(kind.group, kind.plural, verb) for kind in RECONCILED for verb in ("get", "list", "watch")}
    needed |= {(kind.group, f"{kind.plural}/status", "patch") for kind in RECONCILED}
    needed |= {(EVENT.group, EVENT.plural, verb) for verb in ("create", "list")}
    return needed | {(child.kind.group, child.kind.plural, verb) for child in CHILDREN for verb in child.verbs}


def rights_of(rules: Iterable[Mapping[str, Any]]) -> list[Right]:
    """What the rules of a Role grant, one by one."""
    return [
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    ]
