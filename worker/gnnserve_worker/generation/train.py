"""Training of one variant on sampled mini-batches (paper A, A2: every variant is trained anew, with the master's
hyper-parameters)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from gnnserve_api.gnnservice import Architecture, Model
from gnnserve_worker.generation.networks import CPU, build_module, device_of, forward, rows_of
from gnnserve_worker.generation.scores import evaluate
from gnnserve_worker.generation.training_set import TrainingSet
from gnnserve_worker.graph.store import Features
from gnnserve_worker.sampling.subgraph import SubgraphSampler

_VALIDATION_KEY = 1 << 40
"""Sampling key of validation: the same neighbours every epoch, so that epochs compare."""

_LEARNING_RATES = {Architecture.GRAPHSAGE: 0.01, Architecture.GIN: 0.001}


@dataclass(frozen=True, slots=True)
class Trained:
    module: nn.Module
    """In evaluation mode, with the weights of its best epoch, on the CPU."""
    validation_score: float
    epoch: int


def train(
    data: TrainingSet,
    features: Features,
    model: Model,
    report: Callable[[int, float], None] = lambda _e, _s: None,
    device: torch.device = CPU,
) -> Trained:
    """Adam on cross-entropy, the epoch with the best validation score kept. Deterministic for a seed on the CPU.

    `report(epochs_done, validation_score)` is called after every epoch.
    """
    settings = model.training
    torch.manual_seed(settings.seed)
    order = np.random.default_rng(settings.seed)
    module = build_module(model, features.shape[1], data.classes).to(device)
    learning_rate = settings.learning_rate or _LEARNING_RATES[model.architecture]
    optimizer = torch.optim.Adam(module.parameters(), lr=learning_rate, weight_decay=settings.weight_decay)
    sampler = SubgraphSampler(data.visible.indptr, data.visible.indices)
    judge = SubgraphSampler(data.graph.indptr, data.graph.indices)
    best = Trained(module, -1.0, 0)
    best_state: dict[str, torch.Tensor] = {}
    step = settings.seed << 20
    for epoch in range(1, settings.epochs + 1):
        module.train()
        shuffled = order.permutation(data.splits.train)
        for start in range(0, len(shuffled), settings.batch_size):
            seeds = shuffled[start : start + settings.batch_size]
            subgraph = sampler.sample(seeds, model.fanouts, step)
            step += 1
            scores = forward(module, rows_of(features, subgraph.nodes, device), subgraph)
            loss = _loss(scores, data.labels[seeds])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        score = evaluate(
            predict(module, features, judge, data.splits.validation, model), data.labels[data.splits.validation]
        )
        if score > best.validation_score:
            best = Trained(module, score, epoch)
            best_state = {key: value.clone() for key, value in module.state_dict().items()}
        report(epoch, best.validation_score)
    module.load_state_dict(best_state)
    module.to(CPU).eval()
    return best


@torch.no_grad()
def predict(
    module: nn.Module, features: Features, sampler: SubgraphSampler, nodes: np.ndarray, model: Model
) -> np.ndarray:
    """Scores float32 [nodes, classes] with dropout off and one fixed draw of neighbours."""
    module.eval()
    device = device_of(module)
    parts = []
    for start in range(0, len(nodes), 4096):
        subgraph = sampler.sample(nodes[start : start + 4096], model.fanouts, _VALIDATION_KEY)
        parts.append(forward(module, rows_of(features, subgraph.nodes, device), subgraph).cpu().numpy())
    return np.concatenate(parts)


def _loss(scores: torch.Tensor, labels: np.ndarray) -> torch.Tensor:
    if labels.ndim == 2:
        wanted = torch.from_numpy(labels.astype(np.float32)).to(scores.device)
        return nn.functional.binary_cross_entropy_with_logits(scores, wanted)
    return nn.functional.cross_entropy(scores, torch.from_numpy(labels).to(scores.device))
