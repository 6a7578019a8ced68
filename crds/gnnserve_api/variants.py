"""Names and widths of variants: what a manifest's factors and storages stand for.

Generation, profile and error messages must agree on it. Whether a factor fits a graph can only be said by who
knows the graph, so that check is here and not among the manifest's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from gnnserve_api.errors import InputError

MAX_LAYERS = 8
"""Layers that a network may have."""
MAX_FANOUT = 1024
"""Most neighbours that fan-outs may ask for per layer."""
MAX_GIVEN_NAME = 20
"""Characters of a name that the user gives."""
_LONGEST_NAME = max(MAX_GIVEN_NAME, len("channels64-projected"))
"""Characters of a name without storage and fan-outs."""
MAX_VARIANT_NAME = _LONGEST_NAME + len("-bfloat16") + len("-f") + MAX_LAYERS * len(f"{MAX_FANOUT}x") - 1
"""Characters of a variant's name, with a storage and fan-outs."""
MAX_STAGE_NAME = (MAX_VARIANT_NAME - len("-then-") - len("-p99")) // 2
"""Characters of the name of a variant that a cascade consists of."""
MAX_VARIANTS = 36
"""Variants of a revision, projected ones included: their summary fits a Job's termination message, and a profile takes
minutes."""


class Storage(StrEnum):
    """Number format of a table. Sums are always made in float32."""

    FLOAT32 = "float32"
    """4 bytes: as the model was trained."""
    FLOAT16 = "float16"
    """2 bytes, 11 bits of precision; numbers beyond 65,504 do not fit."""
    BFLOAT16 = "bfloat16"
    """2 bytes, 8 bits of precision, the range of float32."""
    INT8 = "int8"
    """1 byte, 255 steps between the largest numbers of a row and their negatives, and a float32 per row."""


PROJECTED_NAME = "projected"


def variant_name(factor: int, storage: Storage = Storage.FLOAT32) -> str:
    return stored_name(f"x{factor}", storage)


def projected_name(storage: Storage = Storage.FLOAT32) -> str:
    return stored_name(PROJECTED_NAME, storage)


def one_row_name(hops: int) -> str:
    """Name of the one-row variant over features of so many hops: `mlp0` reads a node's own alone."""
    return f"mlp{hops}"


def stored_layer_name(layer: int, storage: Storage = Storage.FLOAT32) -> str:
    """Name of the variant whose table was made of that layer's output, the first being 1."""
    return stored_name(f"stored{layer}", storage)


def channels_name(factor: int, column_factor: int = 1) -> str:
    """Name of a network with fewer hidden channels, and with fewer feature columns: `channels2`, `channels2-x4`."""
    return f"channels{factor}" + (f"-{variant_name(column_factor)}" if column_factor > 1 else "")


def given_name(place: int) -> str:
    """Name of the given variant that has none of its own, by its place in the list, from 1."""
    return f"given-{place}"


def fanouts_name(base: str, fanouts: Sequence[int]) -> str:
    """Name of the variant that is `base` with other fan-outs: `x1-f15x5`."""
    return f"{base}-f{'x'.join(map(str, fanouts))}"


def cascade_name(first: str, then: str, percent: int) -> str:
    """Name of the variant that answers by `first`, and by `then` about so many percent: `mlp2-int8-then-x1-p5`."""
    return f"{first}-then-{then}-p{percent}"


def stored_name(name: str, storage: Storage) -> str:
    return name if storage is Storage.FLOAT32 else f"{name}-{storage}"


def columns_of(features: int, factor: int) -> int:
    """Columns that the variant of this factor reads: ⌊features/factor⌋
    (Dynamic GNN inference as-a-service, section 4)."""
    return features // factor


def check_factors(factors: Sequence[int], features: int) -> None:
    """Refuse a factor that would leave a variant without a single column."""
    for index, factor in enumerate(factors):
        if columns_of(features, factor) < 1:
            raise InputError(
                f"spec.variants.pruning.factors[{index}]",
                f"{factor} is larger than the graph's {features} features, so no column would be left",
                f"use factors from 1 to {features}",
            )
