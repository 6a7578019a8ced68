"""Models that GraphStorm saves (`model.bin`), as networks that are listed layer by layer.

It is a dictionary of state dicts: `node_embed` (formerly `embed`) projects the features of each type, `gnn` has the
layers, `decoder` a matrix. Matrices stand transposed. What is said of them here was read in GraphStorm's sources
(`model/rgcn_encoder.py`, `rgat_encoder.py`, `hgt_encoder.py`, `sage_encoder.py`, `embed.py`, `node_decoder.py`): a
layer adds what relations give, the node's own row times `loop_weight` and `h_bias`, then come norm and ReLU; behind the
last layer there is neither. HGT and SAGE, which is of one relation, have both there. HGT has a softmax for each
relation, whose mean and the node's own row times `a_linears` are weighed by `skip`.

An RGCN names no relations: its matrices stand in the order of the graph that it was trained on. Embeddings of nodes lie
in files of their own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from gnnserve_api.files.layers import (
    Activation,
    Aggregation,
    Combination,
    Convolution,
    ConvolutionManifest,
    DenseManifest,
    LayerManifest,
    LayersManifest,
    Norm,
    TypeProductsManifest,
)
from gnnserve_api.files.programs import RelationKey
from gnnserve_worker.models.layer_kind import Shapes
from gnnserve_worker.readers.parts import Assumption, Taken, TakenTensors, zeros

_LAYER = re.compile(r"gnn\._?layers\.(\d+)\.(.+)")
_INPUT = re.compile(r"(?:node_)?embed\.(input_projs|proj_matrix)\.([^.]+)")
_INPUT_FFN = re.compile(r"(?:node_)?embed\.ngnn_mlp\.([^.]+)\.ngnn_gnn\.(\d+)")
_OF_RELATION = re.compile(r"conv\.mods\.\('([^']+)', '([^']+)', '([^']+)'\)\.(.+)")
_NORM = re.compile(r"norms?\.(?:([^.]+)\.)?(weight|bias|running_mean|running_var)")
_OF_TYPE = re.compile(r"k_linears\.([^.]+)\.weight")
_ATT = "relation_att."
_ATTENTION = frozenset({"fc.weight", "attn_l", "attn_r"})
_SAGE = "conv."
"""Beginning of the names of DGL's SAGEConv in a layer."""
_DECODER, _DECODER_BIAS = "decoder.decoder", "decoder.bias"
_SOURCE, _TARGET = "SOURCE", "TARGET"
"""Types of relations in place of those that a file does not name."""


@dataclass(slots=True)
class GraphStormNetwork:
    """A file of GraphStorm, as far as it can be listed."""

    layers: LayersManifest = field(default_factory=lambda: LayersManifest(()))
    types: tuple[str, ...] = ()
    """Names of the types, in the order of places in `layers`."""
    relations: tuple[RelationKey, ...] = ()
    taken: TakenTensors = field(default_factory=dict)
    assumed: tuple[Assumption, ...] = ()
    unread: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    """Names of the encoders that have such layers, each once."""
    problem: str = ""
    """Why it is none of the networks that can be listed; empty: it is one."""

    @property
    def says(self) -> str:
        what = " and ".join(self.kinds) or "model"
        return f"GraphStorm's {what}: {len(self.layers.layers)} layers over {len(self.relations)} relations"


def is_graphstorm(shapes: Shapes) -> bool:
    """Whether names are those of a file that GraphStorm wrote."""
    has_ends = any(_INPUT.fullmatch(key) for key in shapes) or _DECODER in shapes
    return has_ends and any(_LAYER.fullmatch(key) for key in shapes)


def read_graphstorm(
    shapes: Shapes, types: Sequence[str] | None, relations: Sequence[RelationKey] | None,
    listed: Sequence[int] | None = None,
) -> GraphStormNetwork:  # fmt: skip
    """`types`, `relations`: those of the graph, in its order; None: it is not known. `listed`: places of relations in
    the order in which a manifest has them, which is then that of matrices without names."""
    return _Reader(shapes, types, relations, listed).read()


