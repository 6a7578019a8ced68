"""What a spec may ask for where its model is a program: rules over its graph, task, model and variants."""

from __future__ import annotations

from typing import Protocol

from gnnserve_api.spec.graph import Graph
from gnnserve_api.spec.model import Model
from gnnserve_api.spec.rules import rule
from gnnserve_api.spec.task import Task
from gnnserve_api.spec.updates import UpdatesSpec
from gnnserve_api.spec.variants import Variants

_PROGRAM = "has(self.model.program)"


class _Spec(Protocol):
    """The parts of a GNNServiceSpec that rules about programs read."""

    graph: Graph
    model: Model
    variants: Variants
    task: Task
    updates: UpdatesSpec | None


@rule(
    f"!{_PROGRAM} || !has(self.graph.source.typed) || !has(self.updates)",
    "updates must not be given with model.program and graph.source.typed: programs follow changes of graphs of one "
    "type alone so far",
)
def programs_over_types_stay(spec: _Spec) -> bool:
    return spec.model.program is None or spec.graph.source.typed is None or spec.updates is None


_OF_ONE_TYPE = " && ".join(
    f"(!has(self.variants.{name}) || size(self.variants.{name}) == 0)" for name in ("oneRow", "cascades")
)


@rule(
    f"!{_PROGRAM} || !has(self.graph.source.typed) || ({_OF_ONE_TYPE})",
    "variants.oneRow and cascades must be left out with model.program and graph.source.typed: one-row variants read "
    "nodes of one type; storage and fanouts are there",
)
def programs_over_types_have_no_one_rows(spec: _Spec) -> bool | str:
    asked = {"oneRow": spec.variants.one_row, "cascades": spec.variants.cascades}
    found = [name for name, value in asked.items() if value]
    if spec.model.program is None or spec.graph.source.typed is None or not found:
        return True
    return (
        f"variants.{found[0]} must be left out with model.program and graph.source.typed: one-row variants read nodes "
        "of one type; storage and fanouts are there"
    )


@rule(
    f"!{_PROGRAM} || !has(self.task.links)",
    "model.program must not be given with task.links: programs give classes of nodes so far",
)
def programs_classify_nodes(spec: _Spec) -> bool:
    return spec.model.program is None or spec.task.links is None


_EMPTY = " && ".join(
    f"(!has(self.variants.{name}) || size(self.variants.{name}) == 0)" for name in ("given", "stored", "channels")
)


@rule(
    f"!{_PROGRAM} || ({_EMPTY} && (!has(self.variants.search) || self.variants.search != 'Auto'))",
    "variants.given, stored, channels and search must be left out with model.program, whose layers are not looked "
    "into: storage, fanouts, oneRow and cascades are there",
)
def programs_are_not_looked_into(spec: _Spec) -> bool | str:
    variants = spec.variants
    asked = {
        "given": variants.given,
        "stored": variants.stored,
        "channels": variants.channels,
        "search": variants.is_searched,
    }
    found = [name for name, value in asked.items() if value]
    if spec.model.program is None or not found:
        return True
    return (
        f"variants.{found[0]} must be left out with model.program, whose layers are not looked into: storage, fanouts, "
        "oneRow and cascades are there"
    )


@rule(
    f"!{_PROGRAM} || !has(self.variants.fanouts) || size(self.variants.fanouts) == 0 || "
    "(!self.model.program.readsDegrees && "
    "(!has(self.model.program.hops) || self.variants.fanouts.all(one, size(one) == self.model.program.hops)))",
    "variants.fanouts must be one number for each of model.program.hops, and be left out with "
    "model.program.readsDegrees: layers that count edges are right over whole lists alone",
)
def programs_sample_by_hops(spec: _Spec) -> bool | str:
    program, fanouts = spec.model.program, spec.variants.fanouts
    if program is None or not fanouts:
        return True
    if program.reads_degrees:
        return (
            f"variants.fanouts {list(fanouts[0])} must be left out with model.program.readsDegrees: layers that count "
            "edges are right over whole lists alone"
        )
    wrong = [list(one) for one in fanouts if program.hops not in (None, len(one))]
    return not wrong or (
        f"variants.fanouts {wrong[0]} must be one number for each of model.program.hops, which is {program.hops}"
    )


@rule(
    f"!{_PROGRAM} || !has(self.model.program.fanouts) || !has(self.variants.fanouts) || "
    "self.variants.fanouts.all(one, size(one) == size(self.model.program.fanouts) && one != self.model.program.fanouts "
    "&& [0, 1, 2, 3, 4, 5, 6, 7].all(i, i >= size(one) || i >= size(self.model.program.fanouts) || "
    "one[i] <= self.model.program.fanouts[i]))",
    "each of variants.fanouts must be smaller than model.program.fanouts: as many numbers, none above it, one below it",
)
def programs_sample_fewer(spec: _Spec) -> bool | str:
    program = spec.model.program
    if program is None or program.fanouts is None:
        return True
    most = program.fanouts
    for one in spec.variants.fanouts:
        if len(one) != len(most) or one == most or any(given > limit for given, limit in zip(one, most, strict=True)):
            return (
                f"variants.fanouts {list(one)} must be smaller than model.program.fanouts {list(most)}: as many "
                "numbers, none above it, one below it"
            )
    return True
