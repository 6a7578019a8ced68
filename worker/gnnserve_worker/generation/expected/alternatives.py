"""Other ways to compute a network from its weights than the one that is served: likely causes of other scores.

One that gives the expected scores is what a message names. A new one is a row of a table here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from gnnserve_worker.models.plain import SERVED, Activation, Reading

CANNOT = "this cannot be served yet"


@dataclass(frozen=True, slots=True)
class Alternative:
    """One way in which a network may be computed otherwise."""

    words: str
    """Words behind `with` or in its place, as `with ELU between layers`."""
    change: Callable[[Reading], Reading]
    remedy: str = CANNOT
    """What to do where it is the cause."""
    concerns: str = ""
    """Name among an architecture's assumptions that it is about; empty: any network."""

    def applies(self, assumptions: Mapping[str, str]) -> bool:
        return not self.concerns or self.concerns in assumptions


def _elu(rows: np.ndarray) -> np.ndarray:
    return np.asarray(np.where(rows > 0, rows, np.expm1(np.minimum(rows, 0))))


def _leaky(slope: float) -> Activation:
    return lambda rows: np.where(rows > 0, rows, slope * rows)


def _gelu(rows: np.ndarray) -> np.ndarray:
    from scipy.special import erf  # noqa: PLC0415  (takes a tenth of a second)

    return np.asarray(rows * 0.5 * (1 + erf(rows / np.sqrt(2))))


def _selu(rows: np.ndarray) -> np.ndarray:
    scale, alpha = 1.0507009873554805, 1.6732632423543772
    return np.asarray(scale * np.where(rows > 0, rows, alpha * np.expm1(np.minimum(rows, 0))))


def _sigmoid(rows: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-np.clip(rows, -500, 500))))


def _silu(rows: np.ndarray) -> np.ndarray:
    return np.asarray(rows * _sigmoid(rows))


def _as_it_is(rows: np.ndarray) -> np.ndarray:
    return rows


_ACTIVATIONS: Mapping[str, Activation] = {
    "ELU between layers": _elu,
    "LeakyReLU between layers": _leaky(0.01),
    "LeakyReLU of slope 0.2 between layers": _leaky(0.2),
    "GELU between layers": _gelu,
    "SELU between layers": _selu,
    "SiLU between layers": _silu,
    "tanh between layers": np.tanh,
    "a sigmoid between layers": _sigmoid,
    "nothing between layers": _as_it_is,
}


def _activation(function: Activation, *, is_inner: bool = False) -> Callable[[Reading], Reading]:
    if is_inner:
        return lambda reading: replace(reading, activation=function, inner_activation=function)
    return lambda reading: replace(reading, activation=function)


ALTERNATIVES: Sequence[Alternative] = (
    *(
        Alternative(f"with {name}", _activation(function), concerns="activation")
        for name, function in _ACTIVATIONS.items()
    ),
    *(
        Alternative(
            f"with {name} and between the products of each", _activation(function, is_inner=True),
            concerns="inner activation",
        )
        for name, function in _ACTIVATIONS.items()
    ),
    Alternative(
        "with ReLU behind the last layer too", lambda reading: replace(reading, ends_with_activation=True),
        concerns="activation",
    ),
    Alternative(
        "without the self-loops that are added", lambda reading: replace(reading, loop_weight=0), concerns="self-loops"
    ),
    Alternative(
        "with self-loops of weight 2 (improved=True)", lambda reading: replace(reading, loop_weight=2),
        concerns="self-loops",
    ),
    Alternative(
        "without normalisation (normalize=False)",
        lambda reading: replace(reading, is_normalised=False, loop_weight=0), concerns="normalisation",
    ),
    Alternative(
        "without normalisation, self-loops included", lambda reading: replace(reading, is_normalised=False),
        concerns="normalisation",
    ),
    Alternative("with the sum of the neighbours", lambda reading: replace(reading, aggregation="sum")),
    Alternative("with the mean of the neighbours", lambda reading: replace(reading, aggregation="mean")),
    Alternative("with the maximum of the neighbours", lambda reading: replace(reading, aggregation="max")),
    Alternative("with the minimum of the neighbours", lambda reading: replace(reading, aggregation="min")),
    Alternative(
        "with outputs of layers divided by their length (normalize=True)",
        lambda reading: replace(reading, has_unit_rows=True), concerns="normalisation",
    ),
    Alternative(
        "with a residual h + x behind the activation",
        lambda reading: replace(reading, residual="behind the activation"), concerns="residual",
    ),
    Alternative(
        "with a residual h + x before the activation",
        lambda reading: replace(reading, residual="before the activation"), concerns="residual",
    ),
    *(
        Alternative(
            f"with a leaky ReLU of slope {slope:g} over attention scores",
            lambda reading, slope=slope: replace(reading, negative_slope=slope),  # type: ignore[misc]
            f"set spec.model.negativeSlope to {slope:g}", concerns="attention",
        )
        for slope in (0.01, 0.1, 0.2, 0.0, 1.0)
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ReadingTried:
    """A reading with the alternatives that it is made of."""

    alternatives: tuple[Alternative, ...]
    reading: Reading

    @property
    def words(self) -> str:
        return " and ".join(one.words for one in self.alternatives)

    @property
    def remedy(self) -> str:
        """What to do: all settings, or that one of them cannot be served."""
        remedies = dict.fromkeys(one.remedy for one in self.alternatives)
        return CANNOT if CANNOT in remedies else ", and ".join(remedies)


def single_readings(assumptions: Mapping[str, str]) -> Iterator[ReadingTried]:
    """Each alternative that concerns an architecture."""
    for one in ALTERNATIVES:
        if one.applies(assumptions):
            yield ReadingTried((one,), one.change(SERVED))


def paired_readings(assumptions: Mapping[str, str]) -> Iterator[ReadingTried]:
    """Two of them together."""
    for first, second in combinations(single_readings(assumptions), 2):
        both = second.alternatives[0].change(first.reading)
        if both not in {first.reading, second.reading}:
            yield ReadingTried((*first.alternatives, *second.alternatives), both)
