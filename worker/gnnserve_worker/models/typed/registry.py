"""The architectures over graphs of several types. One is added as a file beside this one, and an entry here."""

from __future__ import annotations

from collections.abc import Mapping

from gnnserve_api.spec.model import Architecture
from gnnserve_worker.models.typed.architecture import TypedArchitectureSpec
from gnnserve_worker.models.typed.gat import TypedGatSpec
from gnnserve_worker.models.typed.graphsage import TypedGraphSageSpec
from gnnserve_worker.models.typed.rgcn import RgcnSpec

TYPED_ARCHITECTURES: Mapping[Architecture, TypedArchitectureSpec] = {
    spec.architecture: spec for spec in (TypedGraphSageSpec(), TypedGatSpec(), RgcnSpec())
}
