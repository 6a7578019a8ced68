"""Networks of variants, opened by their kind: layers are built from their weights, programs get a process to run in.

Beside them, what a manifest says of the layer that a variant stores, and makers of stored layers that follow changes of
the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from msgspec import UNSET

from gnnserve_api.families import point_of
from gnnserve_api.files.graph_schema import GraphSchema
from gnnserve_api.files.repository import CorrectionManifest, FollowedManifest, NetworkKind, VariantManifest
from gnnserve_worker.graph.store import Graph
from gnnserve_worker.models.network import Layer, Linear, Network, VariantNetwork
from gnnserve_worker.models.registry import spec_of
from gnnserve_worker.models.rows import first_products
from gnnserve_worker.models.stored_layers import StoredLayerMaker
from gnnserve_worker.models.tail import tail_of, tail_tensors
from gnnserve_worker.opening.loaded import NetworkBuilder
from gnnserve_worker.repository.revision_files import RevisionFiles, read_tensors
from gnnserve_worker.tables.table import Table

if TYPE_CHECKING:  # only a server that has a program imports what runs one
    from gnnserve_worker.programs.answers import Runner


@dataclass(frozen=True, slots=True)
class VariantNetworks:
    """Opens the networks of a revision's variants. Variants of one program share its process."""

    revision: RevisionFiles
    schema: GraphSchema
    """Schema of the graph as predictions read it."""
    build: NetworkBuilder
    """Makes networks of layers."""
    runners: dict[Path, Runner] = field(default_factory=dict)
    """All programs that were opened, by their files."""

    def open(self, variant: VariantManifest, table: Table) -> VariantNetwork:
        """DamagedError; or ValueError and KeyError where weights do not fit."""
        return _OPENERS[variant.network.kind](self, variant, table)

    def tensors(self, variant: VariantManifest) -> dict[str, np.ndarray]:
        return read_tensors(self.revision, self.revision.folder / variant.weights)


def _open_layers(networks: VariantNetworks, variant: VariantManifest, table: Table) -> VariantNetwork:
    tensors = networks.tensors(variant)
    return networks.build(variant.network, tensors, variant.columns, table.projected, variant.compute)


def _open_program(networks: VariantNetworks, variant: VariantManifest, table: Table) -> VariantNetwork:
    # Only a server that has a program imports what runs one.
    from gnnserve_worker.opening.programs import open_program  # noqa: PLC0415

    return open_program(networks.revision, networks.schema, networks.runners, variant, table)


_OPENERS: Mapping[NetworkKind, Callable[[VariantNetworks, VariantManifest, Table], VariantNetwork]] = {
    NetworkKind.LAYERS: _open_layers,
    NetworkKind.PROGRAM: _open_program,
    NetworkKind.LISTED: _open_program,
}


def fanouts_misfit(variant: VariantManifest, graph: Graph) -> str | None:
    """What of its fan-outs by relation contradicts the graph, which the sampler relies on; None: nothing."""
    own, relations = variant.relation_fanouts, len(graph.schema.relations)
    if own is UNSET or (len(own) == relations and all(len(one) == len(variant.fanouts) for one in own)):
        return None
    found = f"has {len(own)} lists of fan-outs by relation for variant {variant.name}"
    return f"{found}, expected {relations} of {len(variant.fanouts)} numbers"


# --- layers that variants store


def correction_of(variant: VariantManifest) -> CorrectionManifest | None:
    return None if variant.stored is None else variant.stored.correction


def followed_of(variant: VariantManifest) -> FollowedManifest | None:
    """How rows of a later layer of an architecture's network are made anew."""
    return None if variant.network.kind is NetworkKind.LISTED else _made_anew_by(variant)


def followed_listed(variants: Iterable[VariantManifest]) -> list[VariantManifest]:
    """Variants of listed layers whose stored rows are made anew."""
    return [one for one in _listed(variants) if (made := _made_anew_by(one)) is not None and made.layers]


