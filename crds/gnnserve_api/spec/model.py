"""The model that is trained on the graph, or given."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from gnnserve_api.files.layers import JumpingKnowledge
from gnnserve_api.files.repository import AttentionManifest, NetworkManifest
from gnnserve_api.spec.fields import ApiModel, Sha256, text, with_defaults
from gnnserve_api.spec.layers import LayerSpec, Products, TypeProductsSpec
from gnnserve_api.spec.paths import ScoresPath, TensorsPath
from gnnserve_api.spec.program import MOST_PROGRAM_PERMILLE, DecoderWeights, Program
from gnnserve_api.spec.rules import rule, rule_of_each, validations
from gnnserve_api.variants import MAX_LAYERS

FULL_NEIGHBOURHOOD = -1
NO_NEIGHBOURS = (0,)
"""Fan-outs of a network of one layer that reads nothing but a node's own row. With more layers they are all 0."""
_ONE_ROW_LAYERS = (0, 0)
"""Fan-outs of one-row variants: two layers, the first of which is stored."""
_HEADS, _NEGATIVE_SLOPE, _HOPS, _LIGHT_HOPS = 1, 0.2, 2, 3
_HIDDEN = 128
MODEL_IS_GIVEN = "(has(self.model.checkpoint) || has(self.model.program))"
"""CEL over a spec: no network of all columns is trained."""
MODEL_IS_PROGRAM = "(has(self.model.program) || has(self.model.layers))"
"""CEL over a spec: the network is computed as a whole, from rows of features (`Model.is_program`)."""
_IS_PROGRAM = MODEL_IS_PROGRAM.replace("self.model.", "self.")
MAX_TREE_NODES = 1_000_000
"""Nodes that one seed may sample; more is a typing error in `fanouts` rather than a wish."""


class Architecture(StrEnum):
    GRAPHSAGE = "GraphSAGE"
    """GraphSAGE with mean aggregation (torch_geometric.nn.GraphSAGE)."""
    GIN = "GIN"
    """Graph isomorphism network with sum aggregation (torch_geometric.nn.GIN)."""
    GCN = "GCN"
    """Graph convolutional network with self-loops and symmetric normalisation (torch_geometric.nn.GCN); sampled
    neighbours have the weights of the full graph."""
    SGC = "SGC"
    """Simple graph convolution (torch_geometric.nn.SGConv): features are propagated over the whole graph when variants
    are made, and an answer is one row times one matrix. For nodes of the stored graph."""
    SIGN = "SIGN"
    """A multilayer perceptron over a node's features beside those propagated over 1 to `hops` hops by the mean of the
    neighbours, all of which are one row (SIGN: Scalable Inception Graph Neural Networks). With `hops: 0` it reads the
    features alone, and can answer about nodes that requests bring."""
    GAT = "GAT"
    """Graph attention network (torch_geometric.nn.GAT): neighbours and the node itself weighed by a softmax over those
    that were sampled."""
    RGCN = "RGCN"
    """Relational graph convolution (torch_geometric.nn.RGCNConv), of graphs of several types alone."""
    LIGHT_GCN = "LightGCN"
    """An embedding per node, learnt for task.links and propagated over the graph without weights
    (torch_geometric.nn.LightGCN, with equal shares of all hops). Features are not read. An answer is a row for each
    node of a pair, and their dot product. For nodes of the stored graph."""


_PROPAGATING = (Architecture.SGC, Architecture.SIGN, Architecture.LIGHT_GCN)
"""Architectures that sample nothing: their networks read a row that was made ahead of time."""
WITHOUT_HIDDEN = (Architecture.SGC, Architecture.LIGHT_GCN)
"""Architectures of one layer whatever is written: `hidden` says nothing of them."""


def column_blocks(architecture: str, hops: int | None) -> int:
    """Blocks of columns in a row, each as wide as the features: the features themselves and, with SIGN, those of each
    hop beside them. With SGC the row is that of the last hop alone."""
    return 1 if hops is None or architecture != Architecture.SIGN else 1 + hops


