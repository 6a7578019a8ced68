"""Scores and probabilities of pairs, made of the embeddings of their nodes: the end of a prediction of links."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gnnserve_api.links import LinkCalibration, LinksManifest
from gnnserve_api.repository import RevisionManifest
from gnnserve_worker.models.decoder import LinkDecoder, probabilities


@dataclass(frozen=True, slots=True)
class ServedLinks:
    manifest: LinksManifest
    decoder: LinkDecoder
    calibrations: Mapping[str, LinkCalibration]
    """By variant."""

    def score(self, embeddings: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Scores float32 [pairs]. `embeddings`: float32 [nodes, dimensions]; the two ends are rows of it."""
        return self.decoder.score(embeddings[first], embeddings[second])

    def probabilities(self, variant: str, scores: np.ndarray) -> np.ndarray:
        """Calibrated probabilities of a variant's scores, float32 [pairs]."""
        fitted = self.calibrations[variant]
        return probabilities(scores, fitted.slope, fitted.intercept)


def served_links(manifest: RevisionManifest, decoder: LinkDecoder | None) -> ServedLinks:
    """Those of a revision that scores links."""
    assert manifest.links is not None and decoder is not None  # noqa: S101
    found = {one.name: one.calibration for one in manifest.variants if one.calibration is not None}
    return ServedLinks(manifest.links, decoder, found)
