"""Which variants give embeddings of nodes, by name: known before any is generated."""

from __future__ import annotations

from gnnserve_api.spec.variants import Variants


def embedding_names(variants: Variants, layers: int, *, are_of_pairs: bool) -> frozenset[str]:
    """Variants whose embeddings an index can have. What `EmbeddedTask.gives` of the worker says of variants, of the
    names that they have. `layers`: of the model. `are_of_pairs`: embeddings are what networks end in, as where links
    are scored, and not the last hidden layer."""
    # A network with fewer channels, or one behind a stored layer, has other hidden channels than the model, or none.
    of_the_model = variants.model_copy(update={"stored": (), "channels": (), "one_row": (), "cascades": ()})
    giving = {*of_the_model.listed_names(), *of_the_model.optional_names()}
    if are_of_pairs:
        giving |= {name for base in variants.one_row_names() for name in variants.in_storages(base)}
        giving |= {*variants.names_of_stored(layers)} if layers in variants.stored else set()
    return frozenset(giving)
