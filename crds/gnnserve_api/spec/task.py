"""Task of the service, what it answers: classes of nodes, or scores of links between two nodes.

`Task.asked` hands out the one that a spec asks for. Each says for itself what follows from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from gnnserve_api.files.graph_schema import Classes
from gnnserve_api.files.programs import ProgramManifest
from gnnserve_api.spec.fields import ApiModel, text, with_defaults
from gnnserve_api.spec.model import MODEL_IS_GIVEN
from gnnserve_api.spec.rules import all_empty, rule, rule_of_each
from gnnserve_api.spec.variants import SOME_ARE_MADE

_HAS_LINKS = "has(self.task.links)"
_PROGRAM_OF_LINKS = f"has(self.model.program) && {_HAS_LINKS}"
_ROW_COLUMNS = (
    "(has(self.model.program.embeddings) ? self.model.program.embeddings.columns : self.model.program.scores.columns)"
)


class Decoder(StrEnum):
    DOT = "Dot"
    """The dot product of the two embeddings. Both directions of a link score alike."""
    DIST_MULT = "DistMult"
    """The dot product with a learned weight for each column (DistMult with one relation)."""
    MLP = "MLP"
    """A perceptron over the two embeddings beside each other, with one hidden layer as wide as one of them. It tells
    the directions of a link apart."""


class ComparedWith(StrEnum):
    DRAWN = "Drawn"
    """With `negatives` nodes drawn uniformly."""
    ALL = "All"
    """With all nodes of the relation's second type: a step costs one product of its first nodes' embeddings with all of
    those, and needs fewer steps. For LightGCN."""
    NOTHING = "Nothing"
    """With nothing, since nothing is trained: the embeddings are the graph's leading eigenvectors, which is what
    propagation keeps. Of `model.training` only the seed is read. For LightGCN; best with hundreds of dimensions."""


class LinkSplit(ApiModel):
    """How edges are parted where the source does not say it: the rest of them is learnt from."""

    validation_percent: Annotated[int, Field(ge=1, le=40)] = 10
    """Percent of the edges that variants are judged by, which are not aggregated over."""
    test_percent: Annotated[int, Field(ge=0, le=40)] = 10
    """Percent of the edges that are looked at once, at the end, and not aggregated over."""
    seed: Annotated[int, Field(ge=0, le=2_147_483_647)] = 0
    """Seed of the split of edges, and of the pairs without a link that scores are compared with."""


class Links(ApiModel):
    decoder: Decoder = Decoder.DOT
    """Function that makes a score of two embeddings."""
    dimensions: Annotated[int, Field(ge=1, le=4096)] = 64
    """Width of the embeddings that the network ends in, in columns."""
    negatives: Annotated[int, Field(ge=1, le=1024)] = 1
    """Number of pairs without a link that training compares each link with, the second node drawn uniformly."""
    compared_with: ComparedWith = ComparedWith.DRAWN
    """Pairs that training compares a link with, if any."""
    relation: Annotated[str, text(r"^[A-Za-z0-9_ -]+$", "the name of a relation", 200)] | None = None
    """Name of the relation whose links are scored, or source type, name and target type with blanks between. Absent:
    the only one of the source. A graph of one type has no relations."""
    split: LinkSplit = with_defaults(LinkSplit)
    """Shares of the edges that are held out, where the source's edges have no split of their own."""
    recall_at: Annotated[int, Field(ge=1, le=1000)] = 20
    """Number k of recall@k: the share of a node's held-out links among the k pairs that score best."""

    output_word: ClassVar[str] = "dimension"
    """Word for a column of what networks give."""
    reads_pairs: ClassVar[bool] = True
    """Whether outputs are read in pairs, by a decoder."""

    def outputs(self, classes: int) -> int:
        """Width of what networks give."""
        return self.dimensions

    def output_names(self, classes: Classes) -> Classes:
        """Names of these columns."""
        return tuple(range(self.dimensions))

    def program(self, given: ProgramManifest) -> ProgramManifest:
        """The program as the task reads it."""
        return given.giving_rows()

    def stored_layers(self, asked: tuple[int, ...], layers: int) -> tuple[int, ...]:
        """Layers that are stored of a network over relations: what the last one gives always is, a row for each
        node."""
        return tuple(sorted({*asked, layers}))

    def one_row_hops(self, tried: tuple[int, ...], *, is_given: bool) -> tuple[int, ...]:
        """Hops of the one-row variants that a search tries. `is_given`: whether the model is, whose graph has held-out
        links, which rows of propagated features would hold."""
        return tuple(hops for hops in tried if not (hops and is_given))


@dataclass(frozen=True, slots=True)
class NodeClasses:
    """Classification of nodes, which a spec asks for by leaving `task` empty."""

    output_word: ClassVar[str] = "class"
    reads_pairs: ClassVar[bool] = False

    def outputs(self, classes: int) -> int:
        return classes

    def output_names(self, classes: Classes) -> Classes:
        return classes

    def program(self, given: ProgramManifest) -> ProgramManifest:
        return given

    def stored_layers(self, asked: tuple[int, ...], layers: int) -> tuple[int, ...]:
        return asked

    def one_row_hops(self, tried: tuple[int, ...], *, is_given: bool) -> tuple[int, ...]:
        return tried


class Task(ApiModel):
    links: Links | None = None
    """Scoring of links: `POST /v1/predict` takes pairs of nodes. Absent: nodes are classified."""

    def asked(self) -> Links | NodeClasses:
        """The member that is set; without one nodes are classified."""
        members = (self.links,)
        return next((member for member in members if member is not None), NodeClasses())


