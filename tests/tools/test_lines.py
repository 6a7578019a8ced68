"""Code lines: comments, blanks and docstrings are none, and a line that stands elsewhere is not one that went."""

from __future__ import annotations

from tools.lines import RoomLines, code_lines, describe, lines_by_room, room_of

SOURCE = '''"""A module."""

import os  # why


# alone
LIMIT = 3
"""Most of them."""


def first(
    value: int,
) -> str:
    """Return it.

    In words.
    """
    text = """two

    lines"""
    return text
'''
MOVED = "def kept(value):\n    found = value + 1\n    other = found * 2\n    return other\n"


def test_comments_blanks_and_docstrings_are_no_code_lines() -> None:
    assert code_lines(SOURCE) == [
        "import os  # why", "LIMIT = 3", "def first(", "value: int,", ") -> str:", 'text = """two', 'lines"""',
        "return text",
    ]  # fmt: skip


def test_a_room_is_a_folder_of_a_package_or_its_own_files() -> None:
    assert room_of("worker/gnnserve_worker/sampling/distinct.py") == "worker sampling"
    assert room_of("worker/gnnserve_worker/models/typed/rows.py") == "worker models"
    assert room_of("cli/gnnserve_cli/__main__.py") == "cli"


def test_lines_that_stand_elsewhere_have_moved_and_others_went() -> None:
    here, there = "worker/gnnserve_worker/graph/one.py", "worker/gnnserve_worker/sampling/two.py"
    gone = "def gone(value):\n    return value\n"
    rooms = lines_by_room({here: "A = 1\n", there: f"import os\n\n\n{MOVED}"}, {here: f"A = 1\n\n\n{MOVED}\n\n{gone}"})
    assert rooms == {
        "worker graph": RoomLines(now=1, before=7, went=4, deleted=2),
        "worker sampling": RoomLines(now=5, added=1, came=4),
    }
    assert describe(rooms, compares=True)[-1].split() == ["all", "7", "6", "1", "4", "4", "2"]


def test_each_line_moves_once_and_a_few_equal_lines_are_chance() -> None:
    one, two, three = (f"cli/gnnserve_cli/{name}.py" for name in ("one", "two", "three"))
    copied = lines_by_room({two: MOVED, three: MOVED}, {one: MOVED})["cli"]
    assert (copied.came, copied.added, copied.deleted) == (4, 4, 0)
    short = lines_by_room({two: "a = 1\nb = 2\n"}, {one: "a = 1\nb = 2\n"})["cli"]
    assert (short.came, short.added, short.deleted) == (0, 2, 2)


def test_a_file_that_was_renamed_has_moved() -> None:
    old, new = "crds/gnnserve_api/typed.py", "crds/gnnserve_api/graph/relations.py"
    rooms = lines_by_room({new: MOVED}, {old: MOVED})
    assert (rooms["crds"].went, rooms["crds graph"].came) == (4, 4)
    assert not any(room.added or room.deleted for room in rooms.values())


def test_without_a_commit_lines_are_counted_alone() -> None:
    rooms = lines_by_room({"client/gnnserve_client/one.py": MOVED})
    assert describe(rooms, compares=False) == ["room        now", "client        4", "all           4"]
