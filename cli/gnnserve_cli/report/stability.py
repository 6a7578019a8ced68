"""How far the choice of columns depends on the seed, in words."""

from __future__ import annotations

from statistics import mean

from gnnserve_api.files.repository import NOT_RANKED
from gnnserve_cli.report.data import Stability
from gnnserve_cli.report.subject import ReportSubject
from gnnserve_cli.report.words import percent


def compare_rankings(subject: ReportSubject) -> Stability:
    made = subject.provenance
    measured = made.stability
    if measured is not None:
        return Stability(says=_says_stability(subject), measured=measured)
    if made.ranking_method == NOT_RANKED:
        says = "Columns were not ranked: no variant was made by leaving some of them out."
    elif made.ranking_method == "Random":
        says = (
            "Columns were ranked by chance, so another seed would choose others; what they have in common is what "
            "chance gives."
        )
    elif made.checkpoint is not None:
        says = "Columns were ranked by given weights, of which there is one set, so there is no seed to compare."
    else:
        says = (
            f"Columns were ranked once, by {made.ranking_method}. To see how far the order depends on the seed of the "
            "network, set `spec.variants.pruning.stabilitySeeds` to 2 or more and generate again. That is another "
            "recipe: the served network is trained again too, and so many more beside it."
        )
    return Stability(says=says, measured=None)


def _says_stability(subject: ReportSubject) -> str:
    measured = subject.provenance.stability
    assert measured is not None  # noqa: S101 - the caller looked
    count = len(measured.seeds) + 1
    text = (
        f"{count} networks that differ in their seed alone were ranked by {subject.provenance.ranking_method}. Their "
        f"orders have a rank correlation of {measured.rank_correlation:.2f} (1: the same order, 0: none in common)."
    )
    if not measured.top:
        return f"{text} No variant reads fewer columns, so nothing depends on it."
    narrowest = measured.top[0]
    two = "the two" if count == 2 else "two seeds"
    text += (
        f" Of the {_columns(narrowest.columns)} of the narrowest variant {two} agree on "
        f"{percent(narrowest.in_common, 0)}; chance would give {percent(narrowest.by_chance, 0)}."
    )
    above = mean((top.in_common - top.by_chance) / (1 - top.by_chance) for top in measured.top)
    if len(measured.top) > 1:
        text += (
            f" Over all {len(measured.top)} widths that is {percent(max(0.0, above), 0)} of the way from chance to one "
            "choice."
        )
    if above > 2 / 3:
        text += " The choice is the features' rather than the seed's."
    elif above > 1 / 3:
        text += " Part of the choice is the seed's: several columns say much the same, or little."
    else:
        text += " The choice is mostly the seed's, so another seed may do better or worse: compare several."
    return f"{text} That is one pair, though, and another may agree more or less." if count == 2 else text


def _columns(count: int) -> str:
    return "one column" if count == 1 else f"{count:,} columns"
