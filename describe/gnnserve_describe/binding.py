"""How `forward` is called over a graph: by names that the user gives, or by the names of its parameters."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from gnnserve_api.errors import InputError
from gnnserve_describe.calling import Argument, ArgumentKind
from gnnserve_describe.dgl_graph import is_dgl_graph
from gnnserve_describe.given_graph import (
    COUNT_NAMES,
    EDGE_NAMES,
    FEATURE_NAMES,
    GRAPH_NAMES,
    GivenGraph,
    listed,
    names_of,
)

_PAYLOAD_WORDS = re.compile(r"edge|weight|attr|rel|type|time|^e$|^w$|^ew$|^ef$")


def bound_arguments(
    module: torch.nn.Module, found: GivenGraph, given: Any, inputs: Sequence[str]
) -> Sequence[Argument]:
    if inputs:
        return [_named_input(each, found, given) for each in inputs]
    return list(_by_names(module, found, given))


def _named_input(text: str, found: GivenGraph, given: Any) -> Argument:
    parameter, _, name = text.rpartition("=")
    name = name.removesuffix("_dict")
    if name in EDGE_NAMES:
        return Argument(parameter, ArgumentKind.EDGES)
    if name in COUNT_NAMES:
        return Argument(parameter, ArgumentKind.NODE_COUNT)
    if name in GRAPH_NAMES:
        return Argument(parameter, ArgumentKind.DGL_GRAPH if is_dgl_graph(given) else ArgumentKind.GRAPH, value=given)
    for part, blocks in ((ArgumentKind.NODES, names_of(found.nodes)), (ArgumentKind.PAYLOAD, names_of(found.payload))):
        if name in blocks:
            return Argument(parameter, part, name)
    there = [*names_of(found.nodes), "edge_index", *names_of(found.payload)]
    raise InputError("--inputs", f"the graph has no {name!r}", f"name one of {listed(there)}")


def _by_names(module: torch.nn.Module, found: GivenGraph, given: Any) -> Iterator[Argument]:
    parameters = [
        each
        for each in inspect.signature(module.forward).parameters.values()
        if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]
    required = [each for each in parameters if each.default is each.empty]
    is_dgl = is_dgl_graph(given)
    if len(required) == 1 and (required[0].name in GRAPH_NAMES or _is_class_of(required[0], given)):
        yield Argument("", ArgumentKind.DGL_GRAPH if is_dgl else ArgumentKind.GRAPH, value=given)
        return
    nodes, payload = names_of(found.nodes), names_of(found.payload)
    taken: set[str] = set()
    is_placed = True
    for parameter in parameters:
        name = parameter.name.removesuffix("_dict").removesuffix("s_dict")
        argument = _by_name(name, nodes, payload)
        if argument is None and is_dgl and name in GRAPH_NAMES:
            argument = Argument("", ArgumentKind.DGL_GRAPH, value=given)
        if argument is None and parameter.default is parameter.empty:
            argument = _by_place(name, taken, nodes, payload)
            if argument is None:
                raise InputError(
                    "forward", f"it takes {parameter.name!r}, and the graph has no such tensor (it has "
                    f"{listed([*nodes, 'edge_index', *payload])})",
                    "name what it is given in its order by --inputs, as in --inputs x,edge_index, or give example "
                    "arguments: let the function return (module, (x, edge_index))",
                )  # fmt: skip
        if argument is None or (parameter.default is not parameter.empty and argument.part is ArgumentKind.NODE_COUNT):
            # Those behind it can be given by their names alone.
            is_placed = False
            continue
        taken.add(argument.block or argument.part)
        by_place = is_placed and parameter.kind is not parameter.KEYWORD_ONLY
        yield replace(argument, parameter="" if by_place else parameter.name)


def _by_name(name: str, nodes: Sequence[str], payload: Sequence[str]) -> Argument | None:
    if name in nodes:
        return Argument("", ArgumentKind.NODES, name)
    if name in payload:
        return Argument("", ArgumentKind.PAYLOAD, name)
    if name in EDGE_NAMES:
        return Argument("", ArgumentKind.EDGES)
    if name in COUNT_NAMES:
        return Argument("", ArgumentKind.NODE_COUNT)
    main = _main_features(nodes)
    if name in FEATURE_NAMES and main:
        return Argument("", ArgumentKind.NODES, main)
    return None


def _by_place(name: str, taken: set[str], nodes: Sequence[str], payload: Sequence[str]) -> Argument | None:
    """The first of features, edges and, for a name that says so, what edges have that no parameter has yet."""
    if name in GRAPH_NAMES:
        # Beside features: the numbers of graphs, of which there is one.
        return Argument("", ArgumentKind.GRAPH_NUMBERS)
    main = _main_features(nodes)
    if main and main not in taken:
        return Argument("", ArgumentKind.NODES, main)
    if ArgumentKind.EDGES not in taken:
        return Argument("", ArgumentKind.EDGES)
    left = [each for each in payload if each not in taken] if _PAYLOAD_WORDS.search(name) else []
    return Argument("", ArgumentKind.PAYLOAD, left[0]) if left else None


def _main_features(nodes: Sequence[str]) -> str:
    return next((name for name in FEATURE_NAMES if name in nodes), "")


def _is_class_of(parameter: inspect.Parameter, given: Any) -> bool:
    told = parameter.annotation
    name = told if isinstance(told, str) else getattr(told, "__name__", "")
    return name.rpartition(".")[2] in {each.__name__ for each in type(given).__mro__[:-1]}
