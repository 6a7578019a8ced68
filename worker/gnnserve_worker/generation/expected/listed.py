"""The files of expected scores that a manifest names, and the weights that each is of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gnnserve_api.spec.model import ExpectedScores
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_worker.graph.sources.files import pinned_digest

MODEL = "spec.model"
"""Name of the weights of the model's checkpoint or program; given variants have names of their own, without a dot."""


@dataclass(frozen=True, slots=True)
class ListedScores:
    field: str
    """The field that names the file, for messages."""
    weights: str
    """The weights that they are of, as `ComparedScores` names them."""
    expected: ExpectedScores


def listed_scores(spec: GNNServiceSpec) -> Sequence[ListedScores]:
    names = spec.variants.given_names()
    of_weights = [
        ("spec.model", MODEL, spec.model.expected),
        *(
            (f"spec.variants.given[{place}]", name, given.expected)
            for place, (name, given) in enumerate(zip(names, spec.variants.given, strict=True))
        ),
    ]
    are_programs = spec.model.is_program
    return [
        ListedScores(f"{field}.expected", name, expected.of_program() if are_programs else expected)
        for field, name, expected in of_weights
        if expected is not None
    ]


def expected_digests(spec: GNNServiceSpec) -> dict[str, str]:
    """SHA-256 of each file, by the weights. InputError: one is missing, or not the pinned one."""
    return {
        one.weights: pinned_digest(one.field, one.expected.uri.path, one.expected.sha256) for one in listed_scores(spec)
    }
