"""Weights that were trained elsewhere: what their file does not tell, and how their scores were compared.

Recorded in a revision, so that its page and its report can say what the log of its generation said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from gnnserve_api.profile import Count

UNKNOWN_ASSUMPTIONS: Mapping[str, str] = {"everything": "unknown"}
"""Assumptions of a revision that an earlier version made, which recorded none."""


class ComparedScores(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Scores that the user's own model gave, held against those of the weights as they are served."""

    weights: Annotated[
        str, Meta(description="The field whose weights they are of: `spec.model`, or one of `spec.variants.given`.")
    ]
    sha256: Annotated[str, Meta(description="SHA-256 of the file of expected scores.")]
    nodes: Annotated[Count, Meta(description="Nodes that it has scores of.")]
    scores: Annotated[str, Meta(description="Logits or Probabilities.")]
    difference_permille: Annotated[
        float, Meta(description="Largest difference, in permille of the largest absolute expected score.")
    ]
    tolerance_permille: Annotated[float, Meta(description="Largest difference that was accepted.")]

    @property
    def in_words(self) -> str:
        """For people: `spec.model: expected scores of 600 nodes equal within 0.0004 permille (Logits)`."""
        return (
            f"{self.weights}: expected scores of {self.nodes:,} nodes equal within {self.difference_permille:.2g} "
            f"permille ({self.scores})"
        )


def says_assumed(assumptions: Mapping[str, str]) -> str:
    """`activation ReLU between layers; aggregation the mean of the neighbours; …`."""
    return "; ".join(f"{name} {value}" for name, value in assumptions.items())


def says_unchecked(assumptions: Mapping[str, str], compared: Sequence[ComparedScores]) -> str | None:
    """A finding about weights that were trained elsewhere; None: there are none, or their scores were compared."""
    if not assumptions or compared:
        return None
    if assumptions == UNKNOWN_ASSUMPTIONS:
        return (
            "the weights were trained elsewhere, and an earlier version of gnnserve made the revision, which did not "
            "record what it assumed of them"
        )
    return (
        "the weights were trained elsewhere, and what their file does not tell was assumed and not checked: "
        f"{says_assumed(assumptions)}. Expected scores check it: `expected` in spec.model or in an entry of "
        "spec.variants.given, whichever has the checkpoint"
    )
