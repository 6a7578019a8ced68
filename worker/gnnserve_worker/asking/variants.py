"""Capabilities of the variants of a revision, as far as requests are checked by it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gnnserve_api.families import Capabilities, point_of
from gnnserve_api.files.repository import NetworkKind, RevisionManifest, VariantManifest


def capabilities_of(manifest: RevisionManifest) -> Mapping[str, Capabilities]:
    """What each variant can give that not every request needs, in the order of the profile."""
    bare = {variant.name for variant in manifest.variants if not embedding_columns(variant, manifest)}
    gives = {v.name: point_of(v).capabilities for v in manifest.profile.variants}
    return gives | {name: replace(gives[name], embeddings=False) for name in bare if name in gives}


@dataclass(frozen=True, slots=True)
class MissingEmbeddings:
    """Why no variant of a revision gives embeddings."""

    problem: str
    remedy: str
    """What gives the next revision some."""


_MISSING = {
    NetworkKind.PROGRAM: MissingEmbeddings(
        "the program gives scores alone", "describe a module whose forward returns (scores, embeddings)"
    ),
    NetworkKind.LISTED: MissingEmbeddings(
        "the only layer gives the scores", "list two layers or more, or a head behind them, whose rows they are"
    ),
    NetworkKind.LAYERS: MissingEmbeddings(
        "no variant has a hidden layer to return: their networks have one layer, or the others are stored",
        "give model.fanouts two layers or more, and have a variant that computes them",
    ),
}
"""By kind of network; of a revision that has several, the first one here counts: one-row variants are of layers."""
_BEHIND_STORED = MissingEmbeddings(
    "all variants read a stored layer", "have a variant that computes all layers, such as variants.pruning.factors [1]"
)
"""The reason where links are scored, whatever the network is."""


def missing_embeddings(manifest: RevisionManifest) -> MissingEmbeddings | None:
    """None: a variant gives embeddings."""
    if any(each.embeddings for each in capabilities_of(manifest).values()):
        return None
    if manifest.links is not None:
        return _BEHIND_STORED
    kinds = {variant.network.kind for variant in manifest.variants}
    return next(missing for kind, missing in _MISSING.items() if kind in kinds)


def most_embedding_columns(manifest: RevisionManifest) -> int:
    """Largest width of embeddings, over all variants."""
    return max(embedding_columns(variant, manifest) for variant in manifest.variants)


def embedding_columns(variant: VariantManifest, manifest: RevisionManifest) -> int:
    """Width of the embeddings that a variant's network has; 0: it has none. Where links are scored it ends in them,
    otherwise they are its last hidden layer."""
    return variant.network.embedding_columns if manifest.links is None else manifest.links.dimensions
