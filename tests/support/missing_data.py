"""The tests that need public graphs beside the checkout, and what the end of a run says where these are missing."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

DATASETS = Path(os.environ.get("GNNSERVE_DATASETS", Path(__file__).parents[3] / "shared" / "datasets"))
REASON = "needs ../shared/datasets, or GNNSERVE_DATASETS"


def sentence(reasons: Iterable[str]) -> str | None:
    """About the tests that were skipped for these reasons; None: the graphs are there, or no test asked for them."""
    count = sum(REASON in reason for reason in reasons)
    if not count:
        return None
    return (
        f"{count} tests on public graphs did not run: there is no folder {DATASETS}. Set GNNSERVE_DATASETS to a folder "
        "with their .npz files to run them."
    )
