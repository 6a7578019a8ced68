"""Weights that were trained elsewhere: what their file does not tell, and how their scores were compared.

Recorded in a revision, so that its page and its report can say what the log of its generation said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from gnnserve_api.files.graph_schema import Classes
from gnnserve_api.files.profile import Count, Share
from gnnserve_api.files.training import Majority
from gnnserve_api.wording import in_words

_SHOWN_CLASSES = 40
_EQUAL_PERMILLE = 1.0
"""Largest difference that is called none: the default tolerance."""
_LARGE_PERMILLE = 30.0
"""Difference above which no rounding is the cause, of narrow storage either."""
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
        of = f"{self.weights}: expected scores of {self.nodes:,} {'node' if self.nodes == 1 else 'nodes'}"
        if self.difference_permille <= _EQUAL_PERMILLE:
            return f"{of} equal within {self.difference_permille:.2g} permille ({self.scores})"
        told = f"{of} differ by at most {self.difference_permille:.3g} permille ({self.scores}), within the tolerance"
        told += f" of {self.tolerance_permille:g}"
        if self.difference_permille <= _LARGE_PERMILLE:
            return told
        return f"{told}: so large a difference is of another computation or of other weights, not of rounding"


class LabelMisfit(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A variant of given weights that gives validation nodes other labels than they have."""

    variant: str
    validation: Annotated[Share, Meta(description="Its validation score.")]
    majority: Annotated[Majority, Meta(description="What always giving the most frequent class reaches.")]
    columns: Annotated[
        Classes,
        Meta(description="Classes in the order of the output columns with which labels fit; empty: none is found."),
    ] = ()
    permuted: Annotated[
        Share, Meta(description="Accuracy with the columns in that order, on validation nodes that did not choose it.")
    ] = 0.0

    @property
    def in_words(self) -> str:
        """For people: what is wrong, and what to do."""
        if self.columns:
            return (
                f"{self.variant} gives {self.validation:.3f} of {self.majority.nodes:,} validation nodes their label, "
                f"and {self.permuted:.3f} with its output columns in the order {_listed(self.columns)}: the model "
                "seems to have been trained with this order of classes, and its answers are labelled wrongly. Columns "
                f"are read as {_listed(sorted(self.columns))}: write the rows of the last layer's tensors, and the "
                "columns of expected scores, in that order"
            )
        return (
            f"{self.variant} reached {self.validation:.3f} on {self.majority.nodes:,} validation nodes, which is not "
            f"told from the {self.majority.score:.3f} of always giving the most frequent class, and no other order of "
            "its output columns is clearly better: check that the weights were trained for these labels and features, "
            "and compare `expected` scores"
        )


def says_misfits(misfits: Sequence[LabelMisfit] | UnsetType) -> str | None:
    """The warning that given weights do not fit the labels; None: they do, or nothing is known."""
    if misfits is UNSET or not misfits:
        return None
    first = max(misfits, key=lambda one: bool(one.columns))
    others = [one.variant for one in misfits if one.variant != first.variant]
    return f"{first.in_words} (likewise {in_words(others)})" if others else first.in_words


def _listed(classes: Sequence[int | str]) -> str:
    shown = ", ".join(map(str, classes[:_SHOWN_CLASSES]))
    return f"{shown}, …" if len(classes) > _SHOWN_CLASSES else shown


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
