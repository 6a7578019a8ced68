"""Claims that outlive what they were made for: released first, told of when they stay, and brought back."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from tests.control.campaign.play import play_alone
from tests.control.campaign.scenarios import CLAIM, LIVING, delete_claim, serve, write
from tests.control.campaign.sim_operator import RESYNC_S
from tests.control.campaign.world import KEY, World
from tests.support.operator.observed import Namespace, make_service

from gnnserve_api.spec.repository import DeletionPolicy
from gnnserve_operator.decide.repository import decide_claim, decide_pool_claim
from gnnserve_operator.desired.metadata import ADOPT_ANNOTATION, BRING_BACK_ANNOTATION, OWNER_UID
from gnnserve_operator.errors import ConflictError, GoneError, LostLeadershipError, RetryLaterError
from gnnserve_operator.kinds import ServiceKey
from gnnserve_operator.observed import ObservedClaim
from gnnserve_operator.retention import release_all

Manifest = dict[str, Any]
NAME = "digits-repository"
_FIELDS = re.compile(r"spec\.repository\.claimName: (\S+?)(?: and spec\.updates\.adopt: (\S+?))?(?:[.;]|$)")


def claim_of(world: World) -> Manifest:
    return world.cluster.get(CLAIM, NAME)


def owners(claim: Manifest) -> list[str]:
    return [owner["uid"] for owner in claim["metadata"].get("ownerReferences") or ()]


def uid_of(world: World) -> str:
    return str(world.cluster.get("GNNService", KEY.name)["metadata"]["uid"])


def events(world: World) -> list[Manifest]:
    return [
        found for (kind, _, _), found in world.cluster.objects.items()
        if kind == "Event" and found["reason"] == "RepositoryRetained"
    ]  # fmt: skip


async def serves(world: World) -> None:
    await world.until(lambda: world.condition("Ready").get("status") == "True", limit_s=RESYNC_S)


async def deleted(world: World) -> str:
    """The service is deleted; returns its uid."""
    uid = uid_of(world)
    world.delete()
    await world.run_for(5)
    return uid


# --- what is decided


@pytest.mark.parametrize(
    ("spec", "was_retained", "expected"),
    [
        pytest.param({}, False, False, id="a service that takes no changes has its claim deleted with it"),
        pytest.param({"updates": LIVING}, False, True, id="a claim follows the log that lies there, or was compacted"),
        pytest.param({}, True, True, id="a log that the spec does not name any more is there all the same"),
        pytest.param({"repository": {"deletionPolicy": "Retain"}}, False, True, id="it is asked for"),
        pytest.param(
            {"updates": LIVING, "repository": {"deletionPolicy": "Delete"}}, True, False, id="a person gives up the log"
        ),
    ],
)
def test_whether_a_claim_stays(spec: Manifest, was_retained: bool, expected: bool) -> None:
    claim = ObservedClaim("c", "2026-01-01T00:00:00Z", name=NAME, is_retained=was_retained)
    assert decide_claim("uid", make_service(**spec).spec, claim, NAME).is_retained is expected


def test_the_claim_of_a_pool_stays_unless_it_is_to_go() -> None:
    place = make_service().spec.repository
    assert decide_pool_claim("shared", place, None).is_retained
    place = place.model_copy(update={"deletion_policy": DeletionPolicy.DELETE})
    assert not decide_pool_claim("shared", place, None).is_retained


def test_a_retained_claim_names_its_owner_and_the_way_back_and_is_bound_to_nothing() -> None:
    namespace = Namespace(updates={**LIVING, "adopt": "0f65e9d8-1234-4321-aaaa-0123456789ab"})
    namespace.settle()
    metadata = namespace.get(CLAIM)["metadata"]
    assert "ownerReferences" not in metadata
    assert metadata["labels"][OWNER_UID] == "uid-of-the-service"
    assert metadata["annotations"][BRING_BACK_ANNOTATION] == (
        "spec.repository.claimName: digits-repository and spec.updates.adopt: 0f65e9d8-1234-4321-aaaa-0123456789ab"
    ), "the log is known by the uid of the service that began it"


# --- what happens


def test_a_claim_with_a_log_stays_when_its_service_is_deleted_and_an_event_says_how_to_bring_it_back() -> None:
    async def scene(world: World) -> None:
        await serve(world, updates=LIVING)
        before = claim_of(world)
        uid = await deleted(world)
        assert claim_of(world) == before
        assert {found["kind"] for found in world.cluster.objects.values()} <= {CLAIM, "Event"}
        (event,) = events(world)
        assert (event["involvedObject"]["kind"], event["involvedObject"]["uid"]) == ("GNNService", uid)
        assert _FIELDS.findall(event["message"]) == [(NAME, uid)]
        assert before["metadata"]["annotations"][BRING_BACK_ANNOTATION] in event["message"]
        world.create(updates={**LIVING, "adopt": uid}, repository={"claimName": NAME})
        await serves(world)
        assert claim_of(world)["metadata"]["uid"] == before["metadata"]["uid"]
        await deleted(world)
        assert claim_of(world)["metadata"]["uid"] == before["metadata"]["uid"], "a claim of the user's stays"
        (told,) = [event for event in world.cluster.all("Event") if event["reason"] == "ChangesRetained"]
        assert _FIELDS.findall(told["message"]) == [(NAME, uid)], "the log is still known by its first service"

    assert play_alone(scene, resyncs=False) == []


def test_a_service_that_is_made_again_begins_no_empty_log_that_hides_the_old_one() -> None:
    async def scene(world: World) -> None:
        await serve(world, updates=LIVING)
        before, uid = claim_of(world), await deleted(world)
        world.create(updates=LIVING)
        await world.until(lambda: world.condition("Stalled").get("reason") == "RepositoryRetained", limit_s=10)
        await world.run_for(5)
        assert world.plane.of_kind("Job") == []
        assert world.plane.of_kind(CLAIM) == [before]
        message = world.condition("Ready")["message"]
        assert _FIELDS.findall(message) == [(NAME, uid)]
        assert f"`kubectl annotate -n default persistentvolumeclaim/{NAME} {ADOPT_ANNOTATION}={uid}`" in message
        assert f"`kubectl delete -n default persistentvolumeclaim/{NAME}`" in message
        # As the message says.
        world.set(updates={**LIVING, "adopt": uid})
        world.cluster.replace(
            CLAIM, NAME, lambda found: found["metadata"]["annotations"].update({ADOPT_ANNOTATION: uid})
        )
        await serves(world)
        taken = claim_of(world)["metadata"]
        assert (taken["uid"], taken["labels"][OWNER_UID]) == (before["metadata"]["uid"], uid_of(world))
        assert taken["annotations"][BRING_BACK_ANNOTATION].endswith(uid), "the log goes by its first service"
        # The annotation stays, and allows nothing to the next one.
        await deleted(world)
        world.create(updates=LIVING)
        await world.until(lambda: world.condition("Stalled").get("reason") == "RepositoryRetained", limit_s=10)
        world.cluster.delete(CLAIM, NAME)
        await serves(world)
        assert claim_of(world)["metadata"]["uid"] != before["metadata"]["uid"], "which begins anew"

    assert play_alone(scene, resyncs=False) == []


def test_a_service_without_changes_is_not_hidden_behind_either() -> None:
    """Its default would be to have its claim deleted; that of an earlier one is not its own."""

    async def scene(world: World) -> None:
        await serve(world, repository={"deletionPolicy": "Retain"})
        uid = await deleted(world)
        world.create()
        await world.until(lambda: world.condition("Stalled").get("reason") == "RepositoryRetained", limit_s=10)
        assert _FIELDS.findall(world.condition("Ready")["message"]) == [(NAME, "")]
        world.cluster.replace(
            CLAIM, NAME, lambda found: found["metadata"]["annotations"].update({ADOPT_ANNOTATION: uid})
        )
        await serves(world)
        assert claim_of(world)["metadata"]["labels"][OWNER_UID] == uid_of(world)
        assert owners(claim_of(world)) == [], "what was retained stays so until the spec says otherwise"

    assert play_alone(scene, resyncs=False) == []


def test_the_policy_may_be_changed_at_any_time() -> None:
    async def scene(world: World) -> None:
        await serve(world)
        uid = uid_of(world)
        assert owners(claim_of(world)) == [uid]
        for policy, expected in (("Retain", []), ("Delete", [uid]), ("Retain", []), ("Delete", [uid])):
            world.set(repository={"deletionPolicy": policy})
            await world.settled()
            assert owners(claim_of(world)) == expected
            assert (OWNER_UID in claim_of(world)["metadata"]["labels"]) is (policy == "Retain")
            assert world.condition("Ready")["status"] == "True"
        await deleted(world)
        assert world.plane.of_kind(CLAIM) == []
        assert events(world) == []

    assert play_alone(scene, resyncs=False) == []


@pytest.mark.parametrize("is_compacted", [False, True], ids=["as a whole", "without what was compacted"])
def test_a_log_in_a_database_stays_when_the_claim_is_to_go_and_an_event_says_so(is_compacted: bool) -> None:
    async def scene(world: World) -> None:
        await serve(world, updates=LIVING, repository={"deletionPolicy": "Delete"})
        if is_compacted:
            await write(world, 4)
            await world.settled()
        uid = await deleted(world)
        assert world.plane.of_kind(CLAIM) == []
        assert events(world) == []
        (told,) = [event for event in world.cluster.all("Event") if event["reason"] == "ChangesRetained"]
        message = told["message"]
        assert "its log of changes stays in the database." in message
        assert ("changes up to offset 4 were compacted into the repository" in message) is is_compacted
        assert (f"make GNNService digits again with spec.updates.adopt: {uid}." in message) is not is_compacted
        assert f"`gnnserve changes purge MANIFEST --uid {uid} --postgres-uri-file FILE`" in message

    assert play_alone(scene, resyncs=False) == []


def test_a_log_that_goes_with_its_claim_is_not_said_to_stay() -> None:
    async def scene(world: World) -> None:
        await serve(world, updates={"log": {"sqlite": {}}}, repository={"deletionPolicy": "Delete"})
        await deleted(world)
        assert world.plane.of_kind(CLAIM) == []
        assert [event for event in world.cluster.all("Event") if event["reason"] == "ChangesRetained"] == []

    assert play_alone(scene, resyncs=False) == []


def test_a_log_that_is_taken_out_of_the_spec_is_not_given_up() -> None:
    async def scene(world: World) -> None:
        await serve(world, updates=LIVING)
        world.edit(lambda spec: spec.pop("updates"))
        await world.settled()
        assert owners(claim_of(world)) == []
        uid = await deleted(world)
        assert claim_of(world)
        (event,) = events(world)
        assert _FIELDS.findall(event["message"]) == [(NAME, uid)], "without the uid nobody finds the log in the claim"

    assert play_alone(scene, resyncs=False) == []


def test_an_operator_that_begins_releases_claims_before_it_does_anything_else() -> None:
    """As after an upgrade: an earlier operator had the claim go with its service."""

    async def scene(world: World) -> None:
        await serve(world)
        await world.stop_operators()
        world.set(updates=LIVING)  # for which the earlier operator would have made no difference
        assert owners(claim_of(world)) == [uid_of(world)]
        before = len(world.calls)
        world.resume_operators()
        await world.until(lambda: owners(claim_of(world)) == [])
        writes = [call.asked for call in world.calls[before:] if call.is_write]
        assert writes[0] == f"PATCH /api/v1/namespaces/default/persistentvolumeclaims/{NAME}"
        await deleted(world)
        assert claim_of(world)
        assert len(events(world)) == 1

    assert play_alone(scene, resyncs=False) == []


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        pytest.param(ConflictError("changed"), ["a", "b", "c"], id="its watch lags behind"),
        pytest.param(GoneError("gone"), ["a", "b", "c"], id="it is gone by now"),
        pytest.param(KeyError("spec"), ["a", "b", "c"], id="an object that nobody foresaw"),
        pytest.param(RetryLaterError("away"), ["a", "b"], id="no API server to ask for others"),
    ],
)
def test_what_cannot_be_released_keeps_no_other_from_it(error: Exception, expected: list[str]) -> None:
    tried = []

    async def release(key: ServiceKey) -> None:
        tried.append(key.name)
        if key.name == "b":
            raise error

    asyncio.run(release_all(lambda: [ServiceKey("shop", name) for name in "abc"], release))
    assert tried == expected


def test_an_operator_that_leads_no_more_releases_nothing() -> None:
    async def release(_: ServiceKey) -> None:
        raise LostLeadershipError

    with pytest.raises(LostLeadershipError):
        asyncio.run(release_all(lambda: [ServiceKey("shop", "a")], release))


def test_a_claim_is_released_also_where_the_size_that_the_spec_asks_for_is_refused() -> None:
    async def scene(world: World) -> None:
        await serve(world)
        await world.stop_operators()
        # Stands for a size: the API server of these tests knows no storage class that allows no expansion.
        world.set(updates=LIVING, repository={"claim": {"storage": "20Gi", "storageClassName": "another"}})
        world.resume_operators()
        await world.until(lambda: owners(claim_of(world)) == [], limit_s=10)
        await world.until(lambda: world.condition("Stalled").get("reason") == "ChildRefused", limit_s=10)
        assert "PersistentVolumeClaim" in world.condition("Stalled")["message"]
        await deleted(world)
        assert claim_of(world)

    assert play_alone(scene, resyncs=False) == []


def test_a_claim_is_released_also_while_its_service_waits_for_a_finalizer() -> None:
    async def scene(world: World) -> None:
        await serve(world)
        await world.stop_operators()
        world.set(updates=LIVING)
        world.cluster.replace(
            "GNNService", KEY.name, lambda found: found["metadata"].update(finalizers=["example.dev/x"])
        )
        world.delete()
        world.resume_operators()
        await world.until(lambda: owners(claim_of(world)) == [])
        world.cluster.replace("GNNService", KEY.name, lambda found: found["metadata"].pop("finalizers"))
        await world.run_for(5)
        assert claim_of(world)

    assert play_alone(scene, resyncs=False) == []


def test_a_claim_that_stays_while_no_operator_is_there_says_itself_how_it_is_brought_back() -> None:
    async def scene(world: World) -> None:
        await serve(world, updates=LIVING)
        uid = uid_of(world)
        await world.stop_operators()
        world.delete()
        await world.run_for(5)
        world.resume_operators()
        await world.run_for(5)
        assert _FIELDS.findall(claim_of(world)["metadata"]["annotations"][BRING_BACK_ANNOTATION]) == [(NAME, uid)]

    assert play_alone(scene, resyncs=False) == []


def test_a_retained_claim_that_is_deleted_by_hand_is_followed_by_another_that_is_retained() -> None:
    async def scene(world: World) -> None:
        await serve(world, updates=LIVING)
        delete_claim(world)
        await world.until(lambda: world.cluster.find(CLAIM, NAME) is None)
        await serves(world)
        (claim,) = world.plane.of_kind(CLAIM)
        assert (claim["metadata"]["name"], owners(claim)) == (f"{NAME}-2", [])
        uid = await deleted(world)
        assert world.plane.of_kind(CLAIM) == [claim]
        world.create(updates=LIVING)
        await world.until(lambda: world.condition("Stalled").get("reason") == "RepositoryRetained", limit_s=10)
        assert _FIELDS.findall(world.condition("Ready")["message"]) == [(f"{NAME}-2", uid)]

    assert play_alone(scene, resyncs=False) == []


@pytest.mark.parametrize("every", [False, True], ids=["the uid alone", "every label"])
def test_a_claim_whose_labels_somebody_takes_away_is_still_that_of_its_service(every: bool) -> None:
    """An owner reference would have told it; to be told to delete the claim would cost the log."""

    async def scene(world: World) -> None:
        await serve(world, updates=LIVING)
        before = claim_of(world)["metadata"]
        left = {} if every else {name: text for name, text in before["labels"].items() if name != OWNER_UID}
        world.cluster.replace(CLAIM, NAME, lambda found: found["metadata"].update(labels=left))
        await world.until(lambda: claim_of(world)["metadata"].get("labels") == before["labels"], limit_s=10)
        await serves(world)
        assert claim_of(world)["metadata"]["uid"] == before["uid"]

    assert play_alone(scene, resyncs=False) == []


def test_orphans_and_the_claim_that_was_retained_are_told_together() -> None:
    async def scene(world: World) -> None:
        world.cluster.collects_garbage = False  # the controllers do, one act after another
        await serve(world, updates=LIVING)
        uid = uid_of(world)
        world.cluster.delete("GNNService", KEY.name, policy="Orphan")
        await world.run_for(5)
        world.create(updates=LIVING)
        await world.until(lambda: world.condition("Stalled").get("reason") == "NameTaken", limit_s=10)
        message = world.condition("Ready")["message"]
        assert _FIELDS.findall(message) == [(NAME, uid)]
        assert f"{ADOPT_ANNOTATION}={uid}`" in message
        assert f"{ADOPT_ANNOTATION}=digits`" in message

    assert play_alone(scene, resyncs=False) == []
