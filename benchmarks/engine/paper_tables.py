"""Dynamic GNN inference as-a-service, tables 2 and 3 as printed, and the widths of its authors' models.

Lasso ranking, batches of 1024 nodes, a Ryzen 3990X with an RTX A6000, 13.5 GB/s from host to device. Accuracies are
left out: nothing here is compared with them.
"""

from __future__ import annotations

from dataclasses import dataclass

FACTORS = (1, 2, 4, 8)
MODELS = ("GraphSAGE", "GIN")


@dataclass(frozen=True, slots=True)
class PaperCell:
    latency_ms: float
    """Time from the start of the transfer of features to the end of computing: no sampling, no gathering."""
    comm_over_comp: float
    size_kib: float
    """Size of the serialised model; printed as KB."""
    memory_mib: float
    """Printed as MB; equals the size of the whole pruned feature matrix with the labels."""

    @property
    def transfer_ms(self) -> float:
        return self.latency_ms * self.comm_over_comp / (1 + self.comm_over_comp)


@dataclass(frozen=True, slots=True)
class PaperGraph:
    nodes: int
    edges: int
    """Directed, each link counted twice: the counts printed in table 1 mix conventions."""
    features: int
    classes: int
    multi_label: bool
    sage_hidden: int
    """The paper does not state widths; these reproduce the sizes that it prints."""
    gin_hidden: int
    gin_mlp_hidden: int

    @property
    def label_bytes(self) -> int:
        """Bytes of a node's label: an int64, or a float32 for each class."""
        return 4 * self.classes if self.multi_label else 8


GRAPHS = {
    "flickr": PaperGraph(89_250, 899_756, 500, 7, False, 256, 256, 64),
    "arxiv": PaperGraph(169_343, 2_332_486, 128, 40, False, 512, 256, 64),
    "reddit": PaperGraph(232_965, 23_213_838, 602, 41, False, 256, 512, 64),
    "yelp": PaperGraph(716_847, 13_954_820, 300, 100, True, 512, 512, 128),
    "products": PaperGraph(2_449_029, 123_718_280, 100, 47, False, 256, 512, 64),
}


def _cells(*printed: tuple[float, float, float, float]) -> dict[int, PaperCell]:
    return {factor: PaperCell(*cell) for factor, cell in zip(FACTORS, printed, strict=True)}


CELLS = {
    ("flickr", "GIN"): _cells((13.44, 15.08, 268, 171), (7.52, 8.01, 209, 88), (3.71, 5.01, 176, 44),
                              (2.40, 3.33, 160, 23)),
    ("arxiv", "GIN"): _cells((4.15, 4.14, 184, 84), (2.79, 3.68, 169, 44), (2.01, 2.84, 161, 23),
                             (1.60, 2.30, 157, 13)),
    ("reddit", "GIN"): _cells((43.69, 53.43, 432, 538), (24.46, 29.25, 359, 272), (13.65, 15.83, 320, 138),
                              (8.28, 9.84, 301, 71)),
    ("yelp", "GIN"): _cells((13.77, 16.19, 730, 1097), (7.96, 8.48, 657, 688), (4.29, 3.95, 618, 484),
                            (2.96, 3.10, 599, 382)),
    ("products", "GIN"): _cells((11.42, 13.19, 308, 954), (5.84, 5.82, 296, 488), (4.19, 4.68, 290, 254),
                                (3.15, 4.10, 286, 133)),
    ("flickr", "GraphSAGE"): _cells((14.87, 9.97, 1021, 174), (8.58, 7.49, 523, 90), (4.19, 3.86, 272, 46),
                                    (2.78, 3.18, 145, 25)),
    ("arxiv", "GraphSAGE"): _cells((4.42, 3.13, 680, 86), (3.07, 2.55, 424, 46), (2.23, 1.77, 296, 25),
                                   (1.93, 1.52, 232, 15)),
    ("reddit", "GraphSAGE"): _cells((51.86, 12.64, 1293, 541), (28.03, 11.22, 693, 274), (15.69, 8.81, 390, 140),
                                    (9.50, 6.61, 240, 71)),
    ("yelp", "GraphSAGE"): _cells((15.66, 9.35, 1608, 1100), (8.82, 6.44, 1009, 697), (4.57, 3.10, 709, 493),
                                  (3.32, 2.29, 556, 390)),
    ("products", "GraphSAGE"): _cells((12.40, 9.19, 301, 954), (6.31, 4.80, 201, 488), (4.59, 3.77, 151, 253),
                                      (3.60, 3.24, 125, 132)),
}  # fmt: skip


def weight_bytes(graph: PaperGraph, model: str, columns: int) -> int:
    """The numbers of a two-layer model over `columns` columns, in float32, without a file's framing.

    GIN's two ε, which torch_geometric keeps as buffers, are counted.
    """
    classes = graph.classes
    if model == "GraphSAGE":
        hidden = graph.sage_hidden
        return 4 * (2 * columns * hidden + hidden + 2 * hidden * classes + classes)
    inner, hidden = graph.gin_mlp_hidden, graph.gin_hidden
    first = columns * inner + inner + inner * hidden + hidden + 1
    second = hidden * inner + inner + inner * classes + classes + 1
    return 4 * (first + second)


def fixed_share(graph: PaperGraph, model: str, columns: int, seeds: int, fanout: int) -> float:
    """Share of the multiply-adds of a batch's products that pruning leaves: the first layer has `fanout` + 1 rows per
    seed, the second one."""
    if model == "GraphSAGE":
        pruned, kept = 2 * columns * graph.sage_hidden, 0
        second = 2 * graph.sage_hidden * graph.classes
    else:
        inner, hidden = graph.gin_mlp_hidden, graph.gin_hidden
        pruned, kept = columns * inner, inner * hidden
        second = hidden * inner + inner * graph.classes
    rows = seeds * (1 + fanout)
    fixed = rows * kept + seeds * second
    return fixed / (rows * pruned + fixed)
