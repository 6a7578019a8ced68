"""Files that a figure depends on, and how many commits have touched them since it was measured.

What a part of a benchmark depends on is computed from imports: those of the module of its function, and of the modules
that it starts as processes, wherever in a module they stand, since what is imported late runs too. A module that is
named by a string is followed as well, as tables of commands name theirs. Code of the product counts by folder, so that
a file added later is no gap; code of benchmarks and tests counts by file.
"""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
_PRODUCT = ("crds", "operator", "cli", "client", "describe", "worker")
"""Folders of packages: a package of the folder's is imported by its own name."""
_BESIDE = ("benchmarks", "tests", "tools")
"""Folders that are packages themselves."""
_WRITING = ("benchmarks.results", "benchmarks.dependencies", "benchmarks.verdicts")
"""Modules that write results down; no figure depends on them."""


@dataclass(frozen=True, slots=True)
class Module:
    name: str
    file: str
    """From the root of the repository."""
    is_package: bool

    @property
    def counted_as(self) -> str:
        """The path whose commits count: of a module of the product its folder, or `PACKAGE/*.py` where it lies in none;
        of any other its file."""
        folder, _, _ = self.file.rpartition("/")
        if self.file.startswith(_BESIDE):
            return self.file
        return f"{folder}/*.py" if folder.count("/") < 2 else folder


@cache
def modules(root: Path = ROOT) -> Mapping[str, Module]:
    """Modules of the repository, by name."""
    found = {}
    for folder in (*_PRODUCT, *_BESIDE):
        base = root if folder in _BESIDE else root / folder
        for path in (root / folder).rglob("*.py"):
            *parents, last = path.relative_to(base).with_suffix("").parts
            is_package = last == "__init__"
            name = ".".join(parents if is_package else [*parents, last])
            found[name] = Module(name, path.relative_to(root).as_posix(), is_package)
    return found


def depends_on(names: Iterable[str], root: Path = ROOT) -> list[str]:
    """Paths that these modules depend on, sorted; a folder stands for those in it. Raises KeyError for a module that is
    none of the repository's."""
    known = modules(root)
    left = [known[name].name for name in names]
    seen = set(left)
    while left:
        for name in _imports(left.pop(), root):
            if name not in seen:
                seen.add(name)
                left.append(name)
    return shortest({known[name].counted_as for name in seen if name not in _WRITING})


def shortest(paths: Iterable[str]) -> list[str]:
    """Sorted, without those that lie in a folder that is there too."""
    kept: list[str] = []
    for path in sorted(set(paths)):
        if not any(path.startswith(f"{folder}/") for folder in kept):
            kept.append(path)
    return kept


@cache
def _imports(name: str, root: Path) -> frozenset[str]:
    """Modules of the repository that this one imports, packages around them included."""
    known = modules(root)
    module = known[name]
    tree = ast.parse((root / module.file).read_text(encoding="utf-8"))
    found: set[str] = set()
    for imported in _named(tree, module):
        parts = imported.split(".")
        found.update(".".join(parts[:end]) for end in range(1, len(parts) + 1))
    return frozenset(found & known.keys())


def _named(node: ast.AST, module: Module) -> Iterator[str]:
    """Names that may be modules: of import statements that run, and of strings."""
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.If(test=ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING")):
                for other in child.orelse:
                    yield from _named(other, module)
                continue
            case ast.Import():
                yield from (alias.name for alias in child.names)
            case ast.ImportFrom():
                package = _package_of(child, module)
                yield package
                yield from (f"{package}.{alias.name}" for alias in child.names)
            case ast.Constant(value=str() as words) if words.replace(".", "").replace("_", "").isalnum():
                # As `"gnnserve_cli.commands.run:run"` in a table of commands.
                if "." in words:
                    yield words
            case ast.Constant(value=str() as words) if ":" in words and " " not in words:
                yield words.partition(":")[0]
        yield from _named(child, module)


def _package_of(statement: ast.ImportFrom, module: Module) -> str:
    if not statement.level:
        return statement.module or ""
    parts = module.name.split(".")
    around = parts[: len(parts) - statement.level + module.is_package]
    return ".".join([*around, *([statement.module] if statement.module else [])])


@dataclass(frozen=True, slots=True)
class History:
    """Commits that lead to the one that is checked out, newest first, each with the files that it touched."""

    commits: Sequence[tuple[str, frozenset[str]]]

    def commits_since(self, commit: str | None, depends: Iterable[str]) -> int | None:
        """How many after `commit` touched one of the paths, or a file in it; None: it is unknown, not in this history,
        or nothing is known of what it depends on."""
        paths = set(depends)
        if commit is None or not paths:
            return None
        folders = tuple(f"{path}/" for path in paths)
        directly = {path.removesuffix("/*.py") for path in paths if path.endswith("/*.py")}
        count = 0
        for name, files in self.commits:
            if name == commit:
                return count
            count += any(
                file in paths or file.startswith(folders) or file.rpartition("/")[0] in directly for file in files
            )
        return None


class NoHistoryError(Exception):
    """Ages cannot be told here."""


@cache
def history(root: Path = ROOT) -> History:
    """Raises NoHistoryError where this is no clone, or one without its history."""
    try:
        is_shallow = _git(root, "rev-parse", "--is-shallow-repository").strip() == "true"
        told = _git(root, "log", "--format=%x00%H", "--name-only", "--no-renames")
    except (OSError, subprocess.CalledProcessError):
        raise NoHistoryError("this is no clone of the repository: clone it to see how old its figures are") from None
    if is_shallow:
        raise NoHistoryError("this clone has no history; `git fetch --unshallow` brings it")
    commits = []
    for entry in told.split("\0")[1:]:
        name, *files = entry.split("\n")
        commits.append((name, frozenset(filter(None, files))))
    return History(commits)


def _git(root: Path, *arguments: str) -> str:
    return subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True).stdout
