"""A revision over a new version of its graph: the same weights, and the rows that changes have made of its tables.

Variants of families that cannot follow changes are left out, since their tables hold the graph as it was. What was
measured stays: accuracies are those of the graph that was generated, latencies those of the machine that did.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import msgspec
import safetensors.numpy
from msgspec import UNSET

from gnnserve_api.errors import RepositoryError
from gnnserve_api.families import point_of
from gnnserve_api.files.cascades import CascadeManifest
from gnnserve_api.files.profile import Profile, VariantProfile
from gnnserve_api.files.repository import RevisionManifest, VariantManifest
from gnnserve_worker.compaction.folding import FoldedGraph
from gnnserve_worker.models.folded_rows import FoldedRowMaker
from gnnserve_worker.models.folding import SHARES
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.progress import Progress, ProgressListener
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.tables.table import Table

_STAGE = "write tables"


def carry_over(
    manifest: RevisionManifest,
    loaded: LoadedRevision,
    folded: FoldedGraph,
    repository: Repository,
    progress: ProgressListener,
) -> RevisionManifest:
    """Publish it. To be called under the lock, with the graph in the repository. `loaded`: the revision as it is open,
    with all changes applied."""
    variants = [variant for variant in manifest.variants if point_of(variant).capabilities.changes]
    if not variants:
        raise RepositoryError(repository.folder, "has no variant that follows changes", "add one to spec.variants")
    names = {variant.name for variant in variants}
    cascades = [cascade for cascade in manifest.cascades if {cascade.first, cascade.then} <= names]
    tables = _tables_of(variants, loaded)
    files = (manifest.checkpoint, manifest.given, manifest.expected)
    with repository.stage(manifest.recipe, folded.data.digest, *files) as staged:
        for done, (name, table) in enumerate(tables.items()):
            progress(Progress(_STAGE, done, len(tables), name))
            carried = folded.kept.rows_of(manifest.tables[name])
            staged.carry_table(name, carried.table, table, carried.rows, carried.own_rows)
        source = manifest.row_source
        assert source is not None  # noqa: S101
        networks = {file for variant in variants for file in variant.network_files}
        for file in sorted(networks | ({source.tensors} if source.tensors else set())):
            staged.carry_file(file, repository.read_file(manifest, file))
        for file in manifest.task_files:
            staged.carry_file(file, _with_shares(repository.read_file(manifest, file), manifest, loaded, folded))
        progress(Progress(_STAGE, len(tables), len(tables)))
        return staged.commit(
            scope=manifest.scope,
            ranking=manifest.ranking,
            variants=variants,
            profile=_profile(manifest.profile, [*variants, *cascades], folded.kept.count / folded.living.first_nodes),
            generator=manifest.generator,
            created_at=datetime.now(UTC).isoformat(timespec="microseconds"),
            training=manifest.training,
            row_source=source,
            edge_rules=manifest.edge_rules,
            assumptions=manifest.assumptions,
            compared=() if manifest.compared is UNSET else manifest.compared,
            cascades=cascades,
            sections={field: section.over(folded.data.schema) for field, section in manifest.sections.items()},
        )


def _with_shares(content: bytes, manifest: RevisionManifest, loaded: LoadedRevision, folded: FoldedGraph) -> bytes:
    """A file of the task; where it has a number for each node, it has those of the nodes that there are now."""
    makers = () if loaded.changes is None else loaded.changes.layer_makers
    for maker in (one for one in makers if isinstance(one, FoldedRowMaker)):
        name = next(name for name, table in loaded.tables.items() if table is maker.table)
        if (shares := maker.shares(folded.kept.rows_of(manifest.tables[name]).rows)) is not None:
            return safetensors.numpy.save({**safetensors.numpy.load(content), SHARES: shares})
    return content


def _tables_of(variants: Sequence[VariantManifest], loaded: LoadedRevision) -> Mapping[str, Table]:
    """The tables that they read, by name."""
    found: dict[str, Table] = {}
    for variant in variants:
        for name in variant.tables:
            found[name] = loaded.tables[name]
    return found


def _profile(profile: Profile, kept: Sequence[VariantManifest | CascadeManifest], growth: float) -> Profile:
    """`growth`: nodes now over nodes before."""
    variants = [_grown(profile.variant(variant.name), growth) for variant in kept]
    return msgspec.structs.replace(profile, variants=tuple(variants))


def _grown(variant: VariantProfile, growth: float) -> VariantProfile:
    rows = variant.memory_bytes - variant.size_bytes
    return msgspec.structs.replace(variant, memory_bytes=variant.size_bytes + round(rows * growth))
