"""Describes a file of weights by its names and shapes: which layers it seems to hold, and which of them are not served.

A message about a checkpoint begins here, so that it names the layers that the user wrote and never advises a setting
that would be refused next. Nothing is computed, and nothing of torch_geometric is imported. Kinds of layers that are
read are attributes of the architectures' objects; those that are not are the table `OTHERS`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gnnserve_api.spec.model import Architecture
from gnnserve_worker.models.layer_kind import LINEAR, LayerKind, Shapes
from gnnserve_worker.models.registry import OF_ONE_TYPE, RELATIONAL

_SHOWN = 6
_WHERE = "docs/models.md lists the layers that are served"


_EDGES = "columns of edges are not read yet"
_NORM = r"weight|bias|mean_scale|module\.weight|module\.bias|(module\.)?running_mean|(module\.)?running_var"
OTHERS: Sequence[LayerKind] = (
    LayerKind("SAGEConv with project=True", r"lin_[lr]\.weight|lin_l\.bias|lin\.(weight|bias)",
              (r"lin\.weight", r"lin_l\.weight")),
    LayerKind("SAGEConv with an LSTM as its aggregation", r"lin_[lr]\.(weight|bias)|aggr_module\..+",
              (r"aggr_module\.lstm\..+",)),
    LayerKind("SAGEConv of DGL with a pooling or a bias of its own",
              r"fc_(self|neigh|pool)\.(weight|bias)|bias|lstm\..+", (r"fc_neigh\.weight",)),
    LayerKind("GATConv with columns of edges (edge_dim)",
              r"(lin|lin_src|lin_dst|lin_edge)\.weight|att_(src|dst|edge)|bias|res\.weight",
              (r"lin_edge\.weight", "att_src"), note=_EDGES),
    LayerKind("GATConv with residual=True or bias=False", r"(lin|lin_src|lin_dst|res)\.weight|att_(src|dst)|bias",
              (r"(lin|lin_src)\.weight", "att_src")),
    LayerKind("GATConv of DGL", r"fc(_src|_dst)?\.weight|attn_[lr]|bias|res_fc\.weight", ("attn_l", "attn_r")),
    LayerKind("GATv2Conv with columns of edges (edge_dim)", r"lin_([lr]|edge)\.(weight|bias)|att|bias|res\.weight",
              (r"lin_edge\.weight", "att"), note=_EDGES),
    LayerKind("GATv2Conv", r"lin_[lr]\.(weight|bias)|att|bias|res\.weight", ("att", r"lin_l\.weight")),
    LayerKind("TransformerConv", r"lin_(key|query|value|skip|edge|beta)\.(weight|bias)",
              (r"lin_key\.weight", r"lin_query\.weight")),
    LayerKind(
        "GINEConv", r"nn\..+|eps|lin\.(weight|bias)", (r"nn\..+", r"lin\.weight"), note=_EDGES,
    ),
    LayerKind("GINConv with a norm in its nn", r"nn\..+|eps",
              (r"nn\.(.+\.)?(running_mean|norms?\..+)",)),
    LayerKind("GINConv over other layers than Linear, ReLU, Linear", r"nn\..+|eps", (r"nn\..+", "eps")),
    LayerKind("PNAConv", r"(pre_nns|post_nns|edge_encoder|lin|aggr_module)\..+", (r"pre_nns\..+", r"post_nns\..+")),
    LayerKind("GraphConv", r"lin_(rel|root)\.(weight|bias)", (r"lin_rel\.weight", r"lin_root\.weight"),
              note="it sums neighbours without averaging them"),
    LayerKind("HGTConv", r"(kqv_lin|k_lin|q_lin|v_lin|out_lin|k_rel|v_rel|a_rel|m_rel|a_lin|p_rel|skip)\..+",
              (r"(p_rel|skip)\..+",)),
    LayerKind("HANConv", r"lin_(src|dst)\..+|proj\..+|k_lin\.(weight|bias)|q", (r"proj\..+", "q")),
    LayerKind("RGATConv", r"weight|att|[qke]|bias|mod|basis|comp|w|l1|b1|l2|b2|lin_edge\..+", ("q", "k")),
    LayerKind("RGCNConv with root_weight=False or bias=False", r"weight|root|bias|comp", ("weight",), {"weight": 3}),
    LayerKind("GCN2Conv (GCNII)", r"weight1|weight2", ("weight1",)),
    LayerKind("ChebConv or TAGConv", r"lins\.\d+\.weight|bias", (r"lins\.0\.weight", "bias")),
    LayerKind("ARMAConv", r"init_weight|weight|root_weight|bias", ("init_weight",)),
    LayerKind("GatedGraphConv", r"weight|rnn\.(weight|bias)_[ih]h", (r"rnn\.weight_ih",)),
    LayerKind("LSTM or GRU", r"(weight|bias)_[ih]h(_l\d+)?(_reverse)?", (r"weight_ih.*",), is_convolution=False),
    LayerKind("BatchNorm", _NORM, (r"(module\.)?running_mean",),
              is_convolution=False),
    LayerKind("GraphNorm", _NORM, ("mean_scale",), is_convolution=False,
              note="it reads the whole graph, which no sample of neighbours can give"),
    LayerKind("PReLU, or a norm without a bias", r"weight", ("weight",), {"weight": 1}, is_convolution=False),
    LayerKind("LayerNorm or another norm", _NORM, (r"(module\.)?weight", r"(module\.)?bias"),
              {"weight": 1, "module.weight": 1}, is_convolution=False),
    LayerKind("Linear without a bias, or an Embedding", r"weight", ("weight",), {"weight": 2}, is_convolution=False),
)  # fmt: skip
"""Kinds of layers that no architecture reads, the more particular ones first."""

_OWNERS: Mapping[str, Architecture] = {
    kind.name: architecture for architecture, spec in OF_ONE_TYPE.items() for kind in spec.layer_kinds
}
_RELATIONAL_OWNERS: Mapping[str, Architecture] = {
    kind.name: architecture for architecture, spec in RELATIONAL.items() for kind in spec.layer_kinds
}
_PERCEPTRONS = tuple(architecture for architecture, spec in OF_ONE_TYPE.items() if LINEAR in spec.layer_kinds)
"""Architectures of matrices alone, whose layers may be a head in a file of others."""
_KINDS: Sequence[LayerKind] = (
    *(kind for spec in OF_ONE_TYPE.values() for kind in spec.layer_kinds if kind is not LINEAR),
    *(kind for spec in RELATIONAL.values() for kind in spec.layer_kinds if kind.name not in _OWNERS),
    *OTHERS,
    LINEAR,
)
"""Every kind that is recognised, in the order in which they are tried."""

_NUMBER = re.compile(r"\d+")
_RELATION = re.compile(r"<?(?P<source>.+?)_{2,3}(?P<name>.+?)_{2,3}(?P<target>[^>]+)>?")
"""Names of a relation's module: HeteroConv's of torch_geometric, and those of to_hetero and of earlier versions."""


@dataclass(frozen=True, slots=True)
class CheckpointLayer:
    """A layer of a file."""

    name: str
    """Empty: the file is the state dict of a layer alone."""
    kind: LayerKind
    shapes: Shapes
    """By the names within the layer."""

    @property
    def tensors(self) -> tuple[str, ...]:
        return tuple(map(self.key_of, self.shapes))

    def key_of(self, tensor: str) -> str:
        """The file's name of a tensor."""
        return f"{self.name}.{tensor}" if self.name else tensor


