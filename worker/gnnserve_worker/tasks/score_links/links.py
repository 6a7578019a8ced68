"""Scores and probabilities of pairs, made of the embeddings of their nodes: the end of a prediction of links."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors.numpy
from safetensors import SafetensorError

from gnnserve_api.errors import DamagedError
from gnnserve_api.files.links import LinkCalibration, LinksManifest
from gnnserve_api.files.repository import RevisionManifest
from gnnserve_worker.models.decoder import LinkDecoder, build_decoder, probabilities
from gnnserve_worker.repository import checks, paths
from gnnserve_worker.tasks.score_links.deciding import LOG_ODDS, NO_CASCADES, ByPair, CascadeScorer


@dataclass(frozen=True, slots=True)
class ServedLinks:
    manifest: LinksManifest
    decoder: LinkDecoder
    calibrations: Mapping[str, LinkCalibration]
    """By variant."""
    decides: ByPair = NO_CASCADES
    """What decides in cascades, and scores pairs of their outputs."""

    def score_by(self, variant: str, outputs: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """`score` of outputs of a variant, which may be a cascade."""
        return self.scorer_of(variant).score(outputs[first], outputs[second])

    def scorer_of(self, variant: str) -> LinkDecoder | CascadeScorer:
        """What scores pairs of rows that a variant gives."""
        return self.decides.scorers.get(variant, self.decoder)

    def score(self, embeddings: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Scores float32 [pairs]. `embeddings`: float32 [nodes, dimensions]; the two ends are rows of it."""
        return self.decoder.score(embeddings[first], embeddings[second])

    def probabilities(self, variant: str, scores: np.ndarray) -> np.ndarray:
        """Calibrated probabilities of a variant's scores, float32 [pairs]."""
        fitted = self.calibrations[variant]
        return probabilities(scores, fitted.slope, fitted.intercept)


def served_links(manifest: RevisionManifest, folder: Path | None) -> ServedLinks:
    """Links that a revision scores, with the decoder from its folder. Raises DamagedError."""
    assert manifest.links is not None and folder is not None  # noqa: S101
    found = {one.name: one.calibration for one in manifest.variants if one.calibration is not None}
    decoder = open_decoder(folder, manifest.links)
    decides = ByPair.of(decoder, found, manifest.cascades)
    found |= {one.name: LOG_ODDS for one in manifest.cascades}
    return ServedLinks(manifest.links, decoder, found, decides)


def open_decoder(folder: Path, links: LinksManifest) -> LinkDecoder:
    """What scores pairs. `folder`: the revision's, whose files were verified. Raises DamagedError."""
    return open_weights(folder, links)[1]


def open_weights(folder: Path, links: LinksManifest) -> tuple[Mapping[str, np.ndarray], LinkDecoder]:
    """As `open_decoder`, with the weights that it is made of."""
    path = folder / (links.weights or paths.REVISION_COMMIT)
    try:
        weights = {} if links.weights is None else safetensors.numpy.load(path.read_bytes())
        return weights, _covering(build_decoder(links.decoder, weights, links.dimensions), links)
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        problem = f"does not hold the weights of the decoder: {error}"
        raise DamagedError(path, problem, checks.remedy(folder)) from error


def _covering(decoder: LinkDecoder, links: LinksManifest) -> LinkDecoder:
    """The decoder. ValueError: it lacks nodes at an end of links."""
    nodes, folding = max(links.first.end, links.second.end), decoder.folding
    if folding is not None and len(folding.shares) < nodes:
        raise ValueError(f"weights 'shares' are {len(folding.shares)} numbers, expected one for each of {nodes} nodes")
    return decoder
