"""A second revision for a share of the requests: what workers are told, and what the condition says."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError
from tests.support.operator.observed import Namespace, make_service

from gnnserve_api.pods.change_log import UpdatesState
from gnnserve_api.pods.routing import Canary, CanaryRoute

KIND = "CanaryAnswers"
OLDER, OTHER = "0123456789ab", "ba9876543210"


def canary(revision: str = OLDER, percent: int = 5) -> dict[str, Any]:
    return {"canary": {"revision": revision, "percent": percent}}


def serving(**spec: Any) -> Namespace:
    namespace = Namespace(**spec)
    namespace.serve()
    return namespace


def told(namespace: Namespace) -> str:
    """What workers are told of a second revision, once the operator has looked."""
    namespace.settle()
    found = namespace.table().canary
    return "" if found is None else f"{found.revision} {found.percent}"


def test_without_the_field_workers_are_told_of_one_revision_and_there_is_no_condition() -> None:
    namespace = serving()
    assert told(namespace) == ""
    assert "canary" not in namespace.get("ConfigMap")["data"]["routing.json"]
    assert namespace.condition(KIND) == {}


def test_workers_are_told_of_the_share_and_no_pod_or_job_is_made_for_it() -> None:
    namespace = serving()
    before, jobs = namespace.get("Deployment")["spec"], namespace.jobs()
    namespace.edit(routing=canary())
    assert told(namespace) == f"{OLDER} 5"
    assert namespace.table().revision == "rev-1"
    assert (namespace.reason(), namespace.reason(KIND)) == ("True Serving", "Unknown CanaryLoading")
    namespace.edit(routing=canary(percent=50))
    assert told(namespace) == f"{OLDER} 50"
    namespace.edit(routing={})
    assert told(namespace) == ""
    assert (namespace.get("Deployment")["spec"], namespace.jobs()) == (before, jobs)


@pytest.mark.parametrize(
    ("route", "reason", "words"),
    [
        pytest.param(None, "Unknown CanaryLoading", "has not said yet that it answers 5 %", id="nothing"),
        pytest.param(
            CanaryRoute(OLDER, 5, answers=False, problem="revision 0123456789ab cannot be loaded: it is not published"),
            "False CanaryNotLoaded",
            "answers all requests: revision 0123456789ab cannot be loaded: it is not published.",
            id="it cannot be loaded",
        ),
        pytest.param(
            CanaryRoute(OLDER, 5, answers=True, problem="its files were removed"),
            "False CanaryNotLoaded",
            "answers the share of 0123456789ab, which a restart would not find: its files were removed.",
            id="it answers without its files",
        ),
        pytest.param(
            CanaryRoute(OLDER, 5, answers=True, updates=UpdatesState(9, 3, 6, 45.0)),
            "False WorkerBehind",
            "has lacked a part of the log of changes for over 30 seconds",
            id="it is behind the log",
        ),
        pytest.param(
            CanaryRoute(OLDER, 5, answers=True, updates=UpdatesState(9, 8, 1, 0.5)),
            "True CanaryAnswers",
            "Revision 0123456789ab answers 5 %",
            id="it follows the log",
        ),
        pytest.param(CanaryRoute(OTHER, 5, answers=True), "Unknown CanaryLoading", "5 % of the requests", id="another"),
        pytest.param(CanaryRoute(OLDER, 9, answers=True), "Unknown CanaryLoading", "5 % of the requests", id="a share"),
        pytest.param(
            CanaryRoute(OLDER, 5, answers=True),
            "True CanaryAnswers",
            "Revision 0123456789ab answers 5 % of the requests, and rev-1 the others.",
            id="as declared",
        ),
    ],
)  # fmt: skip
def test_the_condition_is_what_workers_say(route: CanaryRoute | None, reason: str, words: str) -> None:
    namespace = serving(routing=canary())
    namespace.answer(**({} if route is None else {"canary": route}))
    namespace.settle()
    assert namespace.reason(KIND) == reason
    assert words in namespace.condition(KIND)["message"]
    assert namespace.reason() == "True Serving"


def test_the_shares_are_not_as_declared_until_workers_have_switched_to_the_first() -> None:
    namespace = serving(routing=canary())
    namespace.answer(revision=OTHER, canary=CanaryRoute(OLDER, 5, answers=True))
    namespace.settle()
    assert namespace.reason(KIND) == "Unknown CanaryLoading"
    assert "and the others from rev-1" in namespace.condition(KIND)["message"]


def test_the_revision_that_answers_gets_its_share_once_another_one_is_published() -> None:
    """A canary that names the revision that answers waits, until a new model is published and answers beside it."""
    namespace = Namespace(routing=canary(OLDER, 95))
    namespace.settle()
    assert namespace.reason(KIND) == "Unknown NotServing"
    namespace.serve(OLDER)
    assert told(namespace) == ""
    assert namespace.reason(KIND) == "False CanaryIsLive"
    namespace.edit(model={"hidden": 32})
    namespace.serve(OTHER)
    assert namespace.table().revision == OTHER
    assert told(namespace) == f"{OLDER} 95"


def test_going_back_to_the_second_revision_keeps_it_until_it_is_the_first() -> None:
    namespace = Namespace(routing=canary(OLDER, 95))
    namespace.serve(OLDER)
    namespace.edit(model={"hidden": 32})
    namespace.serve(OTHER)
    namespace.edit(revision=OLDER, routing=canary(OLDER, 100))
    assert (told(namespace), namespace.table().revision) == (f"{OLDER} 100", OTHER), "until a Job has verified it"
    namespace.serve(OLDER)
    assert (told(namespace), namespace.table().revision) == ("", OLDER)
    assert namespace.reason(KIND) == "False CanaryIsLive"
    namespace.edit(routing={})
    assert told(namespace) == ""
    assert namespace.condition(KIND) == {}


def test_going_back_over_a_newer_version_of_the_graph_is_told_once_workers_answer_from_it() -> None:
    """What answers has the second revision's model, and another name, since changes were compacted meanwhile."""
    over_newer = "cccccccccccc"
    namespace = Namespace(routing=canary(OLDER, 95))
    namespace.serve(OLDER)
    namespace.edit(model={"hidden": 32})
    namespace.serve(OTHER)
    namespace.edit(revision=OLDER, routing=canary(OLDER, 100))
    namespace.settle()
    namespace.answer(canary=CanaryRoute(OLDER, 100, answers=True))
    namespace.settle()
    assert (namespace.table().revision, namespace.reason(KIND)) == (OTHER, "True CanaryAnswers")
    namespace.serve(over_newer)
    assert (told(namespace), namespace.table().revision) == (f"{OLDER} 100", over_newer), "until the field is away"
    assert namespace.reason(KIND) == "False CanaryIsLive"
    assert f"Revision {over_newer} answers as the first" in namespace.condition(KIND)["message"]
    namespace.answer(revision=OTHER, canary=CanaryRoute(OLDER, 100, answers=True))
    namespace.settle()
    assert namespace.reason(KIND) == "Unknown CanaryLoading", "a worker has yet to switch"


