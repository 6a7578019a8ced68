"""Indexes over embeddings of real graphs, asked by what they do not store.

gowalla: LightGCN's rows of 41,000 items, and users that the graph was made without. Each is folded in of the items that
she went to, as a request for a new user is; the nearest are the best scores, of items of different lengths.
ogbn-arxiv: the last hidden layer of a GraphSAGE that was trained on its papers, and papers whose embeddings are held
out of the index; the nearest are the largest cosines.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.recommend.recommend_indexes import (
    Queries,
    compare,
    exact,
    faiss_hnsw,
    ours,
    pgvector_hnsw,
    usearch_hnsw,
)
from benchmarks.results import Run
from gnnserve_api.files.embeddings import Neighbours
from gnnserve_api.spec.service import GNNService
from gnnserve_worker.generation.embeddings.compute import embedding_blocks
from gnnserve_worker.generation.embeddings.index import EmbeddingsOrigin, build_index
from gnnserve_worker.generation.embeddings.publishing import publish_embeddings
from gnnserve_worker.generation.pipeline import generate
from gnnserve_worker.inference.batch import infer_batch
from gnnserve_worker.inference.opening import served_revision
from gnnserve_worker.nearest.files import index_folder, open_index
from gnnserve_worker.nearest.search import unit
from gnnserve_worker.opening.revision import build_exact, load_revision
from gnnserve_worker.progress import silent
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.tasks.recommending import FoldedNode
from gnnserve_worker.tasks.score_links.recommending import BestPairsOfTypes

SHARED = Path(os.environ.get("SHARED", Path(__file__).resolve().parents[3] / "shared"))
_UNSEEN, _STORED = 1000, 500
"""Queries that indexes are measured by, and tuned by."""
_QUICK = 100
_EDGES = "edges_user__interacts__item.npz"


def measure_gowalla(run: Run) -> dict[str, Any] | None:
    source = SHARED / "typed" / "gowalla"
    if not source.exists():
        print(f"gowalla is left out: {source} is not there")
        return None
    with tempfile.TemporaryDirectory(prefix="gnnserve-recommend-") as name:
        folder = Path(name)
        edges = {key: values.astype(np.int64) for key, values in np.load(source / _EDGES).items()}
        learnt = edges["split"] < 2
        draw = np.random.default_rng(0)
        users = draw.permutation(np.unique(edges["src"][learnt]))
        new, known = users[: _QUICK if run.quick else _UNSEEN], users[-_STORED:]
        is_new = np.isin(edges["src"], new)
        _write_without(source, folder / "gowalla", edges, is_new)
        service = _service("gowalla", {
            "graph": {"source": {"typed": {"npz": {"uri": (folder / "gowalla").as_uri()}}}},
            "task": {"links": {"relation": "interacts", "comparedWith": "Nothing",
                               "dimensions": 128 if run.quick else 512}},
            "model": {"architecture": "LightGCN", "fanouts": [0]},
            "variants": {"pruning": {"factors": [1]}},
            "embeddings": {},
        })  # fmt: skip
        repository = Repository(folder / "repository", "default", "gowalla")
        revision = generate(service, repository).revision
        published = publish_embeddings(repository, "default/gowalla", revision, None, {}, "bench", silent)
        loaded = load_revision(repository, revision)
        served = served_revision(loaded)
        recommending, manifest = served.task.recommending, published.indexes[1]
        assert isinstance(recommending, BestPairsOfTypes)  # noqa: S101
        folder, ends = recommending.folder, recommending.links
        assert folder.folding is not None  # noqa: S101
        shares = folder.folding.shares

        def stored(nodes: np.ndarray) -> np.ndarray:
            return infer_batch(loaded, published.variant, nodes, key=0, with_embeddings=False).scores

        def folded(user: int) -> np.ndarray:
            joined = ends.second.start + np.unique(edges["dst"][learnt & (edges["src"] == user)])
            of = FoldedNode(None, ends.first.start, joined, shares[joined], has_length_1=True)
            return folder.embedding_of(of, stored(joined))

        items = stored(np.arange(ends.second.start, ends.second.end))
        queries = Queries(unit(stored(ends.first.start + known)), unit(np.stack([folded(user) for user in new])))
        index = open_index(index_folder(repository.folder / "revisions" / revision, "index-second"), manifest)
        found = [ours(index, manifest), exact(items), faiss_hnsw(items), usearch_hnsw(items)]
        rows = compare(found, items, queries)
    return {"real": [{
        "embeddings": "items of gowalla, LightGCN", "queries": "users that the graph was made without",
        "nearest": "score", "told_recall": manifest.recall, "indexes": rows,
    }]}  # fmt: skip


def _write_without(source: Path, target: Path, edges: dict[str, np.ndarray], left_out: np.ndarray) -> None:
    """The data set without some edges: what its authors train on, but one link in a hundred, which validates."""
    target.mkdir()
    for path in source.glob("nodes_*.npz"):
        (target / path.name).write_bytes(path.read_bytes())
    split = np.where(edges["split"] == 2, 2, 0)
    learnt = np.flatnonzero((split == 0) & ~left_out)
    split[np.random.default_rng(0).choice(learnt, len(learnt) // 100, replace=False)] = 1
    kept = ~left_out
    np.savez(
        target / _EDGES, src=edges["src"][kept].astype(np.int32), dst=edges["dst"][kept].astype(np.int32),
        split=split[kept].astype(np.uint8),
    )  # fmt: skip


def measure_arxiv(run: Run) -> dict[str, Any] | None:
    file = SHARED / "datasets" / ("amazon_photo.npz" if run.quick else "ogbn_arxiv_topo.npz")
    if not file.exists():
        print(f"{file.stem} is left out: {file} is not there")
        return None
    with tempfile.TemporaryDirectory(prefix="gnnserve-recommend-") as name:
        folder = Path(name)
        service = _service("arxiv", {
            "graph": {"source": {"npz": {"uri": file.as_uri()}}},
            "model": {"hidden": 128, "fanouts": [10, 5], "training": {"epochs": 3}},
            "variants": {"pruning": {"factors": [1]}, "storage": ["float32"]},
        })  # fmt: skip
        repository = Repository(folder / "repository", "default", "arxiv")
        revision = generate(service, repository).revision
        loaded = load_revision(repository, revision, build=build_exact)
        scratch = folder / "scratch"
        scratch.mkdir()
        vectors = unit(np.concatenate([*embedding_blocks(loaded, "x1", None, Neighbours.ALL, 0, scratch)]))
        drawn = np.random.default_rng(0).permutation(len(vectors))
        unseen = vectors[drawn[: _QUICK if run.quick else _UNSEEN]]
        kept = vectors[np.sort(drawn[len(unseen) :])]
        manifest = build_index(kept, EmbeddingsOrigin(revision, "", "x1", "", None, "bench"), folder / "index", silent)
        stored = np.random.default_rng(1).choice(len(kept), _STORED, replace=False)
        with pgvector_hnsw(kept) as (database, written):
            found = [
                ours(open_index(folder / "index", manifest), manifest), exact(kept), faiss_hnsw(kept),
                usearch_hnsw(kept), database,
            ]  # fmt: skip
            rows = compare(found, kept, Queries(kept[stored], unseen))
    return {
        "real": [{
            "embeddings": f"nodes of {file.stem}, GraphSAGE", "queries": "nodes that are held out of the index",
            "nearest": "cosine", "told_recall": manifest.recall, "indexes": rows,
        }],
        "database": written,
    }  # fmt: skip


def _service(name: str, spec: dict[str, Any]) -> GNNService:
    return GNNService.model_validate(
        {"apiVersion": "gnnserve.dev/v1alpha1", "kind": "GNNService", "metadata": {"name": name}, "spec": spec}
    )
