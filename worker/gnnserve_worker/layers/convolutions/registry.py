"""The object of each kind of convolution."""

from __future__ import annotations

from collections.abc import Mapping

from gnnserve_api.files.layers import Convolution
from gnnserve_worker.layers.convolutions.attention import Gat, Gatv2, Transformer
from gnnserve_worker.layers.convolutions.cosine import Agnn
from gnnserve_worker.layers.convolutions.film import Film
from gnnserve_worker.layers.convolutions.isomorphism import Gen, Gin, Gine
from gnnserve_worker.layers.convolutions.kind import ConvolutionKind
from gnnserve_worker.layers.convolutions.means import GraphConv, GraphSage
from gnnserve_worker.layers.convolutions.pna import Pna
from gnnserve_worker.layers.convolutions.propagation import Appnp, Chebyshev, Gcn, Gcnii, Sgc, Tag
from gnnserve_worker.layers.convolutions.relational import Rgat

KINDS: Mapping[Convolution, ConvolutionKind] = {
    Convolution.GRAPH_SAGE: GraphSage(),
    Convolution.GCN: Gcn(),
    Convolution.GRAPH_CONV: GraphConv(),
    Convolution.GAT: Gat(),
    Convolution.GATV2: Gatv2(),
    Convolution.TRANSFORMER: Transformer(),
    Convolution.GIN: Gin(),
    Convolution.GINE: Gine(),
    Convolution.PNA: Pna(),
    Convolution.TAG: Tag(),
    Convolution.CHEBYSHEV: Chebyshev(),
    Convolution.SGC: Sgc(),
    Convolution.APPNP: Appnp(),
    Convolution.GCNII: Gcnii(),
    Convolution.AGNN: Agnn(),
    Convolution.GEN: Gen(),
    Convolution.FILM: Film(),
    Convolution.RGAT: Rgat(),
}
