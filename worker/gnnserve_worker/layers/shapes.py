"""Tensors of a network that is listed layer by layer, what it reads of a sample, and what is wrong with a description.

Pure. A description stands over the types and relations of a graph's schema, by their places. All tensors that
`tensor_shapes` names are given: where a model has no such weight, its reader writes zeros, ones or the identity.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
from msgspec import UNSET

from gnnserve_api.files.edges import Direction
from gnnserve_api.files.graph_schema import GraphSchema
from gnnserve_api.files.layers import (
    Combination,
    ConvolutionManifest,
    JumpingKnowledge,
    LayerManifest,
    LayersManifest,
    Residual,
    ResidualPlace,
    StoredLayersManifest,
)
from gnnserve_api.files.programs import InputRole, ProgramInput, RelationKey
from gnnserve_worker.layers.convolutions.attention import Attention
from gnnserve_worker.layers.convolutions.kind import Degrees, Ends
from gnnserve_worker.layers.convolutions.projected import PROJECTED
from gnnserve_worker.layers.convolutions.registry import KINDS
from gnnserve_worker.layers.dense import activation_shapes, norm_shapes, products_shapes
from gnnserve_worker.layers.products import (
    ProductPlaces,
    TypeEnds,
    ends_of_products,
    place_products,
    why_not_over_products,
)

Columns = Mapping[int, int]
"""Columns of rows by the place of their type."""

CLASSIFIED = (0,)
"""The type that is classified, by its place."""


def columns_of(schema: GraphSchema) -> tuple[int, ...]:
    """Features of each type; 0: it has none."""
    return tuple(kind.features or 0 for kind in schema.types)


@dataclass(frozen=True, slots=True)
class LayerWidths:
    """Columns of the rows of each type that a layer reads and writes."""

    inputs: Columns
    outputs: Columns
    ends: tuple[Ends, ...]
    """Ends of each convolution."""
    products: ProductPlaces | None = None
    """Places of its products in the rows that it reads; None: it reads no products."""


@dataclass(frozen=True, slots=True)
class NetworkWidths:
    features: Columns
    inputs: Columns
    """Behind the products before the first layer."""
    layers: tuple[LayerWidths, ...]
    stored: tuple[Columns, ...] = ()
    """What stored layers have written, as far as it is read, the last one's last."""

    @property
    def written(self) -> tuple[Columns, ...]:
        """What each layer writes, or, where there are none, the network's input."""
        return (*self.stored, *(each.outputs for each in self.layers)) or (self.inputs,)


def widths_of(layers: LayersManifest, schema: GraphSchema, columns_of_types: Sequence[int]) -> NetworkWidths:
    """`columns_of_types`: features of each type that the network reads; 0: none."""
    begun = (
        _begun(layers, layers.columns or columns_of_types) if layers.stored is UNSET else _begun_stored(layers.stored)
    )
    features, inputs = begun.features, begun.inputs
    found: list[LayerWidths] = []
    read = begun.written[-1]
    for number, layer in enumerate(layers.layers, start=1 + stored_layers(layers)):
        ends = tuple(_ends_of(conv, layer, schema, read, inputs, number) for conv in layer.convs)
        products, outputs = None, _outputs_of(layer, schema, read, ends)
        if layer.reads_products:
            products = place_products(layer, types_of(layer, schema), ends, outputs, read)
            ends = ends_of_products(products, ends)
        found.append(LayerWidths(read, outputs, ends, products))
        read = found[-1].outputs
    return NetworkWidths(features, inputs, tuple(found), begun.stored)


def types_of(layer: LayerManifest, schema: GraphSchema) -> list[TypeEnds]:
    """Types at both ends of each convolution."""
    return [TypeEnds(source_of(conv, schema), target_of(conv, schema)) for conv in layer.convs]


def _begun(layers: LayersManifest, columns_of_types: Sequence[int]) -> NetworkWidths:
    """Widths before the first layer."""
    features = {place: columns for place, columns in enumerate(columns_of_types) if columns}
    inputs = dict(features)
    for each in layers.before:
        if each.type in features and each.products:
            inputs[each.type] = each.products[-1].width
    return NetworkWidths(features, inputs, ())


