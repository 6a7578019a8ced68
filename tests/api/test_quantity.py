"""Quantities as the API server reads them."""

from __future__ import annotations

from decimal import Decimal

import pytest

from gnnserve_api.quantity import parse_quantity


@pytest.mark.parametrize(
    ("text", "number"),
    [("1", 1), ("1500m", "1.5"), ("2Ki", 2048), ("1.5Gi", 1_610_612_736), ("3M", 3_000_000), (".5", "0.5"),
     ("1e3", 1000), (7, 7), ("5n", "5e-9")],
)  # fmt: skip
def test_quantities_are_numbers(text: object, number: object) -> None:
    assert parse_quantity(text) == Decimal(str(number))


@pytest.mark.parametrize("text", ["", "Gi", "1Zi", "1.2.3", "one", None])
def test_what_is_no_quantity_is_none(text: object) -> None:
    assert parse_quantity(text) is None
