"""What makes a score of two rows where links are scored: the user's own module, told by what it computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from gnnserve_api.errors import InputError
from gnnserve_describe.blame import blame_of
from gnnserve_describe.scoring import without_end

DOT, DIST_MULT, MLP = "Dot", "DistMult", "MLP"
"""Decoders of `task.links`, whose types bring pydantic."""
_WHERE = "--decoder"
_PAIRS = 64
_TOLERANCE = 1e-5
_Tensors = Mapping[str, torch.Tensor]
_Score = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class FoundDecoder:
    kind: str
    """Name of it in `task.links.decoder`."""
    weights: _Tensors
    """Weights as the module has them; empty: it has none."""
    score: _Score
    """Scores [pairs] of rows [pairs, columns] of first and of second nodes, as the user's module gives them."""


def decoder_of(module: torch.nn.Module | None, columns: int) -> FoundDecoder:
    """`module`: of two matrices of rows, or of all rows and an edge_index of pairs; None: the dot product. InputError:
    it computes something else than a server does."""
    if module is None:
        return FoundDecoder(DOT, {}, _dot)
    module.eval()
    generator = torch.Generator().manual_seed(0)
    first, second = (torch.randn(_PAIRS, columns, generator=generator) for _ in range(2))
    score = _called(module, first, second)
    wanted = score(first, second)
    weights = {name: each.detach() for name, each in module.state_dict().items() if each.is_floating_point()}
    for kind, found in _readings(list(weights.values()), columns):
        if (found(first, second) - wanted).abs().max() <= _TOLERANCE * wanted.abs().max().clamp(min=1e-30):
            return FoundDecoder(kind, {} if kind is DOT else weights, score)
    shapes = ", ".join(f"{name} {list(each.shape)}" for name, each in weights.items()) or "no weights"
    raise InputError(
        _WHERE,
        f"a {type(module).__name__} with {shapes} computes neither a dot product, nor one with a weight for each "
        f"column, nor Linear({2 * columns}, h), ReLU, Linear(h, 1) over the first row and the second beside each other",
        "servers know these alone: train one of them over the rows, or let the encoder give rows whose dot product is "
        "the score",
    )  # fmt: skip


def draw_pairs(nodes: np.ndarray, seed: int) -> np.ndarray:
    """Pairs of these nodes, int64 [pairs, 2]: each once as first, and some again."""
    random = np.random.default_rng(seed)
    first = np.concatenate([nodes, random.choice(nodes, min(len(nodes), _PAIRS))])
    return np.stack([first, random.permutation(first)], axis=1)


def _called(module: torch.nn.Module, first: torch.Tensor, second: torch.Tensor) -> _Score:
    """The call that gives a score for each pair, without a sigmoid at its end."""
    errors = []
    for call in _CALLS:
        try:
            with torch.no_grad():
                found = call(module, first, second)
            if found.shape.numel() == len(first):
                return without_end(lambda a, b, call=call: call(module, a, b).reshape(-1))
        except Exception as error:  # noqa: BLE001 - told below
            errors.append(error)
    told = "; ".join(f"{type(each).__name__}: {each}" for each in errors) or "it gives no number for each pair"
    raise InputError(
        str(blame_of(errors[0])) if errors and str(blame_of(errors[0])) else _WHERE,
        f"a {type(module).__name__} can be called neither with rows of first and of second nodes, nor with rows and an "
        f"edge_index of pairs: {told}", "write a module around it whose forward takes two matrices [pairs, columns]",
    )  # fmt: skip


def _of_both(module: torch.nn.Module, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = module(first, second)
    return found


def _of_index(module: torch.nn.Module, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    places = torch.arange(len(first))
    found: torch.Tensor = module(torch.cat([first, second]), torch.stack([places, places + len(first)]))
    return found


_CALLS = (_of_both, _of_index)


def _dot(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    return (first * second).sum(dim=1)


def _readings(weights: Sequence[torch.Tensor], columns: int) -> list[tuple[str, _Score]]:
    """What modules with such weights may compute, as servers do."""
    found: list[tuple[str, _Score]] = [(DOT, _dot)]
    if len(weights) == 1 and weights[0].numel() == columns:
        relation = weights[0].reshape(-1)
        found.append((DIST_MULT, lambda first, second: _dot(first * relation, second)))
    matrices, biases = [each for each in weights if each.dim() == 2], [each for each in weights if each.dim() == 1]
    hidden = [each for each in matrices if each.shape[1] == 2 * columns and len(each) > 1]
    last = [each for each in matrices if len(each) == 1]
    if len(hidden) == len(last) == 1 and len(matrices) == 2 and last[0].shape[1] == len(hidden[0]):
        inner = next((each for each in biases if len(each) == len(hidden[0])), torch.zeros(len(hidden[0])))
        outer = next((each for each in biases if len(each) == 1), torch.zeros(1))

        def perceptron(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
            return torch.relu(torch.cat([first, second], dim=1) @ hidden[0].T + inner) @ last[0][0] + outer

        found.append((MLP, perceptron))
    return found