def _begun_stored(stored: StoredLayersManifest) -> NetworkWidths:
    """Widths behind stored layers."""

    def there(columns: Mapping[int, int]) -> Columns:
        return {type_: count for type_, count in columns.items() if count}

    output = there({row.type: row.output for row in stored.rows})
    features = there({row.type: row.features for row in stored.rows})
    if not stored.layers:
        return NetworkWidths(features, output, ())
    kept = max((len(row.written) for row in stored.rows), default=0)
    written = tuple({row.type: row.written[place] for row in stored.rows if row.written} for place in range(kept))
    return NetworkWidths(features, there({row.type: row.network_input for row in stored.rows}), (), (*written, output))


def stored_layers(layers: LayersManifest) -> int:
    """Layers before the first one of these, which are stored."""
    return 0 if layers.stored is UNSET else layers.stored.layers


def tensor_shapes(
    layers: LayersManifest, schema: GraphSchema, columns_of_types: Sequence[int]
) -> dict[str, tuple[int, ...]]:
    """Shapes of all tensors of the network by their keys. The description has no problems."""
    widths = widths_of(layers, schema, columns_of_types)
    shapes: dict[str, tuple[int, ...]] = {}
    for each in layers.before:
        shapes |= products_shapes(f"before.{each.type}", each.products, widths.features[each.type])
    for place, (layer, of_layer) in enumerate(zip(layers.layers, widths.layers, strict=True)):
        shapes |= _shapes_of_layer(f"layers.{place}", layer, of_layer, widths.inputs, schema)
    # Types that the head is of are as wide as each other.
    headed = headed_types(layers, widths)
    if layers.jumping_knowledge is JumpingKnowledge.LSTM:
        shapes |= _shapes_of_lstm(len(widths.written), _columns_jumped(layers, widths, headed[0]))
    for type_ in headed if layers.head_by_type else headed[:1]:
        beside = widths.features[type_] if layers.head_reads_input else 0
        shapes |= products_shapes(head_key(layers, type_), layers.head, beside + _columns_jumped(layers, widths, type_))
    return shapes


def headed_types(layers: LayersManifest, widths: NetworkWidths) -> Sequence[int]:
    """Types that the last layer writes and the head may be of: behind stored layers others lack what it reads beside.
    Not empty."""
    read = widths.written if layers.jumping_knowledge is not JumpingKnowledge.LAST else widths.written[-1:]
    read = (*read, widths.features) if layers.head_reads_input else read
    last = tuple(widths.written[-1])
    return [type_ for type_ in last if all(type_ in each for each in read)] or last[:1]


def head_key(layers: LayersManifest, type_: int) -> str:
    """Beginning of the keys of the head's tensors for rows of a type."""
    return f"heads.{type_}" if layers.head_by_type else "head"


def output_columns(
    layers: LayersManifest, schema: GraphSchema, columns_of_types: Sequence[int], type_: int = CLASSIFIED[0]
) -> tuple[int, int]:
    """Columns of the scores of a type, and of its embeddings: what the head reads of the layers, or, without a head,
    what the last of several layers reads. 0: there are none, as behind stored layers."""
    widths = widths_of(layers, schema, columns_of_types)
    read = _columns_jumped(layers, widths, type_)
    if stored_layers(layers):
        return layers.head[-1].width if layers.head else read, 0
    if layers.head:
        return layers.head[-1].width, read
    return read, widths.layers[-1].inputs.get(type_, 0) if len(layers.layers) > 1 else 0


def reads_degrees(layers: LayersManifest, schema: GraphSchema) -> bool:
    """Whether lists must be whole, and one hop deeper than the layers read."""
    return Degrees.OF_LISTS in degrees_of(layers, schema)


def degrees_of(layers: LayersManifest, schema: GraphSchema) -> set[Degrees]:
    """Where its convolutions have degrees from."""
    return {
        KINDS[conv.conv].degrees(conv, _ends_of(conv, layer, schema, {}, {}, number))
        for number, layer in enumerate(layers.layers, start=1 + stored_layers(layers))
        for conv in layer.convs
    }


