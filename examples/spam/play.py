"""Spam among reviews, live: one command trains and serves, then reviews arrive, and later it turns out what they were.

Each review of the stream is asked about before the graph has it, with its figures and its links as an overlay; then it
is added to the graph, and asked about again; half a day later its label comes. Printed are ROC-AUC and latency of each
variant, accuracy in service as the labels tell it, and which columns have drifted.

    python -m examples.spam.play [--folder FOLDER] [--picture spam.svg]
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from examples.serving import picture_file, serving
from examples.spam.reviews import STORED, Review, make_reviews, write_tables

from gnnserve_client import Changes, Client, Overlay

AT_ONCE = 20
"""Reviews that arrive together."""
LATE = 3
"""Steps after which labels come."""
TOKEN = "spam-example-writes"  # noqa: S105 - of a server on this machine alone


@dataclass(slots=True)
class Told:
    """What one variant said of the stream."""

    new: list[float] = field(default_factory=list)
    """Score of spam, before the graph had the review."""
    stored: list[float] = field(default_factory=list)
    """The same, once it had."""
    milliseconds: list[float] = field(default_factory=list)
    """Round trip of each request for one review."""


@dataclass(frozen=True, slots=True)
class Step:
    """Accuracy in service after a step of the stream."""

    reviews: int
    accuracy: dict[str, float]
    drifted: tuple[str, ...]
    """Columns of which reviews bring other values than those of the graph have, with both means."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="for tables, repository and log; default: a temporary one")
    parser.add_argument("--picture", type=picture_file, help="draw what was seen into this file, .svg or .png")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        if (repository := folder / ".gnnserve").exists():
            # Its log of changes has the reviews that are about to arrive.
            parser.error(f"argument --folder: {folder} has an earlier run; name a new folder, or remove {repository}")
        folder.mkdir(parents=True, exist_ok=True)
        reviews = make_reviews()
        write_tables(reviews[:STORED], folder)
        write_inputs(folder)
        started = serving(folder, "spam.yaml", "--write-token-file", "write-token")
        with started as url, Client(url, write_token=TOKEN) as client:
            told, steps = play(client, reviews)
    spam = np.array([review.is_spam for review in reviews[STORED:]])
    print_figures(told, steps, spam)
    if options.picture is not None:
        from examples.spam.picture import draw  # noqa: PLC0415 - it needs matplotlib, of the extra `pictures`

        draw(options.picture, told, steps, spam, AT_ONCE)


def write_inputs(folder: Path) -> None:
    """The manifest beside the tables in the folder, and the token of writers."""
    shutil.copyfile(Path(__file__).with_name("spam.yaml"), folder / "spam.yaml")
    (folder / "write-token").write_text(f"{TOKEN}\n", encoding="utf-8")


def play(client: Client, reviews: list[Review]) -> tuple[dict[str, Told], list[Step]]:
    """The stream: `AT_ONCE` reviews at a time."""
    answer = client.variants()
    column = list(answer.classes).index("spam")
    told = {variant.name: Told() for variant in answer.profile.variants}
    client.wait_until_ready()
    steps: list[Step] = []
    batches = [reviews[start : start + AT_ONCE] for start in range(STORED, len(reviews), AT_ONCE)]
    for number, batch in enumerate(batches):
        for review in batch:
            for name, variant in told.items():
                begun_s = time.perf_counter()
                scores = client.predict([review.id], outputs="scores", variant=name, overlay=overlay_of(review)).scores
                variant.milliseconds.append((time.perf_counter() - begun_s) * 1000)
                variant.new.append(margin(scores[0], column))
            # The next review may be of the same user: the graph has this one by then.
            client.changes.apply(
                Changes(
                    nodes=[review.id], features=[list(review.figures)], edges=[[o, review.id] for o in review.links]
                )
            )
            # Before the next one comes, which may be joined to it.
            for name, variant in told.items():
                scores = client.predict([review.id], outputs="scores", variant=name).scores
                variant.stored.append(margin(scores[0], column))
        if number >= LATE:
            known = batches[number - LATE]
            client.send_labels([review.id for review in known], [review.label for review in known])
            steps.append(look(client, (number + 1) * AT_ONCE))
    return told, steps


def overlay_of(review: Review) -> Overlay:
    return Overlay(
        nodes=[review.id], features=[list(review.figures)], edges=[[other, review.id] for other in review.links]
    )


def margin(scores: np.ndarray, column: int) -> float:
    """The score of spam above the other class's."""
    return float(scores[column] - np.delete(scores, column).max())


def look(client: Client, reviews: int) -> Step:
    """Accuracy in service, once the worker has evaluated the labels that it got."""
    while (seen := client.accuracy()).waiting:
        time.sleep(0.05)
    accuracy = {one.name: one.labels.mean for one in seen.variants if one.labels is not None}
    drifted = tuple(f"{moved.column} {moved.mean:.0f}, was {moved.expected:.0f}" for moved in seen.inputs)
    return Step(reviews, accuracy, drifted)


def roc_auc(scores: Sequence[float], positive: np.ndarray) -> float:
    """How often a spam review has a higher score than a genuine one; ties count as half."""
    given = np.asarray(scores)
    higher = given[positive][:, None] - given[~positive][None, :]
    return float(((higher > 0) + 0.5 * (higher == 0)).mean())


def print_figures(told: dict[str, Told], steps: list[Step], spam: np.ndarray) -> None:
    third = len(spam) // 3
    print(
        f"\n{len(spam)} reviews arrived, {int(spam.sum())} of them spam; in the last third spam imitates the others.\n"
    )
    print(f"{'variant':<12}{'ROC-AUC new':>13}{'stored':>9}{'last third':>12}{'p50 ms':>9}{'p99 ms':>9}")
    for name, variant in told.items():
        p50, p99 = np.percentile(variant.milliseconds, [50, 99])
        late = roc_auc(variant.new[-third:], spam[-third:])
        new, stored = roc_auc(variant.new, spam), roc_auc(variant.stored, spam)
        print(f"{name:<12}{new:>13.4f}{stored:>9.4f}{late:>12.4f}{p50:>9.2f}{p99:>9.2f}")
    print("\naccuracy in service, by the labels that have come:")
    for step in steps[:: max(1, len(steps) // 6)]:
        shown = "  ".join(f"{name} {mean:.3f}" for name, mean in step.accuracy.items())
        drift = f"   drifted: {'; '.join(step.drifted)}" if step.drifted else ""
        print(f"  after {step.reviews:>4} reviews  {shown}{drift}")


if __name__ == "__main__":
    main()
