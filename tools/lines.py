"""Code lines of the product by room, and what has become of them since a commit.

A code line is one of a Python file of the product that is not blank, not a comment alone, and not part of a docstring,
which strings under constants and fields are too. A room is a folder of a package, or the package's own files.

Since a commit, lines that stand elsewhere are told apart from those that went: a run of at least three code lines that
was removed at one place and added at another has moved. Shorter runs are equal by chance, as closing brackets are.
"""

from __future__ import annotations

import argparse
import ast
import io
import subprocess
import tarfile
import tokenize
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("operator", "worker", "cli", "client", "describe", "crds")
MOVED_RUN = 3
"""Least code lines that must stand together at both places to have moved."""
_LAYOUT = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING,
    tokenize.ENDMARKER,
}  # fmt: skip

Sources = Mapping[str, str]
"""Texts of Python files by path."""


@dataclass(slots=True)
class RoomLines:
    """Code lines of a room, and the changes since a commit."""

    now: int = 0
    before: int = 0
    added: int = 0
    """New lines, which did not stand elsewhere."""
    came: int = 0
    """Lines that moved here from another place."""
    went: int = 0
    """Lines that moved from here to another place."""
    deleted: int = 0
    """Lines that stand nowhere any more."""


def code_lines(text: str) -> list[str]:
    """The code lines of a file, without indentation, in order."""
    tree = ast.parse(text)
    told: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            told.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    counted: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _LAYOUT:
            counted.update(range(token.start[0], token.end[0] + 1))
    lines = text.splitlines()
    return [lines[number - 1].strip() for number in sorted(counted - told) if lines[number - 1].strip()]


def room_of(path: str) -> str:
    """`worker sampling` of `worker/gnnserve_worker/sampling/distinct.py`."""
    part, _, *folders, _ = PurePosixPath(path).parts
    return f"{part} {folders[0]}" if folders else part


def lines_by_room(now: Sources, before: Sources | None = None) -> dict[str, RoomLines]:
    """Rooms by name. `before` None: nothing is compared."""
    rooms: dict[str, RoomLines] = defaultdict(RoomLines)
    new = {path: code_lines(text) for path, text in now.items()}
    for path, lines in new.items():
        rooms[room_of(path)].now += len(lines)
    if before is None:
        return dict(sorted(rooms.items()))
    # Most files are as they were.
    old = {path: new[path] if now.get(path) == text else code_lines(text) for path, text in before.items()}
    for path, lines in old.items():
        rooms[room_of(path)].before += len(lines)
    removed, added = _differences(old, new)
    for source, target, count in _moves(removed, added):
        rooms[room_of(source)].went += count
        rooms[room_of(target)].came += count
    for path, runs in removed.items():
        rooms[room_of(path)].deleted += sum(map(len, runs))
    for path, runs in added.items():
        rooms[room_of(path)].added += sum(map(len, runs))
    for room in rooms.values():
        room.deleted -= room.went
        room.added -= room.came
    return dict(sorted(rooms.items()))


Runs = dict[str, list[list[str]]]
"""Lines that stood together, by path."""


def _differences(old: Mapping[str, list[str]], new: Mapping[str, list[str]]) -> tuple[Runs, Runs]:
    """Runs of lines that went from each file, and that came to it."""
    removed: Runs = defaultdict(list)
    added: Runs = defaultdict(list)
    for path in sorted({*old, *new}):
        before, now = old.get(path, []), new.get(path, [])
        if before is now:
            continue
        for kind, a, b, c, d in SequenceMatcher(None, before, now, autojunk=False).get_opcodes():
            if kind != "equal":
                removed[path] += [before[a:b]] if b > a else []
                added[path] += [now[c:d]] if d > c else []
    return removed, added


def _moves(removed: Runs, added: Runs) -> Iterator[tuple[str, str, int]]:
    """From where, to where, and how many lines, each of which moves once."""
    begins: dict[tuple[str, ...], list[tuple[str, int, int]]] = defaultdict(list)
    taken = {path: [[False] * len(run) for run in runs] for path, runs in removed.items()}
    for path, runs in removed.items():
        for number, run in enumerate(runs):
            for at in range(len(run) - MOVED_RUN + 1):
                begins[tuple(run[at : at + MOVED_RUN])].append((path, number, at))
    for target, runs in added.items():
        for run in runs:
            at = 0
            while at <= len(run) - MOVED_RUN:
                found = [
                    (
                        _equal_lines(run[at:], removed[path][number][first:], taken[path][number][first:]),
                        path,
                        number,
                        first,
                    )
                    for path, number, first in begins.get(tuple(run[at : at + MOVED_RUN]), ())
                ]
                length, source, number, first = max(found, default=(0, "", 0, 0))
                if length < MOVED_RUN:
                    at += 1
                    continue
                taken[source][number][first : first + length] = [True] * length
                yield source, target, length
                at += length


def _equal_lines(run: Sequence[str], other: Sequence[str], taken: Sequence[bool]) -> int:
    """Lines that both begin with, up to one that has moved already."""
    count = 0
    for line, theirs, is_taken in zip(run, other, taken, strict=False):
        if line != theirs or is_taken:
            break
        count += 1
    return count


def describe(rooms: Mapping[str, RoomLines], *, compares: bool) -> list[str]:
    """A table: a line for each room and one for all of them."""
    total = RoomLines()
    for room in rooms.values():
        for name in RoomLines.__slots__:
            setattr(total, name, getattr(total, name) + getattr(room, name))
    names = ("before", "now", "added", "came", "went", "deleted") if compares else ("now",)
    width = max(map(len, [*rooms, "all"]), default=0)
    shown = [f"{'room':<{width}}" + "".join(f"{name:>9}" for name in names)]
    for name, room in [*rooms.items(), ("all", total)]:
        shown.append(f"{name:<{width}}" + "".join(f"{getattr(room, each):>9,}" for each in names))
    return shown


def sources_here() -> Sources:
    return {
        path.relative_to(ROOT).as_posix(): path.read_text()
        for part in PARTS
        for path in sorted((ROOT / part).rglob("*.py"))
        if len(path.relative_to(ROOT).parts) > 2
    }


def sources_at(commit: str) -> Sources:
    """Raises SystemExit where git does not know the commit."""
    try:
        # Older commits lack some of them.
        parts = [part for part in _git("ls-tree", "--name-only", commit).decode().split() if part in PARTS]
        packed = _git("archive", commit, *parts)
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"no commit {commit}: {error.stderr.decode().strip()}; name one of `git log`") from None
    found = {}
    with tarfile.open(fileobj=io.BytesIO(packed)) as files:
        for member in files:
            content = files.extractfile(member) if member.name.endswith(".py") else None
            if content is not None and len(PurePosixPath(member.name).parts) > 2:
                found[member.name] = content.read().decode()
    return found


def _git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=True).stdout  # noqa: S607


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tools.lines", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--since", metavar="COMMIT", help="what has become of the lines of that commit")
    since = parser.parse_args().since
    rooms = lines_by_room(sources_here(), None if since is None else sources_at(since))
    print("\n".join(describe(rooms, compares=since is not None)))


if __name__ == "__main__":
    main()
