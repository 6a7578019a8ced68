"""A revision whose files are damaged is generated again, twice a day at most, and by itself."""

from __future__ import annotations

import copy
from dataclasses import replace
from datetime import timedelta

import msgspec
import pytest
from tests.support.operator.observed import Namespace, make_route

from gnnserve_api.pods.routing import Damage
from gnnserve_operator.desired.metadata import REPAIR_ANNOTATION
from gnnserve_operator.desired.routing import NO_REPAIRS, RepairRecord, decode_repairs, encode_repairs
from gnnserve_operator.fleet import IDLE, Stance, Turn
from gnnserve_operator.kinds import observed_ref
from gnnserve_operator.observed import Rejection


def serving() -> Namespace:
    namespace = Namespace()
    namespace.serve()
    return namespace


def find_damage(namespace: Namespace, *, answers: bool = True, repair: int | None = None) -> None:
    """Its workers have looked at the files of what they are told to answer from, twice."""
    table = namespace.table()
    damage = Damage(table.revision, table.repair if repair is None else repair)
    route = make_route(table, problem="x1.npy: was altered")
    if answers:
        namespace.routes = dict.fromkeys(namespace.workers(), msgspec.structs.replace(route, damaged=damage))
    else:
        namespace.routes = dict.fromkeys(namespace.workers(), "the worker is loading: x1.npy: was altered")
        namespace.damage = dict.fromkeys(namespace.workers(), damage)


def repair(namespace: Namespace) -> str:
    """As far as a Job has published again; its uid."""
    before = namespace.job()["metadata"]["uid"]
    find_damage(namespace)
    namespace.settle()
    after = namespace.job()["metadata"]["uid"]
    assert after != before
    namespace.finish_job()
    namespace.settle()
    return str(after)


def test_a_damaged_revision_is_generated_again_while_its_workers_answer() -> None:
    namespace = serving()
    job = namespace.job()["metadata"]
    find_damage(namespace)
    namespace.settle()
    again = namespace.job()["metadata"]
    assert (again["name"], again["uid"] == job["uid"]) == (job["name"], False)
    assert namespace.reason() == "False RevisionDamaged"
    assert namespace.reason("VariantsGenerated") == "False RevisionDamaged"
    assert namespace.reason("Stalled") == "False Progressing"
    message = namespace.condition("Ready")["message"]
    assert message.startswith("Files of revision rev-1 were found damaged at 20")
    assert "repair 1 of at most 2 within a day" in message
    assert message.endswith("Until then revision rev-1 keeps answering.")
    assert namespace.table().revision == "rev-1"

    namespace.finish_job()
    namespace.settle()
    assert namespace.table().repair == 1
    namespace.answer()
    namespace.settle()
    assert namespace.reason() == "True Serving"
    assert namespace.jobs() == [job["name"]]


def test_a_worker_that_answers_from_nothing_tells_of_damage_too() -> None:
    namespace = serving()
    before = namespace.job()["metadata"]["uid"]
    find_damage(namespace, answers=False)
    namespace.settle()
    assert namespace.job()["metadata"]["uid"] != before
    assert namespace.reason() == "False RevisionDamaged"


def test_words_of_trouble_alone_train_nothing() -> None:
    namespace = serving()
    before = namespace.job()["metadata"]["uid"]
    namespace.answer(problem="the volume cannot be read")
    namespace.settle()
    assert namespace.job()["metadata"]["uid"] == before
    assert namespace.reason() == "False RevisionNotLoaded"


def test_what_was_found_before_a_repair_begins_no_other() -> None:
    namespace = serving()
    job = repair(namespace)
    find_damage(namespace, repair=0)
    namespace.settle()
    assert namespace.job()["metadata"]["uid"] == job


def test_damage_of_another_revision_is_not_of_this_one() -> None:
    namespace = serving()
    before = namespace.job()["metadata"]["uid"]
    namespace.answer(damaged=Damage("rev-0"))
    namespace.settle()
    assert namespace.job()["metadata"]["uid"] == before


