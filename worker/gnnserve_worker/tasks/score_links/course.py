"""Course of a network that learns links: to score them above pairs without one.

The links that a batch learns from are not among those that its embeddings aggregate, or the network would learn to find
them there. So an epoch goes through the links in parts, and each part is learnt over the other ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import torch
from torch import nn

from gnnserve_api.files.training import Source
from gnnserve_api.spec.task import Links
from gnnserve_worker.graph.links import LinkSet
from gnnserve_worker.tasks.generated import EmbeddingRates, EpochPart, TeacherOutputs, TrainingBatch, Visible
from gnnserve_worker.tasks.score_links.decoders import TrainedDecoder, make_decoder
from gnnserve_worker.tasks.score_links.metrics import roc_auc

PARTS = 5
"""Parts of an epoch: while one is learnt, four fifths of the links are aggregated."""


def parts_of(links: int, random: np.random.Generator) -> Iterator[np.ndarray]:
    """The parts of an epoch, drawn: for each, which of so many links are learnt, bool [links], at least one of them."""
    drawn = random.integers(0, PARTS, links)
    if links < PARTS:
        drawn[:] = np.arange(links)
    for part in range(PARTS):
        learnt = drawn == part
        if learnt.any():
            yield learnt


def cross_entropy(of_links: torch.Tensor, of_others: torch.Tensor) -> torch.Tensor:
    """The loss of scores that tell links from other pairs. There may be more of the latter: both count as much."""
    softplus = nn.functional.softplus
    return (softplus(-of_links).mean() + softplus(of_others).mean()) / 2


class LinkCourse:
    """A `Course` over links."""

    learnt_from: Source = "links"
    parts_per_epoch = PARTS
    embeddings = EmbeddingRates(bound=0.1, rate_share=1.0, is_decayed=False)
    """Every node has links to learn its embedding from, so that it learns as quickly as weights."""
    says_each_epoch = True

    def __init__(
        self, links: LinkSet, task: Links, seed: int, lists_of: Callable[[np.ndarray | None], Visible],
        decoder: Mapping[str, np.ndarray] | None = None,
    ) -> None:  # fmt: skip
        """`lists_of`: the graph's relations with some of the links, bool [links]. `decoder`: weights that stay as they
        are; None: they are learnt."""
        self._lists_of = lists_of
        self._links = links
        self._negatives = task.negatives
        self._random = np.random.default_rng([seed, 2])
        # Its weights are drawn apart from the network's, which are the same for every decoder.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._decoder = make_decoder(task.decoder, task.dimensions, decoder)
        held_out = [links.validation, links.validation_negatives]
        first, second = (np.concatenate([getattr(pairs, end) for pairs in held_out]) for end in ("first", "second"))
        self._examined, places = np.unique(np.concatenate([first, second]), return_inverse=True)
        self._places = places[: len(first)], places[len(first) :]

    @property
    def items(self) -> int:
        return len(self._links.train)

    @property
    def decoder(self) -> TrainedDecoder:
        return self._decoder

    @property
    def examined(self) -> np.ndarray:
        return self._examined

    def parts(self, epoch: int) -> Iterator[EpochPart]:
        for learnt in parts_of(self.items, self._random):
            yield EpochPart(np.flatnonzero(learnt), self._lists_of(~learnt))

    def batch(self, items: np.ndarray) -> TrainingBatch:
        links = self._links.train.at(items)
        other = self._random.integers(self._links.second.start, self._links.second.end, (len(items), self._negatives))
        seeds, places = np.unique(np.concatenate([links.first, links.second, other.ravel()]), return_inverse=True)
        first, second, others = (
            torch.from_numpy(part)
            for part in (places[: len(items)], places[len(items) : 2 * len(items)], places[2 * len(items) :])
        )

        def loss(embeddings: torch.Tensor) -> torch.Tensor:
            of_first = embeddings[first]
            linked = self._decoder(of_first, embeddings[second])
            apart = self._decoder(of_first.repeat_interleave(self._negatives, dim=0), embeddings[others])
            return cross_entropy(linked, apart)

        return TrainingBatch(seeds, loss)

    @torch.no_grad()
    def judge(self, outputs: np.ndarray) -> tuple[float, float]:
        device = next((one.device for one in self._decoder.parameters()), torch.device("cpu"))
        embeddings = torch.from_numpy(outputs).to(device)
        found = self._decoder(*(embeddings[torch.from_numpy(places)] for places in self._places)).cpu()
        count = len(self._links.validation)
        loss = cross_entropy(found[:count], found[count:])
        return roc_auc(found[:count].numpy(), found[count:].numpy()), float(loss)

    def says(self, score: float) -> str:
        return f"ROC-AUC of validation {score:.4f}"


# --- what networks over one row of a node learn, which stand in for another


_LEAST_VARIANCE = 1e-12


class _Distance:
    """Mean squared distance from another network's embeddings, of which their own variance is 1."""

    def __init__(self, taught: TeacherOutputs) -> None:
        self._wanted = torch.from_numpy(taught.outputs)
        known = taught.outputs[taught.nodes]
        self._variance = max(float(known.var(axis=0, dtype=np.float64).mean()), _LEAST_VARIANCE)

    def __call__(self, embeddings: torch.Tensor, nodes: np.ndarray) -> torch.Tensor:
        wanted = self._wanted[torch.from_numpy(nodes)].to(embeddings.device)
        return (embeddings - wanted).square().mean() / self._variance


class EmbeddingsCourse(LinkCourse):
    """Embeddings of another network. Links are what it is judged by alone."""

    learnt_from: Source = "scores"
    parts_per_epoch = 1

    def __init__(
        self, links: LinkSet, task: Links, lists_of: Callable[[np.ndarray | None], Visible], taught: TeacherOutputs
    ) -> None:
        super().__init__(links, task, taught.seed, lists_of, taught.decoder)
        self._nodes, self._distance = taught.nodes, _Distance(taught)

    @property
    def items(self) -> int:
        return len(self._nodes)

    def parts(self, epoch: int) -> Iterator[EpochPart]:
        yield EpochPart(self._nodes, self._lists_of(None))

    def batch(self, items: np.ndarray) -> TrainingBatch:
        return TrainingBatch(items, lambda embeddings: self._distance(embeddings, items))


class LinksAndEmbeddingsCourse(LinkCourse):
    """Links, and embeddings of another network, both alike."""

    learnt_from: Source = "both"

    def __init__(
        self, links: LinkSet, task: Links, lists_of: Callable[[np.ndarray | None], Visible], taught: TeacherOutputs
    ) -> None:
        super().__init__(links, task, taught.seed, lists_of, taught.decoder)
        self._distance = _Distance(taught)

    def batch(self, items: np.ndarray) -> TrainingBatch:
        seeds, of_links = super().batch(items)
        return TrainingBatch(seeds, lambda embeddings: (of_links(embeddings) + self._distance(embeddings, seeds)) / 2)


def one_row_courses(
    links: LinkSet, task: Links, lists_of: Callable[[np.ndarray | None], Visible], taught: TeacherOutputs
) -> Iterator[LinkCourse]:
    """Links, embeddings of another network, and both. A network whose rows tell which nodes are joined learns
    embeddings alone: it would find the links there that it is to learn."""
    if not taught.holds_neighbours:
        yield LinkCourse(links, task, taught.seed, lists_of, taught.decoder)
    yield EmbeddingsCourse(links, task, lists_of, taught)
    if not taught.holds_neighbours:
        yield LinksAndEmbeddingsCourse(links, task, lists_of, taught)
