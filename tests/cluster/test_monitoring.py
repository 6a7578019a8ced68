"""Dashboard and rules name only what workers and the operator really expose, labels and their values included."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.support.kubernetes.dashboards import DASHBOARD, NAME, expressions, panels, rules
from tests.support.kubernetes.promtool import promtool, run_promtool
from tests.support.serving.exposed import operator_metrics, worker_metrics

OF_THE_TARGET = {"namespace", "pod", "instance", "job"}
"""Labels that come with a scrape."""
INTERVAL = "1m"
"""What Grafana puts in place of $__rate_interval."""

SELECTOR = re.compile(rf"({NAME})(?:\{{([^}}]*)\}})?")
MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
CLAUSE = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")


@dataclass(slots=True)
class Labels:
    values: dict[str, set[str]] = field(default_factory=dict)
    """By label: those that were seen."""


@cache
def exposed() -> dict[str, Labels]:
    """Every series by its name, as Prometheus has it."""
    found: dict[str, Labels] = {}
    for text in (worker_metrics(), operator_metrics()):
        for family in text_string_to_metric_families(text.decode()):
            for sample in family.samples:
                labels = found.setdefault(sample.name, Labels())
                for name, value in sample.labels.items():
                    labels.values.setdefault(name, set()).add(value)
    return found


def recorded() -> dict[str, set[str]]:
    """Their names begin with the labels that they keep."""
    names = [rule["record"] for rule in rules() if "record" in rule]
    return {name: set(name.partition(":")[0].split("_")) for name in names}


def labels_of(name: str) -> set[str]:
    if name in recorded():
        return recorded()[name]
    assert name in exposed(), f"{name} is not exposed"
    return {*exposed()[name].values, *OF_THE_TARGET}


@pytest.mark.parametrize("expression", list(expressions()))
def test_only_what_is_exposed_is_asked_for(expression: str) -> None:
    selectors = SELECTOR.findall(expression)
    assert selectors
    for name, matchers in selectors:
        for label, _, wanted in MATCHER.findall(matchers):
            assert label in labels_of(name), f"{name} has no label {label}"
            seen = exposed()[name].values.get(label, set())
            for value in wanted.split("|"):
                assert value.startswith("$") or value in seen, f'{name} has no {label}="{value}", only {sorted(seen)}'
    known = set().union(*(labels_of(name) for name, _ in selectors))
    named = {label.strip() for clause in CLAUSE.findall(expression) for label in clause.split(",")} - {""}
    assert named <= known, f"no series has the labels {sorted(named - known)}"


@pytest.mark.parametrize("panel", panels(), ids=lambda panel: panel["title"])
def test_legends_name_labels_that_the_series_keep(panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        kept = {
            label.strip() for clause in re.findall(r"\bby \(([^)]*)\)", target["expr"]) for label in clause.split(",")
        }
        assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= kept - {"le"}, target["expr"]


def test_the_expressions_of_the_dashboard_are_promql(tmp_path: Path) -> None:
    asked = [target["expr"] for panel in panels() for target in panel["targets"]]
    asked += [annotation["expr"] for annotation in DASHBOARD["annotations"]["list"]]
    rules = [
        {"record": f"panel:{number}", "expr": expression.replace("$__rate_interval", INTERVAL)}
        for number, expression in enumerate(asked)
    ]
    file = tmp_path / "rules.json"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    done = subprocess.run([promtool(), "check", "rules", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout


def of_every_worker_metric(service: str, jobs: Sequence[str]) -> dict[str, str]:
    """Of two pods, each scraped by these jobs. Counters and gauges alike rise, each at a rate of its own."""
    samples = [
        sample
        for family in text_string_to_metric_families(worker_metrics().decode())
        for sample in family.samples
        if not sample.name.endswith("_created")
    ]
    series = {}
    for number, sample in enumerate(samples, start=1):
        for pod in ("w1", "w2"):
            for job in jobs:
                target = {"namespace": "team", "service": service, "pod": pod, "job": job, "instance": f"{pod}/{job}"}
                labels = ",".join(f"{name}={json.dumps(value)}" for name, value in {**sample.labels, **target}.items())
                series[f"{sample.name}{{{labels}}}"] = f"{number}+{number}x20"
    return series


def test_the_dashboard_counts_a_worker_once_that_is_scraped_twice(tmp_path: Path) -> None:
    series = of_every_worker_metric("once", ["a"]) | of_every_worker_metric("twice", ["a", "b"])
    checks = []
    for asked in (target["expr"] for panel in panels() for target in panel["targets"]):
        if "gnnserve_operator" not in asked:
            expression = asked.replace("$namespace", "team").replace("$__rate_interval", "5m")
            once, twice = (expression.replace("$service", service) for service in ("once", "twice"))
            same = f"count(abs(({once}) - ({twice})) < 0.000001) == bool count({once})"
            checks.append({"expr": same, "eval_time": "20m", "exp_samples": [{"labels": "{}", "value": 1}]})
    run_promtool(tmp_path, series, {"promql_expr_test": checks})


def test_every_panel_belongs_to_a_question_and_fits_the_page() -> None:
    taken: set[tuple[int, int]] = set()
    rows = [panel for panel in DASHBOARD["panels"] if panel["type"] == "row"]
    assert DASHBOARD["panels"][0] is rows[0]
    assert all(row["title"].endswith("?") for row in rows)
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24, panel["title"]
        taken |= cells


def test_every_query_goes_to_the_chosen_prometheus_about_the_chosen_service() -> None:
    source = {"type": "prometheus", "uid": "${datasource}"}
    names = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    assert names == {"datasource", "namespace", "service"}
    for panel in panels():
        assert panel["datasource"] == source
        for target in panel["targets"]:
            assert target["datasource"] == source
            used = set(re.findall(r"\$(?!__)(\w+)", target["expr"]))
            assert used <= names
            assert used == {"namespace", "service"} or "gnnserve_operator_prometheus_requests" in target["expr"]
