"""Going back: the revision that spec.revision names is looked up by a Job, and workers switch to it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from tests.support.operator.observed import Namespace
from tests.support.operator.planned_compaction import LITTLE, MUCH, environment, tell
from tests.support.operator.planned_updates import POSTGRES, serving

from gnnserve_operator.fleet import IDLE, Turn

OLD, NEW = "4d4396dec1c5", "9a33e0715c02"
FULL = Turn(limit=2, under_way=2)


def went_on(**spec: Any) -> Namespace:
    """A service that answered from OLD, and answers from NEW since its model was edited."""
    namespace = Namespace(**spec)
    namespace.serve(OLD)
    namespace.edit(model={"hidden": 64})
    namespace.serve(NEW)
    namespace.events.clear()
    return namespace


def message(namespace: Namespace, kind: str = "Ready") -> str:
    return str(namespace.condition(kind)["message"])


def test_a_job_looks_it_up_and_workers_switch_while_they_answer() -> None:
    namespace = went_on()
    deployment = namespace.get("Deployment")
    namespace.edit(revision=OLD)
    namespace.settle()
    manifest = json.loads(environment(namespace.job())["GNNSERVE_MANIFEST"])
    assert manifest["spec"] == {"graph": {"source": {"builtin": "Digits"}}, "revision": OLD}
    assert namespace.reason() == "False Generating"
    namespace.start_job()
    namespace.settle()
    assert f"looks up revision {OLD} (spec.revision)" in message(namespace)
    assert f"Until then revision {NEW} keeps answering." in message(namespace)
    namespace.finish_job(OLD)
    namespace.settle()
    assert namespace.table().revision == namespace.status["revision"] == OLD
    namespace.answer()
    namespace.settle()
    assert namespace.reason() == "True Serving"
    assert f"answer from revision {OLD}." in message(namespace)
    assert "While spec.revision is set, graph, model and variants of the spec change nothing." in message(namespace)
    assert message(namespace, "VariantsGenerated").startswith(
        f"Revision {OLD}, which spec.revision names, is published, with variants x1"
    )
    assert namespace.get("Deployment")["spec"] == deployment["spec"], "no pod is replaced"
    assert ("Normal", "RevisionPublished") in namespace.events


def test_what_is_edited_meanwhile_has_no_job_until_the_name_is_taken_away() -> None:
    namespace = went_on()
    namespace.edit(revision=OLD)
    namespace.serve(OLD)
    before = namespace.jobs()
    namespace.edit(model={"hidden": 32}, variants={"pruning": {"factors": [1, 2]}})
    namespace.settle()
    assert (namespace.jobs(), namespace.reason()) == (before, "True Serving")
    namespace.edit(revision=None)
    namespace.settle()
    assert namespace.reason() == "False Generating"
    assert f"revision {OLD} keeps answering" in message(namespace)
    assert namespace.job()["metadata"]["labels"]["gnnserve.dev/recipe"] == namespace.recipe
    namespace.serve("0c2f5be1a9d7")
    assert namespace.table().revision == "0c2f5be1a9d7"


def test_a_name_that_is_not_there_stalls_and_the_revision_before_answers_on() -> None:
    namespace = went_on()
    namespace.edit(revision="0123456789ab")
    namespace.settle()
    why = f"spec.revision: 0123456789ab is not published; there are, newest first: {NEW}; name one of these"
    namespace.fail_job(2, why, reason="PodFailurePolicy")
    namespace.settle()
    assert (namespace.reason(), namespace.reason("Stalled")) == ("False GenerationFailed", "True GenerationFailed")
    assert why in message(namespace) and f"revision {NEW} keeps answering" in message(namespace)
    assert namespace.table().revision == NEW
    namespace.edit(revision=OLD)
    namespace.serve(OLD)


def test_it_neither_waits_for_other_services_training_nor_takes_their_turn() -> None:
    namespace = went_on()
    namespace.turns = replace(namespace.turns, generation=FULL)
    namespace.edit(revision=OLD)
    planned = namespace.reconcile()
    assert namespace.job()["spec"]["suspend"] is False
    assert planned.standings.generation == IDLE
    namespace.start_job()
    assert namespace.reconcile().standings.generation == IDLE
    namespace.serve(OLD)


@pytest.mark.parametrize("known_to_spec", [True, False], ids=["of the spec", "of the old revision alone"])
def test_routing_may_name_what_the_old_revision_has(*, known_to_spec: bool) -> None:
    namespace = went_on()
    factors = [1, 2, 4] if known_to_spec else [1, 8]
    routing = {"mode": "Static", "variant": "x2"}
    namespace.edit(revision=OLD, variants={"pruning": {"factors": factors}}, routing=routing)
    namespace.serve(OLD)
    assert namespace.table().base_variant == "x2"
    namespace.edit(routing={"mode": "Static", "variant": "x8"})
    namespace.settle()
    assert namespace.reason() == "False VariantUnknown"
    assert f"revision {OLD} has x1 x2 x4" in message(namespace) and "take spec.revision away" in message(namespace)
    assert namespace.table().base_variant == "x2", "the last table holds"


def test_its_model_over_a_newer_graph_is_another_revision() -> None:
    namespace = serving(POSTGRES)
    namespace.edit(revision=OLD)
    namespace.settle()
    namespace.finish_job(NEW, offset=7)
    namespace.settle()
    tell(namespace, *[msgspec.structs.replace(LITTLE, base=7)] * len(namespace.workers()))
    namespace.settle()
    assert namespace.table().revision == NEW
    assert f"the model of {OLD} (spec.revision) over the graph as it was compacted" in message(
        namespace, "VariantsGenerated"
    )
    tell(namespace, *[msgspec.structs.replace(MUCH, base=7)] * len(namespace.workers()))
    namespace.settle()
    made = environment(namespace.job())
    assert made["GNNSERVE_COMPACT"] == NEW
    assert json.loads(made["GNNSERVE_MANIFEST"])["spec"]["revision"] == OLD
    assert namespace.reason("Reconciling") == "True Compacting"