def reads_embeddings(architecture: str) -> bool:
    """Whether what networks of this architecture read of a node are embeddings, and no features."""
    return architecture == Architecture.LIGHT_GCN


def says_hops(network: NetworkManifest) -> str:
    """What a network reads that samples nothing."""
    what = "embeddings" if reads_embeddings(network.architecture) else "features"
    if not network.hops:
        return f"its own {what} alone"
    return f"{what} propagated over {network.hops} {'hop' if network.hops == 1 else 'hops'}"


class Scope(StrEnum):
    INDUCTIVE = "Inductive"
    """Training sees only training nodes and the edges between them."""
    TRANSDUCTIVE = "Transductive"
    """Training sees the whole graph, and the labels of training nodes."""


AUTO: Literal["Auto"] = "Auto"
_MOST_EPOCHS = 10_000
_EPOCHS = f"Auto, or a whole number from 1 to {_MOST_EPOCHS}"


def _parse_epochs(value: object) -> object:
    is_count = isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _MOST_EPOCHS
    if not is_count and value != AUTO:
        nearby = isinstance(value, str) and value.lower() == AUTO.lower()
        raise ValueError(f"must be {_EPOCHS}{f'; did you mean {AUTO}?' * nearby}")
    return value


Epochs = Annotated[
    int | Literal["Auto"],
    BeforeValidator(_parse_epochs),
    WithJsonSchema(
        {
            "x-kubernetes-int-or-string": True,
            "maxLength": 32,
            **validations(
                (
                    f"type(self) == string ? self == '{AUTO}' : self >= 1 && self <= {_MOST_EPOCHS}",
                    f"must be {_EPOCHS}",
                )
            ),
        }
    ),
]


class Batches(StrEnum):
    """How training over a graph of several types, or of networks as layers, goes through its training nodes."""

    AUTO = "Auto"
    """Whole graph as long as it is small enough for that, and sampled batches of a larger one where `fanouts` are
    positive."""
    WHOLE_GRAPH = "WholeGraph"
    """All training nodes in one step, over the whole neighbour lists of all nodes. Exact, one step an epoch, and memory
    grows with the graph."""
    SAMPLED = "Sampled"
    """Steps of `batchSize` training nodes, whose neighbours are sampled by `fanouts` and `relationFanouts` as in
    serving. Memory grows with the batch, not with the graph."""


