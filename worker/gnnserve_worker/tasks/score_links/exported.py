"""Rows of nodes that a variant is exported for, and how a pair of them is scored without gnnserve.

A program gives rows alone: those of a node are computed once, for any number of pairs. Weights of the decoder lie
beside it, as `given_decoder.py` reads those of a user.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gnnserve_api.files.links import LinksManifest
from gnnserve_api.files.repository import VariantManifest
from gnnserve_api.spec.task import Decoder
from gnnserve_worker.tasks.published import ExportedScores, PairScoring
from gnnserve_worker.tasks.score_links.links import open_weights

_Weights = Mapping[str, np.ndarray]


class _Form(NamedTuple):
    told: str
    """How a pair is scored, a sentence."""
    tensors: Callable[[_Weights], _Weights]
    """Tensors of the file, from weights by the keys of `models/decoder.py`."""


def exported_rows(links: LinksManifest, variant: VariantManifest) -> ExportedScores:
    types = tuple(dict.fromkeys(end.type for end in (links.first, links.second) if end.type))
    pairs_are = (
        f"places in the outputs of nodes of types {links.first.type} and {links.second.type}"
        if types
        else "positions of nodes in the graph"
    )
    advice = [
        "`scores` are rows of nodes. `pair_scores` of `example.safetensors` are gnnserve's own scores of `pairs`, "
        f"which are {pairs_are}.",
        _FORMS[Decoder(links.decoder)].told,
    ]
    if variant.calibration is not None:
        slope, intercept = variant.calibration.slope, variant.calibration.intercept
        advice.append(f"The probability of a link is 1 / (1 + exp(−({slope:.6g} · score + {intercept:.6g}))).")
    meaning = "Rows of nodes, by which a decoder scores pairs."
    return ExportedScores(meaning, tuple(advice), partial(_open_pairs, links), types)


def _open_pairs(links: LinksManifest, folder: Path) -> PairScoring:
    """DamagedError: the folder does not hold the weights."""
    weights, decoder = open_weights(folder, links)
    tensors, types = _FORMS[Decoder(links.decoder)].tensors(weights), (links.first.type, links.second.type)
    return PairScoring(links.decoder, tensors, decoder, types)


def _of_perceptron(weights: _Weights) -> _Weights:
    """Names are those of `nn.Sequential(Linear, ReLU, Linear)`."""
    return {
        "0.weight": np.concatenate([weights["first"], weights["second"]], axis=1),
        "0.bias": weights["bias"],
        "2.weight": weights["out"][None],
        "2.bias": weights["end"],
    }


_FORMS: Mapping[Decoder, _Form] = {
    Decoder.DOT: _Form("The score of a pair is the dot product of its two rows.", lambda _: {}),
    Decoder.DIST_MULT: _Form(
        "The score of a pair is the sum over columns of `relation` of `decoder.safetensors` times both rows.",
        lambda weights: {"relation": weights["relation"]},
    ),
    Decoder.MLP: _Form(
        "The score of a pair is what `Linear`, `ReLU` and `Linear` make of its first row and its second one beside "
        "each other; `decoder.safetensors` has their tensors (`0.weight` [hidden, 2 · columns], `0.bias`, `2.weight` "
        "[1, hidden], `2.bias`).",
        _of_perceptron,
    ),
}