def inputs_of(
    layers: LayersManifest, schema: GraphSchema, wanted: Sequence[int] = CLASSIFIED
) -> tuple[ProgramInput, ...]:
    """What the network reads of a sample to write rows of the wanted types: features and counts of each type, edges
    and their columns of each relation, and weights of neighbours where degrees are the graph's."""
    needed = needed_rows(layers, schema, wanted)
    relations = sorted({
        conv.relation
        for layer, written in zip(layers.layers, needed[1:], strict=True)
        for conv in layer.convs
        if target_of(conv, schema) in written
    })  # fmt: skip
    with_columns = {conv.relation for layer in layers.layers for conv in layer.convs if conv.columns}
    types = sorted(set().union(*needed))
    found = [
        ProgramInput(f"features_{place}", InputRole.FEATURES, type=schema.types[place].name)
        for place in sorted(_featured(layers, needed, wanted))
    ]
    if not relations:
        return tuple(found)
    found += [
        ProgramInput(f"nodes_per_hop_{place}", InputRole.NODES_PER_HOP, type=schema.types[place].name)
        for place in types
    ]
    for place in relations:
        one = schema.relations[place]
        key = RelationKey(one.source, one.name, one.target)
        found.append(ProgramInput(f"edges_{place}", InputRole.EDGES, relation=key))
        if place in with_columns:
            found.append(ProgramInput(f"edge_features_{place}", InputRole.EDGE_FEATURES, relation=key))
    if Degrees.OF_SAMPLE in degrees_of(layers, schema):
        found.append(ProgramInput("edge_weights", InputRole.NORMALISED_WEIGHTS))
        found.append(ProgramInput("own_weights", InputRole.NORMALISED_WEIGHTS, of_targets=True))
    return tuple(found)


def needed_rows(
    layers: LayersManifest, schema: GraphSchema, wanted: Sequence[int] = CLASSIFIED
) -> tuple[frozenset[int], ...]:
    """Types whose rows are needed: of the network's input, or of what is stored, and of what each layer writes."""
    needed, of_input = needed_by_layers(layers, schema, wanted)
    jumps = layers.jumping_knowledge is not JumpingKnowledge.LAST and stored_layers(layers) > 0
    read_in_the_end = jumps or layers.head_reads_input
    beside = frozenset(wanted) if layers.stored is not UNSET and read_in_the_end else frozenset()
    return (needed[0] | of_input | beside, *needed[1:])


def needed_by_layers(
    layers: LayersManifest, schema: GraphSchema, wanted: Sequence[int]
) -> tuple[Sequence[frozenset[int]], frozenset[int]]:
    """Types whose rows each layer reads, and those of what the last one writes; and types whose rows of the network's
    input are read beside."""
    kept = kept_layers(layers)
    needed = [frozenset(wanted)]
    of_input: set[int] = set()
    for layer in reversed(layers.layers):
        written, read = needed[0], set(wanted) if len(layers.layers) - len(needed) in kept else set()
        for conv in layer.convs:
            if (target := target_of(conv, schema)) in written:
                kind = KINDS[conv.conv]
                read.add(source_of(conv, schema))
                read |= {target} if kind.reads_target(conv) else set()
                of_input |= {target} if kind.reads_network_input(conv) else set()
        if layer.own:
            read |= written
        if layer.residual is not Residual.NONE:
            (of_input if layer.reads_input else read).update(written)
        needed.insert(0, frozenset(read))
    return needed, frozenset(of_input)


def kept_layers(layers: LayersManifest) -> range:
    """Numbers of the layers whose rows of the seeds are read in the end, the first being 1: by jumping knowledge, or as
    embeddings."""
    count = len(layers.layers)
    if layers.jumping_knowledge is not JumpingKnowledge.LAST:
        return range(1, count + 1)
    return range(max(1, count if layers.head else count - 1), count + 1)


def problems_of(
    layers: LayersManifest, schema: GraphSchema, columns_of_types: Sequence[int], scored: int = CLASSIFIED[0]
) -> list[str]:
    """What is wrong with the description over such a graph, a sentence each that begins with its place. `scored`: the
    type that scores are of."""
    places = [*_problems_of_places(layers, schema)]
    if places:
        return places
    widths = widths_of(layers, schema, columns_of_types)
    found = []
    for each in layers.before:
        if each.type not in widths.features:
            found.append(f"before: {_named(schema, each.type)} have no features that products could read")
    for number, (layer, of_layer) in enumerate(zip(layers.layers, widths.layers, strict=True)):
        found += _problems_of_layer(f"layers[{number}]", layer, of_layer, widths.inputs, schema)
    return [*found, *_problems_behind(layers, widths, schema, scored)]


