"""The usual way, on the same GPU: torch gathers rows on the host into pinned memory, copies them, and runs PyG's model.

Neighbours are drawn by our own sampler, outside of the window, and every node is gathered once: PyG's samplers need
packages that PyPI does not have. Rows are packed for each factor, as the paper's are.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from benchmarks.engine.paper_shapes import random_model
from benchmarks.engine.paper_tables import GRAPHS
from benchmarks.gpu.engines import PaperGraph, draw_seeds
from benchmarks.gpu.figures import Row, summarize
from benchmarks.shapes import FANOUTS
from gnnserve_api.spec.model import Model
from gnnserve_api.variants import columns_of
from gnnserve_worker.generation.networks import build_module
from gnnserve_worker.models.registry import keep_columns_of
from gnnserve_worker.sampling.neighbours import NeighbourSample, Scratch, sample_neighbours

_SEEDS = 1024


@dataclass(frozen=True, slots=True)
class Subgraph:
    """A batch as PyG wants it."""

    nodes: torch.Tensor
    """int64: every node of the batch once."""
    upper: torch.Tensor
    """int64 [2, edges]: from positions in `hidden` to seeds."""
    lower: torch.Tensor
    """int64 [2, edges]: from positions in `nodes` to positions in `hidden`."""
    hidden: torch.Tensor
    """int64: positions in `nodes` of those that need a hidden state, seeds first."""
    seeds: int


def measure_model(graph: PaperGraph, model: str, factor: int, runs: int) -> Row:
    """Medians of a batch of 1024 seeds; the window is the paper's, from the start of gathering to the scores."""
    paper = GRAPHS[graph.name]
    columns = columns_of(paper.features, factor)
    module = _module(graph, model, columns).cuda()
    features = torch.from_numpy(np.ascontiguousarray(graph.features[:, :columns]))
    staging = torch.empty(_SEEDS * (1 + FANOUTS[0] + FANOUTS[0] * FANOUTS[1]), columns, pin_memory=True)
    scratch = Scratch()
    stages: dict[str, list[float]] = {name: [] for name in ("sample", "gather", "copy", "compute", "window")}
    for number, seeds in enumerate(draw_seeds(graph.graph.nodes, _SEEDS, runs + 1)):
        began = time.perf_counter()
        sample = sample_neighbours(
            graph.graph.indptr, graph.graph.indices, seeds, FANOUTS, number, scratch, share=False
        )
        batch = subgraph_of(sample, _SEEDS)
        sampled = time.perf_counter()
        rows = staging[: len(batch.nodes)]
        torch.index_select(features, 0, batch.nodes, out=rows)
        gathered = time.perf_counter()
        inputs = rows.cuda(non_blocking=True)
        edges = [part.cuda() for part in (batch.lower, batch.upper, batch.hidden)]
        torch.cuda.synchronize()
        copied = time.perf_counter()
        _infer(module, inputs, *edges, batch.seeds).cpu()
        end = time.perf_counter()
        if number:  # the first one allocates
            for name, duration_s in (
                ("sample", sampled - began), ("gather", gathered - sampled), ("copy", copied - gathered),
                ("compute", end - copied), ("window", end - sampled),
            ):  # fmt: skip
                stages[name].append(duration_s * 1e3)
    window = summarize(stages["window"])
    medians = {f"{name}_ms": summarize(found).p50_ms for name, found in stages.items() if name != "window"}
    return {**medians, "window_p50_ms": window.p50_ms, "runs": window.runs}


def subgraph_of(sample: NeighbourSample, seeds: int) -> Subgraph:
    """The subgraph of a two-layer sample. Rows of the sample keep their numbers as `hidden`; nodes that are met twice
    are one input."""
    inner = int(sample.starts[seeds])
    """End of the seeds' own neighbours."""
    ids = np.concatenate([sample.nodes, sample.neighbours[inner:]])
    nodes, places = np.unique(ids, return_inverse=True)
    rows = len(sample.nodes)
    children = np.concatenate([sample.children[:inner], rows + np.arange(len(sample.neighbours) - inner)])
    parents = np.repeat(np.arange(rows), np.diff(sample.starts))
    return Subgraph(
        nodes=torch.from_numpy(nodes.astype(np.int64)),
        upper=torch.from_numpy(np.stack([sample.children[:inner], parents[:inner]]).astype(np.int64)),
        lower=torch.from_numpy(np.stack([places[children], parents]).astype(np.int64)),
        hidden=torch.from_numpy(places[:rows].astype(np.int64)),
        seeds=seeds,
    )


def _module(graph: PaperGraph, model: str, columns: int) -> Any:
    paper = GRAPHS[graph.name]
    is_sage = model == "GraphSAGE"
    described = Model.model_validate(
        {
            "architecture": model,
            "hidden": paper.sage_hidden if is_sage else paper.gin_hidden,
            "fanouts": FANOUTS,
            "mlpHidden": None if is_sage else paper.gin_mlp_hidden,
        }
    )
    module = build_module(described, columns, paper.classes)
    kept = keep_columns_of(random_model(paper, model), np.arange(columns))
    module.load_state_dict({key: torch.from_numpy(np.array(tensor)) for key, tensor in kept.items()})
    return module.eval()


@torch.inference_mode()
def _infer(
    module: Any, inputs: torch.Tensor, lower: torch.Tensor, upper: torch.Tensor, hidden: torch.Tensor, seeds: int
) -> torch.Tensor:
    """Each layer computes what the next one needs and no more."""
    first, second = module.convs
    states = module.act(first((inputs, inputs[hidden]), lower))
    scores: torch.Tensor = second((states, states[:seeds]), upper)
    return scores