def test_a_volume_that_goes_on_damaging_files_needs_a_person() -> None:
    namespace = serving()
    repair(namespace)
    job = repair(namespace)
    find_damage(namespace)
    namespace.settle()
    assert namespace.job()["metadata"]["uid"] == job
    assert namespace.reason("Stalled") == "True RevisionDamaged"
    assert "its volume damages files" in namespace.condition("Stalled")["message"]
    namespace.now += timedelta(hours=25)
    namespace.settle()
    assert namespace.job()["metadata"]["uid"] != job, "a day later it may be tried again"


def test_a_deleted_job_is_no_reason_to_repair_again() -> None:
    namespace = serving()
    repair(namespace)
    namespace.answer()
    namespace.settle()
    name = namespace.jobs()[0]
    del namespace.objects["Job", name]
    namespace.settle()
    assert (namespace.jobs(), namespace.reason()) == ([], "True Serving")


def test_an_operator_that_starts_anew_goes_on_with_the_repair() -> None:
    namespace = serving()
    find_damage(namespace)
    namespace.settle()
    job = namespace.job()["metadata"]["uid"]
    namespace.routed = None
    namespace.answer()  # it answers from what it has mapped, and has yet to look again
    namespace.settle()
    assert (namespace.job()["metadata"]["uid"], namespace.reason()) == (job, "False RevisionDamaged")


def test_another_model_ends_the_repair() -> None:
    namespace = serving()
    find_damage(namespace)
    namespace.settle()
    namespace.edit(model={"hidden": 16})
    namespace.settle()
    assert namespace.reason() == "False Generating"
    namespace.finish_job("rev-2")
    namespace.settle()
    namespace.answer()
    namespace.settle()
    assert (namespace.reason(), namespace.table().revision) == ("True Serving", "rev-2")


def test_a_repair_that_another_model_ended_does_not_count() -> None:
    namespace = serving()
    for _ in range(3):
        find_damage(namespace)
        namespace.settle()
        namespace.edit(model={"hidden": 16})
        namespace.settle()
        namespace.edit(model=None)
        namespace.settle()
    assert namespace.reason() == "False RevisionDamaged"
    assert "repair 1 of at most 2" in namespace.condition("Ready")["message"]
    namespace.finish_job()
    namespace.settle()
    namespace.answer()
    namespace.settle()
    assert (namespace.table().repair, namespace.reason()) == (1, "True Serving")


def test_a_job_that_fails_to_repair_says_so() -> None:
    namespace = serving()
    find_damage(namespace)
    namespace.settle()
    namespace.fail_job(1, "the disk or its quota is full")
    namespace.settle()
    assert namespace.reason("Stalled") == "True GenerationFailed"
    assert namespace.condition("Ready")["message"].startswith("Files of revision rev-1 were found damaged at 20")


def test_nothing_is_deleted_before_the_repair_is_remembered() -> None:
    """Else a ConfigMap that cannot be written would lead to one Job after another."""
    namespace = serving()
    job = namespace.job()["metadata"]["uid"]
    table = namespace.get("ConfigMap")
    find_damage(namespace)
    for _ in range(3):
        planned = namespace.plan()
        assert planned.delete == ()
        assert all(manifest["kind"] != "Job" for manifest in planned.apply)
        namespace.rejections = (Rejection(observed_ref(table), "denied by a webhook"),)
    namespace.rejections = ()
    namespace.settle()
    assert namespace.job()["metadata"]["uid"] != job


def test_a_repair_that_waits_for_its_turn_says_what_it_waits_to_mend() -> None:
    namespace = serving()
    namespace.turns = replace(namespace.turns, generation=Turn(limit=1, under_way=1))
    find_damage(namespace)
    planned = namespace.settle()
    assert planned.standings.generation.stance is Stance.WAITING
    assert namespace.job()["spec"]["suspend"] is True
    assert namespace.reason() == "False Queued"
    message = namespace.condition("Ready")["message"]
    assert message.startswith("Files of revision rev-1 were found damaged at 20")
    assert "it is next. Until then revision rev-1 keeps answering" in message

    namespace.edit(suspend=True)
    assert namespace.settle().standings.generation == IDLE, "it keeps no other service waiting"
    namespace.edit(suspend=False)
    namespace.turns = replace(namespace.turns, generation=Turn(limit=1))
    namespace.settle()
    assert namespace.job()["spec"]["suspend"] is False
    namespace.serve()
    assert (namespace.table().repair, namespace.reason()) == (1, "True Serving")


