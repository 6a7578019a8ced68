"""Embeddings of a published revision as `run` and `generate` make them: the index, and the sinks of the manifest."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Sequence
from pathlib import Path

from gnnserve_api.errors import InputError
from gnnserve_api.files.embeddings import RECALL_AT, IndexKind, IndexManifest
from gnnserve_api.files.repository import RevisionManifest
from gnnserve_api.spec.service import GNNService
from gnnserve_cli.progress import showing_progress
from gnnserve_worker.changes.address import read_address
from gnnserve_worker.repository.repository import Repository

OPTION = "--embeddings-uri-file"


def check_sinks(services: Sequence[GNNService], uri_files: Sequence[Path]) -> None:
    """Raises InputError where the options cannot be followed, before anything is trained."""
    for file in uri_files:
        read_address(file)
    sinks = sum(len(service.spec.embeddings.sinks) for service in services if service.spec.embeddings is not None)
    if len(uri_files) > sinks:
        raise InputError(
            OPTION,
            f"is given {len(uri_files)} times, and the manifests have {sinks} of spec.embeddings.sinks",
            "give it once for each of them, in their order",
        )


def publish_visibly(
    service: GNNService, stored: Repository, published: RevisionManifest, uri_files: Sequence[Path]
) -> bool:
    """Make what spec.embeddings asks for. `uri_files`: files with the addresses of its first sinks. Returns whether
    every sink with an address has them now; what is wrong with the others is said."""
    wanted = service.spec.embeddings
    if wanted is None:
        return True
    # Imported here: most services have no embeddings.
    from gnnserve_worker.generation.embeddings.postgres import PostgresSink  # noqa: PLC0415
    from gnnserve_worker.generation.embeddings.publishing import publish_embeddings  # noqa: PLC0415
    from gnnserve_worker.generation.source_types import types_with_columns  # noqa: PLC0415

    named = [sink.postgres for sink in wanted.sinks if sink.postgres is not None]
    sinks = {
        f"spec.embeddings.sinks[{place}]": PostgresSink(file, sink.view)
        for place, (sink, file) in enumerate(zip(named, uri_files, strict=False))
    }
    if len(sinks) < len(named):
        missing = ", ".join(f"spec.embeddings.sinks[{place}]" for place in range(len(sinks), len(named)))
        _say(
            f"note: no embeddings are written to {missing}, which name Secrets of a cluster; {OPTION} would change that"
        )
    if not sinks and not wanted.index:
        return True
    metadata = service.metadata
    with showing_progress() as listener:
        made = publish_embeddings(
            stored, f"{metadata.namespace}/{metadata.name}", published.revision, wanted.variant, sinks,
            f"gnnserve {importlib.metadata.version('gnnserve')}", listener, wants_index=wanted.index,
            types_of=lambda manifest: types_with_columns(service, stored, manifest, listener),
        )  # fmt: skip
    for index in made.indexes:
        _say(f"note: {index_words(index)}")
    for name, written in made.written.items():
        has = "has had" if written.was_there else "has"
        note = f"; {written.note}" if written.note else ""
        _say(f"note: {name} {has} {written.rows:,} embeddings by {made.variant}, in {written.where}{note}")
    for name, problem in made.problems.items():
        _say(f"warning: {name} has no embeddings of revision {published.revision}: {problem}; "
             "`gnnserve generate` tries it again")  # fmt: skip
    return not made.problems


def index_words(index: IndexManifest) -> str:
    of_type = f" of type {index.type}" if index.type else ""
    found = f"index of {index.nodes:,} embeddings{of_type} by {index.variant}"
    if index.kind is IndexKind.EXACT:
        return f"{found}, every one of which is compared"
    return f"{found}, recall@{RECALL_AT} {index.recall:.3f} (of {index.recall_queries:,} nodes), {index.library}"


def _say(words: str) -> None:
    print(words, file=sys.stderr)
