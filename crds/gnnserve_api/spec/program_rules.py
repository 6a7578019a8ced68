"""Rules over the graph, task, model and variants of a spec whose model is a program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from gnnserve_api.spec.graph import GraphSpec
from gnnserve_api.spec.model import Model
from gnnserve_api.spec.program import Program
from gnnserve_api.spec.rules import Rule
from gnnserve_api.spec.task import Task
from gnnserve_api.spec.variants import Variants

_PROGRAM = "has(self.model.program)"


class _Spec(Protocol):
    """The parts of a GNNServiceSpec that rules about programs read."""

    graph: GraphSpec
    model: Model
    variants: Variants
    task: Task


_Check = Callable[[_Spec, Program], bool | str]


def _rule_of_programs(cel: str, message: str) -> Callable[[_Check], Rule]:
    """Decorator of a rule's check of the program of a spec that has one; others keep the rule."""

    def declare(check: _Check) -> Rule:
        def holds(spec: _Spec) -> bool | str:
            program = spec.model.program
            return program is None or check(spec, program)

        return Rule(f"!{_PROGRAM} || {cel}", message, holds)

    return declare


@_rule_of_programs(
    "!has(self.model.program.otherScores) || size(self.model.program.otherScores) == 0 || "
    "(has(self.task.links) && has(self.graph.source.typed))",
    "model.program.otherScores must not be given without task.links and graph.source.typed: nodes of one type are "
    "classified",
)
def programs_give_rows_of_other_types(spec: _Spec, program: Program) -> bool:
    return not program.other_scores or spec.task.asked().reads_other_types(spec.graph.source.kind)


@_rule_of_programs(
    "(has(self.task.links) && self.task.links.decoder != 'Dot' ? has(self.model.program.decoder) || "
    "!has(self.model.program.inputs) || size(self.model.program.inputs) == 0 : !has(self.model.program.decoder))",
    "model.program.decoder must be given for task.links.decoder DistMult and MLP, whose weights it names, or be in the "
    "folder of gnnserve-describe or gnnserve export; without them it must be left out",
)
def programs_bring_the_decoder(spec: _Spec, program: Program) -> bool | str:
    has_weights = spec.task.asked().decoder_has_weights
    if program.decoder is not None:
        return has_weights or (
            f"model.program.decoder names weights ({program.decoder.uri}), which task.links.decoder Dot, and a service "
            "without task.links, do not have: set task.links.decoder to the one that they are of, DistMult or MLP, or "
            "leave model.program.decoder out"
        )
    return not has_weights or not program.has_contract


_EMPTY = " && ".join(
    f"(!has(self.variants.{name}) || size(self.variants.{name}) == 0)" for name in ("stored", "channels")
)


@_rule_of_programs(
    "!has(self.variants.given) || size(self.variants.given) == 0",
    "variants.given must be left out with model.program: they are other weights of the layers that spec.model "
    "describes, and a program has its own in its file; another program is a service of its own, or a second revision, "
    "routing.canary",
)
def programs_have_no_other_weights(spec: _Spec, program: Program) -> bool:
    return not spec.variants.given


@_rule_of_programs(
    f"({_EMPTY})",
    "variants.stored and channels must be left out with model.program, whose layers are not looked into: storage, "
    "fanouts, oneRow, cascades and search are there",
)
def programs_are_not_looked_into(spec: _Spec, program: Program) -> bool | str:
    variants = spec.variants
    asked = {
        "stored": variants.stored,
        "channels": variants.channels,
    }
    found = [name for name, value in asked.items() if value]
    if not found:
        return True
    return (
        f"variants.{found[0]} must be left out with model.program, whose layers are not looked into: storage, fanouts, "
        "oneRow, cascades and search are there"
    )


@_rule_of_programs(
    "!has(self.variants.fanouts) || size(self.variants.fanouts) == 0 || "
    "(!self.model.program.readsDegrees && "
    "(!has(self.model.program.hops) || self.variants.fanouts.all(one, size(one) == self.model.program.hops)))",
    "variants.fanouts must be one number for each of model.program.hops, and be left out with "
    "model.program.readsDegrees: layers that count edges are right over whole lists alone",
)
def programs_sample_by_hops(spec: _Spec, program: Program) -> bool | str:
    fanouts = spec.variants.fanouts
    if not fanouts:
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


@_rule_of_programs(
    "!has(self.model.program.fanouts) || !has(self.variants.fanouts) || "
    "self.variants.fanouts.all(one, size(one) == size(self.model.program.fanouts) && one != self.model.program.fanouts "
    "&& [0, 1, 2, 3, 4, 5, 6, 7].all(i, i >= size(one) || i >= size(self.model.program.fanouts) || "
    "one[i] <= self.model.program.fanouts[i]))",
    "each of variants.fanouts must be smaller than model.program.fanouts: as many numbers, none above it, one below it",
)
def programs_sample_fewer(spec: _Spec, program: Program) -> bool | str:
    if program.fanouts is None:
        return True
    most = program.fanouts
    for one in spec.variants.fanouts:
        if len(one) != len(most) or one == most or any(given > limit for given, limit in zip(one, most, strict=True)):
            return (
                f"variants.fanouts {list(one)} must be smaller than model.program.fanouts {list(most)}: as many "
                "numbers, none above it, one below it"
            )
    return True
