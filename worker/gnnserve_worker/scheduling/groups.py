"""The groups of a queue: which group a request belongs to, and what of a group follows from the costs of variants."""

from __future__ import annotations

import math

from gnnserve_api.families import STORED_GRAPH, Capabilities
from gnnserve_api.objective import Objective
from gnnserve_worker.scheduling.choice import VariantChooser
from gnnserve_worker.scheduling.load import BatchKind
from gnnserve_worker.scheduling.waiting import Group

SOFT_DEADLINE_MS = 1000.0
"""Requests without a latency objective are ordered as if they had this one, but never refused for it."""
_MOST_GROUPS = 16
"""Most groups; beyond it, requests whose latency has no group of its own share one."""
_LATENCY_STEP = 1.25
"""Largest ratio of two latencies in one group."""
_KNOWN_OBJECTIVES = 1024
_OVERLAY = BatchKind.OVERLAY
_GroupKey = tuple[int, Capabilities, BatchKind, int | None, bool, bool, bool, bool, int]
_ODD = None
"""Stands for the step of latencies that share the overflow group, however far apart they are."""


class Groups:
    def __init__(self, chooser: VariantChooser) -> None:
        self.all: list[Group] = []
        self._chooser = chooser
        self._max_seeds = chooser.costs.max_seeds
        self._alike: dict[_GroupKey, dict[int | None, Group]] = {}
        """Groups that differ in their latency alone, by its step."""
        self._known: dict[tuple[Objective, bool, int | None, bool, bool, int], Group] = {}
        """Cache of the group of each objective, for requests that every variant can answer; by whether their kind is
        OVERLAY, since an enum's hash is Python."""

    def of(
        self, objective: Objective, needs: Capabilities, kind: BatchKind, drawn_pin: int | None, is_large: bool,
        is_heavy: bool, priority: int, load: int, overlay: int, now_ms: float,
    ) -> Group:  # fmt: skip
        """The group of a request. `needs`: what it needs that not every variant can give; `drawn_pin`: the only variant
        that routing leaves it; `overlay`: the part of its load that is of kind OVERLAY."""
        group = None
        if needs is STORED_GRAPH:
            group = self._known.get((objective, kind is _OVERLAY, drawn_pin, is_large, is_heavy, priority))
        if group is None:
            group = self.find(objective, needs, kind, drawn_pin, is_large, is_heavy, priority, load, overlay, now_ms)
        if group.version != self._chooser.version:
            self.derive(group)
        return group

    def find(
        self, objective: Objective, needs: Capabilities, kind: BatchKind, drawn_pin: int | None, is_large: bool,
        is_heavy: bool, priority: int, load: int, overlay: int, now_ms: float,
    ) -> Group:  # fmt: skip
        """As `of`, without the cache. An objective that cannot be met belongs to the group of requests without a
        deadline that want the nearest variant."""
        chooser, tolerance = self._chooser, objective.accuracy_tolerance_permille
        allowed, pin = chooser.count_allowed(tolerance, needs), drawn_pin
        candidates = chooser.candidates(allowed, needs, kind)
        is_tolerated = chooser.can_keep(tolerance, needs)
        if pin is not None:
            if pin >= allowed:
                pin = chooser.fastest(candidates, 1, kind)
            candidates = (pin,)
        latency_ms, is_hard = SOFT_DEADLINE_MS, False
        if (
            objective.latency_ms is not None
            and is_tolerated
            and chooser.can_meet(candidates, load, overlay, objective.latency_ms)
        ):
            latency_ms, is_hard = objective.latency_ms, True
        out_of_reach = not is_tolerated or (objective.latency_ms is not None and not is_hard)
        is_hurried = pin is None and not is_hard and (out_of_reach or tolerance is not None)
        alike = (allowed, needs, kind, pin, is_hard, is_hurried, is_large, is_heavy, priority)
        steps = self._alike.setdefault(alike, {})
        step: int | None = math.floor(math.log(latency_ms) / math.log(_LATENCY_STEP))
        group = steps.get(step)
        if group is None:
            if len(self.all) >= _MOST_GROUPS:
                self._drop_empty(now_ms)
                steps = self._alike.setdefault(alike, {})
            if len(self.all) >= _MOST_GROUPS:
                step = _ODD
                group = steps.get(step)
        if group is None:
            group = Group(allowed, needs, kind, pin, is_hard, is_hurried, is_large, is_heavy, priority, latency_ms)
            steps[step] = group
            self.all.append(group)
        group.latency_ms = min(group.latency_ms, latency_ms) if group.waiting else latency_ms
        if not out_of_reach and needs is STORED_GRAPH:
            if len(self._known) >= _KNOWN_OBJECTIVES:
                self._known.clear()
            self._known[objective, kind is _OVERLAY, drawn_pin, is_large, is_heavy, priority] = group
        return group

    def derive(self, group: Group) -> None:
        """Update what depends on the costs of variants, if they have changed."""
        chooser = self._chooser
        if group.version == chooser.version:
            return
        group.version = chooser.version
        if group.pin is not None:
            group.candidates = (group.pin,)
            group.allowed = tuple(variant == group.pin for variant in range(len(chooser.names)))
        else:
            group.candidates = chooser.candidates(group.allowed_count, group.needs, group.kind)
            group.allowed = tuple(
                variant < group.allowed_count and (group.needs is STORED_GRAPH or capabilities.cover(group.needs))
                for variant, capabilities in enumerate(chooser.capabilities)
            )
        group.fastest = chooser.fastest(group.candidates, self._max_seeds, group.kind)
        group.fastest_small = chooser.fastest(group.candidates, 1, group.kind)

    def drain_ms(self) -> float:
        """Expected time until all queued requests are computed, each by the variant that it would get now, with the
        turns of other models that they have to wait for."""
        costs = self._chooser.costs
        total_ms = turns = 0.0
        for group in self.all:
            if group.seeds:
                self.derive(group)
                variant = group.fastest if group.is_hard or group.is_hurried else group.candidates[0]
                batch_ms = costs.batch_ms(variant, group.seeds, group.requests, group.overlay)
                total_ms += batch_ms
                turns += costs.turns(variant, group.seeds, batch_ms)
        return total_ms + costs.waits_ms(turns)

    def _drop_empty(self, now_ms: float) -> None:
        """Drop groups that have no requests and expect none."""
        kept = []
        for group in self.all:
            group.update_rate(now_ms)
            if group.requests or group.request_rate * SOFT_DEADLINE_MS > 1:
                kept.append(group)
        self.all[:] = kept
        alive = set(map(id, kept))
        for alike, steps in list(self._alike.items()):
            self._alike[alike] = {step: group for step, group in steps.items() if id(group) in alive}
            if not self._alike[alike]:
                del self._alike[alike]
        self._known.clear()
