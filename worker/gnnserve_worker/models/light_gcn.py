"""LightGCN (He et al., *LightGCN: Simplifying and Powering Graph Convolution Network for Recommendation*, SIGIR 2020):

    e(i) = mean over k = 0 … K of (S^k E)(i),   S = D^-1/2 A D^-1/2

E is learnt (`generation/light_gcn.py`), and nothing is multiplied with it: its layers are one table of
final embeddings. Its weight is the identity, and serving builds no product of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from gnnserve_api.files.profile import Compute
from gnnserve_api.spec.model import Architecture
from gnnserve_worker.models.architecture import LayerKey, LayerWeights
from gnnserve_worker.models.network import Layer
from gnnserve_worker.models.sgc import SgcSpec


class LightGcnSpec(SgcSpec):
    architecture = Architecture.LIGHT_GCN
    module = "LightGCN"
    layer_tensors = "embedding.weight"
    layer_kinds = ()
    assumptions: ClassVar = {}

    def build_layer(self, weights: LayerWeights, *, relu: bool, compute: Compute) -> Layer:
        del compute
        return self.build_projected_layer(weights, relu=relu)

    def recognise(self, keys: Iterable[str]) -> dict[str, LayerKey]:
        """Nothing: a rule of the spec refuses a checkpoint for links."""
        return {}
