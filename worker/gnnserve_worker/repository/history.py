"""How many models are kept to go back to (`spec.repository.history`), and which go first.

A model is what one recipe made of one source's graph and the same given weights; compaction carries it on as one
revision after another. Those that answered last are kept. A revision that was gone back to is older than others, so
`history.json` has the order; what it does not name counts by its age, behind what it names. The model of a second
revision, which answers a share of the requests, is kept beside those.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress

import msgspec

from gnnserve_api import decoding
from gnnserve_api.errors import GnnserveError
from gnnserve_api.files.repository import RevisionManifest
from gnnserve_worker.repository import files
from gnnserve_worker.repository.paths import ServicePaths
from gnnserve_worker.repository.repository import Repository

_log = logging.getLogger(__name__)
_LONGEST = 1000
"""Most names in the file; as many as there may be models."""

Model = tuple[str, str, str | None, tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]]


def keep_history(
    repository: Repository, answering: RevisionManifest, most: int | None, second: str | None = None
) -> Sequence[str]:
    """Note what answers from now on, and remove what is beyond `most` models. None: nothing is noted and nothing
    removed. `second`: a revision that answers beside it; None: there is none. Returns the names of the removed
    revisions. Where another process writes, it is left to that one; where it fails, everything stays."""
    if most is None:
        return ()
    try:
        with repository.locked_if_free() as is_locked:
            return _tidy(repository, answering, most, second) if is_locked else ()
    except (GnnserveError, OSError) as error:
        _log.warning("older revisions stay: %s", error)
        return ()


def models_of(repository: Repository) -> Mapping[Model, Sequence[RevisionManifest]]:
    """Revisions of each model, the newest first."""
    found: dict[Model, list[RevisionManifest]] = {}
    for manifest in repository.revisions():
        made_of = repository.made_of(manifest)
        source = manifest.graph if made_of is None else made_of.source
        model = (manifest.recipe, source, manifest.checkpoint, _sorted(manifest.given), _sorted(manifest.expected))
        found.setdefault(model, []).append(manifest)
    return found


def _sorted(digests: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(digests.items()))


def _tidy(repository: Repository, answering: RevisionManifest, most: int, second: str | None) -> Sequence[str]:
    order = _note(repository, answering.revision)
    places = {name: place for place, name in enumerate(order)}
    # Sorting keeps the order of equal ones, which is that of their age.
    models = sorted(
        models_of(repository).values(),
        key=lambda revisions: min(places.get(one.revision, len(places)) for one in revisions),
    )
    beyond = [revisions for revisions in models[most:] if all(one.revision != second for one in revisions)]
    going = [one for revisions in beyond for one in revisions]
    if not going:
        return ()
    used = {one.graph for revisions in models if revisions not in beyond for one in revisions}
    # A version of the graph without a revision may be what the next generation begins with.
    unused = {one.graph for one in going if one.graph not in used and repository.made_of(one) is None}
    names = [one.revision for one in going]
    repository.remove(names, unused)
    return names


def _note(repository: Repository, revision: str) -> Sequence[str]:
    """Put the revision first, and return the order."""
    path = ServicePaths(repository.folder).history
    before: list[str] = []
    # A file that is not what was written there has no order to keep.
    with suppress(FileNotFoundError, msgspec.DecodeError):
        before = decoding.decode(path.read_bytes(), list[str])
    order = [*dict.fromkeys([revision, *before])][:_LONGEST]
    if order != before:
        files.remove_file(path.with_name(f"{path.name}.tmp"))
        files.commit(path, msgspec.json.format(msgspec.json.encode(order)) + b"\n")
    return order