def _problems_of_places(layers: LayersManifest, schema: GraphSchema) -> Iterator[str]:
    types, relations = len(schema.types), len(schema.relations)
    if layers.columns and len(layers.columns) != types:
        yield f"columns are of {len(layers.columns)} types, and the graph has {types}"
    for each in layers.before:
        if not 0 <= each.type < types:
            yield f"before: type {each.type} is none of the graph's {types}"
    for number, layer in enumerate(layers.layers):
        if not layer.convs:
            yield f"layers[{number}]: convs is empty; give a convolution, or put products into before or head"
        if layer.reads_products and (problem := why_not_over_products(layer)):
            yield f"layers[{number}]: {problem}"
        for place, conv in enumerate(layer.convs):
            if not 0 <= conv.relation < relations:
                yield f"layers[{number}].convs[{place}]: relation {conv.relation} is none of the graph's {relations}"
        for (relation, where), count in Counter((conv.relation, conv.where) for conv in layer.convs).items():
            if count > 1:
                over = "" if where is None else f" where {where.column} is {where.equals:g}"
                yield (
                    f"layers[{number}]: relation {relation} has {count} convolutions{over}; give one for each relation"
                )


def _problems_of_layer(
    where: str, layer: LayerManifest, widths: LayerWidths, of_network: Columns, schema: GraphSchema
) -> Iterator[str]:
    for place, (conv, ends) in enumerate(zip(layer.convs, widths.ends, strict=True)):
        at = f"{where}.conv {conv.conv}" if len(layer.convs) == 1 else f"{where}.convs[{place}] {conv.conv}"
        for problem in _problems_of_convolution(conv, ends, widths.inputs, schema):
            yield f"{at}: {problem}"
    if layer.combination is not Combination.CAT:
        for type_, columns in widths.outputs.items():
            others = {
                KINDS[conv.conv].width(conv, ends)
                for conv, ends in zip(layer.convs, widths.ends, strict=True)
                if target_of(conv, schema) == type_
            }
            if others - {columns}:
                listed = ", ".join(map(str, sorted(others)))
                yield f"{where}: convolutions that {_named(schema, type_)} read are {listed} wide; give one width"
    if layer.combination is Combination.ATTENTION:
        yield from _problems_of_shared_softmax(where, layer, schema)
    yield from _problems_of_residual(where, layer, widths, of_network, schema)


def _problems_of_shared_softmax(where: str, layer: LayerManifest, schema: GraphSchema) -> Iterator[str]:
    at = f"{where}.combine Attention"
    heads: dict[int, set[int]] = {}
    for conv in layer.convs:
        heads.setdefault(target_of(conv, schema), set()).add(conv.heads)
        if not isinstance(KINDS[conv.conv], Attention):
            names = ", ".join(name for name, one in KINDS.items() if isinstance(one, Attention))
            yield f"{at}: conv {conv.conv} has no softmax that could be over all relations; give {names}, or Sum"
        elif conv.self_loops and "self_loops" in KINDS[conv.conv].reads:
            yield f"{at}: with selfLoops a node would read itself in each of its relations; set selfLoops to false"
        elif conv.has_beta:
            yield f"{at}: beta is a gate of one relation, and the softmax is over all; leave beta out"
    for type_, counts in heads.items():
        if len(counts) > 1:
            listed = ", ".join(map(str, sorted(counts)))
            yield f"{at}: convolutions that {_named(schema, type_)} read have {listed} heads; give one number"


def _problems_of_convolution(
    conv: ConvolutionManifest, ends: Ends, read: Columns, schema: GraphSchema
) -> Iterator[str]:
    kind = KINDS[conv.conv]
    source, target = source_of(conv, schema), target_of(conv, schema)
    for type_ in {source, target} if kind.reads_target(conv) else {source}:
        if type_ not in read:
            remedy = "" if schema.types[type_].features else _REMEDY_WITHOUT_FEATURES
            yield f"it reads {_named(schema, type_)}, of which there are no rows: {_ROWS_COME_FROM}{remedy}"
    for each in msgspec.structs.fields(ConvolutionManifest):
        if (
            each.name not in {"conv", "relation", "width", "where", *kind.reads}
            and getattr(conv, each.name) != each.default
        ):
            readers = ", ".join(name for name, one in KINDS.items() if each.name in one.reads)
            yield f"{each.encode_name} is read by {readers}; leave it out"
    if kind.width(conv, ends) < 1 and source in read:
        yield f"width is {conv.width}; give 1 or more"
        return
    yield from kind.problems(conv, ends)
    relation = schema.relations[conv.relation]
    known = () if relation.payload is UNSET else relation.payload.columns
    for name in conv.columns:
        if name not in known:
            there = f"they have {', '.join(known)}" if known else f"they have none; {_LET_IT_READ}"
            yield f"{schema.names.edges_of(relation.key)} have no column {name!r}: {there}"


