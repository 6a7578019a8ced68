"""Attributes of modules that an archive holds whole: what tensors do not tell, and need not be assumed then."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from gnnserve_api.files.layers import READ_BY, Aggregation, Convolution, name_in_text
from gnnserve_worker.readers.convolutions import FoundConvolution
from gnnserve_worker.readers.description import ModuleFacts

CLASSES: Mapping[str, Convolution] = {
    "SAGEConv": Convolution.GRAPH_SAGE,
    "GCNConv": Convolution.GCN,
    "GraphConv": Convolution.GRAPH_CONV,
    "GATConv": Convolution.GAT,
    "GATv2Conv": Convolution.GATV2,
    "TransformerConv": Convolution.TRANSFORMER,
    "GINConv": Convolution.GIN,
    "GINEConv": Convolution.GINE,
    "PNAConv": Convolution.PNA,
    "ChebConv": Convolution.CHEBYSHEV,
    "TAGConv": Convolution.TAG,
    "SGConv": Convolution.SGC,
    "GCN2Conv": Convolution.GCNII,
}
"""Kinds by the names of torch_geometric's classes."""
_AGGREGATIONS = {
    "mean": Aggregation.MEAN, "add": Aggregation.SUM, "sum": Aggregation.SUM, "max": Aggregation.MAX,
    "min": Aggregation.MIN, "std": Aggregation.STD, "var": Aggregation.VAR, "softmax": Aggregation.SOFTMAX,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Fact:
    """Meaning of an attribute."""

    field: str
    """Name of a field of `ConvolutionManifest`."""
    read: Callable[[Any], Any]
    """The field's value; ValueError, TypeError or KeyError: the attribute has another one than its kind does."""


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise TypeError("no whole number")
    return value


def _truth(value: Any) -> bool:
    if type(value) is not bool:
        raise TypeError("neither true nor false")
    return value


def _aggregations(value: Any) -> tuple[Aggregation, ...]:
    named = value if isinstance(value, list | tuple) else [value]
    return tuple(_AGGREGATIONS[str(one).removesuffix("Aggregation()").lower()] for one in named)


_FACTS: Mapping[str, tuple[_Fact, ...]] = {
    "add_self_loops": (_Fact("self_loops", _truth),),
    "improved": (_Fact("improved", _truth),),
    "normalize": (_Fact("is_normalised", _truth), _Fact("has_unit_rows", _truth)),
    "negative_slope": (_Fact("negative_slope", float),),
    "alpha": (_Fact("alpha", float),),
    "K": (_Fact("hops", _whole),),
    "aggr": (_Fact("aggregations", _aggregations),),
    "divide_input": (_Fact("divides_input", _truth),),
}
"""By the names of attributes; of several the one that the kind of convolution reads."""
_OF_TENSORS = {Convolution.CHEBYSHEV: ("hops",), Convolution.PNA: ("aggregations",), Convolution.TAG: ("hops",)}
"""Fields that tensors tell better."""


def with_facts(found: FoundConvolution, facts: ModuleFacts) -> FoundConvolution:
    """The convolution as its module says that it is. What is known is assumed no longer."""
    made = _with_heads(found, facts)
    conv = made.manifest.conv
    known: dict[str, Any] = {}
    for name, meanings in _FACTS.items():
        if name not in facts.attributes:
            continue
        for meaning in meanings:
            if conv in READ_BY[meaning.field] and meaning.field not in _OF_TENSORS.get(conv, ()):
                try:
                    known[meaning.field] = meaning.read(facts.attributes[name])
                except (TypeError, ValueError, KeyError):
                    continue  # of a class of the user's own that has this name
    if len(known.get("aggregations", ())) != len(made.manifest.aggregations):
        known.pop("aggregations", None)
    settled = {f"layers[].{name_in_text(field)}" for field in known}
    settled |= {"layers[].conv"} if CLASSES.get(facts.name) is conv else set()
    settled |= {"layers[].heads"} if "heads" in facts.attributes else set()
    return replace(
        made, manifest=msgspec.structs.replace(made.manifest, **known),
        assumed=tuple(one for one in made.assumed if one.field not in settled),
    )  # fmt: skip


def _with_heads(found: FoundConvolution, facts: ModuleFacts) -> FoundConvolution:
    """Heads that stand beside each other leave no trace in a Transformer's tensors, and those without a bias none of
    whether they are averaged."""
    heads, is_beside = facts.attributes.get("heads"), facts.attributes.get("concat")
    if type(is_beside) is not bool or type(heads) is not int or heads < 1:
        return found
    if found.other_width is not None and found.manifest.averages_heads is is_beside:
        found = found.with_width(found.other_width)
    if found.manifest.conv is Convolution.TRANSFORMER and found.manifest.heads != heads:
        found = replace(found, manifest=msgspec.structs.replace(found.manifest, heads=heads))
        if not is_beside and "lin_skip.weight" not in found.tensors:
            manifest = msgspec.structs.replace(found.manifest, averages_heads=True, width=found.width // heads)
            found = replace(found, manifest=manifest)
    return replace(found, other_width=None)
