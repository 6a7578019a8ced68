"""The objects of each architecture, one for each kind of graph that it is for: found by name, or by the keys of
weights, whose first layer they tell and change, for pruning and projections.

A new one is added here, and its torch module in `generation/networks.py`. Nothing here needs torch, so that given
weights are ranked, pruned and projected without importing it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from gnnserve_api.spec.model import Architecture
from gnnserve_worker.models.architecture import (
    ArchitectureSpec,
    FirstLayer,
    OneTypeSpec,
    Projection,
    RelationalSpec,
    key_of,
)
from gnnserve_worker.models.gat import GatSpec, RelationalGatSpec
from gnnserve_worker.models.gcn import GcnSpec
from gnnserve_worker.models.gin import GinSpec
from gnnserve_worker.models.graphsage import GraphSageSpec, RelationalGraphSageSpec
from gnnserve_worker.models.light_gcn import LightGcnSpec
from gnnserve_worker.models.rgcn import RgcnSpec
from gnnserve_worker.models.sgc import SgcSpec
from gnnserve_worker.models.sign import SignSpec


@dataclass(frozen=True, slots=True)
class RegisteredArchitecture:
    """An architecture, and what it is over each kind of graph."""

    architecture: Architecture
    one_type: OneTypeSpec | None = None
    """Over graphs of one type; None: it is not for them."""
    relational: RelationalSpec | None = None
    """Over graphs of several types or relations; None: it is not for them."""

    @property
    def specs(self) -> tuple[ArchitectureSpec, ...]:
        """Its objects, that over one type first."""
        return tuple(spec for spec in (self.one_type, self.relational) if spec is not None)


ARCHITECTURES: Mapping[Architecture, RegisteredArchitecture] = {
    one.architecture: one
    for one in (
        RegisteredArchitecture(Architecture.GRAPHSAGE, GraphSageSpec(), RelationalGraphSageSpec()),
        RegisteredArchitecture(Architecture.GIN, GinSpec()),
        RegisteredArchitecture(Architecture.GCN, GcnSpec()),
        RegisteredArchitecture(Architecture.SGC, SgcSpec()),
        RegisteredArchitecture(Architecture.SIGN, SignSpec()),
        RegisteredArchitecture(Architecture.GAT, GatSpec(), RelationalGatSpec()),
        RegisteredArchitecture(Architecture.LIGHT_GCN, LightGcnSpec()),
        RegisteredArchitecture(Architecture.RGCN, relational=RgcnSpec()),
    )
}
OF_ONE_TYPE: Mapping[Architecture, OneTypeSpec] = {
    name: one.one_type for name, one in ARCHITECTURES.items() if one.one_type is not None
}
RELATIONAL: Mapping[Architecture, RelationalSpec] = {
    name: one.relational for name, one in ARCHITECTURES.items() if one.relational is not None
}


def spec_of(architecture: str) -> OneTypeSpec:
    """Find what an architecture is over graphs of one type, by name. ValueError: this version does not know the name;
    a newer one may have written it."""
    return OF_ONE_TYPE[Architecture(architecture)]


def relational_spec_of(architecture: str) -> RelationalSpec:
    """Find what it is over graphs of several types or relations. ValueError: as `spec_of`."""
    return RELATIONAL[Architecture(architecture)]


# --- weights under torch_geometric's keys, whichever architecture they are of


Tensors = dict[str, np.ndarray]
"""Weights of a network, as a state dict."""
DECODER = "decoder."
"""Beginning of the keys of a decoder's weights where they stand beside a network's."""


def spec_of_tensors(keys: Iterable[str]) -> OneTypeSpec:
    """The architecture of a whole state dict under torch_geometric's keys, by the tensors of its first layer."""
    found = {key for key in keys if key.startswith(key_of(0, ""))}
    for spec in OF_ONE_TYPE.values():
        if {key_of(0, weight) for weight in spec.shapes} == found:
            return spec
    raise ValueError(f"no architecture has a first layer of {', '.join(sorted(found)) or 'no tensors'}")


def first_layer(tensors: Mapping[str, np.ndarray]) -> FirstLayer:
    return spec_of_tensors(tensors).split_first_layer(tensors)


def projection_of(tensors: Mapping[str, np.ndarray]) -> Projection:
    return spec_of_tensors(tensors).project(tensors)


def with_first_layer(tensors: Mapping[str, np.ndarray], first: FirstLayer) -> Tensors:
    changed = spec_of_tensors(tensors).first_layer_tensors(first)
    return {
        **tensors,
        **{key_of(0, weight): np.ascontiguousarray(value, dtype=np.float32) for weight, value in changed.items()},
    }


def keep_columns_of(tensors: Mapping[str, np.ndarray], columns: np.ndarray) -> Tensors:
    """The network with the first layer reduced to the given columns, in the given order."""
    return with_first_layer(tensors, first_layer(tensors).keep(columns))


def without_first_product(tensors: Mapping[str, np.ndarray]) -> Tensors:
    """The network of a projected variant, whose table holds the first product already."""
    products = spec_of_tensors(tensors).first_product_keys()
    return {key: value for key, value in tensors.items() if key not in products}


def with_decoder(network: Mapping[str, np.ndarray], decoder: Mapping[str, np.ndarray]) -> Tensors:
    """A network's weights and those of the decoder that was learnt beside it as one set, to be kept together."""
    return {**network, **{f"{DECODER}{key}": tensor for key, tensor in decoder.items()}}


def without_decoder(tensors: Mapping[str, np.ndarray]) -> tuple[Tensors, Tensors]:
    """The network's weights and the decoder's."""
    network = {key: value for key, value in tensors.items() if not key.startswith(DECODER)}
    return network, {key.removeprefix(DECODER): tensors[key] for key in tensors if key.startswith(DECODER)}
