"""Learning links between nodes of several types, by a network over all relations.

An epoch goes through the links in parts, as `course.py` does: each is learnt over the other ones, in one step over the
whole graph (`typed/forward.py`), so that no link is among what its own embeddings aggregate.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.spec.task import Links
from gnnserve_api.training import TrainingRun
from gnnserve_worker.generation.link_training.course import PARTS, cross_entropy, parts_of
from gnnserve_worker.generation.link_training.decoders import TrainedDecoder, make_decoder, with_decoder
from gnnserve_worker.generation.links.judge import roc_auc
from gnnserve_worker.generation.networks import Rows, SparseRows
from gnnserve_worker.generation.schedule import History, schedule_of
from gnnserve_worker.generation.tensors import Tensors
from gnnserve_worker.generation.typed.forward import drawn_weights, embedding_keys, forward, means_of, rows_of_types
from gnnserve_worker.generation.typed.subject import TypedTrainingSet, means_by_relation
from gnnserve_worker.graph.links import LinkSet, Pairs, message_relations
from gnnserve_worker.graph.typed import TypedGraphData
from gnnserve_worker.models.registry import relational_spec_of
from gnnserve_worker.models.relational import RelationalShape, RelationalSpec
from gnnserve_worker.progress import Progress, ProgressListener

_EMBEDDING_BOUND = 0.1
"""Largest initial number of an embedding. Every node has links to learn it from, so that, other than where nodes are
classified, embeddings learn as quickly as weights."""


def learn_over_types(
    spec: GNNServiceSpec, shape: RelationalShape, subject: TypedTrainingSet, links: LinkSet, name: str,
    progress: ProgressListener, device: torch.device,
) -> tuple[Tensors, TrainingRun]:  # fmt: skip
    """The network's weights under the keys of its architecture's checkpoints, and the decoder's, of the epoch with the
    best ROC-AUC on validation links. On the CPU they depend on the seed alone. `subject`: the graph without held-out
    links."""
    task = spec.task.links
    if task is None:
        raise ValueError("the spec asks for no links")
    settings = spec.model.training
    torch.manual_seed(settings.seed)
    known = subject.data
    whole = _Whole.of(spec, shape, subject, links, device)
    decoder = make_decoder(task.decoder, task.dimensions).to(device)
    weights = drawn_weights(whole.architecture, shape, _EMBEDDING_BOUND, device)
    embedded = embedding_keys(shape)
    rate = settings.learning_rate or whole.architecture.learning_rate
    groups: list[dict[str, Any]] = [
        {"params": [*(weight for key, weight in weights.items() if key not in embedded), *decoder.parameters()],
         "weight_decay": settings.weight_decay},
        {"params": [weights[key] for key in sorted(embedded)]},
    ]  # fmt: skip
    optimizer = torch.optim.Adam(groups, lr=rate)
    schedule, history = schedule_of(settings.epochs, PARTS), History()
    random, stage = np.random.default_rng([settings.seed, 2]), f"train {name}"
    best: Tensors = {}
    best_score, best_epoch, epoch = -1.0, 0, 0
    while epoch < history.ends_at(schedule):
        epoch += 1
        for learnt, means in _parts(known, links, whole, random, device):
            found = whole.embeddings(weights, means, settings.dropout)
            loss = _loss(decoder, found, links.train.at(learnt), links, task, random)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        with torch.no_grad():
            found = whole.embeddings(weights, whole.means, 0.0)
            score, validation_loss = _judge(decoder, found, links)
        history.add(score, validation_loss)
        if score > best_score:
            best_score, best_epoch = score, epoch
            kept = {key: weight.detach().cpu().numpy().copy() for key, weight in weights.items()}
            best = with_decoder(kept, copy.deepcopy(decoder).cpu())
        progress(Progress(stage, epoch, history.ends_at(schedule), f"ROC-AUC of validation {best_score:.4f}"))
    run = TrainingRun(
        name=name, epochs=epoch, steps=epoch * PARTS, best_epoch=best_epoch, validation=best_score,
        rising=history.is_rising(schedule), learnt_from="links",
    )  # fmt: skip
    return best, run


@dataclass(frozen=True, slots=True)
class _Whole:
    """The graph as the network reads it."""

    architecture: RelationalSpec
    shape: RelationalShape
    rows: Sequence[Rows | None]
    means: Sequence[SparseRows]
    """Over all links that are learnt from."""
    ends: Collection[int]
    """Places of the types at the ends of links."""

    @classmethod
    def of(
        cls,
        spec: GNNServiceSpec,
        shape: RelationalShape,
        subject: TypedTrainingSet,
        links: LinkSet,
        device: torch.device,
    ) -> _Whole:
        return cls(
            relational_spec_of(spec.model.architecture),
            shape,
            rows_of_types(subject.features, device),
            [means_of(matrix, device) for matrix in subject.means],
            links.end_types(shape.graph),
        )

    def embeddings(self, weights: dict[str, nn.Parameter], means: Sequence[SparseRows], dropout: float) -> torch.Tensor:
        """float32 [nodes, dimensions], zeros for nodes of types at neither end."""
        found = forward(self.architecture, self.shape, weights, self.rows, means, dropout, self.ends)
        like = next(iter(found.values()))
        kinds = self.shape.graph.types
        return torch.cat([
            found[place] if place in found else like.new_zeros((kind.nodes, like.shape[1]))
            for place, kind in enumerate(kinds)
        ])  # fmt: skip


def _parts(
    known: TypedGraphData, links: LinkSet, whole: _Whole, random: np.random.Generator, device: torch.device
) -> Iterator[tuple[np.ndarray, Sequence[SparseRows]]]:
    """Links of an epoch, int64 [part], each with means over the others."""
    for learnt in parts_of(len(links.train), random):
        relations = message_relations(known, links, ~learnt)
        yield (
            np.flatnonzero(learnt),
            [
                of_whole if new is old else means_of(means_by_relation(known, new), device)
                for of_whole, new, old in zip(whole.means, relations, known.relations, strict=True)
            ],
        )


def _loss(
    decoder: TrainedDecoder, embeddings: torch.Tensor, batch: Pairs, links: LinkSet, task: Links,
    random: np.random.Generator,
) -> torch.Tensor:  # fmt: skip
    """Cross-entropy of links and of as many pairs for each as `negatives` says, whose second node is drawn."""
    others = random.integers(links.second.start, links.second.end, (len(batch), task.negatives)).ravel()
    firsts = np.repeat(batch.first, task.negatives)
    return cross_entropy(_scores(decoder, embeddings, batch), _scores(decoder, embeddings, Pairs(firsts, others)))


def _judge(decoder: TrainedDecoder, embeddings: torch.Tensor, links: LinkSet) -> tuple[float, float]:
    of_links, of_others = (
        _scores(decoder, embeddings, pairs) for pairs in (links.validation, links.validation_negatives)
    )
    score = roc_auc(of_links.cpu().numpy(), of_others.cpu().numpy())
    return score, float(cross_entropy(of_links, of_others))


def _scores(decoder: TrainedDecoder, embeddings: torch.Tensor, pairs: Pairs) -> torch.Tensor:
    found: torch.Tensor = decoder(embeddings[torch.from_numpy(pairs.first)], embeddings[torch.from_numpy(pairs.second)])
    return found
