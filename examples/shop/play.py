"""Recommendations in a shop, live: one command trains and serves, then new users come and buy.

None of them was there in training. After each purchase the shop asks what to recommend next, with what the user has
bought so far in the request, and what the user buys then tells how good that was: as often as an item that the user
buys next is among the ten that are recommended. Beside it stands what a shop would do without a network: recommend what
is bought most.

    python -m examples.shop.play [--folder FOLDER] [--picture shop.svg]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from examples.serving import picture_file, serving
from examples.shop.make import new_users, read_bought

from gnnserve_client import Client

MANIFEST = Path(__file__).with_name("shop.yaml")
NEW_USERS = 200
COUNT = 10
"""Items that are recommended at a time."""
SHOWN_AFTER = (1, 2, 4, 8, 12)
"""Purchases after which figures are printed."""


@dataclass(frozen=True, slots=True)
class Moment:
    """What was recommended to users who had bought so many items."""

    bought: int
    hits: float
    """Share of the items that they went on to buy that were among those recommended, at most `COUNT` of each user."""
    popular_hits: float
    """The same of the items that are bought most."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="for the repository; default: a temporary one")
    parser.add_argument("--picture", type=picture_file, help="draw what was seen into this file, .svg or .png")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        with serving(folder, str(MANIFEST), "--repository", ".") as url, Client(url) as client:
            moments, milliseconds = play(client)
    print_figures(moments, milliseconds)
    if options.picture is not None:
        from examples.shop.picture import draw  # noqa: PLC0415 - it needs matplotlib, of the extra `pictures`

        draw(options.picture, moments, milliseconds)


def play(client: Client) -> tuple[list[Moment], list[float]]:
    """The stream: what was recommended after each purchase, and the round trip of each request in ms."""
    popular = [item for item, _ in Counter(item for _, item in read_bought()).most_common()]
    seen: dict[int, list[tuple[float, float]]] = {}
    milliseconds: list[float] = []
    client.wait_until_ready()
    for number, items in enumerate(new_users(NEW_USERS)):
        user = f"user/new{number}"
        for bought in range(1, len(items)):
            had, next_ = items[:bought], {*items[bought:]}
            overlay = {"nodes": [{"id": user}], "edges": [[user, "bought", f"item/{item}"] for item in had]}
            begun_s = time.perf_counter()
            found = client.recommend(user, COUNT, type_="item", overlay=overlay)
            milliseconds.append((time.perf_counter() - begun_s) * 1000)
            recommended = [str(node).removeprefix("item/") for node in found.nodes.tolist()]
            others = [item for item in popular if item not in had][:COUNT]
            possible = min(COUNT, len(next_))
            hits = (len(next_ & {*recommended}) / possible, len(next_ & {*others}) / possible)
            seen.setdefault(bought, []).append(hits)
    return [Moment(bought, *np.mean(hits, axis=0).tolist()) for bought, hits in sorted(seen.items())], milliseconds


def print_figures(moments: Sequence[Moment], milliseconds: Sequence[float]) -> None:
    print(f"\n{NEW_USERS} new users came and bought; {COUNT} items were recommended after each purchase.\n")
    print(f"{'bought so far':<16}{'hits':>8}{'most bought':>14}")
    for moment in moments:
        if moment.bought in SHOWN_AFTER:
            print(f"{moment.bought:<16}{moment.hits:>8.3f}{moment.popular_hits:>14.3f}")
    p50, p99 = np.percentile(milliseconds, [50, 99])
    print(f"\n{len(milliseconds):,} requests with a new user each: p50 {p50:.2f} ms, p99 {p99:.2f} ms")


if __name__ == "__main__":
    main()
