"""Decoder that makes a score of two rows where links are scored: the user's own module, told by what it computes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
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
_FAR = 1024.0
"""A number beyond all that a relation moves a row by."""
_Tensors = Mapping[str, torch.Tensor]
_Score = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class FoundDecoder:
    kind: str
    """Name of it in `task.links.decoder`."""
    weights: _Tensors
    """Weights as servers read them; empty: it has none."""
    score: _Score
    """Scores [pairs] of rows [pairs, columns] of first and of second nodes, as the user's module gives them."""


@dataclass(frozen=True, slots=True, eq=False)
class _DecoderForm:
    """Form of a decoder that a module may compute, as a server does."""

    kind: str
    weights: _Tensors
    score: _Score


def decoder_of(module: torch.nn.Module | None, columns: int, types: tuple[str, str] = ("", "")) -> FoundDecoder:
    """`module`: of two matrices of rows; or of all rows (one matrix, two, or a dictionary by `types` of first and of
    second nodes) and an edge_index of pairs; None: the dot product. InputError: it computes something else than a
    server does."""
    if module is None:
        return FoundDecoder(DOT, {}, _dot)
    module.eval()
    generator = torch.Generator().manual_seed(0)
    first, second = (torch.randn(_PAIRS, columns, generator=generator) for _ in range(2))
    score = _called(module, first, second, types)
    wanted = score(first, second)
    for found in _readings(module, columns, types):
        if (found.score(first, second) - wanted).abs().max() <= _TOLERANCE * wanted.abs().max().clamp(min=1e-30):
            return FoundDecoder(found.kind, found.weights, score)
    shapes = ", ".join(f"{name} {list(each.shape)}" for name, each in module.state_dict().items()) or "no weights"
    raise InputError(
        _WHERE,
        f"a {type(module).__name__} with {shapes} computes neither a dot product, nor one with a weight for each "
        f"column, nor Linear({2 * columns}, h), ReLU, Linear(h, 1) over the first row and the second beside each "
        "other, nor the sum of |first + relation - second|, which is such a perceptron",
        "servers know these alone: train one of them over the rows, or let the encoder give rows whose dot product is "
        "the score",
    )  # fmt: skip


def draw_pairs(first: np.ndarray, second: np.ndarray, seed: int) -> np.ndarray:
    """Pairs of these nodes, int64 [pairs, 2]: each first one once, and some again."""
    random = np.random.default_rng(seed)
    drawn = np.concatenate([first, random.choice(first, min(len(first), _PAIRS))])
    others = random.permutation(np.resize(second, len(drawn)))
    return np.stack([drawn, others], axis=1)


_Call = Callable[[torch.nn.Module, torch.Tensor, torch.Tensor, tuple[str, str]], torch.Tensor]


def _called(module: torch.nn.Module, first: torch.Tensor, second: torch.Tensor, types: tuple[str, str]) -> _Score:
    """The call that gives a score for each pair, without a sigmoid at its end."""
    errors = []
    for call in _CALLS:
        try:
            with torch.no_grad():
                found = call(module, first, second, types)
            if found.shape.numel() == len(first):
                return without_end(lambda a, b, call=call: call(module, a, b, types).reshape(-1))
        except Exception as error:  # noqa: BLE001 - told below
            errors.append(error)
    told = "; ".join(f"{type(each).__name__}: {each}" for each in errors[:2]) or "it gives no number for each pair"
    raise InputError(
        str(blame_of(errors[0])) if errors and str(blame_of(errors[0])) else _WHERE,
        f"a {type(module).__name__} can be called neither with rows of first and of second nodes, nor with rows and an "
        f"edge_index of pairs: {told}", "write a module around it whose forward takes two matrices [pairs, columns]",
    )  # fmt: skip


def _of_both(
    module: torch.nn.Module, first: torch.Tensor, second: torch.Tensor, types: tuple[str, str]
) -> torch.Tensor:
    del types
    found: torch.Tensor = module(first, second)
    return found


