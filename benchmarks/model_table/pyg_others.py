"""Files of torch_geometric's examples that are listed without being run, each with its reason.

All Python files of `examples/` at `COMMIT` are in one of these lists, or have an entry: a test compares their names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from benchmarks.model_table.entries import Listed
from benchmarks.model_table.outcomes import Unrun

COMMIT = "5c6461b2305ad068a6d61165b3c55852a11aaa41"
"""17 August 2026."""
FILES, FILES_SHA256 = 152, "bf80aa1f99133ad94ed3328d5a18cc157275463a62c1dc853793c13d728a16da"
"""Python files of `examples/` at that commit, and the digest of their names in order, a line for each."""
FAMILY = "torch_geometric"
_LINK = f"https://github.com/pyg-team/pytorch_geometric/blob/{COMMIT}/examples/"

SAME: Mapping[str, str] = {
    "compile/gcn.py": "gcn.py",
    "contrib/pgm_explainer_node_classification.py": "gcn.py",
    "contrib/rbcd_attack_poisoning.py": "contrib/rbcd_attack.py: GCN",
    "distributed/graphlearn_for_pytorch/dist_train_sage_supervised.py": "ogbn_train.py: GraphSAGE",
    "explain/captum_explainer.py": "gcn.py",
    "explain/captum_explainer_hetero_link.py": "hetero/hetero_link_pred.py",
    "explain/gnn_explainer.py": "gcn.py",
    "explain/gnn_explainer_ba_shapes.py": "gcn.py",
    "explain/gnn_explainer_link_pred.py": "link_pred.py",
    "explain/graphmask_explainer.py": "gcn.py, gat.py",
    "jit/film.py": "film.py",
    "jit/gat.py": "gat.py",
    "jit/gcn.py": "gcn.py",
    "multi_gpu/distributed_sampling.py": "reddit.py",
    "multi_gpu/distributed_sampling_multinode.py": "reddit.py",
    "multi_gpu/distributed_sampling_xpu.py": "ppi.py",
    "multi_gpu/model_parallel.py": "gcn.py",
    "multi_gpu/papers100m_gcn_multinode.py": "multi_gpu/papers100m_gcn.py",
    "quiver/multi_gpu_quiver.py": "reddit.py",
    "quiver/single_gpu_quiver.py": "reddit.py",
    "tensorboard_logging.py": "gcn.py",
}
"""Networks of other rows."""

GRAPHS = (
    "attentive_fp.py", "colors_topk_pool.py", "compile/gin.py", "contrib/pgm_explainer_graph_classification.py",
    "cpp/save_model.py", "datapipe.py", "dgcnn_classification.py", "egc.py", "equilibrium_median.py",
    "explain/mgnan_graph_mutagenicity.py", "gpse.py", "graph_gps.py", "jit/gin.py", "lcm_aggr_2nd_min.py",
    "mem_pool.py", "mnist_graclus.py", "mnist_nn_conv.py", "mnist_voxel_grid.py", "multi_gpu/distributed_batching.py",
    "multi_gpu/pcqm4m_ogb.py", "mutag_gin.py", "pna.py", "point_transformer_classification.py",
    "pointnet2_classification.py", "proteins_diff_pool.py", "proteins_dmon_pool.py", "proteins_gmt.py",
    "proteins_mincut_pool.py", "proteins_topk_pool.py", "pytorch_ignite/gin.py", "pytorch_lightning/gin.py",
    "qm9_nn_conv.py", "qm9_pretrained_dimenet.py", "qm9_pretrained_schnet.py", "randlanet_classification.py",
    "triangles_sag_pool.py", "upfd.py", "wl_kernel.py",
)  # fmt: skip
"""Scores of whole graphs: molecules, images, point clouds, sets."""

POINTS = (
    "dgcnn_segmentation.py", "point_transformer_segmentation.py", "pointnet2_segmentation.py",
    "randlanet_segmentation.py",
)  # fmt: skip
"""Classes of points, whose neighbours the network itself finds among all points of a cloud."""

PAIRS: Mapping[str, str] = {
    "lpformer.py": "scores a pair by all nodes that personalised PageRank finds near it",
    "renet.py": "scores an event (two nodes, a relation, a time) by the events before it",
    "seal_link_pred.py": "scores a pair by the graph around it, cut out for each pair",
}
"""Scores of links that are no function of two nodes' rows: none of ours serves them yet."""

TEXTS = (
    "llm/g_retriever.py", "llm/git_mol.py", "llm/glem.py", "llm/molecule_gpt.py", "llm/protein_mpnn.py",
    "llm/relbench_gretriever.py", "llm/txt2kg_rag.py", "llm/txt2qa.py",
)  # fmt: skip
"""Language models, with a graph network beside them or without, and a generator of proteins' sequences."""

NONE = (
    "distributed/graphlearn_for_pytorch/launch.py", "distributed/graphlearn_for_pytorch/partition_ogbn_dataset.py",
    "distributed/kuzu/papers_100M/prepare_data.py", "hetero/load_csv.py",
)  # fmt: skip
"""No network: data is prepared, or processes are started."""


def _listed() -> Iterator[Listed]:
    reasons = {
        **{name: (Unrun.SAME, f"its network is that of {other}") for name, other in SAME.items()},
        **dict.fromkeys(GRAPHS, (Unrun.GRAPHS, "scores whole graphs")),
        **dict.fromkeys(POINTS, (Unrun.GRAPHS, "finds neighbours among all points of a cloud")),
        **{name: (Unrun.PAIRS, why) for name, why in PAIRS.items()},
        **dict.fromkeys(TEXTS, (Unrun.TEXTS, "a language model, or one of sequences")),
        **dict.fromkeys(NONE, (Unrun.NONE, "no network")),
    }
    for name, (kind, why) in sorted(reasons.items()):
        yield Listed(name, FAMILY, f"{_LINK}{name}", kind, why)


LISTED = tuple(_listed())
