"""Rules of a service whose workers are those of a GNNWorkerPool: what the pool owns, the service does not set."""

from __future__ import annotations

from typing import Protocol

from gnnserve_api.spec.fields import ObjectName
from gnnserve_api.spec.repository import RepositorySpec
from gnnserve_api.spec.rules import rule
from gnnserve_api.spec.updates import UpdatesSpec
from gnnserve_api.spec.worker import Worker


class _Spec(Protocol):
    """The parts of a GNNServiceSpec that these rules read."""

    worker: Worker
    repository: RepositorySpec
    updates: UpdatesSpec | None
    image: str | None
    image_pull_secrets: tuple[ObjectName, ...]


_OWNED = (
    "image, imagePullSecrets and, of repository, claimName, claim and deletionPolicy must not be given with "
    "worker.poolRef: set them in the GNNWorkerPool"
)


@rule(
    "!has(self.worker.poolRef) || (!has(self.image) && (!has(self.imagePullSecrets) || "
    "size(self.imagePullSecrets) == 0) && !has(self.repository.claimName) && !has(self.repository.claim) && "
    "!has(self.repository.deletionPolicy))",
    _OWNED,
)
def pods_are_the_pools(spec: _Spec) -> str:
    given = {
        "image": spec.image is not None,
        "imagePullSecrets": bool(spec.image_pull_secrets),
        "repository.claimName": spec.repository.claim_name is not None,
        "repository.claim": spec.repository.claim is not None,
        "repository.deletionPolicy": spec.repository.deletion_policy is not None,
    }
    return f"{_OWNED}; found {', '.join(field for field, is_given in given.items() if is_given)}"


log_is_not_in_the_pool = rule(
    "!has(self.worker.poolRef) || !has(self.updates) || !has(self.updates.log.sqlite)",
    "updates.log.sqlite must not be given with worker.poolRef: the workers of a pool write no volume; use "
    "updates.log.postgres",
)
