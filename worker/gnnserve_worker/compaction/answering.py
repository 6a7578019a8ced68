"""The revision that a manifest has servers answer from: the newest of its recipe, or the model that it names.

`spec.revision` names a revision, and means its model. Over the graph that the revision has, that is the revision
itself. Where changes were compacted since, it is the revision with the same weights over the newest version.
"""

from __future__ import annotations

from gnnserve_api.errors import InputError
from gnnserve_api.files.repository import RevisionManifest
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_worker.repository.repository import Repository

_FIELD = "spec.revision"
_MOST_LISTED = 12


def find_answering(spec: GNNServiceSpec, repository: Repository, log: str | None) -> RevisionManifest | None:
    """The revision to answer from; None: it has yet to be made. `log`: uid of the service whose log of changes the
    server follows; None: it follows none. InputError: spec.revision names what is not there."""
    if spec.revision is None:
        return repository.find_served(spec.recipe(), log)
    named = require_named(spec.revision, repository)
    graph = newest_graph(named, repository, log)
    if named.graph == graph:
        return named
    over = [one for one in repository.revisions() if one.graph == graph and has_same_model(one, named)]
    return over[0] if over else None


def require_named(revision: str, repository: Repository) -> RevisionManifest:
    found = repository.find_named(revision)
    if found is not None:
        return found
    there = [f"{one.revision} of {one.created_at[:19]}Z" for one in repository.revisions()]
    more = f" and {len(there) - _MOST_LISTED} older ones" if there[_MOST_LISTED:] else ""
    listed = f"{', '.join(there[:_MOST_LISTED])}{more}" if there else "none"
    remedy = "name one of these, or take the field away" if there else "take the field away"
    raise InputError(_FIELD, f"{revision} is not published; there are, newest first: {listed}", remedy)


def newest_graph(named: RevisionManifest, repository: Repository, log: str | None) -> str:
    """Digest of the graph that a revision's model is to answer over: the newest version of the revision's own that the
    log is part of, and over which a revision is published; else the revision's."""
    if log is None:
        return named.graph
    made_of = repository.made_of(named)
    versions = repository.graph_versions(log, named.graph if made_of is None else made_of.source)
    published = {one.graph for one in repository.revisions()}
    return next((version.digest for version in versions if version.digest in published), named.graph)


def has_same_model(one: RevisionManifest, other: RevisionManifest) -> bool:
    """Whether their variants have the same weights, as far as both have them: a revision over a compacted graph lacks
    those that cannot follow changes."""
    these, those = _weights(one), _weights(other)
    common = these.keys() & those.keys()
    return bool(common) and one.recipe == other.recipe and all(these[name] == those[name] for name in common)


def _weights(manifest: RevisionManifest) -> dict[str, str]:
    return {variant.name: manifest.files[variant.weights].sha256 for variant in manifest.variants}
