"""Checks of a graph, and of the user's wishes, before a module is called over it: else the module, or a measure,
fails later with a reason that is not the true one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import torch

from gnnserve_api.errors import InputError
from gnnserve_api.files.graph_schema import TYPE_PATTERN
from gnnserve_api.files.programs import MAX_HOPS, RelationKey
from gnnserve_describe.graph import GraphTensors
from gnnserve_describe.scoring import Scorer

_WHERE = "--graph"
_MOST_EXACT = 1 << 24
"""Largest integer up to which float32, as features are served, has all of them."""


def check_numbers(hops: int | None, nodes: int, seed: int) -> None:
    """InputError: one of them is none that can be asked for."""
    if hops is not None and not 0 <= hops <= MAX_HOPS:
        raise InputError("--hops", f"is {hops}; expected 0 to {MAX_HOPS}", "leave it out: hops are measured")
    if nodes < 1:
        raise InputError("--nodes", f"is {nodes}; expected 1 or more", "leave it out: 256 scores are drawn")
    if seed < 0:
        raise InputError("--seed", f"is {seed}; expected 0 or more", "leave it out")


def check_edges(graph: GraphTensors, scored: Iterable[str]) -> None:
    """`scored`: types. InputError: there are no nodes to score, names that no server takes, or edges of nodes that are
    not there."""
    for target in scored:
        if not graph.nodes(target):
            raise InputError(_WHERE, f"it has no nodes{_of(target)}", "give the graph that the model was trained on")
    for kind, name in _names(graph):
        if name and not re.match(TYPE_PATTERN, name):
            raise InputError(
                _WHERE, f"the {kind} {name!r} has characters that no server takes; expected letters, digits, '_' and "
                "'-'", "rename it in the graph and in the module, before weights are loaded by their names",
            )  # fmt: skip
    for key, edges in graph.edges.items():
        for row, kind in enumerate((key.source, key.target)):
            _check_ends(edges[row], row, key, graph.nodes(kind))


def _names(graph: GraphTensors) -> Iterator[tuple[str, str]]:
    yield from (("type", name) for name in graph.types)
    yield from (("relation", key.name) for key in graph.edges)


def _check_ends(ends: torch.Tensor, row: int, key: RelationKey, nodes: int) -> None:
    wrong = torch.nonzero((ends < 0) | (ends >= nodes)).flatten()
    if not len(wrong):
        return
    first = int(wrong[0])
    relation = f" of {key.source} {key.name} {key.target}" if key.name else ""
    raise InputError(
        _WHERE, f"edge_index[{row}][{first}]{relation} is {int(ends[first])}, expected 0 to {nodes - 1:,} "
        f"({len(wrong):,} such values)", "remove these edges, or add the nodes",
    )  # fmt: skip


def check_values(graph: GraphTensors) -> None:
    """InputError: what the module reads is not finite, or not kept by float32."""
    for kind, blocks in graph.features.items():
        for name, block in blocks.items():
            _check_block(name + _of(kind), block, is_kept_whole=False)
    for key, found in graph.payload.items():
        for name, block in found.items():
            of_relation = f" of {key.source} {key.name} {key.target}" if key.name else " of edges"
            _check_block(name + of_relation, block, is_kept_whole=block.dim() == 1)


def _check_block(told: str, block: torch.Tensor, *, is_kept_whole: bool) -> None:
    """`is_kept_whole`: integers may be larger, since times of edges are served as integers."""
    if block.is_floating_point():
        wrong = torch.nonzero(~block.reshape(len(block), -1).isfinite().all(dim=1)).flatten()
        if len(wrong):
            raise InputError(
                _WHERE, f"{told} is not finite in {len(wrong):,} of {len(block):,} rows, the first being row "
                f"{int(wrong[0])}", "fill in missing numbers as it was done for training",
            )  # fmt: skip
    elif not is_kept_whole and block.dtype is not torch.bool and block.numel() and _largest(block) > _MOST_EXACT:
        raise InputError(
            _WHERE, f"{told} has the integer {_largest(block):,}, and features are served as float32, which has all "
            f"integers up to {_MOST_EXACT:,} alone", "number them from 0, or give their remainder or their embedding",
        )  # fmt: skip


def _largest(block: torch.Tensor) -> int:
    return max(abs(int(block.min())), abs(int(block.max())))


def check_finite(scorer: Scorer, graph: GraphTensors) -> None:
    """InputError: scores over a graph of finite numbers are not."""
    scores = scorer.scores(graph)
    if bool(scores.isfinite().all()):
        return
    broken = [
        name
        for name, tensor in scorer.module.state_dict().items()
        if torch.is_tensor(tensor) and tensor.is_floating_point() and not bool(tensor.isfinite().all())
    ]
    if broken:
        raise InputError(
            "module", f"weights are not finite: {', '.join(broken[:3])}",
            "load a checkpoint from before training diverged, or train again with a lower learning rate",
        )  # fmt: skip
    raise InputError(
        "module", f"{int((~scores.isfinite()).any(dim=1).sum())} of {len(scores)} nodes of a small graph, with rows of "
        "yours, have scores that are not finite",
        "mend the module: a mean over no neighbours, a division by 0, or the logarithm of 0 or less",
    )  # fmt: skip


def _of(kind: str) -> str:
    return f" of type {kind!r}" if kind else ""
