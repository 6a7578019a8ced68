"""The chart grants the operator what the table of children needs and nothing else, and fences all that it applies.

Read from the templates' text, without helm; what helm makes of them is in tests/cluster/test_chart.py.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml
from tests.support.operator.desired_children import build
from tests.support.operator.observed import make_service
from tests.support.operator.rights import needed_rights, rights_of

from gnnserve_operator.desired.children import CHILDREN, PRUNED_KINDS, WATCHED_CHILDREN, kinds_under
from gnnserve_operator.kinds import JOB, POD, POD_MONITOR

TEMPLATES = Path(__file__).parents[2] / "charts/gnnserve/templates"


def granted() -> list[dict[str, Any]]:
    text = (TEMPLATES / "_rules.tpl").read_text(encoding="utf-8")
    found = re.search(r'\{\{- define "gnnserve.rules" -\}\}\n(.*?)\{\{- end \}\}', text, re.DOTALL)
    assert found is not None
    rules: list[dict[str, Any]] = yaml.safe_load(found[1])
    return rules


def fenced() -> set[tuple[str, str]]:
    """API group and resource. A rule of the policy names several groups, each of which has some of its resources."""
    text = (TEMPLATES / "fencing.yaml").read_text(encoding="utf-8")
    pairs = re.findall(r"apiGroups: (\[.*\])\n +apiVersions: .*\n +resources: (\[.*\])", text)
    rules = [(yaml.safe_load(groups), yaml.safe_load(names)) for groups, names in pairs]
    return {(group, resource) for groups, names in rules for group in groups for resource in names}


def test_the_chart_grants_the_rights_that_the_table_of_children_needs_and_no_other() -> None:
    rights = rights_of(granted())
    assert len(rights) == len(set(rights))
    assert set(rights) == needed_rights()


def test_the_fence_is_around_all_that_the_operator_applies() -> None:
    applied = {(child.kind.group, child.kind.plural) for child in CHILDREN if child.is_applied}
    assert applied <= fenced()
    assert {resource for _, resource in fenced()} == {resource for _, resource in applied}
    assert {group for group, _ in fenced()} == {group for group, _ in applied}


def test_a_row_builds_children_of_its_kind_in_the_order_of_the_table() -> None:
    children = build(make_service())
    built = [child["kind"] for child in children.values()]
    rows = [child.kind for child in CHILDREN if child.is_applied]
    assert [kind.name for kind in rows] == list(dict.fromkeys(built))
    assert {child["apiVersion"] for child in children.values()} == {kind.api_version for kind in rows}


def test_what_a_child_builds_on_comes_before_it() -> None:
    kinds = [child.kind for child in CHILDREN]
    assert len(set(kinds)) == len(kinds)
    for row, child in enumerate(CHILDREN):
        assert set(child.builds_on) <= set(kinds[:row])
    assert kinds_under(JOB.name) == {"PersistentVolumeClaim"}


def test_what_is_watched_and_what_is_pruned() -> None:
    assert {child.kind for child in CHILDREN} - set(WATCHED_CHILDREN) == {POD_MONITOR}
    assert POD in WATCHED_CHILDREN
    assert {"NetworkPolicy", "PodMonitor"} == PRUNED_KINDS
