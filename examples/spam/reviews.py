"""Made-up reviews of products, a fifth of them spam, as tables and as a stream.

A review is a node. Its figures say a little: spam is a little more extreme, shorter and sooner after the product came.
Reviews of one user, and of one product within a week, are joined: spammers write many reviews, and a campaign falls on
one product. In the last third of the stream spam imitates the others' figures, so that what was learnt of them holds
no longer; its edges still tell. And a new app makes all reviews shorter, which is seen before any label has come. The
same seed makes the same reviews. Run as a program it writes the tables of the stored ones beside itself, for spam.yaml.
"""

from __future__ import annotations

import csv
import random
from dataclasses import dataclass
from pathlib import Path

SEED = 23
STORED, STREAMED = 4_000, 600
"""Reviews of the graph, and those that arrive."""
USERS, PRODUCTS, SPAMMERS = 1_500, 160, 90
DAYS = 400
FIGURES = ("stars", "length", "daysAfterRelease", "capitals", "exclamations", "similarity")
CAMOUFLAGE = 0.2
"""Share of the genuine reviews that accounts write which spam as well."""
APP_LENGTH = 0.4
"""Length of a review that is written in the app, over that of the same one without."""
MOST_LINKS = 8
"""Earlier reviews that a review is joined to, for each of its user and its product."""


@dataclass(frozen=True, slots=True)
class Review:
    id: str
    day: int
    figures: tuple[float, ...]
    is_spam: bool
    links: tuple[str, ...]
    """Ids of earlier reviews of the same user, or of the same product within a week."""

    @property
    def label(self) -> str:
        return "spam" if self.is_spam else "genuine"


def make_reviews() -> list[Review]:
    """All reviews in the order in which they were written: the stored ones, then the stream."""
    rng = random.Random(SEED)  # noqa: S311  (repeatable data, no secret)
    by_user: dict[int, list[str]] = {}
    by_product: dict[int, list[tuple[int, str]]] = {}
    campaigns = [(rng.randrange(PRODUCTS), rng.randrange(DAYS)) for _ in range(60)]
    drafts = []
    for _ in range(STORED + STREAMED):
        is_spam = rng.random() < 0.2
        if is_spam:
            product, begun = rng.choice(campaigns)
            drafts.append((min(DAYS - 1, begun + rng.randrange(6)), rng.randrange(SPAMMERS), product, True))
        else:
            # Accounts that spam write genuine reviews too, and so do others of products under a campaign.
            user = rng.randrange(SPAMMERS) if rng.random() < CAMOUFLAGE else rng.randrange(SPAMMERS, USERS)
            product, day = rng.choice(campaigns) if rng.random() < 0.3 else (rng.randrange(PRODUCTS), 0)
            drafts.append((day or rng.randrange(DAYS), user, product, False))
    drafts.sort(key=lambda draft: draft[0])
    reviews = []
    for number, (day, user, product, is_spam) in enumerate(drafts):
        has_changed = number >= STORED + STREAMED * 2 // 3
        of_user = by_user.setdefault(user, [])
        of_product = [other for when, other in by_product.setdefault(product, []) if day - when <= 7]
        links = dict.fromkeys((*of_user[-MOST_LINKS:], *of_product[-MOST_LINKS:]))
        review = Review(
            f"review-{number:04}", day, _figures(rng, is_spam and not has_changed, is_by_app=has_changed), is_spam,
            tuple(links),
        )  # fmt: skip
        of_user.append(review.id)
        by_product[product].append((day, review.id))
        reviews.append(review)
    return reviews


def _figures(rng: random.Random, looks_spam: bool, *, is_by_app: bool) -> tuple[float, ...]:
    shift, share = 0.8 * looks_spam, APP_LENGTH if is_by_app else 1.0
    stars = min(5.0, max(1.0, round(rng.gauss(3.6 + 0.7 * shift, 1.0))))
    return (
        stars,
        round(max(5.0, share * rng.gauss(120 - 45 * shift, 50))),
        round(max(0.0, rng.gauss(150 - 60 * shift, 80))),
        round(min(1.0, max(0.0, rng.gauss(0.05 + 0.03 * shift, 0.03))), 3),
        round(max(0.0, rng.gauss(0.8 + 0.8 * shift, 0.9))),
        round(min(1.0, max(0.0, rng.gauss(0.3 + 0.12 * shift, 0.12))), 3),
    )


def write_tables(reviews: list[Review], folder: Path) -> None:
    """nodes.csv and edges.csv of these reviews, as gnnserve imports them."""
    rng = random.Random(SEED + 1)  # noqa: S311
    known = {review.id for review in reviews}
    with (folder / "nodes.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(("review", *FIGURES, "label", "split"))
        for review in reviews:
            split = rng.choices(("train", "validation", "test"), (60, 20, 20))[0]
            table.writerow((review.id, *review.figures, review.label, split))
    with (folder / "edges.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(("earlier", "review"))
        table.writerows((other, review.id) for review in reviews for other in review.links if other in known)


if __name__ == "__main__":
    write_tables(make_reviews()[:STORED], Path(__file__).parent)
