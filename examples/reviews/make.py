"""Writes users.csv, products.csv and reviews.csv: which of 600 users wrote about which of 150 products.

A third of the users were paid for what they wrote. Their own figures tell little; they write about the products of a
few sellers, which many of them write about. The same seed writes the same files.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Iterable, Sequence
from pathlib import Path

SEED = 22
USERS, PRODUCTS = 600, 150
SPLITS = ("train", "train", "train", "validation", "test", "test")


def make(folder: Path) -> None:
    rng = random.Random(SEED)  # noqa: S311  (repeatable data, no secret)
    paid = [rng.random() < 1 / 3 for _ in range(USERS)]
    promoted = [product < PRODUCTS // 5 for product in range(PRODUCTS)]
    users = [
        (f"u{user}", f"{rng.gauss(300 - 40 * paid[user], 120):.0f}", f"{rng.gauss(3.6 + 0.2 * paid[user], 0.8):.2f}",
         "paid" if paid[user] else "honest", SPLITS[rng.randrange(len(SPLITS))])
        for user in range(USERS)
    ]  # fmt: skip
    products = [(f"p{product}", f"{rng.lognormvariate(3, 1):.2f}") for product in range(PRODUCTS)]
    reviews = set()
    for user in range(USERS):
        for _ in range(rng.randint(3, 8)):
            wanted = promoted if paid[user] and rng.random() < 0.85 else [True] * PRODUCTS
            reviews.add((f"u{user}", f"p{rng.choice([product for product in range(PRODUCTS) if wanted[product]])}"))
    _write(folder / "users.csv", ("id", "ageDays", "meanStars", "kind", "split"), users)
    _write(folder / "products.csv", ("id", "price"), products)
    _write(folder / "reviews.csv", ("source", "target"), sorted(reviews))


def _write(path: Path, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


if __name__ == "__main__":
    make(Path(__file__).parent)