class Training(ApiModel):
    epochs: Epochs = 30
    """Passes over the training nodes; the epoch with the best validation score is kept. Auto: until validation has not
    improved for a while, of each variant on its own, and again with other rates where hardly anything was learnt."""
    batch_size: Annotated[int, Field(ge=1, le=1_000_000)] = 1024
    """Number of training nodes per step."""
    batches: Batches = Batches.AUTO
    """Way of training through a graph of several types, and of training `layers`: the whole graph in each step, or
    sampled batches. An architecture over one type always samples, and the field is left out."""
    scope: Scope = Scope.INDUCTIVE
    """Whether training may see nodes outside of the training split."""
    learning_rate: Annotated[float, Field(gt=0, le=1)] | None = None
    """Learning rate of the optimiser Adam. Absent: 0.01 for GraphSAGE, GCN and SIGN, 0.05 for SGC and LightGCN, 0.005
    for GAT, 0.001 for GIN, whose sums make larger steps diverge."""
    weight_decay: Annotated[float, Field(ge=0, le=1)] = 0.0005
    """Factor of the L2 penalty on the weights."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """Share of hidden units dropped in training, as a fraction of 1."""
    seed: Annotated[int, Field(ge=0, le=2_147_483_647)] = 0
    """Seed of initial weights, batches, sampling and Random ranking."""


class Checkpoint(ApiModel):
    """Weights that are served as they are; nothing is trained."""

    uri: TensorsPath
    """Path, or address on the Hugging Face Hub, of a state dict of a torch_geometric.nn.GraphSAGE, GIN, GCN or GAT, or
    of a model of such convolutions (conv1, conv2), of one SGConv, or of a torch_geometric.nn.MLP for SIGN. Its content
    is part of the revision's identity: another file at the same place generates anew. Over more than 16,384 feature
    columns it is not pruned: generation then refuses factors other than `[1]`, and the ranking method Lasso, which
    knows that limit without a checkpoint too."""
    sha256: Sha256 | None = None
    """Expected SHA-256 of the file that `uri` names. Another file is refused. Absent: any file is read."""
    decoder: DecoderWeights | None = None
    """Weights of task.links.decoder, for DistMult and MLP. Absent: none, or the tensors of the file that `uri` names
    whose names begin with `decoder.`."""


class ScoreKind(StrEnum):
    LOGITS = "Logits"
    """Numbers as the last layer gives them, before softmax or sigmoid."""
    PROBABILITIES = "Probabilities"
    """Shares behind a softmax; where a node may have several classes, behind a sigmoid."""


class ExpectedScores(ApiModel):
    """Scores that the user's own model gave, which must be those of the weights as they are served."""

    uri: ScoresPath
    """Path of a .npz file with the arrays `nodes` and `scores` [nodes, classes], or of a .parquet file with both as
    columns, `scores` being lists. Nodes are ids as the source has them, or positions from 0 where it has none. Classes
    are in the order of the labels, ascending. The scores are those over full neighbourhoods, of the source's graph, in
    evaluation mode. The file's content is part of the revision's identity."""
    sha256: Sha256 | None = None
    """Expected SHA-256 of the file that `uri` names. Another file is refused. Absent: any file is read."""
    scores: ScoreKind = ScoreKind.LOGITS
    """Kind of the expected scores."""
    tolerance_permille: Annotated[float, Field(gt=0, le=1000)] = 1.0
    """Largest difference of a score, in permille of the largest absolute expected score. A larger one ends generation,
    and nothing is published. With a program it is 0.01 at most, whatever is given."""

    def of_program(self) -> ExpectedScores:
        """With the tolerance of programs, which compute what their models do, but for rounding."""
        closest = min(self.tolerance_permille, MOST_PROGRAM_PERMILLE)
        return self.model_copy(update={"tolerance_permille": closest})


def _sampled_nodes() -> str:
    """CEL for f0 + f0·f1 + f0·f1·f2 + …, by Horner's rule; in floating point, which no fan-outs overflow."""
    deeper = ""
    for layer in reversed(range(1, MAX_LAYERS)):
        factor = f" * (1.0 + {deeper})" if deeper else ""
        deeper = f"(size(self.fanouts) < {layer + 1} ? 0.0 : double(self.fanouts[{layer}]){factor})"
    return f"double(self.fanouts[0]) * (1.0 + {deeper})"


class RelationFanouts(ApiModel):
    """Number of neighbours that are sampled by one relation of a graph of several types."""

    relation: Annotated[str, text(r"^[A-Za-z0-9_ -]+$", "the name of a relation", 200)]
    """Name of the relation, or source type, name and target type with blanks between. A reverse relation that importing
    added has `rev_` before the name."""
    fanouts: Annotated[tuple[Annotated[int, Field(ge=1, le=1024)], ...], Field(min_length=1, max_length=MAX_LAYERS)]
    """Number of neighbours sampled per layer by this relation: one entry for each of model.fanouts, none above the one
    there."""


Fanout = Annotated[int, Field(ge=FULL_NEIGHBOURHOOD, le=1024)]
FIELDS_OF_LAYERS = (
    "architecture", "hidden", "mlp_hidden", "heads", "output_heads", "negative_slope", "hops", "bases", "fanouts",
    "relation_fanouts",
)  # fmt: skip
"""Fields that say what layers are like, which a program has in its file."""


