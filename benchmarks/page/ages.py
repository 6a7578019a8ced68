"""Ages of figures: how many commits have touched what a part depends on since it was measured, in the words of pages.

Each commit changes these numbers, so pages are compared without them (`settled`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from benchmarks.dependencies import History
from benchmarks.page.figure_blocks import PartRead

MOST_COMMITS = 20
"""A figure is old after more."""
OLD = ", *old*"
_AGE = re.compile(r"(?:\?|\d+) commits?\b")


def commits_since(part: PartRead, history: History) -> int | None:
    """None: unknown, since its commit or what it depends on is."""
    return history.commits_since(commit_of(part), part.record["depends"])


def is_old(commits: int | None) -> bool:
    return commits is None or commits > MOST_COMMITS


def age_in_words(commits: int | None) -> str:
    number = "?" if commits is None else f"{commits}"
    return f"{number} commit{'' if commits == 1 else 's'}{OLD if is_old(commits) else ''}"


def most(commits: Iterable[int | None]) -> int | None:
    """The largest number; unknown where one of them is."""
    known = list(commits)
    return None if None in known else max(one for one in known if one is not None)


def commit_of(part: PartRead) -> str | None:
    commit = part.record["commit"]
    return None if commit is None else commit["id"]


def commit_in_words(part: PartRead) -> str:
    commit = commit_of(part)
    if commit is None:
        return "an unknown commit"
    return commit[:7] + (" with changes" if part.record["commit"]["dirty"] else "")


def day_of(part: PartRead) -> str | None:
    date = part.record["date"]
    return None if date is None else str(date)[:10]


def settled(page: str) -> str:
    """The page without what every commit may change."""
    return _AGE.sub("commits", page).replace(OLD, "")
