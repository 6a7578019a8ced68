"""Networks with every kind of convolution over a sample of four nodes, which compile the kernels of this package."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from gnnserve_api.files.edges import Direction, EdgeRules
from gnnserve_api.files.graph_schema import GraphSchema, PayloadManifest, one_type
from gnnserve_api.files.layers import (
    Activation,
    Aggregation,
    Combination,
    Convolution,
    ConvolutionManifest,
    DegreeScaler,
    DenseManifest,
    LayerManifest,
    LayersManifest,
    Norm,
)
from gnnserve_api.files.programs import InputRole, ProgramInput
from gnnserve_worker.layers.contract import program_of
from gnnserve_worker.layers.passes import projected, why_not_projected
from gnnserve_worker.layers.runner import LayersRunner
from gnnserve_worker.layers.shapes import tensor_shapes

_COLUMNS, _WIDTH, _OF_EDGES = 6, 4, ("length", "weight")
_RULES = EdgeRules(Direction.UNDIRECTED)
_EDGES = np.array([[1, 2, 0, 3], [0, 0, 1, 2]])
"""The first node is the seed."""

_INPUTS = {
    InputRole.FEATURES: np.ones((4, _COLUMNS), np.float32),
    InputRole.NODES_PER_HOP: np.array([1, 2, 1]),
    InputRole.EDGES: _EDGES,
    InputRole.EDGE_FEATURES: np.ones((4, len(_OF_EDGES)), np.float32),
}


def rehearse_layers() -> None:
    """Compile every kernel of this package, or load it."""
    schema = one_type(4, 4, _COLUMNS, edge_rules=_RULES, payload=PayloadManifest(_OF_EDGES, "", 4))
    columns, networks = (_COLUMNS,), _networks()
    over_rows = [one for one in networks if not why_not_projected(one, schema)]
    for layers in (*networks, *(projected(one, schema, columns) for one in over_rows)):
        program = program_of(layers, schema, columns)
        tensors = {key: np.ones(shape, np.float32) for key, shape in tensor_shapes(layers, schema, columns).items()}
        inputs = {each.name: _input_of(each, schema) for each in program.inputs}
        LayersRunner(tensors, program, schema).run(inputs, (program.scores,), 1)


def _input_of(each: ProgramInput, schema: GraphSchema) -> np.ndarray:
    if each.is_of_sample:
        return np.ones(3 if each.of_targets else schema.relations[0].edges, np.float32)
    return _INPUTS[each.role]


def _networks() -> list[LayersManifest]:
    """Networks of one layer, which together have everything that a kernel is for."""
    heads: dict[str, Any] = {"heads": 2, "edge_columns": _OF_EDGES}
    mlp = (DenseManifest(_WIDTH, activation=Activation.TANH),)
    made = [
        _layer(
            Convolution.GRAPH_SAGE, Norm.LAYER, Activation.PRELU, aggregations=tuple(Aggregation), projects=True,
            has_unit_rows=True,
        ),
        _layer(Convolution.GCN, Norm.BATCH, Activation.ELU),
        _layer(Convolution.GCN, Norm.L2, Activation.NONE, edge_weight=_OF_EDGES[1]),
        _layer(Convolution.GAT, **heads),
        _layer(Convolution.GATV2, **heads),
        _layer(Convolution.TRANSFORMER, has_beta=True, **heads),
        _layer(Convolution.GINE, mlp=mlp, edge_columns=_OF_EDGES),
        _layer(Convolution.GEN, mlp=mlp, edge_columns=_OF_EDGES),
        _layer(Convolution.AGNN, Norm.L1),
        _layer(Convolution.FILM),
        msgspec.structs.replace(
            _layer(Convolution.TRANSFORMER, root=False, **heads), combination=Combination.ATTENTION, output_product=True
        ),
        _layer(
            Convolution.PNA, aggregations=(Aggregation.MEAN,), scalers=(DegreeScaler.IDENTITY,),
            edge_columns=_OF_EDGES,
        ),
    ]  # fmt: skip
    return [LayersManifest((layer,)) for layer in made]


def _layer(
    conv: Convolution, norm: Norm = Norm.NONE, activation: Activation = Activation.NONE, **fields: Any
) -> LayerManifest:
    made = ConvolutionManifest(conv, width=_WIDTH, **fields)
    return LayerManifest((made,), norm=norm, activation=activation)