def overlaid_listed(variant: VariantManifest) -> bool:
    """Whether it is of listed layers, and rows of the first one are made anew where requests reach."""
    return bool(followed_listed([variant])) and point_of(variant).capabilities.overlay


def overlaid_rows_read_payload(variant: VariantManifest) -> bool:
    """Whether what makes such rows reads what edges have. It is told of all layers, whichever reads it."""
    followed = _made_anew_by(variant) if overlaid_listed(variant) else None
    program = UNSET if followed is None else followed.network.program
    return program is not UNSET and program.reads_payload


def projected_listed(variants: Iterable[VariantManifest]) -> list[VariantManifest]:
    """Variants of listed layers over rows that are made of each node alone."""
    return [one for one in _listed(variants) if (made := _made_anew_by(one)) is not None and not made.layers]


def has_listed_rows(variants: Iterable[VariantManifest]) -> bool:
    """Whether rows of any of them are made by layers that a manifest lists."""
    return any(_made_anew_by(one) is not None for one in _listed(variants))


def has_propagated_rows(variants: Iterable[VariantManifest]) -> bool:
    """Whether rows of any of them are made of features that are propagated where the graph changes."""
    return any(one.propagated is not UNSET for one in variants)


def _listed(variants: Iterable[VariantManifest]) -> Iterable[VariantManifest]:
    return (variant for variant in variants if variant.network.kind is NetworkKind.LISTED)


def _made_anew_by(variant: VariantManifest) -> FollowedManifest | None:
    return None if variant.stored is None else variant.stored.followed


def made_of_features(variant: VariantManifest) -> str | None:
    """The table whose rows are made of features, where what the variant reads is made of such rows. None: it holds for
    the graph as it was generated alone, or rows are made of others."""
    if variant.propagated is not UNSET:
        return variant.propagated.features
    if (followed := followed_of(variant)) is not None:
        return followed.layers[0].products
    if not point_of(variant).makes_rows_of_features or followed_listed([variant]):
        return None
    correction = correction_of(variant)
    return variant.table if correction is None else correction.products


def stored_products(variant: VariantManifest, prefix: str, tensors: Mapping[str, np.ndarray]) -> tuple[Linear, ...]:
    """What rows of the variant's projected table are made by, from tensors whose keys begin with the prefix."""
    found = {key.removeprefix(prefix): tensor for key, tensor in tensors.items() if key.startswith(prefix)}
    followed = followed_of(variant)
    network = variant.network if followed is None else followed.network
    return first_products(spec_of(network.architecture).project(found))


def followed_layers(
    followed: FollowedManifest,
    stored: str,
    tensors: Mapping[str, np.ndarray],
    tables: Mapping[str, Table],
    graph: Graph,
    build: Callable[..., Network[Layer]],
    roots: Callable[[], np.ndarray],
) -> list[StoredLayerMaker]:
    """Makers of all layers that the table `stored` is made of, and of itself, the first layer's first.

    `tensors`: weights of the whole network, without its first product. `build` builds a network, `roots` makes
    `inverse_roots` of the graph.
    """
    whole = followed.network
    spec = spec_of(whole.architecture)
    outputs = [*(layer.products for layer in followed.layers[1:]), stored]
    makers = []
    for number, (layer, output) in enumerate(zip(followed.layers, outputs, strict=True), start=1):
        source, left = tables[layer.products], tail_tensors(tensors, number - 1)
        network = build(tail_of(whole, number - 1), left, source.columns, projected=True, compute="float32")
        alone = network.layers[0]
        is_last, width = number == whole.layers, tables[output].rows.values.shape[1]
        makers.append(
            StoredLayerMaker(
                tables[output],
                graph,
                alone,
                source,
                None if layer.aggregated is None else tables[layer.aggregated].rows,
                roots() if alone.weighs_neighbours else None,
                () if is_last else first_products(spec.project(tail_tensors(tensors, number)), width),
                number,
            )
        )
    return makers
