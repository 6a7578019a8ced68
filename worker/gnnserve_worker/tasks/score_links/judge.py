"""Judge of variants of a service that scores links, and how their scores become probabilities."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from gnnserve_api.files.cascades import CascadeManifest
from gnnserve_api.files.given_weights import LabelMisfit
from gnnserve_api.files.links import EndManifest, LinksManifest
from gnnserve_api.files.profile import Metric, VariantProfile
from gnnserve_api.files.repository import TaskSection, VariantManifest
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.spec.task import Links
from gnnserve_worker.graph.links import LinkEnd, LinkSet, Pairs
from gnnserve_worker.graph.store import Graph
from gnnserve_worker.models.decoder import LinkDecoder, build_decoder
from gnnserve_worker.tasks.deciding import Decides
from gnnserve_worker.tasks.generated import Confidences, Judgement, OutputsOf, SplitJudgements
from gnnserve_worker.tasks.score_links.calibration import fit_calibration
from gnnserve_worker.tasks.score_links.deciding import ByPair, CascadeScorer, log_odds, pair_confidences
from gnnserve_worker.tasks.score_links.metrics import (
    DecodedPairs,
    PairScorer,
    accuracy_of,
    judge_links,
    scores_of_pairs,
)


@dataclass(frozen=True, slots=True)
class LinkJudge:
    """Judges variants by held-out links and as many pairs without one."""

    links: LinkSet
    settings: Links
    metric: Metric
    weights: Mapping[str, np.ndarray]
    """The decoder's, with those of `models/folding.py` where embeddings are eigenvectors."""
    graph: Graph | None = None
    cascade: CascadeScorer | None = None
    """What scores pairs of a cascade's outputs; None: outputs are embeddings, which the decoder reads."""

    @property
    def decoder(self) -> LinkDecoder:
        return build_decoder(self.settings.decoder, self.weights, self.settings.dimensions)

    @property
    def _scorer(self) -> PairScorer:
        return DecodedPairs(self.decoder) if self.cascade is None else self.cascade

    def judge(self, outputs_of: OutputsOf) -> SplitJudgements:
        links = self.links
        validation = self._judged(links.validation, links.validation_negatives, outputs_of)
        if not len(links.test):
            return SplitJudgements(validation, None)
        return SplitJudgements(validation, self._judged(links.test, links.test_negatives, outputs_of))

    def _judged(self, asked: Pairs, others: Pairs, outputs_of: OutputsOf) -> Judgement:
        found = judge_links(self.links, asked, others, self._scorer, outputs_of, self.settings.recall_at)
        accuracy = accuracy_of(found.scores, self.metric)
        return Judgement(accuracy, figures=found.scores, right=found.items.get(self.metric))

    def calibrate(self, variant: VariantManifest, outputs_of: OutputsOf) -> VariantManifest:
        """The variant with the curve from its scores of links to probabilities."""
        calibration = fit_calibration(*self._validation_scores(outputs_of))
        return msgspec.structs.replace(variant, calibration=calibration)

    def _validation_scores(self, outputs_of: OutputsOf) -> tuple[np.ndarray, np.ndarray]:
        """Scores of validation links, and of as many other pairs."""
        links = self.links
        of_links, of_others = (
            scores_of_pairs(DecodedPairs(self.decoder), outputs_of, pairs)
            for pairs in (links.validation, links.validation_negatives)
        )
        return of_links, of_others

    def confidences(self, first: VariantManifest, outputs_of: OutputsOf) -> Confidences:
        """Its calibration says how sure a score is, of links and of as many other pairs."""
        if first.calibration is None:
            raise ValueError(f"{first.name} was not calibrated")
        scores = np.concatenate(self._validation_scores(outputs_of))
        return Confidences(1.0, pair_confidences(log_odds(scores, first.calibration)))

    def decides(self, variants: Mapping[str, VariantManifest], cascades: Sequence[CascadeManifest]) -> ByPair:
        found = {name: one.calibration for name, one in variants.items() if one.calibration is not None}
        return ByPair.of(self.decoder, found, cascades)

    def over(self, cascade: CascadeManifest, decides: Decides) -> LinkJudge:
        if not isinstance(decides, ByPair):
            raise TypeError(f"{cascade.name} decides about pairs")
        return replace(self, cascade=decides.scorers[cascade.name])

    def misfits(
        self, spec: GNNServiceSpec, profiles: Iterable[VariantProfile], answers: Mapping[str, np.ndarray]
    ) -> Sequence[LabelMisfit]:
        """None: no order of columns is told from another by pairs."""
        return ()

    def sections(self, weights: str | None) -> Mapping[str, TaskSection]:
        links = self.links
        section = LinksManifest(
            decoder=self.settings.decoder,
            dimensions=self.settings.dimensions,
            relation=links.relation,
            first=_described(links.first),
            second=_described(links.second),
            validation_links=len(links.validation),
            test_links=len(links.test),
            weights=weights,
        )
        return {"links": section}


def _described(end: LinkEnd) -> EndManifest:
    return EndManifest(type=end.type, start=end.start, end=end.end)