class _Reader:
    def __init__(
        self, shapes: Shapes, types: Sequence[str] | None, relations: Sequence[RelationKey] | None,
        listed: Sequence[int] | None,
    ) -> None:  # fmt: skip
        self._shapes = shapes
        self._layers: dict[int, dict[str, str]] = {}
        for key in shapes:
            if found := _LAYER.fullmatch(key):
                self._layers.setdefault(int(found[1]), {})[found[2]] = key
        self._given_types, self._given_relations, self._listed = types, relations, listed
        self._taken: dict[str, Taken] = {}
        self._assumed: list[Assumption] = []
        self._kinds: dict[str, None] = {}
        self._problem = ""

    def read(self) -> GraphStormNetwork:
        self._relations = self._found_relations()
        self._types = self._found_types()
        layers = LayersManifest(
            tuple(self._layer(place, self._layers[number]) for place, number in enumerate(sorted(self._layers))),
            self._before(),
            head=self._head(),
        )
        if len(self._types) > 1 and self._given_types is None:
            self._assume("spec.graph.source.typed.target", self._types[0], "the file does not name the scored type")
        used = {key for one in self._taken.values() for key in one.keys}
        unread = tuple(sorted(key for key in self._shapes if key not in used))
        return GraphStormNetwork(
            layers, self._types, self._relations, self._taken, tuple(self._assumed), unread, tuple(self._kinds),
            self._problem,
        )  # fmt: skip

    def _say(self, problem: str) -> None:
        """Keep the first problem that is found."""
        self._problem = self._problem or problem

    def _assume(self, name: str, value: str, why: str) -> None:
        self._assumed.append(Assumption(name, value, why))

    # --- types and relations

    def _found_relations(self) -> tuple[RelationKey, ...]:
        if self._given_relations is not None:
            return tuple(self._given_relations)
        named = dict.fromkeys(
            RelationKey(found[1], found[2], found[3])
            for layer in self._layers.values()
            for name in layer
            if (found := _OF_RELATION.fullmatch(name))
        )
        named |= dict.fromkeys(self._relations_of_hgt())
        if named or not (count := self._matrices()):
            return tuple(named) or (RelationKey(),)
        return tuple(RelationKey(_SOURCE, f"relation_{place}", _TARGET) for place in range(count))

    def _relations_of_hgt(self) -> list[RelationKey]:
        """Relations by names that are joined with those of their types, as far as one reading of these fits."""
        found: list[RelationKey] = []
        for layer in self._layers.values():
            types = [one[1] for name in layer if (one := _OF_TYPE.fullmatch(name))]
            for joined in (name.removeprefix(_ATT) for name in layer if name.startswith(_ATT)):
                fitting = [
                    RelationKey(source, joined[len(source) + 1 : -len(target) - 1], target)
                    for source in types
                    for target in types
                    if joined.startswith(f"{source}_") and joined.endswith(f"_{target}")
                    and len(joined) > len(source) + len(target) + 2
                ]  # fmt: skip
                if len(fitting) != 1:
                    self._say(f"has a relation {joined!r}, whose types cannot be told apart")
                found += fitting[:1]
        return found

    def _found_types(self) -> tuple[str, ...]:
        if self._given_types is not None:
            return tuple(self._given_types)
        names = dict.fromkeys(found[2] for key in self._shapes if (found := _INPUT.fullmatch(key)))
        ends = (end for one in self._relations for end in (one.target, one.source))
        names |= dict.fromkeys(end for end in ends if end not in {"", _SOURCE, _TARGET})
        return ("",) if len(self._relations) == 1 and len(names) < 2 else tuple(names) or ("",)

    def _matrices(self) -> int:
        """Relations that an RGCN has matrices of; 0: it is none."""
        for layer in self._layers.values():
            for name in ("basis.w_comp", "weight"):
                if name in layer:
                    return self._shapes[layer[name]][0]
        return 0

    def _order(self) -> Sequence[int]:
        """Places of the relations that matrices without names are of."""
        return range(len(self._relations)) if self._listed is None else self._listed

    def _place_of(self, type_: str) -> int | None:
        """Place of a type; None: the graph has none of this name. A graph of one type has no name for it."""
        if self._types == ("",):
            return 0
        return self._types.index(type_) if type_ in self._types else None

    def _place_of_relation(self, relation: RelationKey) -> int | None:
        """None: the graph has none of these names. A graph of one type has none for its relation."""
        if self._types == ("",) and len(self._relations) == 1:
            return 0
        return self._relations.index(relation) if relation in self._relations else None

    # --- before the layers, and behind them

    def _before(self) -> tuple[TypeProductsManifest, ...]:
        written = []
        projected = {(found[1], found[2]): key for key in self._shapes if (found := _INPUT.fullmatch(key))}
        for (kind, type_), key in projected.items():
            place = self._place_of(type_)
            if place is None:
                self._say(f"projects features of {type_}, and the graph has no such type")
                continue
            if kind == "proj_matrix" and ("input_projs", type_) in projected:
                self._say(f"adds an embedding of each node to the features of {type_}")
                continue
            if kind == "proj_matrix":
                self._assume(f"features of {type_ or 'nodes'}", f"rows of {type_}/sparse_emb_*.pt", "embeddings")
            inputs, width = self._shapes[key]
            self._taken[f"before.{place}.0.weight"] = Taken((width, inputs), (key,), _transposed)
            products = (DenseManifest(width, bias=False), *self._input_ffn(place, type_))
            written.append(TypeProductsManifest(place, products))
        if written:
            self._assume("before[].activation", "None", "input_activate of GraphStorm's configuration")
        return tuple(sorted(written, key=lambda one: one.type))

    def _input_ffn(self, place: int, type_: str) -> list[DenseManifest]:
        """Products of a type behind the projection of its features."""
        numbered = sorted(
            (int(found[2]), key) for key in self._shapes if (found := _INPUT_FFN.fullmatch(key)) and found[1] == type_
        )
        products = list[DenseManifest]()
        for number, key in numbered:
            inputs, width = self._shapes[key]
            self._taken[f"before.{place}.{number + 1}.weight"] = Taken((width, inputs), (key,), _transposed)
            products.append(DenseManifest(width, bias=False, activation=Activation.RELU))
        return products

    def _head(self) -> tuple[DenseManifest, ...]:
        if _DECODER not in self._shapes or len(self._shapes[_DECODER]) != 2:
            return ()
        inputs, width = self._shapes[_DECODER]
        self._taken["head.0.weight"] = Taken((width, inputs), (_DECODER,), _transposed)
        if has_bias := _DECODER_BIAS in self._shapes:
            self._taken["head.0.bias"] = Taken((width,), (_DECODER_BIAS,))
        return (DenseManifest(width, bias=has_bias),)

    # --- layers

    def _layer(self, place: int, tensors: Mapping[str, str]) -> LayerManifest:
        is_last = place == len(self._layers) - 1
        if any(name.startswith("ngnn_mlp.") for name in tensors):
            self._say("has products between its layers (num_ffn_layers_in_gnn), which no list of layers has")
        if f"{_SAGE}fc_neigh.weight" in tensors:
            return self._sage(place, tensors)
        if any(name.startswith(_ATT) for name in tensors):
            return self._hgt(place, tensors)
        convs = self._matrix_convolutions(place, tensors) or self._attention(place, tensors)
        if not convs:
            self._say("has layers that are those of none of its RGCN, RGAT, HGT and SAGE")
            return LayerManifest(())
        self._own(place, convs[0].width, tensors)
        return LayerManifest(
            convs, own=True, norm=self._norm(place, tensors),
            activation=Activation.NONE if is_last else Activation.RELU,
        )  # fmt: skip

    def _matrix_convolutions(self, place: int, tensors: Mapping[str, str]) -> tuple[ConvolutionManifest, ...]:
        """Means of neighbours times a matrix of each relation."""
        bases = [tensors[name] for name in ("basis.w_comp", "basis.weight") if name in tensors]
        keys = bases or [tensors[name] for name in ("weight",) if name in tensors]
        if len(keys) != (2 if bases else 1) or len(self._shapes[keys[-1]]) != 3:
            return ()
        count, (_, inputs, width) = self._shapes[keys[0]][0], self._shapes[keys[-1]]
        order = self._order()
        if len(order) != count:
            self._say(
                f"has matrices of {count} relations, and {len(order)} are given; those of its graph are meant, in its "
                "order, those of the other direction too"
            )
            return ()
        if place == 0 and self._listed is None:
            self._assume(
                "layers[].relations", "in the order of the graph" if self._given_relations else "put your names",
                "the file has matrices in the order of GraphStorm's g.canonical_etypes, without names",
            )  # fmt: skip
        self._kinds["RGCN"] = None
        convs = []
        for number, relation in enumerate(order):
            change = _matrix_of_bases(number) if bases else _matrix_of(number)
            self._taken[f"layers.{place}.convs.{relation}.lin_l.weight"] = Taken((width, inputs), tuple(keys), change)
            convs.append(
                ConvolutionManifest(
                    Convolution.GRAPH_SAGE, relation, width, bias=False, root=False, aggregations=(Aggregation.MEAN,)
                )
            )
        return tuple(convs)

    def _attention(self, place: int, tensors: Mapping[str, str]) -> tuple[ConvolutionManifest, ...]:
        """Attention within each relation, which the file names."""
        by_relation: dict[RelationKey, dict[str, str]] = {}
        for name, key in tensors.items():
            if found := _OF_RELATION.fullmatch(name):
                by_relation.setdefault(RelationKey(found[1], found[2], found[3]), {})[found[4]] = key
        convs = []
        for relation, named in by_relation.items():
            if named.keys() != _ATTENTION:
                return ()
            if (number := self._place_of_relation(relation)) is None:
                named_so = f"{relation.source} {relation.name} {relation.target}"
                self._say(f"has attention over the relation {named_so!r}, which the graph does not have")
                return ()
            (wide, inputs), (_, heads, each) = self._shapes[named["fc.weight"]], self._shapes[named["attn_l"]]
            start = f"layers.{place}.convs.{number}"
            for end, vector in (("src", "attn_l"), ("dst", "attn_r")):
                self._taken[f"{start}.lin_{end}.weight"] = Taken((wide, inputs), (named["fc.weight"],))
                self._taken[f"{start}.att_{end}"] = Taken((1, heads, each), (named[vector],))
            self._kinds["RGAT"] = None
            convs.append(ConvolutionManifest(Convolution.GAT, number, wide, heads=heads, bias=False, self_loops=False))
        return tuple(sorted(convs, key=lambda one: one.relation))

    def _sage(self, place: int, tensors: Mapping[str, str]) -> LayerManifest:
        """DGL's SAGEConv over the one relation of a graph."""
        own = {name.removeprefix(_SAGE): key for name, key in tensors.items() if name.startswith(_SAGE)}
        self._kinds["SAGE"] = None
        if "fc_self.weight" not in own or "lstm.weight_ih_l0" in own:
            found = "lstm" if "lstm.weight_ih_l0" in own else "gcn"
            self._say(f"has layers of its SAGE that aggregate by {found}, which no list of layers has")
            return LayerManifest(())
        start, (width, _) = f"layers.{place}.convs.0", self._shapes[own["fc_neigh.weight"]]
        pooled = "fc_pool.weight" in own
        named = {"lin_l.weight": "fc_neigh.weight", "lin_r.weight": "fc_self.weight"}
        named |= {"lin.weight": "fc_pool.weight", "lin.bias": "fc_pool.bias"} if pooled else {}
        bias = next((name for name in ("fc_self.bias", "bias") if name in own), "")
        named |= {"lin_l.bias": bias} if bias else {}
        for name, of_file in named.items():
            self._taken[f"{start}.{name}"] = Taken(self._shapes[own[of_file]], (own[of_file],))
        if not pooled and place == 0:
            self._assume("layers[].aggregations", "Mean", "aggregator_type of GraphStorm's configuration")
        conv = ConvolutionManifest(
            Convolution.GRAPH_SAGE, 0, width, bias=bool(bias), projects=pooled,
            aggregations=(Aggregation.MAX if pooled else Aggregation.MEAN,),
        )  # fmt: skip
        return LayerManifest((conv,), norm=self._norm(place, tensors), activation=Activation.RELU)

    def _hgt(self, place: int, tensors: Mapping[str, str]) -> LayerManifest:
        """Attention within each relation by matrices of types and of the relation, the mean of relations, and the
        node's own row."""
        self._kinds["HGT"] = None
        joined = {"_".join((one.source, one.name, one.target)): at for at, one in enumerate(self._relations)}
        named = [name.removeprefix(_ATT) for name in tensors if name.startswith(_ATT)]
        if other := sorted(set(named) - joined.keys()):
            self._say(f"has attention over the relation {other[0]!r}, which the graph does not have")
        elif missing := sorted(self._needed_by_hgt(named, joined) - tensors.keys()):
            self._say(f"has a layer of its HGT without {missing[0]}")
        if self._problem:
            return LayerManifest(())
        convs = [self._attention_of(place, at, one, tensors) for one, at in joined.items() if one in named]
        read = {self._relations[conv.relation].target for conv in convs}
        for number, type_ in enumerate(self._types):
            for part in ("weight", "bias"):
                key, skip = tensors[f"a_linears.{type_}.{part}"], tensors[f"skip.{type_}"]
                change = _left_by_gate if type_ in read else _without_gate
                self._taken[f"layers.{place}.own.{number}.{part}"] = Taken(self._shapes[key], (key, skip), change)
        if place == 0:
            self._assume("layers[].combine", "Mean", "over all relations, those without edges too")
        return LayerManifest(
            tuple(convs), Combination.MEAN, own=True, norm=self._norm(place, tensors), activation=Activation.RELU
        )

    def _needed_by_hgt(self, named: Sequence[str], joined: Mapping[str, int]) -> set[str]:
        """Names of all tensors of a layer. `named`: its relations as names have them; `joined`: their places."""
        linears = [f"a_linears.{type_}" for type_ in self._types]
        for relation in (self._relations[joined[one]] for one in named):
            linears += [f"q_linears.{relation.target}", f"k_linears.{relation.source}", f"v_linears.{relation.source}"]
        of_relations = {f"relation_{part}.{one}" for part in ("pri", "msg") for one in named}
        skips = {f"skip.{type_}" for type_ in self._types}
        return {f"{one}.{part}" for one in linears for part in ("weight", "bias")} | of_relations | skips

    def _attention_of(self, place: int, number: int, joined: str, tensors: Mapping[str, str]) -> ConvolutionManifest:
        """Attention of a relation: its matrices, shares, and the gate of the type that reads are folded into keys and
        values."""
        relation, start = self._relations[number], f"layers.{place}.convs.{number}"
        heads, each, _ = self._shapes[tensors[f"{_ATT}{joined}"]]
        parts = {
            "query": ("q_linears", relation.target, ()),
            "key": ("k_linears", relation.source, (f"{_ATT}{joined}", f"relation_pri.{joined}")),
            "value": ("v_linears", relation.source, (f"relation_msg.{joined}", f"skip.{relation.target}")),
        }
        for name, (linears, type_, folded) in parts.items():
            for part in ("weight", "bias"):
                own = tensors[f"{linears}.{type_}.{part}"]
                keys = (own, *(tensors[one] for one in folded))
                change = {"key": _key_of, "value": _value_of}.get(name)
                self._taken[f"{start}.lin_{name}.{part}"] = Taken(self._shapes[own], keys, change)
        return ConvolutionManifest(Convolution.TRANSFORMER, number, heads * each, heads=heads, root=False)

    def _own(self, place: int, width: int, tensors: Mapping[str, str]) -> None:
        """The node's own row, whose matrix and bias are those of all types."""
        loop, bias = tensors.get("loop_weight"), tensors.get("h_bias")
        for number in range(len(self._types)):
            start = f"layers.{place}.own.{number}"
            inputs = self._columns_of(place) if loop is None else self._shapes[loop][0]
            self._taken[f"{start}.weight"] = (
                zeros(width, inputs) if loop is None else Taken((width, inputs), (loop,), _transposed)
            )
            self._taken[f"{start}.bias"] = zeros(width) if bias is None else Taken((width,), (bias,))

    def _columns_of(self, place: int) -> int:
        """Columns that a layer reads, which are those of all types."""
        return next((one.shape[1] for key, one in self._taken.items() if key.startswith(f"layers.{place}.convs.")), 0)

    def _norm(self, place: int, tensors: Mapping[str, str]) -> Norm:
        norm = Norm.NONE
        for name, key in tensors.items():
            if found := _NORM.fullmatch(name):
                norm = Norm.BATCH if name.replace(found[2], "running_mean") in tensors else Norm.LAYER
                if (number := self._place_of(found[1] or "")) is not None:
                    self._taken[f"layers.{place}.norms.{number}.{found[2]}"] = Taken(self._shapes[key], (key,))
        return norm


