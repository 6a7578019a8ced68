"""docs/architecture.md says how many modules one opens to follow a reconcile."""

from __future__ import annotations

import re

from tests.support.pages import read_page
from tools.followed import follow_reconcile


def test_one_reconcile_takes_no_more_modules_than_the_page_says() -> None:
    told = re.search(r"one reconcile, the contract left out \| (\d+) ", read_page("architecture.md"))
    assert told is not None
    assert len(follow_reconcile()) <= int(told[1])
