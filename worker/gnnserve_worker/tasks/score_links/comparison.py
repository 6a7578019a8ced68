"""Nodes that LightGCN's training compares links with: other nodes that are drawn, or all of them.

Both are the softmax over cosines of a link's second node among others, divided by a temperature. With nodes that are
drawn it is an estimate, whose noise decides how small the learning rate has to be. Over all of them it is exact: the
multinomial likelihood of a first node's links (Mult-VAE, section 2), here over propagated embeddings. On gowalla it
reaches recall@20 of 0.162 on test links, where 14 epochs of 8,192 links beside 512 drawn nodes reach 0.145.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import nn

from gnnserve_api.files.training import Source
from gnnserve_api.spec.task import ComparedWith, Links
from gnnserve_worker.graph.links import LinkSet, Pairs
from gnnserve_worker.graph.store import GraphData
from gnnserve_worker.models.decoder import build_decoder
from gnnserve_worker.tasks.generated import SHORTEST
from gnnserve_worker.tasks.score_links.metrics import DecodedPairs, rank_links, roc_auc

TEMPERATURE = 0.1
"""Divisor of cosines before the softmax. On gowalla 0.1 learns faster than 0.15 and 0.2."""
_BLOCK = 1 << 24
"""Cosines that are held at once, 64 MB."""


class LinkSampling(ABC):
    """How an epoch goes through the links."""

    learning_rate: float
    """Where the manifest gives none."""

    @abstractmethod
    def __init__(self, links: LinkSet, task: Links) -> None: ...  # pragma: no cover

    @abstractmethod
    def steps(self, batch_size: int) -> int:
        """How many steps an epoch has."""

    @abstractmethod
    def batches(self, batch_size: int, random: np.random.Generator) -> Iterator[Pairs]:
        """The links of an epoch, in a random order."""

    @abstractmethod
    def loss(self, final: torch.Tensor, batch: Pairs, random: np.random.Generator) -> torch.Tensor:
        """Mean over the batch's links. `final`: float32 [nodes, dimensions] of any length."""