def _transposed(tensor: np.ndarray) -> np.ndarray:
    return tensor.T


def _matrix_of(relation: int) -> Callable[[np.ndarray], np.ndarray]:
    """From the matrices of all relations to that of one, as products have it."""
    return lambda matrices: matrices[relation].T


def _matrix_of_bases(relation: int) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """The same from the shares of bases [relations, bases], and these."""
    return lambda shares, bases: np.tensordot(shares[relation], bases, axes=1).T


def _key_of(linear: np.ndarray, matrices: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Rows or bias of keys, whose heads are multiplied by a matrix of the relation, and by its share."""
    by_head = linear.reshape(*shares.shape, matrices.shape[1], -1)
    found: np.ndarray = np.einsum("hji,hjk,h->hki", by_head, matrices, shares)
    return found


def _value_of(linear: np.ndarray, matrices: np.ndarray, gate: np.ndarray) -> np.ndarray:
    by_head = linear.reshape(len(matrices), matrices.shape[1], -1)
    found: np.ndarray = np.einsum("hji,hjk->hki", by_head, matrices) * _sigmoid(gate)
    return found


def _left_by_gate(linear: np.ndarray, gate: np.ndarray) -> np.ndarray:
    found: np.ndarray = linear * (1 - _sigmoid(gate))
    return found


def _without_gate(linear: np.ndarray, _gate: np.ndarray) -> np.ndarray:
    return linear


def _sigmoid(gate: np.ndarray) -> np.ndarray:
    found: np.ndarray = 1 / (1 + np.exp(-gate.astype(np.float64)))
    return found
