"""Routing that workers are told, and what is known of their load: between the plan and the slow loop.

The slow loop itself is `gnnserve_routing`, which servers outside of a cluster use too. Here is what only a cluster has:
workers that come and go, a Prometheus that may not be configured, revisions that lack a variant, restarts of the
operator.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gnnserve_api.pods.generation import GenerationResult
from gnnserve_api.pods.routing import RoutingTable, VariantRoute
from gnnserve_api.spec.service import GNNService, GNNServiceSpec
from gnnserve_api.status.reasons import Reason
from gnnserve_api.status.service_status import ConditionType
from gnnserve_api.status.verdict import Problem, Verdict
from gnnserve_operator.decide.repository import PublishedRevision
from gnnserve_operator.decide.status import condition_in
from gnnserve_operator.decide.workers import Workers
from gnnserve_operator.desired.routing import declared_table
from gnnserve_operator.observed import ObservedRouting, ObservedState
from gnnserve_operator.settings import Settings
from gnnserve_routing.decision import (
    RoutingDecision,
    RoutingState,
    TickContext,
    recover_state,
    run_tick,
    undecided,
    unknown_variants,
)
from gnnserve_routing.signals import QueryAnswer, Silence, build_query

_NOT_SERVING = Verdict(None, Reason.NOT_SERVING, "No worker answers; nothing is measured until one does.")
_NOT_CONFIGURED = Verdict(
    False,
    Reason.NOT_CONFIGURED,
    "No Prometheus is named, by spec.routing.prometheus.url or the chart's prometheus.url: workers go by the profile "
    "and by what they measure themselves.",
)
_NOT_ASKED = Verdict(None, Reason.NOT_MEASURED, "Prometheus is about to be asked for the first time.")
_NOT_ABOUT_LOAD = frozenset({Reason.NOT_SERVING, Reason.NOT_CONFIGURED, Reason.VARIANT_UNKNOWN, Reason.INVALID_SPEC})
_HOLDS = {"True": True, "False": False}


@dataclass(frozen=True, slots=True)
class PrometheusQuestion:
    """Queries that the slow loop is to ask."""

    url: str
    query: str
    interval_s: float


@dataclass(frozen=True, slots=True)
class ServiceRouting:
    decision: RoutingDecision
    table: RoutingTable | None = None
    """What workers are told; None: nothing yet."""
    result: GenerationResult | None = None
    """The result of generating its revision."""
    question: PrometheusQuestion | None = None
    """What to ask; None: no worker answers requests, or no Prometheus is named."""
    problem: Problem | None = None

    @property
    def conditions(self) -> dict[ConditionType, Verdict]:
        return {
            ConditionType.METRICS_AVAILABLE: self.decision.metrics_available,
            ConditionType.OBJECTIVE_MET: self.decision.objective_met,
            ConditionType.CAPACITY_SUFFICIENT: self.decision.capacity_sufficient,
        }

    @property
    def base_variant(self) -> str | None:
        """The variant that the slow loop chose; None: it chose none."""
        chosen = self.decision.state.base
        return chosen if self.table is not None and self.table.base_variant == chosen else None

    @property
    def why_base(self) -> str | None:
        return None if self.base_variant is None else self.decision.state.reason


def decide_declared_claim(spec: GNNServiceSpec, published: PublishedRevision | None, observed: ObservedState) -> str:
    """Uid of the claim that the declared revision lies in; empty where none is known."""
    before = "" if observed.routing is None else observed.routing.claim_uid
    if published is None or _find_unknown_variant(spec, published.result) is not None:
        return before
    return published.claim_uid or before


def decide_service_routing(
    service: GNNService,
    published: PublishedRevision | None,
    workers: Workers,
    observed: ObservedState,
    status: Mapping[str, Any],
    settings: Settings,
    now: datetime,
) -> ServiceRouting:
    """`status`: as it is now."""
    spec = service.spec
    impossible = find_impossible_variant(spec)
    if published is None:
        return ServiceRouting(undecided(RoutingState(""), _NOT_SERVING), problem=impossible)
    result = published.result
    if result.recipe == spec.recipe():
        impossible = None  # what there is counts, below
    state = _state(result.revision, observed, status)
    problem = _find_unknown_variant(spec, result)
    if problem is not None:
        # Workers would refuse such a table. The revision that is being generated may have those variants.
        kept = observed.routing or ObservedRouting()
        decision = undecided(state, Verdict(None, problem.reason, "spec.routing cannot be followed; see Ready."))
        return ServiceRouting(
            decision, kept.table, kept.result, problem=problem if result.recipe == spec.recipe() else impossible
        )
    question = _question(service, settings) if workers.ready and not spec.suspend else None
    known, said = _known(state, spec, observed, status, question, settings)
    since_s = {pod.name: _unix_time(pod.ready_since) for pod in workers.ready}
    candidates = _candidates(state.revision, workers, observed)
    context = TickContext(spec, declared_table(spec, result), candidates, len(workers.ready), since_s)
    tick = run_tick(known, context, said, now)
    return ServiceRouting(tick.decision, tick.table, result, question, problem=impossible)


def _known(
    state: RoutingState,
    spec: GNNServiceSpec,
    observed: ObservedState,
    status: Mapping[str, Any],
    question: PrometheusQuestion | None,
    settings: Settings,
) -> tuple[RoutingDecision, QueryAnswer | Silence | None]:
    """What was decided last, and what Prometheus answered since, as far as either is about the present load."""
    if _url(spec, settings) is None:
        return undecided(RoutingState(state.revision), _NOT_CONFIGURED), None
    if question is None:
        return undecided(state, _NOT_SERVING), None
    known = observed.routed
    if known is None or known.state is not state or known.metrics_available.reason in _NOT_ABOUT_LOAD:
        known = RoutingDecision(
            state,
            _said(status, ConditionType.METRICS_AVAILABLE),
            _said(status, ConditionType.OBJECTIVE_MET),
            _said(status, ConditionType.CAPACITY_SUFFICIENT),
        )
    return known, observed.measured


def _question(service: GNNService, settings: Settings) -> PrometheusQuestion | None:
    spec, metadata = service.spec, service.metadata
    url = _url(spec, settings)
    if url is None:
        return None
    interval_s = float(spec.routing.interval_seconds)
    query = build_query(metadata.name, metadata.namespace, interval_s, settings.prometheus_namespace_label)
    return PrometheusQuestion(url, query, interval_s)


def _url(spec: GNNServiceSpec, settings: Settings) -> str | None:
    return spec.routing.prometheus.url or settings.prometheus_url


def _state(revision: str, observed: ObservedState, status: Mapping[str, Any]) -> RoutingState:
    if observed.routed is not None and observed.routed.state.revision == revision:
        return observed.routed.state
    objective_met = condition_in(status, ConditionType.OBJECTIVE_MET).get("status")
    table = None if observed.routing is None else observed.routing.table
    return recover_state(revision, table, _HOLDS.get(str(objective_met)))


def _candidates(revision: str, workers: Workers, observed: ObservedState) -> tuple[VariantRoute, ...]:
    """The revision's variants, as the first ready worker that answers from it reports them; workers of older versions
    report no costs."""
    routes = {answer.pod: answer.route for answer in observed.answers if answer.route is not None}
    told = (routes[pod.name] for pod in workers.ready if pod.name in routes)
    return next((route.variants for route in told if route.revision == revision and route.variants), ())


def _unix_time(stamp: str) -> float:
    try:
        return datetime.fromisoformat(stamp).timestamp()
    except ValueError:  # not known: treated as long ago
        return -math.inf


def _said(status: Mapping[str, Any], kind: ConditionType) -> Verdict:
    """The verdict that the status holds; after a restart it counts until Prometheus is asked again."""
    condition = condition_in(status, kind)
    try:
        verdict = Verdict(_HOLDS.get(condition["status"]), Reason(condition["reason"]), condition["message"])
    except (KeyError, ValueError):
        return _NOT_ASKED
    return verdict if verdict.reason not in _NOT_ABOUT_LOAD else _NOT_ASKED


def find_impossible_variant(spec: GNNServiceSpec) -> Problem | None:
    """Something that spec.routing or spec.embeddings names and that no revision of this spec will have, or that cannot
    be chosen: known before a Job is spent."""
    impossible = spec.impossible_variants()
    if not impossible:
        return _find_fixed_variant(spec) or _find_unfit_for_embeddings(spec)
    return Problem(
        Reason.VARIANT_UNKNOWN,
        f"spec.routing names {' and '.join(impossible)}, which spec.variants does not generate. Name some of "
        f"{' '.join(spec.following_variants())}, or change spec.variants; no Job is started before.",
        needs_person=True,
    )


def _find_unfit_for_embeddings(spec: GNNServiceSpec) -> Problem | None:
    """A variant that has no embeddings, or none that could be searched."""
    why = spec.unfit_for_embeddings()
    if why is None:
        return None
    return Problem(Reason.VARIANT_UNKNOWN, f"spec.embeddings: {why}. No Job is started before.", needs_person=True)


def _find_fixed_variant(spec: GNNServiceSpec) -> Problem | None:
    """Variants that cannot be chosen while the graph changes."""
    if spec.updates is None:
        return None
    following, fixed = spec.following_variants(), spec.fixed_variants()
    if following and not fixed:
        return None
    message = (
        f"spec.routing names {' and '.join(fixed)}, which cannot follow changes of the graph. Name some of "
        f"{' '.join(following)}, or leave out spec.updates."
        if following
        else "spec.updates is given, and none of spec.variants follows changes of the graph. Add variants.oneRow with "
        "hops 0, or use a model.architecture that samples neighbours."
    )
    return Problem(Reason.VARIANT_UNKNOWN, message, needs_person=True)


def _find_unknown_variant(spec: GNNServiceSpec, result: GenerationResult) -> Problem | None:
    """Something that spec.routing names and the revision lacks, or that cannot be chosen from it."""
    names = [variant.name for variant in result.variants]
    unknown = unknown_variants(spec, names)
    if not unknown:
        return _find_fixed_variant(spec)
    otherwise = "have it generated by spec.variants" if spec.revision is None else "take spec.revision away"
    return Problem(
        Reason.VARIANT_UNKNOWN,
        f"spec.routing names {' and '.join(unknown)}, but revision {result.revision} has {' '.join(names)}. Name one "
        f"of these, or {otherwise}; until then the last routing table holds.",
        needs_person=True,
    )
