"""Learning links between nodes of several types, by a network over all relations.

An epoch goes through the links in parts, as `course.py` does: each is learnt over the other ones, so that no link is
among what its own embeddings aggregate. A part is learnt in one step over the whole graph, or in batches with sampled
neighbours (`typed/blocks.py`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.training import TrainingRun
from gnnserve_worker.generation.batches import batches_of, report_batches
from gnnserve_worker.generation.link_training.course import PARTS, cross_entropy, parts_of
from gnnserve_worker.generation.link_training.decoders import TrainedDecoder, make_decoder, with_decoder
from gnnserve_worker.generation.links.judge import roc_auc
from gnnserve_worker.generation.schedule import History, schedule_of
from gnnserve_worker.generation.tensors import Tensors
from gnnserve_worker.generation.train import VALIDATION_KEY
from gnnserve_worker.generation.typed.blocks import Blocks, blocks_of
from gnnserve_worker.generation.typed.forward import Block, drawn_weights, embedding_keys, outputs_of_seeds
from gnnserve_worker.generation.typed.optimizer import NetworkOptimizer, Rate, parted_weights
from gnnserve_worker.generation.typed.subject import TypedTrainingSet
from gnnserve_worker.graph.links import LinkSet, Pairs, message_relations
from gnnserve_worker.models.registry import relational_spec_of
from gnnserve_worker.models.relational import RelationalShape
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
    settings, known, ends = spec.model.training, subject.data, links.end_types(shape.graph)
    batches = batches_of(spec.model, known.nodes, known.edges)
    report_batches(spec.model, batches, name, progress)
    blocks = blocks_of(batches, spec.model, shape, subject, ends, device)
    architecture = relational_spec_of(spec.model.architecture)
    torch.manual_seed(settings.seed)
    decoder = make_decoder(task.decoder, task.dimensions).to(device)
    weights = drawn_weights(architecture, shape, _EMBEDDING_BOUND, device)
    rate = settings.learning_rate or architecture.learning_rate
    plain, embeddings = parted_weights(weights, embedding_keys(shape))
    optimizer = NetworkOptimizer(
        [*plain, *decoder.parameters()], Rate(rate, settings.weight_decay), embeddings, Rate(rate, 0.0),
        reads_few=blocks.reads_few,
    )  # fmt: skip
    schedule = schedule_of(settings.epochs, PARTS * blocks.steps(-(-len(links.train) // PARTS)))
    random, order = np.random.default_rng([settings.seed, 2]), np.random.default_rng(settings.seed)
    examined = _PairsOfSeeds.of(links.validation, links.validation_negatives)
    history, stage = History(), f"train {name}"
    best: Tensors = {}
    best_score, best_epoch, epoch = -1.0, 0, 0
    first_step = step = settings.seed << 20

    def embeddings_of(block: Block, dropout: float) -> torch.Tensor:
        return outputs_of_seeds(architecture, shape, weights, block, dropout, ends)

    while epoch < history.ends_at(schedule):
        epoch += 1
        for learnt in parts_of(len(links.train), random):
            others = blocks.over(message_relations(known, links, ~learnt))
            for items in others.parted(np.flatnonzero(learnt), order):
                batch = links.train.at(items)
                pairs = _PairsOfSeeds.of(batch, _drawn(batch, links, task.negatives, random))
                found = embeddings_of(others.block(pairs.seeds, step), settings.dropout)
                optimizer.step(cross_entropy(*pairs.scores(decoder, found)))
                step += 1
        with torch.no_grad():
            found = _examined(blocks, examined.seeds, embeddings_of)
            of_links, of_others = examined.scores(decoder, found)
        score = roc_auc(of_links.cpu().numpy(), of_others.cpu().numpy())
        history.add(score, float(cross_entropy(of_links, of_others)))
        if score > best_score:
            best_score, best_epoch = score, epoch
            kept = {key: weight.detach().cpu().numpy().copy() for key, weight in weights.items()}
            best = with_decoder(kept, copy.deepcopy(decoder).cpu())
        progress(Progress(stage, epoch, history.ends_at(schedule), f"ROC-AUC of validation {best_score:.4f}"))
    run = TrainingRun(
        name=name, epochs=epoch, steps=step - first_step, best_epoch=best_epoch, validation=best_score,
        rising=history.is_rising(schedule), learnt_from="links", batches=blocks.trained_by,
    )  # fmt: skip
    return best, run


def _examined(blocks: Blocks, seeds: np.ndarray, embeddings_of: Callable[[Block, float], torch.Tensor]) -> torch.Tensor:
    """Embeddings of seeds as serving computes them, from one fixed sample where neighbours are sampled."""
    return torch.cat([embeddings_of(blocks.block(part, VALIDATION_KEY), 0.0) for part in blocks.parted(seeds)])


def _drawn(batch: Pairs, links: LinkSet, negatives: int, random: np.random.Generator) -> Pairs:
    """So many pairs for each link as `negatives` says, whose second node is drawn."""
    others = random.integers(links.second.start, links.second.end, (len(batch), negatives)).ravel()
    return Pairs(np.repeat(batch.first, negatives), others)


@dataclass(frozen=True, slots=True)
class _PairsOfSeeds:
    """Links and pairs without one, by the places of their nodes among the nodes that a block is computed for."""

    seeds: np.ndarray
    """Numbers of the nodes, each once."""
    places: Sequence[tuple[torch.Tensor, torch.Tensor]]
    """Both ends of the links, and of the other pairs."""

    @classmethod
    def of(cls, *parts: Pairs) -> _PairsOfSeeds:
        ends = [end for part in parts for end in (part.first, part.second)]
        seeds, inverse = np.unique(np.concatenate(ends), return_inverse=True)
        places = torch.split(torch.from_numpy(inverse.astype(np.int64)), [len(end) for end in ends])
        return cls(seeds, [*zip(places[::2], places[1::2], strict=True)])

    def scores(self, decoder: TrainedDecoder, embeddings: torch.Tensor) -> Sequence[torch.Tensor]:
        """Scores of the links, and of the other pairs, of embeddings of the seeds."""
        return [decoder(embeddings[first], embeddings[second]) for first, second in self.places]
