"""The garbage collector of a `FakeCluster`: what has owners, all of which are gone, goes too.

As the real one: an owner is there only if its name, in the dependent's namespace, belongs to an object of that kind
and that uid; of several owners the absent ones are struck out; deletion in the foreground waits for dependents that
block it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.support.kubernetes.fake_cluster import FakeCluster, Key

Manifest = dict[str, Any]
_MANAGER = "kube-controller-manager"


def step(cluster: FakeCluster) -> bool:
    """One change, if there is one to make."""
    return any(_collect(cluster, key) or _finish(cluster, key) for key in list(cluster.objects))


def _collect(cluster: FakeCluster, key: Key) -> bool:
    found = cluster.objects.get(key)
    owners = found["metadata"].get("ownerReferences") if found else None
    if not found or not owners or "deletionTimestamp" in found["metadata"]:
        return False
    there = [owner for owner in owners if _is_there(cluster, key[1], owner)]
    if len(there) == len(owners):
        return False
    if there:
        _set_owners(cluster, key, there)
    else:
        cluster.delete(key[0], key[2], key[1], uid=found["metadata"]["uid"])
    return True


def _finish(cluster: FakeCluster, key: Key) -> bool:
    """Ends a deletion that left the dependents to the collector."""
    found = cluster.objects.get(key)
    metadata = found["metadata"] if found else {}
    if "deletionTimestamp" not in metadata:
        return False
    dependents = {
        other: owner for other, theirs in cluster.objects.items()
        for owner in theirs["metadata"].get("ownerReferences") or ()
        if other[1] == key[1] and owner["uid"] == metadata["uid"]
    }  # fmt: skip
    if "orphan" in metadata.get("finalizers", ()):
        for other in dependents:
            owners = cluster.objects[other]["metadata"]["ownerReferences"]
            _set_owners(cluster, other, [owner for owner in owners if owner["uid"] != metadata["uid"]])
        _drop_finalizer(cluster, key, "orphan")
        return True
    if "foregroundDeletion" in metadata.get("finalizers", ()):
        leaving = [other for other in dependents if "deletionTimestamp" not in cluster.objects[other]["metadata"]]
        for other in leaving:
            cluster.delete(other[0], other[2], other[1])
        if not any(owner.get("blockOwnerDeletion") for other, owner in dependents.items() if other in cluster.objects):
            _drop_finalizer(cluster, key, "foregroundDeletion")
            return True
        return bool(leaving)
    return False


def _is_there(cluster: FakeCluster, namespace: str, owner: Manifest) -> bool:
    found = cluster.objects.get((owner["kind"], namespace, owner["name"]))
    return found is not None and bool(found["metadata"]["uid"] == owner["uid"])


def _set_owners(cluster: FakeCluster, key: Key, owners: list[Manifest]) -> None:
    kind, namespace, name = key
    cluster.replace(kind, name, lambda found: found["metadata"].update(ownerReferences=owners), namespace, _MANAGER)


def _drop_finalizer(cluster: FakeCluster, key: Key, finalizer: str) -> None:
    kind, namespace, name = key
    cluster.replace(kind, name, lambda found: found["metadata"]["finalizers"].remove(finalizer), namespace, _MANAGER)
