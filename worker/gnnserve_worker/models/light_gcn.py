"""LightGCN (He et al., *LightGCN: Simplifying and Powering Graph Convolution Network for Recommendation*, SIGIR 2020):

    e(i) = mean over k = 0 … K of (S^k E)(i),   S = D^-1/2 A D^-1/2

E is learnt (`generation/link_training/light_gcn.py`), and nothing is multiplied with it: its layers are one table of
final embeddings. What serving builds is one product with the identity, or none where the product is stored.
"""

from __future__ import annotations

from collections.abc import Iterable

from gnnserve_api.spec.model import Architecture
from gnnserve_worker.models.architecture import LayerKey
from gnnserve_worker.models.sgc import SgcSpec


class LightGcnSpec(SgcSpec):
    architecture = Architecture.LIGHT_GCN
    module = "LightGCN"
    layer_tensors = "embedding.weight"

    def recognise(self, keys: Iterable[str]) -> dict[str, LayerKey]:
        """Nothing: a rule of the spec refuses a checkpoint for links."""
        return {}
