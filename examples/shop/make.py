"""Writes a made-up shop: users, items, and who bought what. Users have tastes that no table tells; purchases do."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parent
USERS, ITEMS, TASTES, BOUGHT = 600, 240, 8, 14
OF_TASTE = 0.85
"""Share of purchases that follow the buyer's taste."""


@dataclass(frozen=True)
class Tastes:
    """What no table tells: the taste of each user and item, and how much each item is liked."""

    of_users: np.ndarray
    of_items: np.ndarray
    liked: np.ndarray

    def shares(self, taste: int) -> np.ndarray:
        """How likely a user of that taste buys each item."""
        of_taste = self.liked * (self.of_items == taste)
        shares: np.ndarray = OF_TASTE * of_taste / of_taste.sum() + (1 - OF_TASTE) * self.liked / self.liked.sum()
        return shares


def tastes(draw: np.random.Generator) -> Tastes:
    of_users, of_items = draw.integers(0, TASTES, USERS), draw.integers(0, TASTES, ITEMS)
    return Tastes(of_users, of_items, draw.pareto(2, ITEMS) + 0.2)  # some items are bought far more often than others


def main(folder: Path = FOLDER) -> None:
    draw = np.random.default_rng(0)
    known = tastes(draw)
    bought: set[tuple[int, int]] = set()
    for user in range(USERS):
        shares = known.shares(int(known.of_users[user]))
        bought |= {(user, int(item)) for item in draw.choice(ITEMS, BOUGHT, replace=False, p=shares)}
    _write(folder / "users.csv", ["id"], [[f"u{user}"] for user in range(USERS)])
    prices = np.random.default_rng(2).integers(5, 100, ITEMS).tolist()
    _write(folder / "items.csv", ["id", "price"], [[f"i{item}", str(price)] for item, price in enumerate(prices)])
    _write(folder / "bought.csv", ["user", "item"], [[f"u{user}", f"i{item}"] for user, item in sorted(bought)])


def new_users(count: int) -> Iterator[list[str]]:
    """Users whom the tables do not have: the ids of the items that each of them buys, in the order of buying."""
    known, draw = tastes(np.random.default_rng(0)), np.random.default_rng(1)
    for taste in draw.integers(0, TASTES, count).tolist():
        items = draw.permutation(draw.choice(ITEMS, BOUGHT, replace=False, p=known.shares(taste)))
        yield [f"i{item}" for item in items.tolist()]


def read_bought(folder: Path = FOLDER) -> list[tuple[str, str]]:
    """Users and the items that they bought, as the table has them."""
    with (folder / "bought.csv").open(encoding="utf-8", newline="") as file:
        return [(row["user"], row["item"]) for row in csv.DictReader(file)]


def _write(path: Path, header: list[str], rows: list[list[str]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


if __name__ == "__main__":
    main()
