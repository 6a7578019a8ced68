"""Catalogue of the known public data sets: their files, and where their authors publish these.

It is data only, so that a test can compare it with torch_geometric's own. A data set's type names its format.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from gnnserve_api.spec.published import OgbName, PygName

ZIP = b"PK\x03\x04"
NPY = b"\x93NUMPY"
PICKLE = b"\x80\x02"
JSON = b"{"

OGB_NODES, OGB_EDGES = "raw/num-node-list.csv.gz", "raw/num-edge-list.csv.gz"
OGB_EDGE, OGB_FEATURES, OGB_LABEL = "raw/edge.csv.gz", "raw/node-feat.csv.gz", "raw/node-label.csv.gz"


@dataclass(frozen=True, slots=True)
class PublishedFile:
    name: str
    """The file's name on a mirror, in a folder, and where it is stored."""
    url: str
    begins: bytes = b""
    """The file's first bytes, where its format has fixed ones."""


@dataclass(frozen=True, slots=True)
class Ogb:
    """CSV files in a zip, of Hu et al., *Open Graph Benchmark*, 2020."""

    files: tuple[PublishedFile, ...]
    folder: str
    """Folder in the zip that has `raw/` and `split/` in it."""
    split: str
    """The folder in `split/`."""

    @property
    def splits(self) -> tuple[str, str, str]:
        """Files of training, validation and test nodes."""
        folder = f"split/{self.split}"
        return f"{folder}/train.csv.gz", f"{folder}/valid.csv.gz", f"{folder}/test.csv.gz"

    @property
    def members(self) -> tuple[str, ...]:
        """The members that are read, by their path in `folder`."""
        return (OGB_NODES, OGB_EDGES, OGB_EDGE, OGB_FEATURES, OGB_LABEL, *self.splits)


@dataclass(frozen=True, slots=True)
class GraphSaint:
    """numpy and JSON files, of Zeng et al., *GraphSAINT*, 2020."""

    files: tuple[PublishedFile, ...]


@dataclass(frozen=True, slots=True)
class Planetoid:
    """Pickled numpy and scipy matrices, of Yang et al., *Revisiting Semi-Supervised Learning with Graph Embeddings*,
    2016."""

    files: tuple[PublishedFile, ...]
    prefix: str


@dataclass(frozen=True, slots=True)
class GnnBenchmark:
    """One numpy file, of Shchur et al., *Pitfalls of Graph Neural Network Evaluation*, 2018."""

    files: tuple[PublishedFile, ...]


Dataset: TypeAlias = Ogb | GraphSaint | Planetoid | GnnBenchmark


def _ogb(folder: str, split: str) -> Ogb:
    url = f"http://snap.stanford.edu/ogb/data/nodeproppred/{folder}.zip"
    return Ogb((PublishedFile(f"{folder}.zip", url, ZIP),), folder, split)


def _graph_saint(adjacency: str, features: str, classes: str, roles: str) -> GraphSaint:
    """A data set by its files' ids on Google Drive. `confirm=t` skips the page that warns of a large file."""
    address = "https://drive.usercontent.google.com/download?id={}&confirm=t"
    return GraphSaint(
        (
            PublishedFile("adj_full.npz", address.format(adjacency), ZIP),
            PublishedFile("feats.npy", address.format(features), NPY),
            PublishedFile("class_map.json", address.format(classes), JSON),
            PublishedFile("role.json", address.format(roles), JSON),
        )
    )


def _planetoid(name: str) -> Planetoid:
    url = "https://github.com/kimiyoung/planetoid/raw/master/data"
    prefix = f"ind.{name}"
    # `x` is not listed: its rows are the first of `allx`.
    pickles = tuple(
        PublishedFile(f"{prefix}.{part}", f"{url}/{prefix}.{part}", PICKLE)
        for part in ("tx", "allx", "y", "ty", "ally", "graph")
    )
    return Planetoid((*pickles, PublishedFile(f"{prefix}.test.index", f"{url}/{prefix}.test.index")), prefix)


def _gnn_benchmark(name: str) -> GnnBenchmark:
    url = "https://github.com/shchur/gnn-benchmark/raw/master/data/npz"
    return GnnBenchmark((PublishedFile(f"{name}.npz", f"{url}/{name}.npz", ZIP),))


CATALOGUE: dict[OgbName | PygName, Dataset] = {
    OgbName.ARXIV: _ogb("arxiv", "time"),
    OgbName.PRODUCTS: _ogb("products", "sales_ranking"),
    PygName.FLICKR: _graph_saint(
        "1crmsTbd1-2sEXsGwa2IKnIB7Zd3TmUsy", "1join-XdvX3anJU_MLVtick7MgeAQiWIZ",
        "1uxIkbtg5drHTsKt-PAsZZ4_yJmgFmle9", "1htXCtuktuCW8TR8KiKfrFDAxUgekQoV7",
    ),
    PygName.REDDIT2: _graph_saint(
        "1sncK996BM5lpuDf75lDFqCiDZyErc1c2", "1ZsHaJ0ussP1W722krmEIp_8pwKAoi5b3",
        "1JF3Pjv9OboMNYs2aXRQGbJbc4t_nDd5u", "1nJIKd77lcAGU4j-kVNx_AIGEkveIKz3A",
    ),
    PygName.YELP: _graph_saint(
        "1Juwx8HtDwSzmVIJ31ooVa1WljI4U5JnA", "1Zy6BZH_zLEjKlEFSduKE5tV9qqA_8VtM",
        "1VUcBGr0T0-klqerjAjxRmAqFuld_SMWU", "1NI5pa5Chpd-52eSmLW60OnB3WS5ikxq_",
    ),
    PygName.AMAZON_PRODUCTS: _graph_saint(
        "17qhNA8H1IpbkkR-T2BmPQm8QNW5do-aa", "10SW8lCvAj-kb6ckkfTOC5y0l8XXdtMxj",
        "1LIl4kimLfftj4-7NmValuWyCQE8AaE7P", "1npK9xlmbnjNkV80hK2Q68wTEVOFjnt4K",
    ),
    PygName.CORA: _planetoid("cora"),
    PygName.CITESEER: _planetoid("citeseer"),
    PygName.PUBMED: _planetoid("pubmed"),
    PygName.COMPUTERS: _gnn_benchmark("amazon_electronics_computers"),
    PygName.PHOTO: _gnn_benchmark("amazon_electronics_photo"),
    PygName.COAUTHOR_CS: _gnn_benchmark("ms_academic_cs"),
    PygName.COAUTHOR_PHYSICS: _gnn_benchmark("ms_academic_phy"),
}  # fmt: skip
