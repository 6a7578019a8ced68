"""What the variants of a revision can give, as far as requests are checked by it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gnnserve_api.families import Capabilities, family_of
from gnnserve_api.repository import RevisionManifest


def capabilities_of(manifest: RevisionManifest) -> Mapping[str, Capabilities]:
    """What each variant can give that not every request needs, in the order of the profile."""
    bare = {variant.name for variant in manifest.variants if not variant.network.embedding_columns}
    gives = {v.name: family_of(v).capabilities for v in manifest.profile.variants}
    return gives | {name: replace(gives[name], embeddings=False) for name in bare if name in gives}


def have_embeddings(manifest: RevisionManifest) -> bool:
    """Whether a variant can give its last hidden layer: a network of one layer has none."""
    return any(each.embeddings for each in capabilities_of(manifest).values())


def most_embedding_columns(manifest: RevisionManifest) -> int:
    """Largest width of embeddings, over all variants."""
    return max(variant.network.embedding_columns for variant in manifest.variants)
