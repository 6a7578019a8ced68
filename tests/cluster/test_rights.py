"""docs/security.md says of each identity what it may do: the chart and the workers' Role hold to it."""

from __future__ import annotations

import re

import pytest
from tests.support.kubernetes.helm import Manifest, render
from tests.support.pages.pages import read_page

from gnnserve_operator.desired.access import build_role
from gnnserve_operator.desired.metadata import Parent

# The first test may have to wait until helm is compiled.
pytestmark = pytest.mark.timeout(2400)
Right = tuple[str, str, str]
_ROW = re.compile(r"^\| ([\w, ]+) \| (?:`([\w.]+)`|core) \| `([\w/]+)` \| ([\w, ]+) \| .+ \|$", re.MULTILINE)


def said_of(identity: str) -> set[Right]:
    rows = [row for row in _ROW.findall(read_page("security.md")) if row[0] == identity]
    assert rows
    return {(group, resource, verb) for _, group, resource, verbs in rows for verb in verbs.split(", ")}


def rights(role: Manifest) -> set[Right]:
    return {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_every_row_of_the_table_is_read() -> None:
    page = read_page("security.md")
    table = page[page.index("| identity |") :].split("\n\n")[0].splitlines()[2:]
    assert len(_ROW.findall("\n".join(table))) == len(table)


def test_the_operators_rights_are_those_of_the_page() -> None:
    objects = render()
    (bound,) = (found for found in objects if found["kind"] == "ClusterRoleBinding")
    (role,) = (r for r in objects if r["kind"] == "ClusterRole" and r["metadata"]["name"] == bound["roleRef"]["name"])
    assert rights(role) == said_of("operator")
    (own,) = (found for found in objects if found["kind"] == "Role")
    assert rights(own) == said_of("operator, own namespace")


def test_a_workers_rights_are_those_of_the_page_and_of_one_object() -> None:
    role = build_role(Parent("digits", "shop", "uid"), ["digits-routing"])
    assert rights(role) == said_of("worker")
    assert [rule["resourceNames"] for rule in role["rules"]] == [["digits-routing"]]


def test_nobody_may_read_secrets_or_enter_pods() -> None:
    roles = [found for found in render() if found["kind"] in {"Role", "ClusterRole"}]
    resources = {resource for role in roles for _, resource, _ in rights(role)}
    assert not resources & {"secrets", "pods/exec", "pods/log", "pods/attach", "pods/portforward", "*", "nodes/proxy"}


@pytest.mark.parametrize("resource", ["gnnservices/scale", "gnnworkerpools/scale"])
def test_who_may_edit_a_namespace_may_scale_in_it(resource: str) -> None:
    """And so may an autoscaler that acts with the rights of its user."""
    label = "rbac.authorization.k8s.io/aggregate-to-edit"
    (edit,) = (found for found in render() if found["metadata"].get("labels", {}).get(label) == "true")
    assert {verb for _, found, verb in rights(edit) if found == resource} == {"get", "update", "patch"}
