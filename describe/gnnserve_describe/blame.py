"""The line of the user's code that an error, or a call, came from."""

from __future__ import annotations

import inspect
import linecache
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FrameType

import torch

from gnnserve_api.errors import GnnserveError, InputError


@dataclass(frozen=True, slots=True)
class CodeLine:
    file: str
    number: int
    function: str

    @property
    def text(self) -> str:
        return linecache.getline(self.file, self.number).strip()

    def __str__(self) -> str:
        return f"{_short(self.file)}:{self.number}, in {self.function}: {self.text}"


@dataclass(frozen=True, slots=True)
class Blame:
    own: CodeLine | None
    """Line of the user's."""
    library: CodeLine | None
    """Line of a library that the other one calls, as torch_geometric; None: none that is not torch's own."""

    def __str__(self) -> str:
        lines = [str(self.own)] if self.own else []
        if self.library is not None:
            lines.append(f"{'which calls ' if lines else ''}{self.library}")
        return ", ".join(lines)


def blame_of(error: BaseException) -> Blame:
    """Innermost lines, of the error or of what caused it."""
    own = library = None
    for each in chain_of(error):
        lines = [
            CodeLine(frame.f_code.co_filename, number, frame.f_code.co_name)
            for frame, number in traceback.walk_tb(each.__traceback__)
        ]
        found_own, found_library = _innermost(lines)
        own = found_own or own
        if found_own or found_library:
            library = found_library
    return Blame(own, library)


def blame_of_caller() -> Blame:
    """Innermost lines of the stack as it is."""
    frame: FrameType | None = inspect.currentframe()
    lines = []
    while frame is not None:
        lines.append(CodeLine(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return Blame(*_innermost(lines[::-1]))


@contextmanager
def told_by_line() -> Iterator[None]:
    """Within it an error of the user's code becomes an InputError that has its line; ours stay as they are."""
    try:
        yield
    except GnnserveError:
        raise
    except Exception as error:
        blame = blame_of(error)
        if blame.own is None:
            raise
        raise InputError(
            str(blame), f"it fails over another graph than it was called with before: {type(error).__name__}: {error}",
            "keep nothing of one graph outside of forward (a cache, a global, the number of nodes): compute it from "
            "the arguments in each call",
        ) from error  # fmt: skip


def chain_of(error: BaseException) -> Iterator[BaseException]:
    """The error and its causes, the first cause last."""
    each: BaseException | None = error
    seen: set[int] = set()
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        yield each
        each = each.__cause__ or each.__context__


def _innermost(lines: list[CodeLine]) -> tuple[CodeLine | None, CodeLine | None]:
    """Lines of the user, and of a library within it."""
    own = library = None
    for line in lines:
        if _is_own(line.file):
            own, library = line, None
        elif _is_library(line.file):
            library = line
    return own, library


@cache
def _foreign_folders() -> tuple[str, ...]:
    standard = Path(traceback.__file__).parent
    return (str(Path(__file__).parent), str(standard))


@cache
def _torch_folder() -> str:
    return str(Path(torch.__file__).parent)


def _is_own(file: str) -> bool:
    if file.startswith("<") or _is_generated(file) or _is_installed(file) or file.startswith(_torch_folder()):
        return False
    return not any(file.startswith(folder + "/") for folder in _foreign_folders())


def _is_library(file: str) -> bool:
    return (_is_installed(file) or _is_generated(file)) and not file.startswith(_torch_folder())


def _is_generated(file: str) -> bool:
    """Whether torch_geometric has written it, in a folder for temporary files."""
    return Path(file).name.startswith("torch_geometric.")


def _is_installed(file: str) -> bool:
    return "site-packages" in Path(file).parts or "dist-packages" in Path(file).parts


def _short(file: str) -> str:
    path = Path(file)
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        parts = path.parts
        for folder in ("site-packages", "dist-packages"):
            if folder in parts:
                return str(Path(*parts[parts.index(folder) + 1 :]))
        return file
