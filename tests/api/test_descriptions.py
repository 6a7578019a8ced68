"""Descriptions of both CRDs, each read alone as `kubectl explain` shows it."""

from __future__ import annotations

import pytest
from tests.support.kubernetes.helm import DocumentedValue, documented_values
from tests.support.pages.descriptions import problems, problems_of_text

from gnnserve_api.generated import schema
from gnnserve_api.generated.structural_schema import enums_of, structural, with_told_defaults

by_kind = pytest.mark.parametrize("resource", schema.RESOURCES, ids=lambda resource: resource.kind)


@by_kind
def test_every_description_stands_alone(resource: schema.Resource) -> None:
    root = schema.crd(resource)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    head = {name: root["properties"][name] for name in ("apiVersion", "kind", "spec")}
    assert list(problems({"properties": head, "required": list(head)}, resource.kind)) == []
    assert problems_of_text(root["description"]) == []


@by_kind
def test_every_description_of_the_status_stands_alone(resource: schema.Resource) -> None:
    # With the defaults that the CRD leaves out: what the operator always writes has no absence to describe.
    source = resource.status.model_json_schema(by_alias=True)
    status = structural(source, source.get("$defs", {}), enums_of(resource.status))
    described = schema.crd(resource)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
    assert problems_of_text(described["description"]) == []
    assert list(problems(status, "status")) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("Where they are measured.", "begins with 'Where'"),
        ("On what they compute.", "begins with 'On'"),
        ("What they keep there of tables that it has no room for.", "'they' stands for what another field names"),
        ("Those that are ready.", "begins with 'Those'"),
        ("Requests that it answers, of a hundred.", "'it' stands for what another field names"),
        ("Which pods may mount it.", "begins with 'Which'"),
        ("Absent: the cluster's default class.", "begins with 'Absent'"),
        ("How many.", "has fewer than 4 words"),
        ("The folder.", "has fewer than 4 words"),
        ("Its weight.", "begins with 'Its'"),
        ("Column of the node where it ends.", "'it' stands for what another field names"),
    ],
)
def test_a_description_that_leans_on_its_parent_is_found(text: str, problem: str) -> None:
    assert problem in problems_of_text(text)


@pytest.mark.parametrize(
    ("field", "problem"),
    [
        pytest.param({"type": "integer", "description": "Time for all attempts."}, None, id="attempts"),
        pytest.param({"type": "integer", "description": "Time for all of these jobs."}, "names no unit", id="no unit"),
        pytest.param({"type": "string", "description": "Size of the claim.", "x-kubernetes-validations": [
            {"rule": "", "message": "must be a size, as in 1Gi"}]}, "names no unit", id="a size"),
        pytest.param({"type": "boolean", "description": "Stop every worker now."},
                     "says neither a default nor what absence means", id="no default"),
    ],
)  # fmt: skip
def test_a_field_without_unit_or_default_is_found(field: dict, problem: str | None) -> None:
    found = list(problems({"properties": {"x": field}}, "spec"))
    assert problem is None or any(f"spec.x: {problem}" in each for each in found)


def test_members_of_a_union_need_no_absence() -> None:
    member = {"type": "object", "description": "A file of the user's own."}
    union = {"properties": {"npz": member, "csv": member}}
    assert len(list(problems(union, "spec"))) == 2
    rule = {"rule": "…", "message": "exactly one of npz and csv must be set"}
    assert list(problems({**union, "x-kubernetes-validations": [rule]}, "spec")) == []


def test_kubectl_explain_tells_defaults_which_it_does_not_print_itself() -> None:
    spec = schema.crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    training, method = spec["model"]["properties"]["training"]["properties"], spec["variants"]["properties"]["pruning"]
    assert training["batchSize"]["description"] == "Number of training nodes per step. Default: `1024`."
    assert spec["model"]["properties"]["fanouts"]["description"].endswith(" Default: `[25, 10]`.")
    first, *members = method["properties"]["method"]["description"].split("\n")
    assert first.endswith(" Default: `Greedy`.")
    assert members[0].startswith("- Random:")
    assert spec["endpoint"]["description"].endswith(" Default: the defaults of its fields.")


def test_a_default_is_told_once() -> None:
    told = with_told_defaults({"type": "integer", "default": 3, "description": "Number of pods."})
    assert told == {"type": "integer", "default": 3, "description": "Number of pods. Default: `3`."}


@pytest.mark.parametrize("value", documented_values(), ids=lambda value: value.key)
def test_descriptions_of_the_charts_values_stand_alone(value: DocumentedValue) -> None:
    assert problems_of_text(value.meaning) == []