_LET_IT_READ = "let the source read them, unless these are the links that are scored, whose columns nothing reads"
_ROWS_COME_FROM = "they are features, or written by the layer before"
_REMEDY_WITHOUT_FEATURES = (
    "; give such nodes features in the source (a column of ones, or embeddings), or let relations of the layer leave "
    "out those that read them"
)


_OF_ONE_WIDTH = (Residual.ADDED, Residual.AVERAGED)
"""Residuals that add rows as they are."""


def _problems_of_residual(
    where: str, layer: LayerManifest, widths: LayerWidths, of_network: Columns, schema: GraphSchema
) -> Iterator[str]:
    if layer.residual is Residual.NONE:
        return
    if layer.output_product and layer.residual_place is not ResidualPlace.BEHIND_ACTIVATION:
        yield f"{where}: outputProduct stands behind the activation, and residualPlace before it; leave one of them out"
    if layer.is_pre_activated and layer.residual_place is not ResidualPlace.BEHIND_ACTIVATION:
        yield f"{where}: norm and activation stand before the convolution, and residualPlace beside them; leave it out"
    read = of_network if layer.reads_input else widths.inputs
    whose = "network" if layer.reads_input else "layer"
    for type_, columns in widths.outputs.items():
        if type_ not in read:
            yield f"{where}: residual adds the {whose}'s input, which has no rows of {_named(schema, type_)}"
        elif layer.residual in _OF_ONE_WIDTH and read[type_] != columns:
            yield (
                f"{where}: residual {layer.residual} adds the {whose}'s input of {read[type_]} columns to {columns}; "
                "set residual to Projected"
            )


def _problems_behind(
    layers: LayersManifest, widths: NetworkWidths, schema: GraphSchema, classified: int
) -> Iterator[str]:
    named = _named(schema, classified)
    written = widths.written
    if classified not in written[-1]:
        yield f"layers: the last one writes no rows of {named}, which scores are of"
        return
    if layers.jumping_knowledge is not JumpingKnowledge.LAST:
        without = [number for number, each in enumerate(written) if classified not in each]
        if without:
            yield f"layers[{without[0]}]: it writes no rows of {named}, which jumpingKnowledge reads of each layer"
            return
        wide = {each[classified] for each in written}
        if layers.jumping_knowledge is not JumpingKnowledge.CAT and len(wide) > 1:
            listed = ", ".join(str(each[classified]) for each in written)
            yield f"jumpingKnowledge: {layers.jumping_knowledge} is of layers of one width, and theirs are {listed}"
    if layers.head_by_type and not layers.head:
        yield "head: it is empty, and headByType is of a head; give its products"
    if layers.head_reads_input and not layers.head:
        yield "head: it is empty, and headReadsInput is of a head; give its products"
    if layers.head_reads_input and classified not in widths.features:
        yield f"head: {named} have no features that it could read"


def _ends_of(
    conv: ConvolutionManifest, layer: LayerManifest, schema: GraphSchema, read: Columns, inputs: Columns, number: int
) -> Ends:
    source, target = source_of(conv, schema), target_of(conv, schema)
    relation = schema.relations[conv.relation]
    return Ends(
        source=read.get(source, 0),
        target=read.get(target, 0),
        network_input=inputs.get(target, 0),
        layer=number,
        is_same_type=source == target,
        is_only_type=len(schema.types) == 1,
        is_whole=conv.where is None,
        is_undirected=relation.edge_rules.direction is Direction.UNDIRECTED,
        edge_columns=() if relation.payload is UNSET else relation.payload.columns,
        shares_softmax=layer.combination is Combination.ATTENTION,
    )


