"""Listed layers that a GPU computes: what has a twin in `gpu/listed/` of the worker, by the names that manifests use.

The rule of a spec (`spec/device_rules.py`) refuses others before anything is trained, and a worker those of a revision
that it opens.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET

from gnnserve_api.files.graph_schema import GraphSchema
from gnnserve_api.files.layers import (
    Aggregation,
    Convolution,
    ConvolutionManifest,
    JumpingKnowledge,
    LayersManifest,
    name_in_text,
)
from gnnserve_api.files.programs import ProgramManifest

CONVOLUTIONS: Sequence[Convolution] = (
    Convolution.GRAPH_SAGE, Convolution.GCN, Convolution.GRAPH_CONV, Convolution.GAT, Convolution.GATV2,
    Convolution.TRANSFORMER, Convolution.GIN, Convolution.SGC, Convolution.APPNP, Convolution.GCNII, Convolution.RGAT,
)  # fmt: skip
NO_AGGREGATIONS: Sequence[Aggregation] = (Aggregation.SOFTMAX,)
"""Aggregations that a GPU lacks."""
NO_JUMPS: Sequence[JumpingKnowledge] = (JumpingKnowledge.LSTM,)
NO_FIELDS: Sequence[str] = ("edge_columns", "edge_weight", "where")
"""Fields of a convolution that a GPU does not read: all that edges have."""


def why_not_on_gpu(program: ProgramManifest, schema: GraphSchema) -> str:
    """Why a GPU does not compute listed layers, as a clause; empty: it does."""
    if program.layers is UNSET:
        return "they are a program"
    if len(schema.types) > 1 or len(schema.relations) > 1:
        return "they are over several types or relations"
    if program.reads_degrees:
        return "they count the edges of whole lists"
    return next(filter(None, _problems(program.layers)), "")


def _problems(layers: LayersManifest) -> list[str]:
    if layers.jumping_knowledge in NO_JUMPS:
        return [f"jumpingKnowledge is {layers.jumping_knowledge}"]
    return [_problem(conv) for layer in layers.layers for conv in layer.convs]


def _problem(conv: ConvolutionManifest) -> str:
    if conv.conv not in CONVOLUTIONS:
        return f"conv {conv.conv} has no kernels there"
    given = [name_in_text(name) for name in NO_FIELDS if getattr(conv, name)]
    if given:
        return f"conv {conv.conv} reads {given[0]}"
    lacking = [one for one in conv.aggregations if one in NO_AGGREGATIONS]
    return f"conv {conv.conv} has aggregation {lacking[0]}" if lacking else ""
