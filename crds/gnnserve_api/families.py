"""Families of variants: each has its own trade of accuracy for latency.

A variant is a table of rows to gather, the hops to sample before it, and the network to run over them; its family says
how these three differ from those of the model as it was trained.
"""

from __future__ import annotations

from enum import StrEnum


class FamilyName(StrEnum):
    PRUNED = "pruned"
    """A prefix of the ranked feature columns, and a network for just these."""
    PROJECTED = "projected"
    """The first layer's product per node instead of features."""
