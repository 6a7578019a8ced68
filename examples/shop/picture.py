"""The picture of `play.py`: how often what is recommended is bought, by how much a new user has bought, and latency."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np

if TYPE_CHECKING:
    from examples.shop.play import Moment


def draw(file: Path, moments: Sequence[Moment], milliseconds: Sequence[float]) -> None:
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    bought = [moment.bought for moment in moments]
    left.plot(bought, [moment.hits for moment in moments], "o-", label="recommended")
    left.plot(bought, [moment.popular_hits for moment in moments], "o:", color="grey", label="most bought")
    left.set(
        xlabel="items that a new user has bought", ylabel="share of what is bought next", title="Ten recommended items"
    )
    left.set_ylim(bottom=0)
    left.legend()
    right.hist(np.clip(milliseconds, 0, np.percentile(milliseconds, 99)), bins=40)
    right.set(xlabel="round trip, ms", ylabel="requests", title="Each with a new user")
    figure.savefig(file)
