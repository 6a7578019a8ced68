"""What a figure depends on follows from imports, and its age from commits."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from benchmarks.dependencies import History, NoHistoryError, depends_on, history, shortest


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    files = {
        "benchmarks/speed.py": "from product.serving import start\nfrom benchmarks import shapes, results\n",
        "benchmarks/shapes.py": "",
        "benchmarks/results.py": "import product.unused\n",
        "benchmarks/table.py": 'COMMANDS = {"serve": "product.commands.serve:main", "words": "product. and words"}\n',
        "worker/product/__init__.py": "",
        "worker/product/unused.py": "",
        "worker/product/parallel.py": "",
        "worker/product/serving/__init__.py": "",
        "worker/product/serving/start.py": "def run():\n    from ..graph import lists\n    import product.parallel\n",
        "worker/product/graph/lists.py": "import typing\nif typing.TYPE_CHECKING:\n    import product.types.a\n",
        "worker/product/graph/__init__.py": "",
        "worker/product/types/a.py": "",
        "worker/product/commands/serve.py": "",
    }
    for name, text in files.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path


def test_imports_are_followed_wherever_they_stand_and_results_are_not_measured(repository: Path) -> None:
    assert depends_on(["benchmarks.speed"], repository) == [
        "benchmarks/shapes.py",
        "benchmarks/speed.py",
        "worker/product/*.py",
        "worker/product/graph",
        "worker/product/serving",
    ]


def test_modules_that_a_table_names_are_followed(repository: Path) -> None:
    assert depends_on(["benchmarks.table"], repository) == [
        "benchmarks/table.py",
        "worker/product/*.py",
        "worker/product/commands",
    ]


def test_an_unknown_module_is_refused(repository: Path) -> None:
    with pytest.raises(KeyError, match=r"benchmarks\.nothing"):
        depends_on(["benchmarks.nothing"], repository)


def test_what_lies_in_a_folder_that_counts_is_left_out() -> None:
    assert shortest(["a/b", "a", "ab/c", "a"]) == ["a", "ab/c"]


HISTORY = History((
    ("d", frozenset({"worker/product/graph/deep/lists.py"})),
    ("c", frozenset({"docs/page.md"})),
    ("b", frozenset({"worker/product/parallel.py", "worker/product/graph/a.py"})),
    ("a", frozenset({"worker/product/graph/a.py"})),
))  # fmt: skip


def test_commits_since_are_those_that_touched_what_it_depends_on() -> None:
    assert HISTORY.commits_since("a", ["worker/product/graph"]) == 2
    assert HISTORY.commits_since("a", ["worker/product/*.py"]) == 1
    assert HISTORY.commits_since("b", ["worker/product/graph"]) == 1
    assert HISTORY.commits_since("d", ["worker/product/graph"]) == 0


@pytest.mark.parametrize(("commit", "depends"), [(None, ["worker"]), ("elsewhere", ["worker"]), ("a", [])])
def test_an_age_that_nobody_knows_is_none(commit: str | None, depends: list[str]) -> None:
    assert HISTORY.commits_since(commit, depends) is None


def test_where_there_is_no_history_it_is_said(tmp_path: Path) -> None:
    with pytest.raises(NoHistoryError, match="clone it"):
        history(tmp_path)


def test_history_is_read_of_a_clone(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", *who, "-C", str(tmp_path), *arguments], check=True, capture_output=True)

    git("init", "--quiet")
    for name in ("one.py", "two.py"):
        (tmp_path / name).write_text("")
        git("add", ".")
        git("commit", "--quiet", "--message", name)
    (_, second), (_, first) = history(tmp_path).commits
    assert (first, second) == ({"one.py"}, {"two.py"})
    shallow = tmp_path / "shallow"
    subprocess.run(["git", "clone", "--quiet", "--depth", "1", f"file://{tmp_path}", str(shallow)], check=True)
    with pytest.raises(NoHistoryError, match="--unshallow"):
        history(shallow)
