"""Rules over the graph, task, model and variants of a spec whose model is a program."""

from __future__ import annotations

from gnnserve_api.spec.rules import Rule, all_empty, rule, rule_of_each

_PROGRAM = "has(self.model.program)"


def _rule_of_programs(cel: str, message: str) -> Rule:
    """A rule of specs whose model is a program."""
    return rule(f"!{_PROGRAM} || {cel}", message)


programs_give_rows_of_other_types = _rule_of_programs(
    "!has(self.model.program.otherScores) || size(self.model.program.otherScores) == 0 || "
    "(has(self.task.links) && has(self.graph.source.typed))",
    "model.program.otherScores must not be given without task.links and graph.source.typed: nodes of one type are "
    "classified",
)


programs_bring_the_decoder = _rule_of_programs(
    "(has(self.task.links) && self.task.links.decoder != 'Dot' ? has(self.model.program.decoder) || "
    "!has(self.model.program.inputs) || size(self.model.program.inputs) == 0 : !has(self.model.program.decoder))",
    "model.program.decoder must be given for task.links.decoder DistMult and MLP, whose weights it names, or be in the "
    "folder of gnnserve-describe or gnnserve export; without them it must be left out",
)


programs_have_no_other_weights = _rule_of_programs(
    "!has(self.variants.given) || self.variants.given.all(one, has(one.program))",
    "variants.given must be programs (program in place of checkpoint) with model.program: checkpoints are other "
    "weights of the layers that spec.model describes, and a program has its own in its file",
)


layers_are_given_other_weights = rule(
    "!has(self.model.layers) || !has(self.variants.given) || self.variants.given.all(one, !has(one.columns) && "
    "!has(one.hidden))",
    "columns and hidden of variants.given must be left out with model.layers, which all given weights are of",
)


networks_have_no_programs_beside = rule(
    f"{_PROGRAM} || !has(self.variants.given) || self.variants.given.all(one, has(one.checkpoint))",
    "variants.given must be checkpoints, and no programs, without model.program: variants of a service are all "
    "programs, or all networks; gnnserve export writes a network as a program, to be served as model.program beside "
    "them",
)


programs_are_not_looked_into = rule(
    f"!{_PROGRAM} || ({all_empty('self.variants.stored', 'self.variants.channels')})",
    "variants.stored and channels must be left out with model.program, which is computed as a whole: storage, fanouts, "
    "oneRow, cascades and search are there",
)


layers_have_hidden_channels = rule(
    "!has(self.model.layers) || size(self.model.layers) > 1 || "
    f"!({all_empty('self.model.before', 'self.model.head')}) || {all_empty('self.variants.channels')}",
    "variants.channels must not be given with one of model.layers alone, which has no hidden channels without before "
    "and head",
)


programs_sample_by_hops = _rule_of_programs(
    "!has(self.variants.fanouts) || size(self.variants.fanouts) == 0 || "
    "(!self.model.program.readsDegrees && "
    "(!has(self.model.program.hops) || self.variants.fanouts.all(one, size(one) == self.model.program.hops)))",
    "variants.fanouts {self.variants.fanouts} must be one number for each of model.program.hops[, which is "
    "{self.model.program.hops}], and be left out with model.program.readsDegrees: layers that count edges are right "
    "over whole lists alone",
)


programs_sample_fewer = rule_of_each(
    "self.variants.fanouts",
    "one",
    "size(one) == size(self.model.program.fanouts) && one != self.model.program.fanouts && "
    "[0, 1, 2, 3, 4, 5, 6, 7].all(i, i >= size(one) || i >= size(self.model.program.fanouts) || "
    "one[i] <= self.model.program.fanouts[i])",
    "each of variants.fanouts must be smaller than model.program.fanouts {self.model.program.fanouts}[, and {one} is "
    "not]: as many numbers, none above it, one below it",
    unless=f"!{_PROGRAM} || !has(self.model.program.fanouts) || !has(self.variants.fanouts)",
)


programs_beside_sample_by_hops = _rule_of_programs(
    f"{all_empty('self.variants.fanouts')} || !has(self.variants.given) || self.variants.given.all(one, "
    "!has(one.program) || (!one.program.readsDegrees && (!has(one.program.hops) || "
    "self.variants.fanouts.all(each, size(each) == one.program.hops))))",
    "variants.fanouts {self.variants.fanouts} must be one number for each of the hops of every program of "
    "variants.given, and be left out where one reads degrees: fewer neighbours are sampled for all of them",
)


programs_beside_give_as_many_scores = _rule_of_programs(
    "has(self.task.links) || !has(self.model.program.scores) || !has(self.variants.given) || "
    "self.variants.given.all(one, !has(one.program) || !has(one.program.scores) || "
    "one.program.scores.columns == self.model.program.scores.columns)",
    "columns of scores of variants.given[].program must be as many as those of model.program"
    "[, {self.model.program.scores.columns}]: they are scores of the same classes",
)