def _outputs_of(layer: LayerManifest, schema: GraphSchema, read: Columns, ends: Sequence[Ends]) -> Columns:
    """With a product of their own row, types that read no relation are written, too, as wide as the others."""
    by_type: dict[int, list[int]] = {}
    for conv, each in zip(layer.convs, ends, strict=True):
        by_type.setdefault(target_of(conv, schema), []).append(KINDS[conv.conv].width(conv, each))
    combined = {
        type_: sum(columns) if layer.combination is Combination.CAT else columns[0]
        for type_, columns in by_type.items()
    }
    alone = dict.fromkeys(read, next(iter(combined.values()))) if layer.own and combined else {}
    return dict(sorted({**alone, **combined}.items()))


def _shapes_of_layer(
    key: str, layer: LayerManifest, widths: LayerWidths, of_network: Columns, schema: GraphSchema
) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for conv, ends, own_key in zip(layer.convs, widths.ends, layer.keys, strict=True):
        over_products = layer.reads_products
        tensors = PROJECTED[conv.conv].tensors(conv) if over_products else KINDS[conv.conv].tensors(conv, ends)
        shapes |= {f"{key}.convs.{own_key}.{name}": shape for name, shape in tensors.items()}
    normed = widths.inputs if layer.is_pre_activated else widths.outputs
    added = of_network if layer.reads_input else widths.inputs
    for type_, columns in widths.outputs.items():
        if layer.own and not layer.reads_products:
            shapes |= _product(f"{key}.own.{type_}", columns, widths.inputs[type_])
        if layer.residual is Residual.PROJECTED and not layer.reads_products:
            shapes |= _product(f"{key}.residuals.{type_}", columns, added[type_])
        if layer.residual is Residual.GATED and added.get(type_) == columns:
            shapes[f"{key}.residuals.{type_}.gate"] = (1,)
        if layer.output_product:
            shapes |= _product(f"{key}.outputs.{type_}", columns, columns)
    for type_, columns in normed.items():
        shapes |= {f"{key}.norms.{type_}.{name}": shape for name, shape in norm_shapes(layer.norm, columns).items()}
        slopes = activation_shapes(layer.activation, columns)
        shapes |= {f"{key}.activations.{type_}.{name}": shape for name, shape in slopes.items()}
    return shapes


def _product(key: str, outputs: int, inputs: int) -> dict[str, tuple[int, ...]]:
    return {f"{key}.weight": (outputs, inputs), f"{key}.bias": (outputs,)}


def _columns_jumped(layers: LayersManifest, widths: NetworkWidths, type_: int) -> int:
    """Columns that the head reads of the layers."""
    if layers.jumping_knowledge is JumpingKnowledge.CAT:
        return sum(each[type_] for each in widths.written)
    return widths.written[-1][type_]


def _shapes_of_lstm(layers: int, columns: int) -> dict[str, tuple[int, ...]]:
    """Shapes of torch_geometric's JumpingKnowledge("lstm", columns, layers)."""
    hidden = layers * columns // 2
    shapes: dict[str, tuple[int, ...]] = {}
    for way in ("", "_reverse"):
        shapes |= {
            f"jumping.lstm.weight_ih_l0{way}": (4 * hidden, columns),
            f"jumping.lstm.weight_hh_l0{way}": (4 * hidden, hidden),
            f"jumping.lstm.bias_ih_l0{way}": (4 * hidden,),
            f"jumping.lstm.bias_hh_l0{way}": (4 * hidden,),
        }
    return {**shapes, "jumping.att.weight": (1, 2 * hidden), "jumping.att.bias": (1,)}


def _featured(layers: LayersManifest, needed: Sequence[frozenset[int]], wanted: Sequence[int]) -> set[int]:
    """Types whose features are read."""
    return set(needed[0]) | (set(wanted) if layers.head_reads_input else set())


def source_of(conv: ConvolutionManifest, schema: GraphSchema) -> int:
    """Place of the type whose rows are read."""
    return schema.place_of(schema.relations[conv.relation].source)


def target_of(conv: ConvolutionManifest, schema: GraphSchema) -> int:
    """Place of the type that reads them."""
    return schema.place_of(schema.relations[conv.relation].target)


def _named(schema: GraphSchema, type_: int) -> str:
    return schema.names.nodes_of(schema.types[type_].name)
