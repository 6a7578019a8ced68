"""What variants of a service that scores links are judged by, and how their scores become probabilities."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gnnserve_api.links import EndManifest, LinkCalibration, LinksManifest
from gnnserve_api.profile import LinkScores, Metric
from gnnserve_api.spec.task import Links
from gnnserve_worker.generation.links.calibration import fit_calibration
from gnnserve_worker.generation.links.judge import EmbeddingsOf, accuracy_of, judge_links, scores_of_pairs
from gnnserve_worker.graph.links import End, LinkSet
from gnnserve_worker.models.decoder import build_decoder


@dataclass(frozen=True, slots=True)
class JudgedLinks:
    validation: LinkScores
    test: LinkScores | None
    """None: there are no test links."""

    def validation_accuracy(self, metric: Metric) -> float:
        return accuracy_of(self.validation, metric)

    def test_accuracy(self, metric: Metric) -> float | None:
        return None if self.test is None else accuracy_of(self.test, metric)


@dataclass(frozen=True, slots=True)
class LinkExam:
    links: LinkSet
    task: Links
    weights: Mapping[str, np.ndarray]
    """The decoder's, with those of `models/folding.py` where embeddings are eigenvectors."""

    def judge(self, embeddings_of: EmbeddingsOf) -> JudgedLinks:
        """`embeddings_of`: a variant's."""
        links, decoder, k = (
            self.links,
            build_decoder(self.task.decoder, self.weights, self.task.dimensions),
            self.task.recall_at,
        )
        validation = judge_links(links, links.validation, links.validation_negatives, decoder, embeddings_of, k)
        if not len(links.test):
            return JudgedLinks(validation, None)
        return JudgedLinks(validation, judge_links(links, links.test, links.test_negatives, decoder, embeddings_of, k))

    def calibrate(self, embeddings_of: EmbeddingsOf) -> LinkCalibration:
        decoder = build_decoder(self.task.decoder, self.weights, self.task.dimensions)
        held_out = (self.links.validation, self.links.validation_negatives)
        return fit_calibration(*(scores_of_pairs(decoder, embeddings_of, pairs) for pairs in held_out))

    def describe(self, weights: str | None) -> LinksManifest:
        """`weights`: path of the decoder's weights; None: it has none."""
        links = self.links
        return LinksManifest(
            decoder=self.task.decoder,
            dimensions=self.task.dimensions,
            relation=links.relation,
            first=_described(links.first),
            second=_described(links.second),
            validation_links=len(links.validation),
            test_links=len(links.test),
            weights=weights,
        )


def _described(end: End) -> EndManifest:
    return EndManifest(type=end.type, start=end.start, end=end.end)