@dataclass(frozen=True, slots=True)
class CheckpointDescription:
    """A file of weights as layers."""

    layers: tuple[CheckpointLayer, ...]
    others: tuple[str, ...]
    """Names of tensors that belong to no layer that is recognised."""

    @property
    def convolutions(self) -> tuple[CheckpointLayer, ...]:
        return tuple(layer for layer in self.layers if layer.kind.is_convolution)

    @property
    def beside(self) -> tuple[CheckpointLayer, ...]:
        """Layers that are no convolutions."""
        return tuple(layer for layer in self.layers if not layer.kind.is_convolution)

    @property
    def is_perceptron(self) -> bool:
        """Whether it is layers of one matrix and a bias each, and nothing of a graph."""
        return bool(self.layers) and not self.others and all(one.kind is LINEAR for one in self.layers)

    def says(self) -> str:
        """`2 SAGEConv layers (conv1, conv2) and a Linear (fc)`."""
        grouped: dict[str, list[str]] = {}
        for layer in (*self.convolutions, *self.beside):
            grouped.setdefault(self._says_kind(layer), []).append(layer.name or "without a name")
        parts = [f"{_counted(kind, len(names))} ({_listed(names)})" for kind, names in grouped.items()]
        if self.others:
            parts.append(f"tensors of no layer that is known ({_listed(self.others)})")
        return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts) or "nothing"

    def _says_kind(self, layer: CheckpointLayer) -> str:
        name, convolutions = layer.kind.name, self.convolutions
        if layer.kind is not LINEAR or not convolutions:
            return name
        outputs, inputs = layer.shapes["weight"]
        ends = [widths for one in convolutions if (widths := _widths(one)) is not None]
        if not ends:
            return name
        reads, writes = [each[0] for each in ends], [each[1] for each in ends]
        if len(writes) > 1 and inputs == sum(writes):
            return f'{name} that reads the outputs of all layers (jumping knowledge "cat")'
        if inputs in writes and outputs not in reads:
            return f"{name} behind the last convolution"
        if outputs in reads and inputs not in writes:
            return f"{name} before the first convolution"
        return name


