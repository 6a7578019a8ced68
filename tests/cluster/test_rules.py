"""The chart's Prometheus rules, by promtool: each alert speaks when it should and is silent when it should be.

No cluster is needed. Whether the metrics in them exist is in test_monitoring.py.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cluster.harness.prometheus import RULES
from tests.support.kubernetes.helm import ROOT, HelmError, render
from tests.support.kubernetes.promtool import promtool, run_promtool
from tests.support.pages.pages import anchors

WORKER = 'namespace="team",service="digits",pod="w1",instance="10.0.0.1:8080"'
SERVICE = 'namespace="team",service="digits"'
MINUTES = 420
"""Of every case: more than the longest window."""
PER_MINUTE = 1000
"""Requests."""


def groups() -> list[dict[str, Any]]:
    return [group for file in RULES for group in yaml.safe_load(file.read_text(encoding="utf-8"))["groups"]]


def rules(kind: str) -> list[dict[str, Any]]:
    return [rule for group in groups() for rule in group["rules"] if kind in rule]


def counted(*phases: tuple[int, float]) -> str:
    """A counter that rises by so much a minute for so many minutes, and is 0 at first."""
    total, words = 0.0, ["0"]
    for minutes, rise in phases:
        # "a+bxn" is a and n further values.
        words.append(f"{total + rise:g}+{rise:g}x{minutes - 1}")
        total += minutes * rise
    return " ".join(words)


def constant(value: float, minutes: int = MINUTES) -> str:
    return f"{value:g}x{minutes}"


def missed(*phases: tuple[int, float], outcome: str = "late") -> dict[str, str]:
    """Requests of which a share is late, in phases of minutes; met for the rest of the time before them."""
    before = MINUTES - sum(minutes for minutes, _ in phases)
    return outcomes({outcome: [(before, 0.0), *phases]})


def outcomes(shares: Mapping[str, list[tuple[int, float]]]) -> dict[str, str]:
    (other,) = shares.values()
    (name,) = shares
    counts = {known: counted((MINUTES, 0)) for known in ("met", "late", "refused", "unbounded")}
    counts[name] = counted(*((minutes, share * PER_MINUTE) for minutes, share in other if minutes))
    counts["met"] = counted(*((minutes, (1 - share) * PER_MINUTE) for minutes, share in other if minutes))
    return {f'gnnserve_requests_total{{{WORKER},outcome="{known}"}}': values for known, values in counts.items()}


def changes(*phases: tuple[int, float]) -> dict[str, str]:
    return {f"gnnserve_operator_routing_changes_total{{{SERVICE}}}": counted(*phases)}


def condition(kind: str, status: str, reason: str) -> str:
    return f'gnnserve_operator_condition{{{SERVICE},type="{kind}",status="{status}",reason="{reason}"}}'


def turned(kind: str, status: str, reason: str, minutes: int) -> dict[str, str]:
    """A condition that has been so for the last minutes, in place of the healthy one."""
    healthy = next(name for name in HEALTHY if name.startswith("gnnserve_operator_condition") and f'"{kind}"' in name)
    return {
        healthy: f"1x{MINUTES - minutes - 1} stale",
        condition(kind, status, reason): f"_x{MINUTES - minutes} 1x{minutes - 1}",
    }


HEALTHY = {
    **missed((MINUTES, 0.002)),
    f'gnnserve_routing_info{{{WORKER},mode="Adaptive",base_variant="x1"}}': constant(1),
    f"gnnserve_routing_table_expired{{{WORKER}}}": constant(0),
    f'gnnserve_accuracy_broken{{{WORKER},variant="x1"}}': constant(0),
    f'gnnserve_credentials_refused{{{WORKER},kind="tokens"}}': constant(0),
    f'gnnserve_credentials_usable{{{WORKER},kind="tokens"}}': constant(1),
    f"gnnserve_operator_objective_wanted_ratio{{{SERVICE}}}": constant(0.99),
    f'gnnserve_operator_routing_advice{{{SERVICE},advice="Sufficient"}}': constant(1),
    f'gnnserve_operator_routing_advice{{{SERVICE},advice="SteppedDown"}}': constant(0),
    f'gnnserve_operator_routing_advice{{{SERVICE},advice="ScaleOut"}}': constant(0),
    f"gnnserve_operator_declared_workers{{{SERVICE}}}": constant(1),
    f"gnnserve_operator_routing_wanted_workers{{{SERVICE}}}": constant(1),
    f"gnnserve_operator_routing_metrics_available{{{SERVICE}}}": constant(1),
    'gnnserve_operator_services{ready="True"}': constant(1),
    condition("Ready", "True", "Serving"): constant(1),
    condition("Available", "True", "Answering"): constant(1),
    condition("Stalled", "False", "Settled"): constant(1),
    condition("RepositoryKept", "True", "RepositoryKept"): constant(1),
    condition("UpdatesFollowed", "True", "Following"): constant(1),
    condition("EmbeddingsPublished", "True", "EmbeddingsPublished"): constant(1),
    'gnnserve_operator_leader{instance="o1"}': constant(1),
    'gnnserve_operator_leader{instance="o2"}': constant(0),
    'gnnserve_operator_namespace_watched{namespace="team"}': constant(1),
    **changes((MINUTES, 0)),
}
WORKERS_SERIES = [name for name in HEALTHY if "pod=" in name]
OPERATORS_SERIES = [name for name in HEALTHY if "gnnserve_operator" in name]


def for_the_last(minutes: int, value: float, before: float) -> str:
    return f"{before:g}x{MINUTES - minutes - 1} {value:g}x{minutes}"


def missing_for_the_last(minutes: int, name: str) -> str:
    return f"{int('_info' in name or '_usable' in name)}x{MINUTES - minutes - 1} _x{minutes}"


@dataclass(frozen=True, slots=True)
class Case:
    series: Mapping[str, str] = field(default_factory=dict)
    """Instead of the healthy ones of the same name."""
    fires: tuple[str, ...] = ()
    """At any time of these minutes."""
    within: int = MINUTES
    """Of the last minutes."""
    without: tuple[str, ...] = ()


ADVICE = f'gnnserve_operator_routing_advice{{{SERVICE},advice="ScaleOut"}}'
AVAILABLE = f"gnnserve_operator_routing_metrics_available{{{SERVICE}}}"
CHANGES = f"gnnserve_operator_routing_changes_total{{{SERVICE}}}"
WANTED_WORKERS = f"gnnserve_operator_routing_wanted_workers{{{SERVICE}}}"
WANTED = f"gnnserve_operator_objective_wanted_ratio{{{SERVICE}}}"
EXPIRED = f"gnnserve_routing_table_expired{{{WORKER}}}"
REFUSED = f'gnnserve_credentials_refused{{{WORKER},kind="tokens"}}'
USABLE = f'gnnserve_credentials_usable{{{WORKER},kind="tokens"}}'
DECLARED = f"gnnserve_operator_declared_workers{{{SERVICE}}}"
OPERATOR = 'gnnserve_operator_services{ready="True"}'
LEADER = 'gnnserve_operator_leader{instance="o1"}'
NAMESPACE_WATCHED = 'gnnserve_operator_namespace_watched{namespace="team"}'
LEADERS = [name for name in OPERATORS_SERIES if "_leader" in name]
CONDITIONS = [name for name in OPERATORS_SERIES if "_condition" in name]
OF_THE_LOAD = tuple(
    name for name in OPERATORS_SERIES if name not in {CHANGES, DECLARED, WANTED, OPERATOR, *LEADERS, *CONDITIONS}
)
"""Of the operator's: what it does not tell while no worker is ready."""
NO_WORKERS = {name: missing_for_the_last(20, name) for name in WORKERS_SERIES}


