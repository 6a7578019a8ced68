"""Kinds of modules that files of weights have, in the order in which they are tried.

Those that architectures read are attributes of the architectures' objects; all others are the table here. What a module
becomes in a network that is listed layer by layer is in `convolutions.py` and `parts.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from gnnserve_worker.models.layer_kind import LINEAR, LayerKind
from gnnserve_worker.models.registry import OF_ONE_TYPE, RELATIONAL

_GRAPH_NORM = "it reads the whole graph, which no sample of neighbours can give"
_NORM = r"weight|bias|mean_scale|module\.weight|module\.bias|(module\.)?running_mean|(module\.)?running_var"

BATCH_NORM = LayerKind("BatchNorm", _NORM, (r"(module\.)?running_mean",), is_convolution=False)
LAYER_NORM = LayerKind(
    "LayerNorm or another norm", _NORM, (r"(module\.)?weight", r"(module\.)?bias"), {"weight": 1, "module.weight": 1},
    is_convolution=False,
)  # fmt: skip
PRELU = LayerKind(
    "PReLU, or a norm without a bias", r"weight", ("weight",), {"weight": 1}, is_convolution=False,
)  # fmt: skip
MATRIX = LayerKind(
    "Linear without a bias, or an Embedding", r"weight", ("weight",), {"weight": 2}, is_convolution=False
)
JUMPING = LayerKind(
    'JumpingKnowledge("lstm")', r"lstm\.(weight|bias)_[ih]h_l0(_reverse)?|att\.(weight|bias)",
    (r"lstm\.weight_ih_l0_reverse", r"att\.weight"), is_convolution=False,
)  # fmt: skip
OTHERS: Sequence[LayerKind] = (
    JUMPING,
    LayerKind("SAGEConv without weights of the node itself and a bias", r"lin_l\.weight", (r"lin_l\.weight",)),
    LayerKind("SAGEConv with project=True", r"lin_[lr]\.weight|lin_l\.bias|lin\.(weight|bias)",
              (r"lin\.weight", r"lin_l\.weight")),
    LayerKind("SAGEConv with a learned softmax as its aggregation",
              r"lin_[lr]\.weight|lin_l\.bias|aggr_module\.(.+\.)?t", (r"lin_l\.weight", r"aggr_module\.(.+\.)?t")),
    LayerKind("SAGEConv with an LSTM as its aggregation", r"lin_[lr]\.(weight|bias)|aggr_module\..+",
              (r"aggr_module\.lstm\..+",)),
    LayerKind("SAGEConv of DGL with a bias of its own", r"fc_(self|neigh)\.(weight|bias)|bias",
              (r"fc_neigh\.weight", r"fc_self\.weight")),
    LayerKind("SAGEConv of DGL with pooling", r"fc_(self|neigh|pool)\.(weight|bias)|bias",
              (r"fc_neigh\.weight", r"fc_self\.weight", r"fc_pool\.weight")),
    LayerKind("SAGEConv of DGL with an LSTM, or of its kind gcn", r"fc_(self|neigh)\.(weight|bias)|bias|lstm\..+",
              (r"fc_neigh\.weight",)),
    LayerKind("GATConv with columns of edges (edge_dim)",
              r"(lin|lin_src|lin_dst|lin_edge)\.weight|att_(src|dst|edge)|bias|res\.weight",
              (r"lin_edge\.weight", "att_src")),
    LayerKind("GATConv with residual=True or bias=False", r"(lin|lin_src|lin_dst|res)\.weight|att_(src|dst)|bias",
              (r"(lin|lin_src)\.weight", "att_src")),
    LayerKind("GATConv of DGL", r"fc(_src|_dst)?\.weight|attn_[lr]|bias|res_fc\.weight", ("attn_l", "attn_r")),
    LayerKind("GATv2Conv with columns of edges (edge_dim)", r"lin_([lr]|edge)\.(weight|bias)|att|bias|res\.weight",
              (r"lin_edge\.weight", "att")),
    LayerKind("GATv2Conv", r"lin_[lr]\.(weight|bias)|att|bias|res\.weight", ("att", r"lin_l\.weight")),
    LayerKind("TransformerConv", r"lin_(key|query|value|skip|edge|beta)\.(weight|bias)",
              (r"lin_key\.weight", r"lin_query\.weight")),
    LayerKind("GINEConv", r"nn\..+|eps|lin\.(weight|bias)", (r"nn\..+", r"lin\.weight")),
    LayerKind("GINConv with a norm in its nn", r"nn\..+|eps", (r"nn\.(.+\.)?(running_mean|norms?\..+)",)),
    LayerKind("GINConv over other layers than Linear, ReLU, Linear", r"nn\..+|eps", (r"nn\..+", "eps")),
    LayerKind("PNAConv", r"(pre_nns|post_nns|edge_encoder|lin|aggr_module)\..+", (r"pre_nns\..+", r"post_nns\..+")),
    LayerKind("GraphConv", r"lin_(rel|root)\.(weight|bias)", (r"lin_rel\.weight", r"lin_root\.weight")),
    LayerKind("HGTConv", r"(kqv_lin|k_lin|q_lin|v_lin|out_lin|k_rel|v_rel|a_rel|m_rel|a_lin|p_rel|skip)\..+",
              (r"(p_rel|skip)\..+",)),
    LayerKind("HANConv", r"lin_(src|dst)\..+|proj\..+|k_lin\.(weight|bias)|q", (r"proj\..+", "q")),
    LayerKind("RGATConv", r"weight|att|[qke]|bias|mod|basis|comp|w|l1|b1|l2|b2|lin_edge\..+", ("q", "k")),
    LayerKind("RGCNConv with root_weight=False or bias=False", r"weight|root|bias|comp", ("weight",), {"weight": 3}),
    LayerKind("GCN2Conv (GCNII)", r"weight1|weight2", ("weight1",)),
    LayerKind("ChebConv or TAGConv", r"lins\.\d+\.weight|bias", (r"lins\.0\.weight", "bias")),
    LayerKind("ARMAConv", r"init_weight|weight|root_weight|bias", ("init_weight",)),
    LayerKind("GatedGraphConv", r"weight|rnn\.(weight|bias)_[ih]h", (r"rnn\.weight_ih",)),
    LayerKind("LSTM or GRU", r"(weight|bias)_[ih]h(_l\d+)?(_reverse)?", (r"weight_ih.*",), is_convolution=False),
    BATCH_NORM,
    LayerKind("GraphNorm", _NORM, ("mean_scale",), is_convolution=False, note=_GRAPH_NORM),
    PRELU,
    LAYER_NORM,
    MATRIX,
)  # fmt: skip
"""Kinds of modules that no architecture reads, the more particular ones first."""

KINDS: Sequence[LayerKind] = (
    *(kind for spec in OF_ONE_TYPE.values() for kind in spec.layer_kinds if kind is not LINEAR),
    *(
        kind
        for spec in RELATIONAL.values()
        for kind in spec.layer_kinds
        if kind.name not in {one.name for each in OF_ONE_TYPE.values() for one in each.layer_kinds}
    ),
    *OTHERS,
    LINEAR,
)
"""Every kind that is recognised, in the order in which they are tried."""
