"""Generations that wait for their turn, before the planner."""

from __future__ import annotations

from dataclasses import replace

from tests.support.operator.observed import Namespace

from gnnserve_operator.fleet import Turn

FULL = Turn(limit=2, under_way=2)
"""Two others are under way, and no more may be."""


def with_generation(namespace: Namespace, turn: Turn) -> None:
    namespace.turns = replace(namespace.turns, generation=turn)