def with_a_silence_every(minutes: int, name: str, value: float) -> str:
    """Of one minute, for the last half hour."""
    told = " ".join([f"{value:g}x{minutes - 2} stale"] * (30 // minutes))
    return f"{HEALTHY[name].partition('x')[0]}x{MINUTES - 31} {told}"


def of_canary(passed_on: float, slower: float) -> dict[str, str]:
    """A second revision with a hundred requests a minute. `passed_on`: the share that the first one answers.
    `slower`: the share of its answers that takes 20 ms, where the first one's take 5 ms at most."""
    of = f'{WORKER},revision="bbbbbbbbbbbb"'
    first, second = "gnnserve_request_seconds", "gnnserve_canary_request_seconds"
    answered = 100 * (1 - passed_on)
    buckets = {"0.005": 1 - slower, "0.02": 1.0, "+Inf": 1.0}
    return {
        f"gnnserve_canary_passed_on_total{{{of}}}": counted((MINUTES, 100 * passed_on)),
        f'gnnserve_canary_requests_total{{{of},outcome="unbounded"}}': counted((MINUTES, answered)),
        f'gnnserve_canary_requests_total{{{of},outcome="refused"}}': counted((MINUTES, 100 * passed_on)),
        f'{second}_count{{{of},variant="x1"}}': counted((MINUTES, answered)),
        **{
            f'{second}_bucket{{{of},variant="x1",le="{le}"}}': counted((MINUTES, answered * share))
            for le, share in buckets.items()
        },
        **{f'{first}_bucket{{{WORKER},variant="x1",le="{le}"}}': counted((MINUTES, 900)) for le in buckets},
    }


CASES: dict[str, Case] = {
    # Silent
    "a healthy service": Case(),
    "a healthy second revision": Case(of_canary(passed_on=0.03, slower=0.005)),
    "no traffic at all": Case(outcomes({"late": [(MINUTES, 0)]}) | {
        name: constant(0) for name in WORKERS_SERIES if "_total" in name
    }),
    "requests that ask for no latency": Case(outcomes({"unbounded": [(MINUTES, 1)]})),
    "one slow minute": Case(missed((1, 1.0), (4, 0.0))),
    "one slow minute, an hour later": Case(missed((1, 1.0), (59, 0.0))),
    "a minute of refusals": Case(missed((1, 1.0), (6, 0.0), outcome="refused")),
    "a worker that restarted: its counters began anew": Case(
        {
            name: "0+990x200 _x2 0+990x220" if 'outcome="met"' in name else "0+2x200 _x2 0+2x220"
            for name in WORKERS_SERIES
            if "_total" in name
        }
    ),
    "an operator that was away for eight minutes, and whose count of changes began anew": Case(
        {
            **{name: "1x300 _x8 1x120" for name in OPERATORS_SERIES if name not in {ADVICE, WANTED}},
            ADVICE: "0x300 _x8 0x120",
            WANTED: "0.99x300 _x8 0.99x120",
            CHANGES: "30x300 _x8 0x120",
        }
    ),
    "what was missed is over: the last ten minutes were good": Case(missed((40, 0.3), (10, 0.002)), within=1),
    "so little traffic that a share says little": Case(
        {
            name: counted((MINUTES, 0.5 if '"met"' in name or '"late"' in name else 0))
            for name in WORKERS_SERIES if "_total" in name
        }
    ),
    "as many late as a median allows": Case({**missed((MINUTES, 0.45)), WANTED: constant(0.5)}),
    "a wave over the day: the base variant goes up and down": Case(changes((360, 0.01), (60, 0.2))),
    "ScaleOut for five minutes": Case({ADVICE: for_the_last(5, 1, 0)}),
    "measurements that were missing for five minutes": Case({AVAILABLE: for_the_last(5, 0, 1)}),
    "a routing table that was expired for three minutes": Case({EXPIRED: for_the_last(3, 1, 0)}),
    "a Secret that is replaced a minute after it was deleted": Case(
        {REFUSED: for_the_last(1, 1, 0), USABLE: for_the_last(1, 0, 1)}
    ),
    "a service without a Prometheus": Case(without=OF_THE_LOAD),
    "a service that was stalled for three minutes": Case(turned("Stalled", "True", "ChildRefused", 3)),
    "a generation that takes an hour": Case(turned("Ready", "False", "Generating", 60)),
    "a service that was suspended an hour ago": Case(turned("Ready", "False", "Suspended", 60)),
    "a rollout of ten minutes": Case(turned("Ready", "False", "RollingOut", 10)),
    "an endpoint that was away for a minute": Case(turned("Available", "False", "WorkerCrashing", 1)),
    "a service that was suspended, and answers nothing": Case(
        {**turned("Ready", "False", "Suspended", 60), **turned("Available", "False", "Suspended", 60)}
    ),
    "a service without workers": Case(turned("Available", "False", "ScaledToZero", 60)),
    "a first generation that takes an hour": Case(
        {**turned("Ready", "False", "Generating", 60), **turned("Available", "False", "WaitingForRevision", 60)}
    ),
    "an endpoint of which nothing is known": Case(turned("Available", "Unknown", "EndpointUnreachable", 60)),
    "a suspended service": Case({**NO_WORKERS, DECLARED: constant(0)}, without=OF_THE_LOAD),
    # Speaking
    "a fifth is late for an hour": Case(missed((60, 0.2)), ("GnnserveObjectiveMissed",)),
    "all are late for a quarter of an hour": Case(missed((15, 1.0)), ("GnnserveObjectiveMissed",)),
    "a fifth is refused for an hour": Case(
        missed((60, 0.2), outcome="refused"), ("GnnserveObjectiveMissed", "GnnserveRequestsRefused")
    ),
    "three quarters miss a percentile of 80": Case(
        {**missed((MINUTES, 0.75)), WANTED: constant(0.8)}, ("GnnserveObjectiveAtRisk", "GnnserveObjectiveMissed")
    ),
    "eight percent are late, for hours": Case(missed((380, 0.08)), ("GnnserveObjectiveAtRisk",)),
    "0.7 % are late where 99.9 % are wanted": Case(
        {**missed((380, 0.007)), WANTED: constant(0.999)}, ("GnnserveObjectiveAtRisk",)
    ),
    "half of a crowd is turned away for ten minutes": Case(
        missed((10, 0.5), (120, 0.0), outcome="refused"), ("GnnserveRequestsRefused",)
    ),
    "a tenth is refused for twenty minutes": Case(
        missed((20, 0.1), outcome="refused"), ("GnnserveRequestsRefused",)
    ),
    "no variant carries the load": Case({ADVICE: for_the_last(15, 1, 0)}, ("GnnserveScaleOutNeeded",)),
    "no variant carries the load, and not every question is answered": Case(
        {ADVICE: with_a_silence_every(5, ADVICE, 1), WANTED_WORKERS: with_a_silence_every(5, WANTED_WORKERS, 2)},
        ("GnnserveScaleOutNeeded",),
    ),
    "to and fro every two minutes": Case(changes((360, 0), (60, 0.5)), ("GnnserveRoutingFlaps",)),
    "Prometheus does not answer the operator": Case(
        {AVAILABLE: for_the_last(15, 0, 1)}, ("GnnserveRoutingMetricsUnavailable",)
    ),
    "workers that are not scraped any more": Case(
        {**NO_WORKERS, AVAILABLE: for_the_last(20, 0, 1)},
        ("GnnserveRoutingMetricsUnavailable", "GnnserveWorkersNotScraped"),
    ),
    "workers that are all down": Case(
        {**NO_WORKERS, **{name: f"{HEALTHY[name].partition('x')[0]}x{MINUTES - 21} stale" for name in OF_THE_LOAD}},
        ("GnnserveWorkersNotScraped",),
    ),
    "workers that are not scraped, and a service without a Prometheus": Case(
        NO_WORKERS, ("GnnserveWorkersNotScraped",), without=OF_THE_LOAD
    ),
    "workers that were never scraped": Case(without=tuple(WORKERS_SERIES), fires=("GnnserveWorkersNotScraped",)),
    "an operator that is not scraped": Case(
        without=tuple(OPERATORS_SERIES), fires=("GnnserveOperatorNotScraped", "GnnserveOperatorWithoutLeader")
    ),
    "operators that all stand by": Case(
        {LEADER: for_the_last(8, 0, 1), OPERATOR: f"1x{MINUTES - 9} _x8"}, ("GnnserveOperatorWithoutLeader",)
    ),
    "operators that all stand by, for long": Case(
        {LEADER: for_the_last(20, 0, 1), OPERATOR: f"1x{MINUTES - 21} _x20"},
        ("GnnserveOperatorNotScraped", "GnnserveOperatorWithoutLeader"),
    ),
    "a leader that waits for the CustomResourceDefinition": Case(
        without=(OPERATOR,), fires=("GnnserveOperatorNotScraped",)
    ),
    "a namespace whose owner has not granted the rights": Case(
        {NAMESPACE_WATCHED: for_the_last(20, 0, 1)}, ("GnnserveNamespaceNotWatched",)
    ),
    "a namespace whose owner has just granted the rights": Case({NAMESPACE_WATCHED: for_the_last(10, 0, 1)}),
    "a Secret without any token": Case(
        {REFUSED: for_the_last(10, 1, 0), USABLE: for_the_last(10, 0, 1)}, ("GnnserveCredentialsUnusable",)
    ),
    "a Secret with one bad token": Case({REFUSED: for_the_last(10, 1, 0)}, ("GnnserveCredentialsRefused",)),
    "a certificate that has expired, though nothing was put in its place": Case(
        {USABLE: for_the_last(10, 0, 1)}, ("GnnserveCredentialsUnusable",)
    ),
    "an endpoint at which nothing answers": Case(
        {**turned("Available", "False", "WorkerCrashing", 20), **turned("Ready", "False", "WorkerCrashing", 20)},
        ("GnnserveUnavailable",),
    ),
    "an outage whose reason changes": Case(
        {
            **turned("Available", "False", "WorkerCrashing", 4),
            condition("Available", "False", "WorkerCrashing"): f"_x{MINUTES - 4} 1x1 stale",
            condition("Available", "False", "WorkersStarting"): f"_x{MINUTES - 2} 1x1",
        },
        ("GnnserveUnavailable",),
    ),
    "an outage of a service that cannot be read": Case(
        turned("Available", "False", "InvalidSpec", 4), ("GnnserveUnavailable",)
    ),
    "no token is accepted, and so nothing answered": Case(
        {USABLE: for_the_last(10, 0, 1), **turned("Available", "False", "CredentialsUnusable", 10)},
        ("GnnserveCredentialsUnusable",),
    ),
    "a Job that failed, while workers answer": Case(
        {**turned("Stalled", "True", "GenerationFailed", 20), **turned("Ready", "False", "GenerationFailed", 20)},
        ("GnnserveStalled",),
    ),
    "a stall whose reason changes": Case(
        {
            **turned("Stalled", "True", "ChildRefused", 7),
            condition("Stalled", "True", "ChildRefused"): f"_x{MINUTES - 7} 1x3 stale",
            condition("Stalled", "True", "NameTaken"): f"_x{MINUTES - 3} 1x2",
        },
        ("GnnserveStalled",),
    ),
    "pods that crash and start again": Case(turned("Ready", "False", "WorkerCrashing", 20), ("GnnserveNotReady",)),
    "a claim that somebody has deleted": Case(
        turned("RepositoryKept", "False", "VolumeClaimTerminating", 4), ("GnnserveRepositoryGoing",)
    ),
    "a revision that was damaged for a minute": Case(
        {
            **turned("Ready", "False", "RevisionDamaged", 9),
            condition("Ready", "False", "RevisionDamaged"): f"_x{MINUTES - 9} 1 stale",
            condition("Ready", "True", "Serving"): f"1x{MINUTES - 10} stale 1x8",
        },
        ("GnnserveRevisionDamaged",),
    ),
    "a variant that is worse in service than promised": Case(
        {f'gnnserve_accuracy_broken{{{WORKER},variant="x1"}}': for_the_last(3, 1, 0)}, ("GnnserveAccuracyBroken",)
    ),
    "a log of changes that is away": Case(
        turned("UpdatesFollowed", "False", "LogUnavailable", 7), ("GnnserveUpdatesNotFollowed",)
    ),
    "stored layers that become stale faster than they are made anew": Case(
        {f'gnnserve_stale_error_estimate{{{WORKER},layer="2"}}': f"0x{MINUTES - 200} 0+100x200"},
        ("GnnserveStoredLayersStale",),
    ),
    "stored layers that are made anew as fast as they become stale": Case(
        {f'gnnserve_stale_error_estimate{{{WORKER},layer="2"}}': constant(5000)}
    ),
    "stale rows that cost more than the objective tolerates": Case(
        {
            f'gnnserve_stale_loss_permille{{{WORKER},layer="2"}}': for_the_last(17, 8, 2),
            f"gnnserve_objective_tolerance_permille{{{WORKER}}}": constant(5),
        },
        ("GnnserveStaleBeyondTolerance",),
    ),
    "stale rows that cost no more than the objective tolerates": Case(
        {
            f'gnnserve_stale_loss_permille{{{WORKER},layer="2"}}': constant(5),
            f"gnnserve_objective_tolerance_permille{{{WORKER}}}": constant(5),
        }
    ),
    "stale rows of a service that states no tolerance": Case(
        {f'gnnserve_stale_loss_permille{{{WORKER},layer="2"}}': constant(500)}
    ),
    "a database that takes no embeddings": Case(
        turned("EmbeddingsPublished", "False", "EmbeddingsFailed", 17), ("GnnserveEmbeddingsFailed",)
    ),
    "a program that fails": Case(
        {
            f'gnnserve_program_runs_total{{{WORKER},outcome="failed"}}': counted((MINUTES, 1)),
            f'gnnserve_program_runs_total{{{WORKER},outcome="answered"}}': counted((MINUTES, 9)),
        },
        ("GnnserveProgramFails",),
    ),
    "a program that fails now and then": Case(
        {
            f'gnnserve_program_runs_total{{{WORKER},outcome="failed"}}': counted((MINUTES, 1)),
            f'gnnserve_program_runs_total{{{WORKER},outcome="answered"}}': counted((MINUTES, 99)),
        },
        (),
    ),
    "a second revision that cannot be loaded": Case(
        {condition("CanaryAnswers", "False", "CanaryNotLoaded"): f"_x{MINUTES - 7} 1x6"}, ("GnnserveCanaryNotLoaded",)
    ),
    "a second revision that is behind the log of changes": Case(
        {condition("CanaryAnswers", "False", "WorkerBehind"): f"_x{MINUTES - 7} 1x6"}, ("GnnserveCanaryBehind",)
    ),
    "a second revision that was behind the log for three minutes": Case(
        {condition("CanaryAnswers", "False", "WorkerBehind"): f"_x{MINUTES - 10} 1x2 stale"}
    ),
    "a second revision that lacks nodes": Case(of_canary(passed_on=0.1, slower=0), ("GnnserveCanaryFails",)),
    "a slow second revision": Case(of_canary(passed_on=0, slower=0.3), ("GnnserveCanarySlower",)),
    "an autoscaler of a Deployment": Case(
        {
            'gnnserve_operator_reverts_total{namespace="team",kind="GNNService",name="digits",object="Deployment"}': (
                f"0+4x{MINUTES}"
            )
        },
        ("GnnserveChangesReverted",),
    ),
    "a routing table that nobody renews": Case({EXPIRED: for_the_last(10, 1, 0)}, ("GnnserveRoutingTableExpired",)),
}  # fmt: skip


TEAM = 'namespace="team"'


def of_one_namespace(case: Case) -> bool:
    return all(TEAM in name for name in (*case.series, *case.without))


TOGETHER = {name: case for name, case in CASES.items() if of_one_namespace(case)}
ALONE = {name: case for name, case in CASES.items() if not of_one_namespace(case)}
"""These change series of the operator, which has no namespace."""


@pytest.mark.parametrize(
    "cases", [TOGETHER, *({name: case} for name, case in ALONE.items())], ids=["every namespace its case", *ALONE]
)
def test_alerts_speak_when_they_should_and_only_then(cases: Mapping[str, Case], tmp_path: Path) -> None:
    """promtool evaluates all rules every minute for seven hours: for fifty namespaces in a fifth of fifty times the
    time. What fails is named by its namespace."""
    series: dict[str, str] = {}
    checks = []
    for words, case in cases.items():
        for name, values in {**HEALTHY, **case.series}.items():
            if name not in case.without:
                series[name.replace(TEAM, f"namespace={json.dumps(words)}")] = values
        firing = [
            f'last_over_time(ALERTS{{alertstate="firing",namespace={json.dumps(namespace)}}}[{case.within}m])'
            for namespace in (words, "")
        ]
        expected = [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in case.fires]
        asked = f"count by (alertname) ({' or '.join(firing)})"
        checks.append({"expr": asked, "eval_time": f"{MINUTES}m", "exp_samples": expected})
    run_promtool(tmp_path, series, {"promql_expr_test": checks})


def test_every_alert_is_seen_to_fire() -> None:
    assert {rule["alert"] for rule in rules("alert")} == {name for case in CASES.values() for name in case.fires}


def test_an_alert_names_the_service_and_what_to_do(tmp_path: Path) -> None:
    series = {**HEALTHY, ADVICE: constant(1), WANTED_WORKERS: constant(3)}
    (rule,) = (rule for rule in rules("alert") if rule["alert"] == "GnnserveScaleOutNeeded")
    told = {
        "summary": "team/digits needs more workers",
        "description": (
            "The load is beyond what the workers can answer in time with the variants that `spec.routing` and the "
            "tolerance allow. 3 workers would carry it: `kubectl --namespace team scale gnns/digits --replicas=3`. In "
            "modes Adaptive and Metrics a larger `spec.objective.accuracyTolerancePermille` may do as well."
        ),
        "runbook": rule["annotations"]["runbook"],
    }
    labels = {"severity": "warning", "namespace": "team", "service": "digits"}
    fires = {
        "eval_time": "20m",
        "alertname": "GnnserveScaleOutNeeded",
        "exp_alerts": [{"exp_labels": labels, "exp_annotations": told}],
    }
    run_promtool(tmp_path, series, {"alert_rule_test": [fires]})


@pytest.mark.parametrize("rule", rules("alert"), ids=lambda rule: rule["alert"])
def test_an_alert_leads_to_its_section(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in {"critical", "warning"}
    annotations = rule["annotations"]
    assert annotations.keys() == {"summary", "description", "runbook"}
    file, _, anchor = annotations["runbook"].partition("#")
    assert anchor == rule["alert"].lower()
    assert anchor in anchors((ROOT / file).read_text(encoding="utf-8"))
    kept = set(re.findall(r"by \(([a-z, ]+)\)", rule["expr"])) or {"namespace, service"}
    used = set(re.findall(r"\$labels\.([a-z]+)", str(annotations)))
    assert used <= {label for labels in kept for label in labels.split(", ")}


# --- recording rules, after ten minutes of two workers

TWO = [f'namespace="team",service="digits",pod="w{n}",instance="10.0.0.{n}:8080"' for n in (1, 2)]


def of_two_workers(metric: str, labels: str, per_second: float) -> dict[str, str]:
    return {f"{metric}{{{worker}{labels}}}": f"0+{60 * per_second:g}x{MINUTES}" for worker in TWO}


RECORDED: dict[str, dict[str, float]] = {
    "namespace_service:gnnserve_offered_seeds:rate5m": {"": 200},
    "namespace_service:gnnserve_answered_seeds:rate5m": {"": 180},
    "namespace_service:gnnserve_utilisation:ratio_rate5m": {"": 0.6},
    "namespace_service:gnnserve_refused:ratio_rate5m": {"": 0.1},
    "namespace_service:gnnserve_answers:rate5m": {"": 18},
    "namespace_service_variant:gnnserve_answers:ratio_rate5m": {',variant="x1"': 2 / 3, ',variant="x4"': 1 / 3},
    # x1: 0.9, x4: 0.8, 50 and 30 nodes a second; what the old variant answered has no accuracy any more.
    "namespace_service:gnnserve_accuracy:mean_rate5m": {"": (0.9 * 50 + 0.8 * 30) / 80},
    "namespace_service:gnnserve_request_seconds:p50_rate5m": {"": 0.0075},
    "namespace_service:gnnserve_request_seconds:p99_rate5m": {"": 0.00995},
    **{
        f"namespace_service:gnnserve_attained:ratio_rate{window}": {"": 0.75} for window in ("5m", "30m", "1h", "6h")
    },
    "namespace_service:gnnserve_bounded_requests:increase1h": {"": 2 * 8 * 3600},
    "namespace_service:gnnserve_wanted:ratio": {"": 0.99},
    "namespace_service:gnnserve_missed_limit:fast": {"": 0.144},
    "namespace_service:gnnserve_missed_limit:slow": {"": 0.06},
}  # fmt: skip


def scraped_twice(series: Mapping[str, str]) -> dict[str, str]:
    """By a second job, which calls the target something else."""
    again = {
        re.sub(r'instance="([^"]+)"', r'instance="\1/metrics",job="again"', name): values
        for name, values in series.items()
        if "instance=" in name
    }
    return {**series, **again}


@pytest.mark.parametrize("scraped", [dict, scraped_twice], ids=["scraped once", "scraped twice"])
def test_recording_rules_have_these_values(
    scraped: Callable[[Mapping[str, str]], dict[str, str]], tmp_path: Path
) -> None:
    series = {
        **of_two_workers("gnnserve_offered_seeds_total", "", 100),
        **of_two_workers("gnnserve_batch_seeds_total", ',variant="x1"', 50),
        **of_two_workers("gnnserve_batch_seeds_total", ',variant="x4"', 30),
        **of_two_workers("gnnserve_batch_seeds_total", ',variant="gone"', 10),
        **of_two_workers("gnnserve_batch_seconds_total", ',variant="x1"', 0.4),
        **of_two_workers("gnnserve_batch_seconds_total", ',variant="x4"', 0.2),
        **of_two_workers("gnnserve_requests_total", ',outcome="met"', 6),
        **of_two_workers("gnnserve_requests_total", ',outcome="late"', 1),
        **of_two_workers("gnnserve_requests_total", ',outcome="refused"', 1),
        **of_two_workers("gnnserve_requests_total", ',outcome="unbounded"', 2),
        **of_two_workers("gnnserve_request_seconds_count", ',variant="x1"', 6),
        **of_two_workers("gnnserve_request_seconds_count", ',variant="x4"', 3),
        **of_two_workers("gnnserve_request_seconds_bucket", ',variant="x1",le="0.005"', 0),
        **of_two_workers("gnnserve_request_seconds_bucket", ',variant="x1",le="0.01"', 6),
        **of_two_workers("gnnserve_request_seconds_bucket", ',variant="x1",le="+Inf"', 6),
        f"gnnserve_operator_objective_wanted_ratio{{{SERVICE}}}": constant(0.99),
        **{
            f'gnnserve_variant_accuracy{{{worker},variant="{variant}",split="validation"}}': constant(accuracy)
            for worker in TWO
            for variant, accuracy in (("x1", 0.9), ("x4", 0.8))
        },
        **{
            f'gnnserve_variant_accuracy{{{worker},variant="x1",split="test"}}': constant(0.1) for worker in TWO
        },
    }  # fmt: skip
    checks = [
        {
            # Rates of binary fractions are not exact.
            "expr": f"round({name}, 0.000001)",
            "eval_time": f"{MINUTES - 10}m",
            "exp_samples": [
                {"labels": f"{{{SERVICE}{labels}}}", "value": round(value, 6)} for labels, value in values.items()
            ],
        }
        for name, values in RECORDED.items()
    ]
    run_promtool(tmp_path, scraped(series), {"promql_expr_test": checks})


def test_a_new_pod_may_have_the_address_of_one_that_left(tmp_path: Path) -> None:
    """Whose rates go on for as long as their window."""
    left, new = (f'namespace="team",service="digits",pod="{pod}",instance="10.0.0.1:8080",variant="x1"' for pod in "ab")
    series = {
        f"gnnserve_batch_seeds_total{{{left}}}": "0+600x20 stale",
        f"gnnserve_batch_seeds_total{{{new}}}": "_x20 0+600x20",
        f'gnnserve_variant_accuracy{{{left},split="validation"}}': "0.9x20 stale",
        f'gnnserve_variant_accuracy{{{new},split="validation"}}': "_x20 0.8x20",
    }
    check = {
        "expr": "round(namespace_service:gnnserve_accuracy:mean_rate5m, 0.000001)",
        "eval_time": "23m",
        "exp_samples": [{"labels": f"{{{SERVICE}}}", "value": 0.8}],
    }
    run_promtool(tmp_path, series, {"promql_expr_test": [check]})


@pytest.mark.parametrize(
    ("wanted", "fast", "slow"),
    [(0.999, 0.0144, 0.006), (0.99, 0.144, 0.06), (0.9, 0.55, 0.325), (0.5, 0.75, 0.625)],
    ids=["99.9 %", "99 %", "90 %", "a median"],
)
def test_limits_stay_within_what_can_be_missed(wanted: float, fast: float, slow: float, tmp_path: Path) -> None:
    checks = [
        {
            "expr": f"round(namespace_service:gnnserve_missed_limit:{name}, 0.0001)",
            "eval_time": "5m",
            "exp_samples": [{"labels": f"{{{SERVICE}}}", "value": limit}],
        }
        for name, limit in (("fast", fast), ("slow", slow))
    ]
    run_promtool(tmp_path, {WANTED: constant(wanted)}, {"promql_expr_test": checks})


def test_every_recording_rule_has_a_value_here() -> None:
    assert {rule["record"] for rule in rules("record")} == RECORDED.keys()


# --- what is installed


def test_promtool_finds_nothing_to_complain_of() -> None:
    done = subprocess.run([promtool(), "check", "rules", *RULES], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout


def test_what_is_installed_is_what_is_tested() -> None:
    values = {"metrics": {"prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}}}}
    (installed,) = (found for found in render(values) if found["kind"] == "PrometheusRule")
    assert installed["apiVersion"] == "monitoring.coreos.com/v1"
    assert installed["spec"] == {"groups": groups()}
    assert installed["metadata"]["labels"]["release"] == "prometheus"


@pytest.mark.parametrize("wanted", ["prometheusRule", "dashboard"])
def test_rules_and_dashboard_are_refused_where_workers_series_have_another_label(wanted: str) -> None:
    values = {"prometheus": {"namespaceLabel": "kube_ns"}, "metrics": {wanted: {"enabled": True}}}
    with pytest.raises(HelmError, match=r"prometheus\.namespaceLabel is kube_ns, but metrics\.prometheusRule and"):
        render(values)


def test_no_rules_unless_asked_for() -> None:
    assert not [found for found in render() if found["kind"] == "PrometheusRule"]