def _counted(kind: str, count: int) -> str:
    if count == 1:
        return f"a {kind}"
    return f"{count} layers of {kind}" if " " in kind else f"{count} {kind} layers"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + ", …" * (len(names) > _SHOWN)


def _widths(layer: CheckpointLayer) -> tuple[int, int] | None:
    """Columns that the layer reads and writes, as far as its matrices tell."""
    matrices = [shape for shape in layer.shapes.values() if len(shape) == 2]
    return (matrices[0][1], matrices[-1][0]) if matrices else None


def describe(shapes: Shapes) -> CheckpointDescription:
    """The layers of a file, in the order of the numbers in their names."""
    layers: list[CheckpointLayer] = []
    left = dict(shapes)
    for prefix in _prefixes(shapes):
        start = f"{prefix}." if prefix else ""
        within = {name.removeprefix(start): shape for name, shape in left.items() if name.startswith(start)}
        kind = next((one for one in _KINDS if one.matches(within)), None)
        if kind is None:
            continue
        layers.append(CheckpointLayer(prefix, kind, within))
        for name in within:
            del left[start + name]
    layers.sort(key=lambda one: _by_numbers(one.name))
    return CheckpointDescription(tuple(layers), tuple(sorted(left)))


def _prefixes(names: Shapes) -> list[str]:
    """Beginnings of the names, at dots outside of <>, the shortest first."""
    found = set()
    for name in names:
        steps = steps_of(name)
        found |= {".".join(steps[:count]) for count in range(len(steps))}
    return sorted(found, key=lambda one: (one.count("."), one))


def _by_numbers(name: str) -> tuple[str, tuple[int, ...]]:
    return _NUMBER.sub("", name), tuple(int(number) for number in _NUMBER.findall(name))


@dataclass(frozen=True, slots=True)
class CheckpointRefusal:
    """Why layers of a file are not served, and what helps."""

    problem: str
    remedy: str
    shapes: Shapes | None = None
    """The file's tensors once they are as the remedy says; None: it says nothing that makes them served."""


def looks(description: CheckpointDescription) -> str:
    return f"looks like {description.says()}"


def architecture_of(description: CheckpointDescription) -> Architecture | None:
    """The one architecture of one type that all layers are of, as they stand; None: there is none."""
    if description.is_perceptron:
        return _PERCEPTRONS[0]
    found = {_read_by(layer) for layer in description.layers}
    return found.pop() if len(found) == 1 and not description.others else None


def relational_architecture_of(layer: CheckpointLayer) -> Architecture | None:
    """The architecture over several types that reads the layer as it stands."""
    return _RELATIONAL_OWNERS.get(layer.kind.name)


def _read_by(layer: CheckpointLayer) -> Architecture | None:
    """The same over one type."""
    is_read = layer.kind.is_read_as_it_is and layer.kind is not LINEAR
    return _OWNERS.get(layer.kind.name) if is_read else None


def steps_of(name: str) -> list[str]:
    """Parts of a name, cut at dots outside of <>."""
    return re.findall(r"(?:<[^>]*>|[^.])+", name)


def relation_of(layer: str) -> re.Match[str] | None:
    """The relation that a layer's name ends in, as HeteroConv or to_hetero writes it: `source`, `name`, `target`."""
    steps = steps_of(layer)
    return _RELATION.fullmatch(steps[-1]) if steps else None


def _over_types(description: CheckpointDescription) -> CheckpointRefusal | None:
    """A refusal where layers are of relations, so that the model is over several types."""
    found = [match for layer in description.layers if (match := relation_of(layer.name)) is not None]
    if not found:
        return None
    names = dict.fromkeys(f"{one['source']}__{one['name']}__{one['target']}" for one in found)
    held = f"holds layers of the {'relation' if len(names) == 1 else 'relations'} {_listed([*names])}"
    return CheckpointRefusal(
        f"{held}, so it is a model over several types of nodes, and the graph has one type",
        "give the graph that it was trained on in spec.graph.source.typed",
    )


