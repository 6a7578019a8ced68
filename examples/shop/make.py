"""Writes a made-up shop: users, items, and who bought what. Users have tastes that no table tells; purchases do."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parent
USERS, ITEMS, TASTES, BOUGHT = 600, 240, 8, 14
OF_TASTE = 0.85
"""Share of purchases that follow the buyer's taste."""


def main(folder: Path = FOLDER) -> None:
    draw = np.random.default_rng(0)
    taste_of_user, taste_of_item = draw.integers(0, TASTES, USERS), draw.integers(0, TASTES, ITEMS)
    liked = draw.pareto(2, ITEMS) + 0.2  # some items are bought far more often than others
    bought: set[tuple[int, int]] = set()
    for user in range(USERS):
        of_taste = liked * (taste_of_item == taste_of_user[user])
        shares = OF_TASTE * of_taste / of_taste.sum() + (1 - OF_TASTE) * liked / liked.sum()
        bought |= {(user, int(item)) for item in draw.choice(ITEMS, BOUGHT, replace=False, p=shares)}
    _write(folder / "users.csv", ["id"], [[f"u{user}"] for user in range(USERS)])
    _write(folder / "items.csv", ["id"], [[f"i{item}"] for item in range(ITEMS)])
    _write(folder / "bought.csv", ["user", "item"], [[f"u{user}", f"i{item}"] for user, item in sorted(bought)])


def _write(path: Path, header: list[str], rows: list[list[str]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


if __name__ == "__main__":
    main()