def test_planning_again_plans_nothing() -> None:
    namespace = serving(routing=canary())
    namespace.answer(canary=CanaryRoute(OLDER, 5, answers=True))
    namespace.settle()
    before = dict(namespace.objects)
    assert namespace.reconcile().status is None
    assert namespace.objects == before


def test_it_turns_into_an_event() -> None:
    namespace = serving(routing=canary())
    namespace.answer(canary=CanaryRoute(OLDER, 5, answers=False, problem="it is damaged"))
    namespace.settle()
    assert "CanaryNotLoaded" in [reason for _, reason in namespace.events]


def test_jobs_that_remove_older_models_keep_the_second_revision_whatever_its_share() -> None:
    def manifest_of(namespace: Namespace) -> dict[str, Any]:
        (container,) = namespace.job()["spec"]["template"]["spec"]["containers"]
        env = {each["name"]: each.get("value") for each in container["env"]}
        return dict(json.loads(env["GNNSERVE_MANIFEST"])["spec"])

    for percent in (5, 50):
        namespace = Namespace(routing=canary(percent=percent), repository={"history": 3})
        namespace.settle()
        assert manifest_of(namespace)["routing"] == {"canary": {"revision": OLDER, "percent": 0}}
    without_history = Namespace(routing=canary())
    without_history.settle()
    assert "routing" not in manifest_of(without_history)


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        pytest.param({"routing": canary(percent=101)}, "less than or equal to 100", id="a share above 100"),
        pytest.param({"routing": canary(percent=-1)}, "greater than or equal to 0", id="a share below 0"),
        pytest.param({"routing": canary("latest")}, "should match pattern", id="no name of a revision"),
        pytest.param(
            {
                "routing": canary(),
                "updates": {"log": {"postgres": {"secretName": "log"}}},
                "worker": {"resources": {"limits": {"memory": "3Gi"}}},
            },
            "updates.maxDelta 2Gi must be less than half of worker.resources.limits.memory 3Gi",
            id="changes of both revisions that do not fit into memory",
        ),
        pytest.param(
            {"routing": canary(), "worker": {"poolRef": {"name": "pool"}}},
            "routing.canary must not be given with worker.poolRef",
            id="a pool",
        ),
    ],
)
def test_specs_that_cannot_be_followed_are_refused(spec: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match="canary") as raised:
        make_service(**spec)
    assert problem in str(raised.value)


def test_the_table_names_it_unless_it_is_the_revision_itself() -> None:
    spec = make_service(routing=canary()).spec
    assert spec.routing_table(OTHER).canary == Canary(OLDER, 5)
    assert spec.routing_table(OLDER).canary is None
    assert spec.routing.second_revision == OLDER
