"""torch_geometric's HeteroConv behind FastAPI, over a graph of several types: the way people serve one.

torch_geometric's NeighborLoader needs pyg-lib or torch-sparse to sample a HeteroData, neither of which is a wheel of
PyPI. So neighbours are drawn here by numpy, as it draws them: up to a fan-out by each relation of every node of a hop,
with nodes that are met again taken once. `TYPED_FOLDER` has what `benchmarks/typed.py` wrote.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import safetensors.torch
import torch
from fastapi import FastAPI, Request, Response
from torch_geometric.nn import HeteroConv, SAGEConv

FOLDER = Path(os.environ["TYPED_FOLDER"])
torch.set_num_threads(1)


class Model:
    def __init__(self) -> None:
        told = json.loads((FOLDER / "typed.json").read_text())
        arrays = np.load(FOLDER / "typed.npz")
        weights = safetensors.torch.load_file(FOLDER / "model.safetensors")
        self.target, self.fanouts = told["target"], told["fanouts"]
        self.rows = {name: torch.from_numpy(arrays[f"rows_{name}"]) for name in told["types"]}
        self.relations = [tuple(key) for key in told["relations"]]
        self.lists = {key: (arrays[f"indptr_{i}"], arrays[f"indices_{i}"]) for i, key in enumerate(self.relations)}
        self.convs = torch.nn.ModuleList(
            HeteroConv({key: SAGEConv((-1, -1), width) for key in self.relations})
            for width in (told["hidden"], told["classes"])
        )
        state = {key.removeprefix("convs."): value for key, value in weights.items() if key.startswith("convs.")}
        self.convs.load_state_dict(state)
        self.convs.eval()
        self.draw = np.random.default_rng(0)
        self.predict([0])

    @torch.inference_mode()
    def predict(self, seeds: list[int]) -> np.ndarray:
        nodes = {name: np.zeros(0, np.int64) for name in self.rows}
        nodes[self.target], positions = np.unique(np.array(seeds, np.int64), return_inverse=True)
        edges: dict[Any, list[np.ndarray]] = {key: [] for key in self.relations}
        frontier = {self.target: np.arange(len(nodes[self.target]))}
        for fanout in self.fanouts:
            met: dict[str, np.ndarray] = {}
            for key in self.relations:
                places = frontier.get(key[2])
                if places is None or not len(places):
                    continue
                targets, sources = self._drawn(key, nodes[key[2]][places], fanout)
                known = nodes[key[0]]
                fresh = np.setdiff1d(sources, known)
                nodes[key[0]] = np.concatenate([known, fresh])
                order = np.argsort(nodes[key[0]], kind="stable")
                at = order[np.searchsorted(nodes[key[0]], sources, sorter=order)]
                edges[key].append(np.stack([at, places[targets]]))
                new = np.arange(len(known), len(known) + len(fresh))
                met[key[0]] = np.concatenate([met[key[0]], new]) if key[0] in met else new
            frontier = met
        states = {name: self.rows[name][torch.from_numpy(ids)] for name, ids in nodes.items()}
        joined = {
            key: torch.from_numpy(np.concatenate(parts, axis=1)) if parts else torch.zeros((2, 0), dtype=torch.long)
            for key, parts in edges.items()
        }
        states = {name: state.relu() for name, state in self.convs[0](states, joined).items()}
        scores = self.convs[1](states, joined)[self.target]
        return scores[torch.from_numpy(positions)].numpy()

    def _drawn(self, key: Any, nodes: np.ndarray, fanout: int) -> tuple[np.ndarray, np.ndarray]:
        """Up to `fanout` distinct neighbours of each node: the place of the reader, and the neighbour."""
        indptr, indices = self.lists[key]
        first, degrees = indptr[nodes], indptr[nodes + 1] - indptr[nodes]
        places = np.repeat(np.arange(len(nodes)), degrees)
        within = np.arange(len(places)) - np.repeat(np.cumsum(degrees) - degrees, degrees)
        listed = indices[np.repeat(first, degrees) + within].astype(np.int64)
        if degrees.max(initial=0) <= fanout:
            return places, listed
        order = np.lexsort((self.draw.random(len(places)), places))
        kept = order[within < fanout]
        return places[kept], listed[kept]


model = Model()
app = FastAPI()


@app.post("/predict")
async def predict(request: Request) -> Response:
    seeds = orjson.loads(await request.body())["seeds"]
    body = orjson.dumps({"scores": model.predict(seeds)}, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(body, media_type="application/json")