class Model(ApiModel):
    architecture: Architecture = Architecture.GRAPHSAGE
    """Kind of graph neural network."""
    hidden: Annotated[int, Field(ge=1, le=4096)] = _HIDDEN
    """Width of the hidden layers, in channels."""
    mlp_hidden: Annotated[int, Field(ge=1, le=4096)] | None = None
    """Width between the two products of each layer of a GIN, in channels; for GIN only. Absent: as wide as the layer's
    output, which is what torch_geometric.nn.GIN has."""
    heads: Annotated[int, Field(ge=1, le=64)] | None = None
    """Number of attention heads of each layer, for GAT only. Those of a hidden layer stand beside each other, each of
    hidden / heads columns. Absent: 1."""
    output_heads: Annotated[int, Field(ge=1, le=64)] | None = None
    """Number of attention heads of the last layer, whose scores are averaged; for GAT only. Absent: as many as heads.
    """
    negative_slope: Annotated[float, Field(ge=0, le=1)] | None = None
    """Slope of the leaky ReLU over attention scores below 0, for GAT only. Absent: 0.2, torch_geometric's."""
    hops: Annotated[int, Field(ge=0, le=16)] | None = None
    """Number of hops over which features are propagated (SGConv's K), or embeddings (LightGCN's layers); for SGC, SIGN
    and LightGCN only. Absent: 2, and 3 for LightGCN. 0 with SIGN: nothing is propagated."""
    bases: Annotated[int, Field(ge=1, le=128)] | None = None
    """Number of basis matrices that are combined to the matrix of every relation, for RGCN only. Absent: every relation
    has a matrix of its own."""
    fanouts: Annotated[tuple[Fanout, ...], Field(min_length=1, max_length=MAX_LAYERS)] = (25, 10)
    """Neighbours sampled per layer, the seed's draw first; one entry per layer. All -1: every neighbour. All 0 with
    SGC, SIGN and LightGCN, which sample none: `[0]` for SGC and LightGCN, `[0, 0]` for a SIGN of two layers. In a graph
    of several types so many are sampled by each relation that a node's type reads."""
    relation_fanouts: Annotated[tuple[RelationFanouts, ...], Field(max_length=32)] = ()
    """Relations of a graph of several types by which fewer neighbours are sampled than `fanouts` says. Empty: none."""
    training: Training = with_defaults(Training)
    """Settings of the model's training. With a checkpoint only scope and seed count, unless one-row variants are
    trained beside it."""
    checkpoint: Checkpoint | None = None
    """Weights that are served in place of a trained model. Absent: the model is trained."""
    program: Program | None = None
    """Program that is served as the model, whatever layers are inside, in place of an architecture. It needs
    `expected`; of the other fields only training counts, for one-row variants beside it. Absent: the model is of
    `architecture`."""
    before: Annotated[tuple[TypeProductsSpec, ...], Field(max_length=64)] = ()
    """Products of the features before the first of `layers`, of each type of nodes. Empty: layers read the features."""
    layers: Annotated[tuple[LayerSpec, ...], Field(max_length=MAX_LAYERS)] | None = None
    """Layers of the network, first to last, in place of an architecture: each a convolution, norm, activation and
    residual. Layers are trained, or the checkpoint has the weights, under whatever names. Empty: a perceptron, of
    `head` alone. Absent: the model is of `architecture`."""
    jumping_knowledge: JumpingKnowledge = JumpingKnowledge.LAST
    """Rows that `head` reads of `layers`."""
    head: Products = ()
    """Products behind the last of `layers`, first to last. Empty: the last layer gives the scores."""
    head_reads_input: bool = False
    """Whether `head` reads the features beside, before what `layers` give."""
    head_by_type: bool = False
    """Whether each type of nodes has matrices of its own in `head`, as the two towers of links have."""
    expected: ExpectedScores | None = None
    """Scores that the given model gave, compared before anything is published. Absent: what a file of weights does not
    tell is assumed. A program must have them."""

    _expected_scores_are_of_a_given_model = rule(
        "!has(self.expected) || has(self.checkpoint) || has(self.program)",
        "expected may be given with a checkpoint or a program only: scores of a network that is trained here are not "
        "known before",
    )

    _programs_have_expected_scores = rule(
        "!has(self.program) || has(self.expected)",
        "expected must be given with a program: only scores that the model gave tell that it is computed right. "
        "gnnserve-describe writes them, and docs/models.md has the lines that do",
    )

    _programs_have_their_weights = rule(
        "!has(self.program) || !has(self.checkpoint)",
        "checkpoint must be left out with a program, which has its weights in it",
    )

    @rule(
        f"!{_IS_PROGRAM} || (self.architecture == 'GraphSAGE' && self.hidden == 128 && "
        "(self.fanouts == [25, 10] || !has(self.program)) && "
        "!has(self.mlpHidden) && !has(self.heads) && !has(self.outputHeads) && !has(self.negativeSlope) && "
        "!has(self.hops) && !has(self.bases) && (!has(self.relationFanouts) || size(self.relationFanouts) == 0))",
        "architecture, hidden, mlpHidden, heads, outputHeads, negativeSlope, hops, bases and relationFanouts must be "
        "left out with layers, which say these themselves, and with a program, whose layers are in its file, fanouts "
        "too: program.fanouts says how many neighbours are sampled",
    )
    def _programs_have_their_layers(self) -> str:
        fields = type(self).model_fields
        found = next(name for name in FIELDS_OF_LAYERS if getattr(self, name) != fields[name].get_default())
        if self.program is None:
            return f"{fields[found].alias} must be left out with layers, each of which says it itself"
        sampled = ": program.fanouts says how many neighbours are sampled" if found == "fanouts" else ""
        return f"{fields[found].alias} must be left out with a program, whose layers are in its file{sampled}"

    _layers_are_one_way = rule(
        "!has(self.layers) || !has(self.program)",
        "layers must be left out with a program, whose layers are in its file",
    )

    _products_are_of_layers = rule(
        "has(self.layers) || ((!has(self.before) || size(self.before) == 0) && (!has(self.head) || "
        "size(self.head) == 0) && !self.headReadsInput && !self.headByType && self.jumpingKnowledge == 'Last')",
        "before, head, headReadsInput, headByType and jumpingKnowledge may be given with layers only",
    )

    _layers_end_in_scores = rule(
        "!has(self.layers) || size(self.layers) > 0 || (has(self.head) && size(self.head) > 0)",
        "layers must not be empty without a head: something has to give the scores",
    )

    _layers_have_widths = rule(
        "!has(self.layers) || [0, 1, 2, 3, 4, 5, 6, 7].all(i, i >= size(self.layers) || has(self.layers[i].width) || "
        "!has(self.layers[i].conv) || self.layers[i].conv in ['APPNP', 'GCNII', 'AGNN', 'GIN', 'GINE', 'GEN'] || "
        "(i == size(self.layers) - 1 && (!has(self.head) || size(self.head) == 0)))",
        "width must be given for each of layers, but for the last one of a network without a head, which has one "
        "column for each class, and for APPNP, GCNII, AGNN, GIN, GINE and GEN, whose width follows",
    )

    _layers_are_read_over_hops = rule(
        "!has(self.layers) || self.layers.exists(one, has(one.hops) || has(one.relations) && size(one.relations) > 0) "
        "|| size(self.fanouts) == (size(self.layers) == 0 ? 1 : size(self.layers))",
        "fanouts {self.fanouts} must be one number for each of layers[, of which there are {size(self.layers)}; -1 for "
        "each reads all neighbours], and [0] without any",
    )

    _fanouts_agree = rule(
        "self.fanouts.all(f, f > 0) || self.fanouts.all(f, f == -1) || self.fanouts.all(f, f == 0)",
        "fanouts {self.fanouts} must be all positive, or all -1 for the full neighbourhood",
    )

    _fanouts_are_affordable = rule(
        f"{_sampled_nodes()} < {MAX_TREE_NODES}.0",
        f"fanouts {{self.fanouts}} would sample over {MAX_TREE_NODES:,} nodes for one seed: use smaller ones, or -1 "
        "for all neighbours",
    )

    _relations_sample_fewer = rule_of_each(
        "self.relationFanouts",
        "one",
        "size(one.fanouts) == size(self.fanouts) && [0, 1, 2, 3, 4, 5, 6, 7].all(i, i >= size(one.fanouts) || "
        "i >= size(self.fanouts) || one.fanouts[i] <= self.fanouts[i])",
        "each of relationFanouts must be smaller than fanouts {self.fanouts}[, and {one.fanouts} of {one.relation} is "
        "not]: as many numbers, none above it",
    )

    _mlp_hidden_is_of_gin = rule(
        "self.architecture == 'GIN' || !has(self.mlpHidden)",
        "mlpHidden {self.mlpHidden} may be given with architecture GIN only[: leave it out, or use GIN]",
    )

    _bases_are_of_rgcn = rule(
        "self.architecture == 'RGCN' || !has(self.bases)",
        "bases {self.bases} may be given with architecture RGCN only[: leave it out, or use RGCN]",
    )

    _attention_is_of_gat = rule(
        "self.architecture == 'GAT' || !(has(self.heads) || has(self.outputHeads) || has(self.negativeSlope))",
        "heads, outputHeads and negativeSlope may be given with architecture GAT only[: leave them out, or use GAT]",
    )

    _heads_divide_hidden = rule(
        "!has(self.heads) || size(self.fanouts) == 1 || self.hidden % self.heads == 0",
        "hidden {self.hidden} must be a multiple of heads {self.heads}: each head has hidden / heads columns[; use "
        "hidden {(self.hidden + self.heads - 1) / self.heads * self.heads}, or other heads]",
    )

    _batches_are_sampled = rule(
        "!(self.architecture in ['SGC', 'SIGN', 'LightGCN']) || !has(self.training.batches) || "
        "self.training.batches == 'Auto'",
        "training.batches {self.training.batches} must be left out with architectures SGC, SIGN and LightGCN, which "
        "sample no neighbours",
    )

    _rows_need_no_neighbours = rule(
        "has(self.layers) ? self.fanouts.all(f, f == 0) == (size(self.layers) == 0) : "
        "(self.architecture in ['SGC', 'SIGN', 'LightGCN']) == self.fanouts.all(f, f == 0)",
        "fanouts {self.fanouts} must be 0 with architectures SGC, SIGN and LightGCN, whose neighbours are in their "
        "tables, and with no other[: architecture is {self.architecture}]",
    )

    _sgc_has_one_layer = rule(
        "!(self.architecture in ['SGC', 'LightGCN']) || size(self.fanouts) == 1",
        "fanouts {self.fanouts} must be [0] with architectures SGC and LightGCN, which have one layer[: hops says how "
        "far they propagate, and SIGN has more layers]",
    )

    _hops_are_propagated = rule(
        "self.architecture in ['SGC', 'SIGN', 'LightGCN'] || !has(self.hops)",
        "hops {self.hops} may be given with architectures SGC, SIGN and LightGCN only[: leave it out, or use one of "
        "them]",
    )

    _sgc_propagates = rule(
        "self.architecture != 'SGC' || !has(self.hops) || self.hops > 0",
        "hops {self.hops} must be at least 1 with architecture SGC[: use SIGN for a network on the features alone]",
    )

    @property
    def is_given(self) -> bool:
        """Whether the network of all columns comes from a file, and is not trained."""
        return self.checkpoint is not None or self.program is not None

    @property
    def is_program(self) -> bool:
        """Whether the network is computed as a whole, from rows of features: a program, or layers that are listed."""
        return self.program is not None or self.layers is not None

    @property
    def reads_one_row(self) -> bool:
        """Whether nothing is sampled: what a network reads of the neighbours is in the node's own row."""
        return not any(self.fanouts)

    @property
    def propagates(self) -> bool:
        """Whether features are propagated over the graph before anything is trained or written."""
        return bool(self._propagated_hops())

    @property
    def learns_embeddings(self) -> bool:
        """Whether what it reads of a node are embeddings that it learns, and no features."""
        return reads_embeddings(self.architecture)

    def row_columns(self, features: int) -> int:
        """Columns that a network of this model reads of a node, for so many features of the source."""
        return features * column_blocks(self.architecture, self._propagated_hops())

    def network(self, classes: int) -> NetworkManifest:
        """The network that the model is, for a graph of so many classes."""
        return NetworkManifest(
            architecture=self.architecture,
            hidden=self.hidden,
            fanouts=self.fanouts,
            classes=classes,
            mlp_hidden=self.mlp_hidden,
            attention=self._attention(),
            hops=self._propagated_hops(),
        )

    def one_row(self, hops: int) -> Model:
        """The model of the one-row variant that is trained beside this one, with steps of its own size. Its batches
        have no neighbours to sample."""
        training = self.training.model_copy(update={"learning_rate": None, "batches": Batches.AUTO})
        return Model(
            architecture=Architecture.SIGN, hidden=self.hidden, hops=hops, fanouts=_ONE_ROW_LAYERS, training=training
        )

    def with_fewer_channels(self, factor: int) -> Model:
        """The model with a part of its hidden channels. Every head of a GAT keeps as many as the others."""
        heads = self._heads
        changes: dict[str, Any] = {"hidden": heads * (self.hidden // heads // factor)}
        if self.mlp_hidden is not None:
            changes["mlp_hidden"] = self.mlp_hidden // factor
        return self.model_copy(update=changes)

    @property
    def _heads(self) -> int:
        """Attention heads of a hidden layer; 1 without attention."""
        return self.heads or _HEADS

    def _propagated_hops(self) -> int | None:
        if self.architecture not in _PROPAGATING:
            return None
        return self._default_hops if self.hops is None else self.hops

    @property
    def _default_hops(self) -> int:
        return _LIGHT_HOPS if self.architecture is Architecture.LIGHT_GCN else _HOPS

    def _attention(self) -> AttentionManifest | None:
        if self.architecture is not Architecture.GAT:
            return None
        heads = self._heads
        slope = _NEGATIVE_SLOPE if self.negative_slope is None else self.negative_slope
        return AttentionManifest(heads=heads, output_heads=self.output_heads or heads, negative_slope=slope)

    def canonical(self, *, is_trained: bool) -> Model:
        """The same for models that are trained alike: how to train does nothing where all weights are given, a hidden
        width nothing for SGC, and a field may have the value that it has when absent."""
        changes: dict[str, Any] = {}
        if not is_trained:
            changes["training"] = Training(scope=self.training.scope, seed=self.training.seed)
        if (attention := self._attention()) is not None:
            heads, slope = attention.heads, attention.negative_slope
            changes["heads"] = None if heads == _HEADS else heads
            changes["output_heads"] = None if attention.output_heads == heads else attention.output_heads
            changes["negative_slope"] = None if slope == _NEGATIVE_SLOPE else slope
        if self.architecture in WITHOUT_HIDDEN:
            changes["hidden"] = _HIDDEN
        if self.architecture in _PROPAGATING:
            changes["hops"] = None if self.hops == self._default_hops else self.hops
        return self.model_copy(update=changes) if changes else self
