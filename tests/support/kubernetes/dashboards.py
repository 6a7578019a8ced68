"""Queries of the chart's dashboard."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from tests.cluster.harness.prometheus import RULES
from tests.support.kubernetes.helm import CHART

DASHBOARD = json.loads((CHART / "files/dashboard.json").read_text(encoding="utf-8"))
NAME = r"(?<![\w:$])(?:[a-z_]+:)?gnnserve_\w+(?::\w+)?"


def rules() -> list[dict[str, Any]]:
    documents = [yaml.safe_load(file.read_text(encoding="utf-8")) for file in RULES]
    return [rule for document in documents for group in document["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def expressions() -> Iterator[Any]:
    for rule in rules():
        yield pytest.param(rule["expr"], id=rule.get("record") or rule["alert"])
    for panel in panels():
        for target in panel["targets"]:
            yield pytest.param(target["expr"], id=f"{panel['title']}: {target['legendFormat']}")
    for annotation in DASHBOARD["annotations"]["list"]:
        yield pytest.param(annotation["expr"], id=f"annotation {annotation['name']}")
    for variable in variables():
        selector = re.search(rf"{NAME}(?:\{{[^}}]*\}})?", variable["query"]["query"])
        assert selector is not None
        yield pytest.param(selector[0], id=f"variable {variable['name']}")


def variables() -> list[dict[str, Any]]:
    return [variable for variable in DASHBOARD["templating"]["list"] if variable["type"] == "query"]