def test_an_event_tells_of_damage_once_for_each_repair() -> None:
    namespace = serving()
    for times in (1, 2):
        repair(namespace)
        namespace.answer()
        namespace.settle()
        assert namespace.events.count(("Warning", "RevisionDamaged")) == times


def test_a_table_that_was_edited_during_a_repair_does_not_have_it_done_twice() -> None:
    namespace = serving()
    find_damage(namespace)
    namespace.settle()
    job = namespace.job()["metadata"]["uid"]
    namespace.get("ConfigMap")["data"]["routing.json"] = "{}"
    namespace.finish_job()
    namespace.settle()
    assert (namespace.job()["metadata"]["uid"], namespace.table().repair) == (job, 1)
    namespace.answer()
    namespace.settle()
    assert namespace.reason() == "True Serving"


def test_a_claim_that_is_deleted_during_a_repair_is_moved_from_and_nothing_is_left_of_the_repair() -> None:
    namespace = serving()
    find_damage(namespace)
    namespace.settle()
    namespace.get("PersistentVolumeClaim")["metadata"]["deletionTimestamp"] = "2026-01-01T01:00:00Z"
    namespace.settle()
    assert namespace.condition("RepositoryKept")["reason"] == "VolumeClaimTerminating"
    (job,) = namespace.jobs()
    (claim,) = [
        volume["persistentVolumeClaim"]["claimName"]
        for volume in namespace.job()["spec"]["template"]["spec"]["volumes"]
        if "persistentVolumeClaim" in volume
    ]
    assert claim == "digits-repository-2"
    namespace.finish_job()
    find_damage(namespace)  # of the workers that are about to leave
    namespace.settle()
    assert (namespace.jobs(), namespace.table().repair) == ([job], 0)
    namespace.roll_out()
    namespace.answer()
    namespace.settle()
    assert (namespace.jobs(), namespace.reason(), namespace.reason("Reconciling")) == (
        [job], "True Serving", "False Settled",
    )  # fmt: skip


def test_a_table_that_is_told_late_does_not_have_the_next_claim_repaired() -> None:
    """The repair of a claim that goes is over, and the watch of the table has yet to tell so."""
    namespace = serving()
    find_damage(namespace)
    namespace.settle()
    told_late = copy.deepcopy(namespace.get("ConfigMap"))
    namespace.get("PersistentVolumeClaim")["metadata"]["deletionTimestamp"] = "2026-01-01T01:00:00Z"
    namespace.settle()
    namespace.finish_job()
    namespace.get("ConfigMap").update(told_late)
    planned = namespace.plan()
    assert planned.delete == (), "the Job that generated the revision, undamaged, in the next claim"
    (table,) = (manifest for manifest in planned.apply if manifest["kind"] == "ConfigMap")
    assert REPAIR_ANNOTATION not in table["metadata"]["annotations"]
    assert "damaged" not in str(planned.status and planned.status["conditions"][0]["message"])


@pytest.mark.parametrize(
    "record",
    [
        RepairRecord(1, True, ()),
        RepairRecord(1, True, ("yesterday",)),
        RepairRecord(1, False, ("2026-01-01T00:00:00",)),
        RepairRecord(0, True, ("2026-01-01T00:00:00Z",)),
        RepairRecord(-3, False, ()),
    ],
    ids=["pending since never", "no time", "a time of no zone", "a repair without a number", "a number below zero"],
)
def test_a_record_that_a_person_edited_is_forgotten_where_it_makes_no_sense(record: RepairRecord) -> None:
    assert decode_repairs(encode_repairs(record)) == NO_REPAIRS


def test_a_record_that_cannot_be_read_is_forgotten() -> None:
    assert decode_repairs('{"count": "many"}') == NO_REPAIRS