def _of_index(
    module: torch.nn.Module, first: torch.Tensor, second: torch.Tensor, types: tuple[str, str]
) -> torch.Tensor:
    del types
    places = torch.arange(len(first))
    found: torch.Tensor = module(torch.cat([first, second]), torch.stack([places, places + len(first)]))
    return found


def _of_both_and_index(
    module: torch.nn.Module, first: torch.Tensor, second: torch.Tensor, types: tuple[str, str]
) -> torch.Tensor:
    del types
    found: torch.Tensor = module(first, second, torch.arange(len(first)).repeat(2, 1))
    return found


def _of_types(
    module: torch.nn.Module, first: torch.Tensor, second: torch.Tensor, types: tuple[str, str]
) -> torch.Tensor:
    places, is_one = torch.arange(len(first)), types[0] == types[1]
    rows = {types[0]: torch.cat([first, second])} if is_one else {types[0]: first, types[1]: second}
    found: torch.Tensor = module(rows, torch.stack([places, places + len(first)] if is_one else [places, places]))
    return found


_CALLS: Sequence[_Call] = (_of_both, _of_index, _of_both_and_index, _of_types)


def _dot(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    return (first * second).sum(dim=1)


def _readings(module: torch.nn.Module, columns: int, types: tuple[str, str]) -> Iterator[_DecoderForm]:
    yield _DecoderForm(DOT, {}, _dot)
    weights = [each.detach().float() for each in module.state_dict().values() if each.is_floating_point()]
    yield from _perceptrons(weights, columns)
    rows = torch.eye(columns, dtype=torch.float64)
    try:
        score = _called(copy.deepcopy(module).double(), rows, rows, types)
        relation = score(rows, rows).float()
        nothing = torch.zeros_like(rows)
        moved = (score(-_FAR * rows, nothing) - score(_FAR * rows, nothing)).float() / 2
        end = float(score(nothing, nothing)[0]) + float(moved.abs().sum())
    except (InputError, RuntimeError, TypeError, ValueError):
        return
    yield _DecoderForm(DIST_MULT, {"relation": relation}, lambda first, second: _dot(first * relation, second))
    yield _distance(moved, end)


def _perceptrons(weights: Sequence[torch.Tensor], columns: int) -> Iterator[_DecoderForm]:
    """Readings as Linear, ReLU, Linear: its first matrix is one for both rows, or one for each."""
    matrices, biases = [each for each in weights if each.dim() == 2], [each for each in weights if each.dim() == 1]
    last = [each for each in matrices if len(each) == 1]
    hidden = [each for each in matrices if len(each) > 1]
    if len(last) != 1 or any(len(each) != last[0].shape[1] for each in hidden):
        return
    width = last[0].shape[1]
    inner = sum((each for each in biases if len(each) == width), torch.zeros(width))
    outer = next((each for each in biases if len(each) == 1), torch.zeros(1))
    match [each.shape[1] for each in hidden]:
        case [both] if both == 2 * columns:
            yield _perceptron(hidden[0], inner, last[0], outer)
        case [one, other] if one == other == columns:
            yield _perceptron(torch.cat(hidden, dim=1), inner, last[0], outer)
            yield _perceptron(torch.cat(hidden[::-1], dim=1), inner, last[0], outer)


def _perceptron(hidden: torch.Tensor, inner: torch.Tensor, last: torch.Tensor, outer: torch.Tensor) -> _DecoderForm:
    def score(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.cat([first, second], dim=1) @ hidden.T + inner) @ last[0] + outer

    weights = {"hidden.weight": hidden, "hidden.bias": inner, "last.weight": last, "last.bias": outer}
    return _DecoderForm(MLP, weights, score)


def _distance(moved: torch.Tensor, end: float) -> _DecoderForm:
    """A number less the sum of |first + moved - second|, whose absolute values are two ReLU each."""
    columns = len(moved)
    ahead = torch.cat([torch.eye(columns), -torch.eye(columns)], dim=1)
    last = -torch.ones(1, 2 * columns)
    return _perceptron(torch.cat([ahead, -ahead]), torch.cat([moved, -moved]), last, torch.tensor([end]))
