"""Kubernetes quantities as numbers: `500m`, `4Gi`, `1e3`."""

from __future__ import annotations

import re
from decimal import Decimal

_SUFFIXES = {
    "": Decimal(1), "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"),
    **{suffix: Decimal(1000) ** power for power, suffix in enumerate("kMGTPE", 1)},
    **{f"{suffix}i": Decimal(1024) ** power for power, suffix in enumerate("KMGTPE", 1)},
}  # fmt: skip
_QUANTITY = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)([A-Za-z]*)")


def parse_quantity(value: object) -> Decimal | None:
    """The number that a Kubernetes quantity stands for; None where it is none."""
    match = _QUANTITY.fullmatch(str(value))
    if match is None or match[2] not in _SUFFIXES:
        return None
    return Decimal(match[1]) * _SUFFIXES[match[2]]