links_are_not_propagated = rule(
    f"!{_HAS_LINKS} || !(self.model.architecture in ['SGC', 'SIGN'])",
    "task.links must not be given with model.architecture SGC or SIGN: their features are propagated along the very "
    "edges that training learns from[; use GraphSAGE, GIN, GCN or GAT]",
)

light_gcn_serves_rows = rule(
    "self.model.architecture != 'LightGCN' || ("
    f"{all_empty('self.variants.fanouts', 'self.variants.channels', 'self.variants.oneRow')} && "
    f"{all_empty('self.variants.cascades', 'self.model.relationFanouts')})",
    "model.architecture LightGCN must not be given with variants.fanouts, channels, oneRow and cascades and "
    "model.relationFanouts: what is served are embeddings that were learnt of the nodes, one row for each, and no "
    "features are read that a cheaper network could answer from",
)

light_gcn_scores_links = rule(
    "self.model.architecture != 'LightGCN' || "
    f"({_HAS_LINKS} && self.task.links.decoder == 'Dot' && (self.variants.pruning.factors == [1] || "
    "(has(self.variants.search) && self.variants.search == 'Auto')) && "
    "self.variants.projection == 'Auto' && (!has(self.variants.stored) || size(self.variants.stored) == 0))",
    "model.architecture LightGCN must not be given without task.links with decoder Dot, variants.pruning.factors [1] "
    "and projection Auto, nor with variants.stored: its rows are embeddings, as wide as task.links.dimensions says",
)

light_gcn_compares = rule(
    f"!{_HAS_LINKS} || self.task.links.comparedWith == 'Drawn' || "
    "(self.model.architecture == 'LightGCN' && self.task.links.negatives == 1)",
    "task.links.comparedWith All and Nothing must not be given but for model.architecture LightGCN and without "
    "task.links.negatives: no nodes are drawn",
)

light_gcn_is_learnt = rule(
    "self.model.architecture != 'LightGCN' || "
    "(!has(self.model.checkpoint) && (!has(self.variants.given) || size(self.variants.given) == 0))",
    "model.checkpoint and variants.given must not be given with model.architecture LightGCN, whose weights are a row "
    "for each node: bring the model as a program, model.program, with these rows as features of the nodes",
)

decoders_have_weights = rule(
    f"({_HAS_LINKS} && self.task.links.decoder != 'Dot') || "
    "((!has(self.model.checkpoint) || !has(self.model.checkpoint.decoder)) && "
    "(!has(self.variants.given) || !self.variants.given.exists(one, "
    "has(one.checkpoint) ? has(one.checkpoint.decoder) : has(one.program) && has(one.program.decoder))))",
    "decoder of model.checkpoint, and of checkpoint and program of variants.given, must be left out without "
    "task.links.decoder DistMult or MLP, whose weights it names",
)

one_decoder_reads_all = rule(
    f"!{_HAS_LINKS} || self.task.links.decoder == 'Dot' || !has(self.variants.given) || size(self.variants.given) == 0 "
    f"|| {MODEL_IS_GIVEN} || !({SOME_ARE_MADE.replace('self.', 'self.variants.')})",
    "variants.given must not be given with task.links.decoder DistMult and MLP beside a model that is trained: one "
    "decoder reads all variants, and that one is learnt with the model; give model.checkpoint, whose decoder they were "
    "trained with, or use Dot",
)

links_have_no_classes = rule(
    f"!{_HAS_LINKS} || !(self.variants.thresholds == 'PerClass' || self.variants.pruning.stabilitySeeds > 0)",
    "variants.thresholds PerClass and pruning.stabilitySeeds must not be given with task.links: they are of classes "
    "of nodes[; leave them out]",
)

propagated_rows_hold_no_held_out_links = rule_of_each(
    "self.variants.oneRow",
    "one",
    "one.hops == 0",
    "hops {one.hops} of variants.oneRow must be 0 with task.links and a model that is given: its graph has the links "
    "that variants are judged by, which rows of propagated features would hold",
    unless=f"!{_HAS_LINKS} || !{MODEL_IS_GIVEN} || !has(self.variants.oneRow)",
)

embeddings_follow_both_ways = rule(
    "self.model.architecture != 'LightGCN' || !has(self.updates) || "
    "(has(self.graph.source.typed) && self.graph.source.typed.reverse == 'Add')",
    "updates must not be given with model.architecture LightGCN but for graph.source.typed with reverse Add: the "
    "embedding of a node follows what its own lists say that it is joined to",
)

metric_is_of_the_task = rule(
    f"{_HAS_LINKS} ? self.variants.metric in ['Auto', 'ROCAUC', 'AveragePrecision', 'MRR', 'RecallAtK'] : "
    "!(self.variants.metric in ['MRR', 'RecallAtK'])",
    "variants.metric {self.variants.metric} must be Auto, ROCAUC, AveragePrecision, MRR or RecallAtK with task.links; "
    "MRR and RecallAtK are for links alone",
)

programs_give_rows_of_the_dimensions = rule(
    f"!({_PROGRAM_OF_LINKS}) || !has(self.model.program.scores) || self.task.links.dimensions == "
    "(has(self.model.program.embeddings) ? self.model.program.embeddings.columns : self.model.program.scores.columns)",
    f"task.links.dimensions {{self.task.links.dimensions}} must be as many as the columns of "
    f"model.program.embeddings, or of scores where there are no embeddings[, {{{_ROW_COLUMNS}}}]: these are the rows "
    "that pairs are scored by",
)

rows_are_given_as_they_are = rule(
    f"!{_HAS_LINKS} || ((!has(self.model.expected) || self.model.expected.scores == 'Logits') && "
    "(!has(self.variants.given) || "
    "self.variants.given.all(one, !has(one.expected) || one.expected.scores == 'Logits')))",
    "expected.scores, of model and of variants.given, must be Logits with task.links: rows are compared as they are",
)
