"""`revision.json` of schema version 3, whose variants shared one network: read as the present version.

Its checksum is of the file as it stands, so readers verify that before.
"""

from __future__ import annotations

import msgspec

from gnnserve_api.families import PROJECTED, PRUNED
from gnnserve_api.files.profile import Profile, VariantProfile
from gnnserve_api.files.repository import (
    FileEntry,
    NetworkManifest,
    RankingManifest,
    RevisionManifest,
    TableManifest,
    VariantManifest,
    model_digest,
)
from gnnserve_api.files.training import TrainingManifest


class RevisionManifest3(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A `RevisionManifest` of schema version 3, whose variants share one `network`."""

    schema_version: int
    revision: str
    recipe: str
    graph: str
    checkpoint: str | None
    created_at: str
    generator: str
    scope: str
    network: NetworkManifest
    ranking: RankingManifest
    tables: dict[str, TableManifest]
    profile: Profile
    files: dict[str, FileEntry]
    training: TrainingManifest | None = None
    checksum: str = ""

    def upgraded(self) -> RevisionManifest:
        """The same revision. It keeps the schema version and the checksum of its file."""
        profiles = tuple(
            msgspec.structs.replace(variant, fanouts=self.network.fanouts) for variant in self.profile.variants
        )
        variants = tuple(self._variant(variant) for variant in profiles)
        return RevisionManifest(
            schema_version=self.schema_version,
            revision=self.revision,
            recipe=self.recipe,
            graph=self.graph,
            model=model_digest(variants, self.files),
            checkpoint=self.checkpoint,
            created_at=self.created_at,
            generator=self.generator,
            scope=self.scope,
            ranking=self.ranking,
            tables=self.tables,
            variants=variants,
            profile=msgspec.structs.replace(self.profile, variants=profiles),
            files=self.files,
            training=self.training,
            checksum=self.checksum,
        )

    def _variant(self, variant: VariantProfile) -> VariantManifest:
        return VariantManifest(
            name=variant.name,
            family=(PROJECTED if variant.projected else PRUNED).family,
            table=variant.table,
            columns=variant.columns,
            fanouts=self.network.fanouts,
            network=self.network,
            compute=variant.compute,
            weights=f"variants/{variant.name}/weights.safetensors",
        )
