"""Where revisions are kept."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from gnnserve_api.spec.audience import Audience
from gnnserve_api.spec.fields import ApiModel, ObjectName, text
from gnnserve_api.spec.rules import rule, server_rule


class AccessMode(StrEnum):
    READ_WRITE_ONCE = "ReadWriteOnce"
    """Pods of one node."""
    READ_WRITE_MANY = "ReadWriteMany"
    """Pods of every node: for workers on several of them."""


class DeletionPolicy(StrEnum):
    RETAIN = "Retain"
    """The claim stays when what it was made for is deleted; an event and the claim itself say how to bring it back."""
    DELETE = "Delete"
    """The claim, and all that lies in it, is deleted with what it was made for; a log in PostgreSQL stays there."""


DEFAULT_STORAGE = "10Gi"
"""Size of a claim that is not described."""


class RepositoryClaim(ApiModel):
    storage: Annotated[
        str, text(r"^[1-9][0-9]{0,5}(Mi|Gi|Ti)$", "a size, as in 500Mi, 10Gi or 1Ti", 8), Audience.OPERATOR
    ] = DEFAULT_STORAGE
    """Least size of the claim, as in 10Gi. It may grow later where the storage class allows that, and cannot become
    less than what the claim has (`status.repositoryStorage`)."""
    storage_class_name: Annotated[ObjectName | None, Audience.OPERATOR] = None
    """Name of the claim's StorageClass. Absent: the cluster's default class."""
    access_mode: AccessMode = AccessMode.READ_WRITE_ONCE
    """Access mode of the claim: which pods may mount the volume."""

    _fixed = server_rule(
        "has(self.storageClassName) == has(oldSelf.storageClassName) && "
        "(!has(self.storageClassName) || self.storageClassName == oldSelf.storageClassName) && "
        "self.accessMode == oldSelf.accessMode",
        "storageClassName and accessMode are fixed once the claim is made: create another service to move",
    )


class RepositoryPlace(ApiModel):
    """The volume on which revisions are kept."""

    default_audience = Audience.PODS

    claim_name: ObjectName | None = None
    """Name of a PersistentVolumeClaim of yours, which several services may share. It outlives what names it. Absent: a
    claim is made."""
    claim: RepositoryClaim | None = None
    """Claim that is made for the revisions. Absent, and no claimName: one with the defaults of its fields."""
    deletion_policy: Annotated[DeletionPolicy | None, Audience.OPERATOR] = None
    """Whether the claim that is made stays when the GNNService or GNNWorkerPool is deleted; to be changed at any time.
    Absent: `Retain` of a GNNWorkerPool, and of a GNNService once it had `updates`, whose acknowledged changes lie
    there; `Delete` of another GNNService."""

    @property
    def may_be_on_several_nodes(self) -> bool:
        """Whether pods of several nodes may mount the volume; of a claim of the user's own, nothing else is known."""
        claim = self.claim or RepositoryClaim()
        return self.claim_name is not None or claim.access_mode is AccessMode.READ_WRITE_MANY

    _at_most_one = rule("!has(self.claimName) || !has(self.claim)", "at most one of claimName and claim may be set")

    _users_claim_has_no_policy = rule(
        "!has(self.claimName) || !has(self.deletionPolicy)",
        "deletionPolicy must not be given with claimName: a claim of yours is never deleted by the operator; leave "
        "deletionPolicy out",
    )

    _claim_name_is_fixed = server_rule(
        "has(self.claimName) == has(oldSelf.claimName) && "
        "(!has(self.claimName) || self.claimName == oldSelf.claimName)",
        "claimName is fixed, because the revisions are there: create another service to move",
    )
    _claim_is_fixed = server_rule(
        # With one of the two there, the other stands for the defaults.
        "has(self.claim) == has(oldSelf.claim) || [self, oldSelf].all(one, !has(one.claim) || "
        "(!has(one.claim.storageClassName) && one.claim.accessMode == 'ReadWriteOnce'))",
        "storageClassName and accessMode are fixed once the claim is made, also where claim is absent, which "
        "stands for the cluster's default class and ReadWriteOnce: create another service to move",
    )


class RepositorySpec(RepositoryPlace):
    """Where revisions are kept, and how many. The claim is a cluster's; `gnnserve run` has `--repository`."""

    history: Annotated[Annotated[int, Field(ge=2, le=1000)] | None, Audience.GENERATION | Audience.RETURN] = None
    """Number of models of this service that are kept, the one that answers included: whenever a revision is published
    or gone back to, what answered longest ago is removed. Absent: all are kept."""


def declared_storage(root: str) -> str:
    """CEL: the storage that the GNNService `root` declares for its claim."""
    claim = f"{root}.spec.repository.claim"
    return f"(has({root}.spec.repository) && has({claim}) ? {claim}.storage : '{DEFAULT_STORAGE}')"