def refusal_of(description: CheckpointDescription) -> CheckpointRefusal | None:
    """What is not served of a file over one type; None: all of its layers are, and of one architecture."""
    if (over_types := _over_types(description)) is not None:
        return over_types
    if not description.layers and not description.others:
        return CheckpointRefusal("it has nothing", "save the whole state dict of the model")
    if description.is_perceptron:
        return _renamed_perceptron(description)
    if architecture_of(description) is not None and all(layer.name for layer in description.layers):
        return None
    possible = {None if layer.kind is LINEAR else _OWNERS.get(layer.kind.name) for layer in description.layers}
    if len(possible) == 1 and None not in possible and not description.others:
        return _renamed(description)
    unread = [layer for layer in description.layers if _read_by(layer) is None]
    return refused_layers(description, unread)


def refused_layers(description: CheckpointDescription, unread: Sequence[CheckpointLayer]) -> CheckpointRefusal:
    """A refusal that no setting mends. `unread`: the layers that are not served; none: they are not together."""
    tensors = [name for layer in unread for name in layer.tensors] + list(description.others)
    if not tensors:
        return CheckpointRefusal(looks(description), f"layers of these kinds in one model are not served yet; {_WHERE}")
    notes = sorted({layer.kind.note for layer in unread if layer.kind.note})
    why = f" ({'; '.join(notes)})" if notes else ""
    return CheckpointRefusal(
        f"{looks(description)}; {_listed(tensors)} {'was' if len(tensors) == 1 else 'were'} not read",
        f"such a model is not served yet{why}, and no setting changes that; {_WHERE}",
    )


def _renamed(description: CheckpointDescription) -> CheckpointRefusal:
    """New names for all tensors, in the order of the layers."""
    renames, left_out, transposed, added = [], [], [], []
    shapes: dict[str, tuple[int, ...]] = {}
    keeps_names = all(layer.name and not layer.kind.renamed for layer in description.layers)
    for place, layer in enumerate(description.layers):
        kind, new = layer.kind, layer.name if keeps_names else f"convs.{place}"
        for name, shape in layer.shapes.items():
            old, called = layer.key_of(name), kind.renamed.get(name, name)
            if not called:
                left_out.append(old)
                continue
            if name in kind.transposed:
                transposed.append(old)
            if old != f"{new}.{called}":
                renames.append(f"{old} to {new}.{called}")
            shapes[f"{new}.{called}"] = shape[::-1] if name in kind.transposed else shape
        for name, shape_of in kind.added.items():
            shapes[f"{new}.{name}"] = shape_of(layer.shapes)
            added.append(f"{new}.{name} {list(shapes[f'{new}.{name}'])}")
    steps = [
        f"{what} {', '.join(names)}{after}"
        for what, names, after in (
            ("transpose", transposed, ""),
            ("rename", renames, ""),
            ("leave out", left_out, ", which the layer's other matrix repeats"),
            ("add", added, " of zeros"),
        )
        if names
    ]
    notes = sorted({f" ({layer.kind.note})" for layer in description.layers if layer.kind.note})
    return CheckpointRefusal(looks(description), "; ".join(steps) + "".join(notes), shapes)


def _renamed_perceptron(description: CheckpointDescription) -> CheckpointRefusal | None:
    """A perceptron is read under the names of torch_geometric.nn.MLP."""
    new = {layer.name: f"lins.{place}" for place, layer in enumerate(description.layers)}
    if all(old == called for old, called in new.items()):
        return None
    shapes = {
        f"{new[layer.name]}.{name}": shape for layer in description.layers for name, shape in layer.shapes.items()
    }
    pairs = ", ".join(
        f"{layer.key_of(tensor)} to {new[layer.name]}.{tensor}"
        for layer in description.layers
        for tensor in (["*"] if layer.name else layer.shapes)
    )
    count, names = "1 layer" if len(new) == 1 else f"{len(new)} layers", [name or "without a name" for name in new]
    problem = f"looks like a perceptron of {count} ({_listed(names)}), which reads nothing of a graph"
    return CheckpointRefusal(problem, f"rename {pairs}, if that is the order in which they are applied", shapes)