class SharedNegatives(LinkSampling):
    """With nodes drawn uniformly, which all links of the batch share: hundreds cost one product of matrices."""

    learning_rate = 0.05

    def __init__(self, links: LinkSet, task: Links) -> None:
        self._links, self._drawn = links, task.negatives

    def steps(self, batch_size: int) -> int:
        return -(-len(self._links.train) // batch_size)

    def batches(self, batch_size: int, random: np.random.Generator) -> Iterator[Pairs]:
        order = random.permutation(len(self._links.train))
        for start in range(0, len(order), batch_size):
            yield self._links.train.at(order[start : start + batch_size])

    def loss(self, final: torch.Tensor, batch: Pairs, random: np.random.Generator) -> torch.Tensor:
        others = random.integers(self._links.second.start, self._links.second.end, self._drawn)
        first, second, apart = (
            nn.functional.normalize(final[torch.from_numpy(nodes)], dim=1, eps=SHORTEST)
            for nodes in (batch.first, batch.second, others)
        )
        linked = (first * second).sum(dim=1, keepdim=True)
        logits = torch.cat([linked, first @ apart.T], dim=1) / TEMPERATURE
        return nn.functional.cross_entropy(logits, torch.zeros(len(first), dtype=torch.long))


class AllNodes(LinkSampling):
    """With all nodes of the relation's second type. A batch has all links of its first nodes, whose cosines with the
    others are computed once for all of them."""

    learning_rate = 0.02

    def __init__(self, links: LinkSet, task: Links) -> None:
        del task
        self._links = links
        order = np.argsort(links.train.first, kind="stable")
        self._by_first = links.train.at(order)
        self._firsts, starts = np.unique(self._by_first.first, return_index=True)
        self._bounds = np.append(starts, len(order))

    def steps(self, batch_size: int) -> int:
        return min(len(self._firsts), -(-len(self._by_first) // batch_size))

    def batches(self, batch_size: int, random: np.random.Generator) -> Iterator[Pairs]:
        for part in np.array_split(random.permutation(len(self._firsts)), self.steps(batch_size)):
            places = [np.arange(self._bounds[one], self._bounds[one + 1]) for one in np.sort(part)]
            yield self._by_first.at(np.concatenate(places))

    def loss(self, final: torch.Tensor, batch: Pairs, random: np.random.Generator) -> torch.Tensor:
        del random
        end = self._links.second
        firsts, rows = np.unique(batch.first, return_inverse=True)
        unit = nn.functional.normalize
        asked = unit(final[torch.from_numpy(firsts)], dim=1, eps=SHORTEST)
        others = unit(final[end.start : end.end], dim=1, eps=SHORTEST)
        loss: torch.Tensor = _SoftmaxOverAll.apply(asked, others, rows, batch.second - end.start)
        return loss


class _SoftmaxOverAll(torch.autograd.Function):
    """Mean of -log softmax of links' cosines among those with all others. Gradients are computed with the loss, block
    by block, so that the cosines of a batch are never held all at once."""

    @staticmethod
    def forward(ctx: Any, asked: torch.Tensor, others: torch.Tensor, rows: np.ndarray, columns: np.ndarray) -> Any:
        """`asked`: [first nodes, dimensions]; `others`: [second nodes, dimensions], both of length 1; link i is of row
        `rows[i]` (ascending) with `columns[i]`."""
        of_asked, of_others = torch.empty_like(asked), torch.zeros_like(others)
        loss, links = 0.0, len(rows)
        counts = torch.from_numpy(np.bincount(rows, minlength=len(asked)).astype(np.float32))
        at_once = max(1, _BLOCK // len(others))
        for start in range(0, len(asked), at_once):
            stop = min(start + at_once, len(asked))
            begin, end = np.searchsorted(rows, (start, stop))
            of_links = torch.from_numpy(rows[begin:end] - start), torch.from_numpy(columns[begin:end])
            block = counts[start:stop]
            logits = (asked[start:stop] @ others.T).div_(TEMPERATURE)
            whole = logits.logsumexp(dim=1)
            loss += float((block * whole).sum() - logits[of_links].sum()) / links
            # Of the loss by each logit: how often the row counts times its softmax, less 1 where there is a link.
            gradient = logits.sub_(whole[:, None]).exp_().mul_(block[:, None])
            gradient.index_put_(of_links, gradient.new_tensor(-1.0), accumulate=True)
            gradient.div_(TEMPERATURE * links)
            torch.mm(gradient, others, out=of_asked[start:stop])
            of_others.addmm_(gradient.T, asked[start:stop])
        ctx.save_for_backward(of_asked, of_others)
        return asked.new_tensor(loss)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None, None]:
        of_asked, of_others = ctx.saved_tensors
        return of_asked * gradients[0], of_others * gradients[0], None, None


_COMPARISONS: Mapping[ComparedWith, type[LinkSampling]] = {
    ComparedWith.DRAWN: SharedNegatives,
    ComparedWith.ALL: AllNodes,
}


class ComparedLinks:
    """The `EmbeddingCourse` of links, judged by recall@k, which embeddings are for, and the loss of ROC-AUC."""

    learnt_from: Source = "links"

    def __init__(self, links: LinkSet, settings: Links, stored: GraphData | None) -> None:
        self.links, self.stored = links, stored
        self._settings = settings

    @property
    def dimensions(self) -> int:
        return self._settings.dimensions

    @property
    def compared_with(self) -> ComparedWith:
        return self._settings.compared_with

    @property
    def learning_rate(self) -> float:
        return self._comparison.learning_rate

    def steps(self, batch_size: int) -> int:
        return self._comparison.steps(batch_size)

    def batches(self, batch_size: int, random: np.random.Generator) -> Iterator[Pairs]:
        return self._comparison.batches(batch_size, random)

    def loss(self, final: torch.Tensor, batch: Pairs, random: np.random.Generator) -> torch.Tensor:
        return self._comparison.loss(final, batch, random)

    def judge(self, embeddings: np.ndarray) -> tuple[float, float]:
        links, settings = self.links, self._settings
        decoder = build_decoder(settings.decoder, {}, settings.dimensions)
        ranked = rank_links(
            links, links.validation, DecodedPairs(decoder), lambda nodes: embeddings[nodes], settings.recall_at
        )
        of_links, of_others = (
            decoder.score(embeddings[pairs.first], embeddings[pairs.second])
            for pairs in (links.validation, links.validation_negatives)
        )
        return ranked.recall, 1 - roc_auc(of_links, of_others)

    def says(self, score: float) -> str:
        return f"recall@{self._settings.recall_at} of validation {score:.4f}"

    @cached_property
    def _comparison(self) -> LinkSampling:
        """How training goes through the links. Raises KeyError where nothing is trained."""
        return _COMPARISONS[self.compared_with](self.links, self._settings)
