"""Public data sets, read from the files that their authors published."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from gnnserve_api.files.edges import Direction
from gnnserve_api.spec.audience import Audience
from gnnserve_api.spec.fields import ApiModel, Sha256
from gnnserve_api.spec.paths import MirrorPath

_Sha256ByFile = Annotated[dict[str, Sha256], Field(max_length=16)]


class PublishedSource(ApiModel):
    """A public data set, read from the files that its authors published."""

    direction: Direction = Direction.UNDIRECTED
    """Direction of messages along the published edges."""
    # A data set is the same wherever it is fetched from.
    mirror: Annotated[MirrorPath | None, Audience.GENERATION | Audience.RETURN | Audience.EMBEDDINGS] = None
    """Place of the published files in place of the authors' own: a web address or, for machines without a network, a
    folder. Absent: the authors' address."""
    sha256: _Sha256ByFile = {}  # noqa: RUF012 - pydantic copies it
    """Expected SHA-256 of the published files, by file name, as in `{arxiv.zip: …}`. Files that differ are refused.
    Absent: any files are read."""


class OgbName(StrEnum):
    ARXIV = "ogbn-arxiv"
    """169,343 papers that cite each other; 128 features, 40 classes, split by year."""
    PRODUCTS = "ogbn-products"
    """2,449,029 products that are bought together; 100 features, 47 classes, split by sales."""


class OgbSource(PublishedSource):
    """A node data set of the Open Graph Benchmark."""

    name: OgbName
    """Name of the data set in the Open Graph Benchmark."""


class PygName(StrEnum):
    FLICKR = "Flickr"
    """89,250 images; 500 features, 7 classes (GraphSAINT)."""
    REDDIT2 = "Reddit2"
    """232,965 posts with 23.2 million directed edges; 602 features, 41 classes (GraphSAINT)."""
    YELP = "Yelp"
    """716,847 users; 300 features, 100 classes, several per node (GraphSAINT)."""
    AMAZON_PRODUCTS = "AmazonProducts"
    """1,569,960 products; 200 features, 107 classes, several per node (GraphSAINT)."""
    CORA = "Cora"
    """2,708 papers; 1,433 features, 7 classes, public split (Planetoid)."""
    CITESEER = "CiteSeer"
    """3,327 papers; 3,703 features, 6 classes, public split (Planetoid)."""
    PUBMED = "PubMed"
    """19,717 papers; 500 features, 3 classes, public split (Planetoid)."""
    COMPUTERS = "Computers"
    """13,752 products; 767 features, 10 classes, no split of its own (Amazon)."""
    PHOTO = "Photo"
    """7,650 products; 745 features, 8 classes, no split of its own (Amazon)."""
    COAUTHOR_CS = "CoauthorCS"
    """18,333 authors; 6,805 features, 15 classes, no split of its own (Coauthor)."""
    COAUTHOR_PHYSICS = "CoauthorPhysics"
    """34,493 authors; 8,415 features, 5 classes, no split of its own (Coauthor)."""


class PygSource(PublishedSource):
    """A data set under the name that torch_geometric gives it."""

    name: PygName
    """Name of the data set in torch_geometric."""
