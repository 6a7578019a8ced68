"""The object of each architecture. A new one is added here, and its torch module in `generation/networks.py`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gnnserve_api.spec.model import Architecture
from gnnserve_worker.models.architecture import ArchitectureSpec, key_of
from gnnserve_worker.models.gat import GatSpec
from gnnserve_worker.models.gcn import GcnSpec
from gnnserve_worker.models.gin import GinSpec
from gnnserve_worker.models.graphsage import GraphSageSpec
from gnnserve_worker.models.light_gcn import LightGcnSpec
from gnnserve_worker.models.sgc import SgcSpec
from gnnserve_worker.models.sign import SignSpec

ARCHITECTURES: Mapping[Architecture, ArchitectureSpec] = {
    spec.architecture: spec
    for spec in (
        GraphSageSpec(),
        GinSpec(),
        GcnSpec(),
        SgcSpec(),
        SignSpec(),
        GatSpec(),
        LightGcnSpec(),
    )
}


def spec_of(architecture: str) -> ArchitectureSpec:
    """Find the object by name. ValueError: this version does not know the name; a newer one may have written it."""
    return ARCHITECTURES[Architecture(architecture)]


def spec_of_tensors(keys: Iterable[str]) -> ArchitectureSpec:
    """The architecture of a whole state dict under torch_geometric's keys, by the tensors of its first layer."""
    found = {key for key in keys if key.startswith(key_of(0, ""))}
    for spec in ARCHITECTURES.values():
        if {key_of(0, weight) for weight in spec.shapes} == found:
            return spec
    raise ValueError(f"no architecture has a first layer of {', '.join(sorted(found)) or 'no tensors'}")
