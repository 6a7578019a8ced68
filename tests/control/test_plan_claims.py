"""The claim of the repository: what follows when somebody deletes it, with and without its protection."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.support.operator.observed import UID, Namespace, make_service

from gnnserve_operator.decide.repository import RepositoryDecision, decide_mounted, decide_repository, is_of_lost_claim
from gnnserve_operator.desired.deployment import MountedClaim
from gnnserve_operator.desired.metadata import CLAIM_ANNOTATION
from gnnserve_operator.observed import ObservedClaim, ObservedDeployment, ObservedJob, ObservedState


def begun(**spec: Any) -> Namespace:
    namespace = Namespace(**spec)
    namespace.settle()
    return namespace


def serving(**spec: Any) -> Namespace:
    namespace = Namespace(**spec)
    namespace.serve()
    return namespace


def test_a_claim_that_was_deleted_takes_its_revisions_with_it() -> None:
    namespace = serving()
    (first,) = namespace.jobs()
    namespace.objects.pop(("PersistentVolumeClaim", "digits-repository"))
    namespace.reconcile()
    namespace.settle()
    assert namespace.jobs() == [first], "the same template, and so the same name"
    assert namespace.get("Job")["status"] == {}
    assert namespace.reason() == "False Generating"
    namespace.serve("rev-2")
    assert namespace.table().revision == "rev-2"
    namespace.objects.pop(("Job", first))
    namespace.settle()
    assert namespace.reason() == "True Serving", "the ConfigMap knows the new claim"


def test_what_a_job_left_in_a_claim_that_is_gone_is_not_published_for_the_next() -> None:
    """The claim was taken away before the first table was written, so that no table tells where the revision lay."""
    namespace = begun()
    namespace.finish_job()
    namespace.objects.pop(("PersistentVolumeClaim", "digits-repository"))
    namespace.settle()
    assert namespace.reason() == "False Generating"
    assert namespace.job()["status"] == {}
    assert "ConfigMap" not in namespace.kinds()


def test_workers_leave_a_claim_that_is_lost_for_the_one_that_took_its_place() -> None:
    namespace = serving()
    before = namespace.get("Deployment")["spec"]["template"]
    lost = namespace.objects.pop(("PersistentVolumeClaim", "digits-repository"))
    namespace.reconcile()
    claim = namespace.get("PersistentVolumeClaim")
    assert claim["metadata"]["uid"] != lost["metadata"]["uid"]
    namespace.reconcile()
    template = namespace.get("Deployment")["spec"]["template"]
    assert template["metadata"]["annotations"] == {
        **before["metadata"]["annotations"], "gnnserve.dev/claim": claim["metadata"]["uid"]
    }  # fmt: skip
    assert template["spec"] == before["spec"]
    namespace.settle()
    assert namespace.get("Deployment")["spec"]["template"] == template


def test_what_a_table_of_an_older_operator_tells_of_lies_in_the_oldest_claim() -> None:
    namespace = serving()
    namespace.objects.pop(("Job", *namespace.jobs()))
    namespace.get("ConfigMap")["metadata"]["annotations"].pop(CLAIM_ANNOTATION)
    namespace.settle()
    claim = namespace.get("PersistentVolumeClaim")["metadata"]["uid"]
    assert namespace.get("ConfigMap")["metadata"]["annotations"][CLAIM_ANNOTATION] == claim


def test_the_template_of_workers_stays_as_it_is_while_nobody_tells_of_their_claim() -> None:
    def mounted(deployment: ObservedDeployment, *claims: ObservedClaim) -> MountedClaim:
        observed = ObservedState(deployment=deployment, claims=claims)
        repository = decide_repository("digits", make_service().spec, observed)
        return decide_mounted(repository, "", observed)

    name = "digits-repository"
    first, second, third = (
        ObservedClaim(uid, "2026-01-01T00:02:00Z", name=name) for uid in ("first", "second", "third")
    )  # fmt: skip
    untouched = ObservedDeployment(claim=name, claim_uid="first")
    assert mounted(untouched) == MountedClaim(name, "first")
    assert mounted(untouched, first) == MountedClaim(name, "first")
    assert mounted(untouched, second) == MountedClaim(name, "second", "second")
    replaced = ObservedDeployment(claim=name, claim_uid="second", successor_uid="second")
    assert mounted(replaced) == MountedClaim(name, "second", "second")
    assert mounted(replaced, second) == MountedClaim(name, "second", "second")
    assert mounted(replaced, third) == MountedClaim(name, "third", "third")
    of_an_older_operator = ObservedDeployment(claim=name)
    assert mounted(of_an_older_operator, first) == MountedClaim(name, "first")
    other = replace(first, uid="other", name="digits-repository-2")
    assert mounted(replaced, other) == MountedClaim(other.name, "other"), "the name alone has the pods replaced"


# --- a claim that is being deleted while pods hold it


def going(**spec: Any) -> Namespace:
    """Somebody has deleted the claim of a service that serves."""
    namespace = serving(**spec)
    delete_claim(namespace)
    namespace.settle()
    return namespace


def delete_claim(namespace: Namespace, name: str = "digits-repository") -> None:
    metadata = namespace.get("PersistentVolumeClaim", name)["metadata"]
    metadata["deletionTimestamp"] = "2026-01-01T00:01:00Z"


def claims(namespace: Namespace) -> list[str]:
    return sorted(name for kind, name in namespace.objects if kind == "PersistentVolumeClaim")


def mounted_by(found: dict[str, Any]) -> str:
    volumes = {volume["name"]: volume for volume in found["spec"]["template"]["spec"]["volumes"]}
    return str(volumes["repository"]["persistentVolumeClaim"]["claimName"])


def test_changes_that_go_with_a_claim_are_told_of() -> None:
    in_the_claim = going(updates={"log": {"sqlite": {}}}).condition("RepositoryKept")["message"]
    elsewhere = going(updates={"log": {"postgres": {"secretName": "log"}}}).condition("RepositoryKept")["message"]
    words = "So does the log of changes (spec.updates.log.sqlite)"
    assert (words in in_the_claim, words in elsewhere) == (True, False)


def test_a_claim_that_is_being_deleted_is_told_at_once_and_another_one_is_filled() -> None:
    namespace = going()
    assert claims(namespace) == ["digits-repository", "digits-repository-2"]
    assert mounted_by(namespace.job()) == "digits-repository-2"
    assert len(namespace.jobs()) == 1, "pods of ended Jobs would hold the claim that goes"
    assert mounted_by(namespace.get("Deployment")) == "digits-repository", "there is no revision in the other yet"
    assert namespace.reason("RepositoryKept") == "False VolumeClaimTerminating"
    message = namespace.condition("RepositoryKept")["message"]
    for words in ("PersistentVolumeClaim digits-repository is being deleted", "revision rev-1", "Retain",
                  "into PersistentVolumeClaim digits-repository-2", "do not set spec.suspend"):  # fmt: skip
        assert words in message
    assert ("Warning", "VolumeClaimTerminating") in namespace.events
    assert namespace.reason() == "True Serving", "workers answer as declared"
    assert "see RepositoryKept" in namespace.condition("Ready")["message"]
    assert namespace.reason("Reconciling") == "True Generating"
    assert namespace.reason("Stalled") == "False Progressing"
    assert namespace.reason("VariantsGenerated") == "False Generating"


def test_workers_move_to_the_other_claim_once_the_revision_is_in_it() -> None:
    namespace = going()
    namespace.finish_job("rev-1")
    namespace.settle()
    assert mounted_by(namespace.get("Deployment")) == "digits-repository-2"
    assert namespace.reason("RepositoryKept") == "True RepositoryKept"
    assert ("Normal", "RepositoryKept") in namespace.events
    assert namespace.reason() == "False RollingOut"
    namespace.roll_out()
    namespace.answer()
    namespace.objects.pop(("PersistentVolumeClaim", "digits-repository"))
    namespace.settle()
    assert namespace.reason() == "True Serving"
    assert namespace.reason("Reconciling") == "False Settled"
    assert claims(namespace) == ["digits-repository-2"], "it stays: its name is as good"


def test_an_edit_of_the_objective_reaches_workers_while_another_claim_is_filled() -> None:
    namespace = going()
    namespace.edit(objective={"latencyMs": 7})
    namespace.settle()
    assert namespace.table().objective.latency_ms == 7


def test_another_model_is_generated_although_the_claim_is_being_deleted() -> None:
    """It waited for the claim, the claim for the workers, and the workers for it."""
    namespace = going()
    namespace.edit(model={"hidden": 64})
    namespace.settle()
    assert mounted_by(namespace.job()) == "digits-repository-2"
    assert namespace.reason() == "False Generating"
    assert "revision rev-1 keeps answering" in namespace.condition("Ready")["message"]
    namespace.finish_job("rev-2")
    namespace.settle()
    namespace.roll_out()
    namespace.answer()
    namespace.settle()
    assert namespace.reason() == "True Serving"
    assert namespace.table().revision == "rev-2"


def test_a_job_that_generates_into_a_claim_that_goes_is_replaced() -> None:
    namespace = begun()
    namespace.settle()
    namespace.start_job()
    (first,) = namespace.jobs()
    delete_claim(namespace)
    namespace.settle()
    assert first not in namespace.jobs(), "its pod holds the claim, and what it generates goes with it"
    namespace.serve("rev-1")
    assert mounted_by(namespace.get("Deployment")) == "digits-repository-2"


def test_what_a_job_generates_into_another_claim_is_lost_also_within_one_second() -> None:
    """Which is all that a time stamp tells."""
    second = "2026-01-01T00:00:00Z"
    repository = RepositoryDecision("digits-repository-2", ObservedClaim("next", second, name="digits-repository-2"))
    assert is_of_lost_claim(ObservedJob("first", "recipe", "digits-repository", created_at=second), repository)
    assert not is_of_lost_claim(ObservedJob("next", "recipe", "digits-repository-2", created_at=second), repository)


def test_a_second_claim_that_is_deleted_too_has_a_third_made() -> None:
    namespace = going()
    delete_claim(namespace, "digits-repository-2")
    namespace.settle()
    assert claims(namespace) == ["digits-repository", "digits-repository-2", "digits-repository-3"]
    assert mounted_by(namespace.job()) == "digits-repository-3"
    assert namespace.reason() == "True Serving"


def test_suspending_does_not_say_that_data_is_kept_which_goes() -> None:
    namespace = going()
    namespace.edit(suspend=True)
    namespace.settle()
    message = namespace.condition("Ready")["message"]
    assert "data is kept" not in message
    assert "revision rev-1 with it" in message
    assert "generated again" in message
    namespace.roll_out()
    namespace.objects.pop(("PersistentVolumeClaim", "digits-repository"))
    namespace.settle()
    assert "data is kept" not in namespace.condition("Ready")["message"]
    namespace.edit(suspend=False)
    namespace.serve("rev-1")
    assert mounted_by(namespace.get("Deployment")) == "digits-repository-2"


def test_a_worker_that_cannot_start_with_a_claim_that_goes_is_waited_for() -> None:
    """Its last pod gone, the claim goes; then workers mount the other, and wait there for the revision."""
    namespace = going()
    namespace.objects.pop(("PersistentVolumeClaim", "digits-repository"))
    namespace.settle()
    assert mounted_by(namespace.get("Deployment")) == "digits-repository-2"
    assert namespace.reason() == "False Generating"


def test_while_it_is_suspended_a_claim_that_is_gone_is_not_called_kept() -> None:
    """The next claim may be refused for long, by a quota."""
    namespace = serving()
    namespace.edit(suspend=True)
    namespace.settle()
    namespace.roll_out()
    namespace.settle()
    assert "The data is kept." in namespace.condition("Ready")["message"]
    namespace.objects.pop(("PersistentVolumeClaim", "digits-repository"))
    namespace.reconcile()
    message = namespace.condition("Ready")["message"]
    assert "data is kept" not in message
    assert "PersistentVolumeClaim digits-repository is about to be made." in message


def owned_by(*owners: tuple[str, str, str], **spec: Any) -> Namespace:
    """A service on a claim that Kubernetes deletes with its owners, each with kind, name and uid."""
    references = [{"apiVersion": "v1", "kind": kind, "name": name, "uid": uid} for kind, name, uid in owners]
    namespace = Namespace(repository={"claimName": "theirs"}, **spec)
    namespace.objects["PersistentVolumeClaim", "theirs"] = {
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "spec": {"volumeName": "pv-7"},
        "metadata": {
            "name": "theirs", "uid": "theirs", "creationTimestamp": "2025-01-01T00:00:00Z",
            "ownerReferences": references,
        },
    }  # fmt: skip
    namespace.serve()
    return namespace


def test_a_claim_that_goes_with_another_service_is_warned_of_and_its_owner_can_let_it_stay() -> None:
    namespace = owned_by(("GNNService", "reviews", "uid-of-reviews"))
    assert namespace.reason("RepositoryKept") == "False RepositoryBoundElsewhere"
    assert namespace.condition("RepositoryKept")["message"] == (
        "PersistentVolumeClaim theirs (spec.repository.claimName) is deleted together with GNNService reviews, and "
        "revision rev-1 with it. To have it stay, set spec.repository.deletionPolicy: Retain in GNNService reviews."
    )
    assert namespace.events.count(("Warning", "RepositoryBoundElsewhere")) == 1
    assert namespace.reason() == "True Serving"
    assert "about to go" not in namespace.condition("Ready")["message"], "it is there as long as its owner is"
    namespace.get("PersistentVolumeClaim")["metadata"].pop("ownerReferences")
    namespace.settle()
    assert namespace.reason("RepositoryKept") == "True RepositoryKept"
    assert namespace.events[-1] == ("Normal", "RepositoryKept")


def test_a_claim_that_goes_with_objects_of_other_kinds_is_warned_of_too() -> None:
    namespace = owned_by(("GNNWorkerPool", "shared", "uid-1"), ("StatefulSet", "db", "uid-2"))
    message = namespace.condition("RepositoryKept")["message"]
    assert "is deleted together with GNNWorkerPool shared and StatefulSet db" in message
    assert (
        "set spec.repository.deletionPolicy: Retain in GNNWorkerPool shared and take StatefulSet db out of" in message
    )


def test_a_claim_that_its_own_service_was_made_an_owner_of_lasts_as_long_as_the_service() -> None:
    namespace = owned_by(("GNNService", "reviews", "uid-of-reviews"), ("GNNService", "digits", UID))
    assert namespace.reason("RepositoryKept") == "True RepositoryKept"


def test_a_claim_of_the_users_that_is_deleted_is_told_with_what_is_lost() -> None:
    spec = {"repository": {"claimName": "shared"}}
    claim = {
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "spec": {"volumeName": "pv-7"},
        "metadata": {"name": "shared", "uid": "theirs", "creationTimestamp": "2025-01-01T00:00:00Z"},
    }  # fmt: skip
    namespace = Namespace(**spec)
    namespace.objects["PersistentVolumeClaim", "shared"] = claim
    namespace.serve()
    assert namespace.reason("RepositoryKept") == "True RepositoryKept"
    delete_claim(namespace, "shared")
    namespace.settle()
    message = namespace.condition("RepositoryKept")["message"]
    retain = """-p '{"spec":{"persistentVolumeReclaimPolicy":"Retain"}}'`"""
    assert f"kubectl --namespace shop patch pv pv-7 {retain} now" in message
    assert "create PersistentVolumeClaim shared again" in message
    assert ("Warning", "VolumeClaimTerminating") in namespace.events
    assert namespace.reason() == "True Serving"
    assert claims(namespace) == ["shared"]
    namespace.objects.pop(("PersistentVolumeClaim", "shared"))
    namespace.settle()
    assert namespace.reason("RepositoryKept") == "False VolumeClaimMissing"
    claim = {**claim, "metadata": {"name": "shared", "uid": "again", "creationTimestamp": "2027-01-01T00:00:00Z"}}
    namespace.objects["PersistentVolumeClaim", "shared"] = claim
    namespace.settle()
    assert namespace.reason() == "False Generating", "the revision is looked for in what is there now"
    namespace.finish_job("rev-1")
    namespace.get("Job")["status"]["conditions"][0]["lastTransitionTime"] = "2027-01-01T00:00:09Z"
    namespace.settle()
    template = namespace.get("Deployment")["spec"]["template"]
    assert template["metadata"]["annotations"]["gnnserve.dev/claim"] == "again", "workers still hold the lost one"
    namespace.roll_out()
    namespace.answer()
    namespace.settle()
    assert namespace.reason() == "True Serving"
    assert namespace.reason("RepositoryKept") == "True RepositoryKept"
