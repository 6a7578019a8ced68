"""Which variants follow changes of the graph, by name: known before any is generated."""

from __future__ import annotations

from gnnserve_api.spec.model import Model
from gnnserve_api.spec.variants import Variants
from gnnserve_api.variants import one_row_name


def fixed_names(variants: Variants, model: Model) -> frozenset[str]:
    """Variants that hold the graph as it was generated; workers do not choose them with `spec.updates`. What
    `Capabilities.changes` says of families, of the names that they have."""
    over_hops = () if variants.stored_follow_changes else variants.canonical().one_row
    propagated = [one_row_name(one.hops) for one in over_hops if one.hops > 0]
    fixed = {name for base in propagated for name in variants.in_storages(base)}
    if model.reads_one_row and not model.learns_embeddings:
        # What is made of the model reads propagated features.
        of_the_model = variants.model_copy(update={"one_row": (), "cascades": ()})
        fixed |= {*of_the_model.listed_names(), *of_the_model.optional_names()}
    elif not variants.stored_follow_changes:
        is_later = model.layers is None and len(model.fanouts) == 1
        behind = (layer for layer in variants.stored if layer > 1 or is_later)
        fixed |= {name for layer in behind for name in variants.names_of_stored(layer)}
    for cascade in variants.canonical().cascades:
        if not fixed.isdisjoint((cascade.first, cascade.then)):
            fixed |= {*cascade.names()}
    return frozenset(fixed)
