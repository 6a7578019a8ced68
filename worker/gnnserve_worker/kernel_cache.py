"""Kernels: Python functions that numba compiles to machine code once and keeps on disk.

numba keeps them itself (`cache=True`). What it is told, by its own settings, is for which processors, and where:

- Kernels are compiled for a level of processors, not for the local one, so that an image with compiled kernels
  (`compile_kernels.py`) suits other machines, and profiles measure the very code that serves.
- All lie in one folder, of which `kernel_folder.py` knows whether it may be read: a kernel is stale once any file with
  kernels changes, since kernels are inlined into those of other files.

What numba makes an error of its caller's is none here: a file that cannot be read is compiled again, and a kernel that
cannot be kept runs all the same.
"""

from __future__ import annotations

import fcntl
import logging
import os
import platform
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import llvmlite.binding
from numba import config, njit
from numba.core import event as events
from numba.core.caching import InTreeCacheLocator
from numba.core.errors import NumbaError

from gnnserve_worker.kernel_folder import can_be_written, folder_for, folder_name, function_stamp, make

_log = logging.getLogger(__name__)

_config: Any = config
"""numba's configuration; its fields are made at run time, hence Any."""

F = TypeVar("F", bound=Callable[..., Any])

_V3 = ("avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe")
_V4 = (*_V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
_LEVELS: dict[str, dict[str, tuple[str, ...]]] = {
    # Of the x86-64 psABI; v3 is 2013's Haswell. On a Sapphire Rapids, kernels for v4, for v3 and for exactly that
    # processor gather equally fast, so there is nothing to win by more levels.
    "x86_64": {"x86-64-v4": _V4, "x86-64-v3": _V3},
    "aarch64": {"generic": ()},
}
"""Levels by machine, best first: LLVM's name of the target, and the features of it that a processor may lack."""


def levels() -> list[str]:
    """Levels of this kind of machine, best first, whether this processor has them or not."""
    return list(_LEVELS.get(platform.machine(), {}))


def level() -> str | None:
    """The best level that this processor has. None: it has none, so kernels are compiled for exactly this processor."""
    try:
        features = llvmlite.binding.get_host_cpu_features()
    except RuntimeError:  # LLVM cannot tell on this machine
        features = {}
    known = _LEVELS.get(platform.machine(), {})
    return next((name for name, needed in known.items() if all(features.get(each) for each in needed)), None)


def kernel(function: F) -> F:
    """Decorator: compile the function to run without the GIL, kept on disk where a folder is writable
    (NUMBA_CACHE_DIR names one)."""
    return _compiled(function, inline=False)


def brief_kernel(function: F) -> F:
    """Decorator: as `kernel`, for a function that takes microseconds and keeps the GIL: where another thread waits for
    it, to give it away and to wait for it in turn takes longer."""
    return _compiled(function, inline=False, nogil=False)


def summing_kernel(function: F) -> F:
    """Decorator: as `kernel`, for a function whose sums may be made in any order, so that loops of them become
    vectors."""
    return _compiled(function, inline=False, fastmath=frozenset({"reassoc", "contract", "nsz"}))


def inlined(function: F) -> F:
    """Decorator: a part of kernels that is inlined where it is called, since passing ten arrays costs more than its
    body."""
    return _compiled(function, inline=True)


def _compiled(function: F, *, inline: bool, nogil: bool = True, fastmath: frozenset[str] = frozenset()) -> F:
    """`fastmath`: LLVM's flags for its numbers."""
    _choose_own_level()
    with _asking(KernelLocator):
        dispatcher: Any = njit(nogil=nogil, forceinline=inline, cache=True, fastmath=set(fastmath))(function)
    dispatcher.compile = _compile_in_any_case(dispatcher)
    KERNELS[_name_of(function)] = dispatcher
    return cast("F", dispatcher)


KERNELS: dict[str, Any] = {}
"""numba's dispatchers, by module and name."""


def _name_of(function: Any) -> str:
    return f"{function.__module__}.{function.__qualname__}"


EVERYTHING = "everything"
"""All kernels that serving needs."""
_INDEX, _CODE = ".nbi", ".nbc"
"""Suffixes of numba's files of a kernel: which types it was compiled for, and the code for one of them."""


def note_compiled(what: str, target: str | None = None) -> None:
    """Note that compiling `what` has come to its end, beside the kernels. To be called after the last of them: a
    process that was killed before has compiled some. The note keeps the time at which that first was so.
    `target`: the level that they are for; None: this process's."""
    with suppress(OSError):
        if (folder := folder_of(target)) is not None and not (note := _note_of(what, folder)).exists():
            make(folder)
            note.touch(mode=0o644)


def is_compiled(what: str, target: str | None = None) -> bool:
    """Whether compiling `what` of these sources for that level has come to its end. `target` None: for this process."""
    folder = folder_of(target)
    return folder is not None and _note_of(what, folder).exists()


def copy_compiled(root: Path, target: str) -> bool:
    """Copy the kernels for that level that were compiled from the same sources by the same compiler below another root,
    where compiling EVERYTHING has come to its end. Code that was added later, for types that only tests have, is left
    out. Returns whether there were any. Raises OSError where they cannot be written."""
    known, folder = root / folder_name(target), folder_of(target)
    ended = _note_of(EVERYTHING, known)
    if folder is None or not ended.exists():
        return False
    make(folder)
    ended_ns = ended.stat().st_mtime_ns
    for path in known.iterdir():
        # An index may name code that is not there: it is compiled.
        if path.suffix == _INDEX or (path.suffix == _CODE and path.stat().st_mtime_ns <= ended_ns):
            shutil.copyfile(path, folder / path.name)
            (folder / path.name).chmod(0o644)
    return True


def can_be_kept() -> bool:
    """Whether another process could compile kernels for this one: there is a folder to keep them in."""
    folder = folder_of(None)
    return folder is not None and can_be_written(folder)


def folder_of(target: str | None) -> Path | None:
    """The folder of kernels for that level; `target` None: of this process's. None: nothing is read, and nothing is
    kept."""
    _choose_own_level()
    return folder_for(target or str(_config.CPU_NAME or llvmlite.binding.get_host_cpu_name()))


def _note_of(what: str, folder: Path) -> Path:
    return folder / f"compiled-{what.replace(' ', '-')}"


def compile_for(name: str) -> None:
    """Compile for that level for the life of this process. To be called before kernels are imported, since it decides
    where theirs lie."""
    os.environ.update(NUMBA_CPU_NAME=name, NUMBA_CPU_FEATURES="")
    _config.reload_config()  # for who imported numba before


@cache
def _choose_own_level() -> None:
    # An administrator's choice by NUMBA_CPU_NAME takes precedence.
    if _config.CPU_NAME is None and (name := level()) is not None:
        compile_for(name)


class KernelLocator(InTreeCacheLocator):
    """Answers to numba's cache where it keeps one function, as NUMBA_CACHE_LOCATOR_CLASSES may name one: numba's own
    want a folder that can be written, and tell no stale kernel by another file's change."""

    _NOWHERE = "/nonexistent/gnnserve-kernels"
    """Folder of what is not kept. numba looks there and finds nothing."""
    _given_up: set[str] = set()  # noqa: RUF012 - of all instances
    """Stamps of functions whose files can be neither read nor removed."""

    def __init__(self, function: Callable[..., Any], file: str) -> None:
        super().__init__(function, file)
        self._stamp = function_stamp(Path(file), function.__qualname__)
        self._folder = None if self._stamp in self._given_up else folder_of(None)

    @classmethod
    def from_function(cls, function: Callable[..., Any], file: str) -> KernelLocator:
        return cls(function, file)

    def get_cache_path(self) -> str:
        return str(self._folder or self._NOWHERE)

    def get_source_stamp(self) -> str:
        return ""  # the folder's name has it

    def get_disambiguator(self) -> str:
        return self._stamp

    def ensure_cache_path(self) -> None:
        """Prepare the folder for files that are about to be written."""
        if self._folder is None:
            raise PermissionError("there is no folder for compiled kernels that this user can write")
        make(self._folder)
        _writing.begin(self._folder, self.close_to_others)

    def give_up(self) -> None:
        """Remove the function's files; where that cannot be done, look nowhere for them from the next locator on."""
        try:
            for path in self.files():
                path.unlink(missing_ok=True)
        except OSError:
            self._given_up.add(self._stamp)

    def close_to_others(self) -> None:
        """Take from others the right to write the function's files, which this user's umask may have given."""
        for path in self.files():
            with suppress(OSError):
                path.chmod(0o644)

    def files(self) -> list[Path]:
        return [] if self._folder is None else list(self._folder.glob(f"*-{self._stamp}.py*"))


@contextmanager
def _asking(locator: type[KernelLocator]) -> Iterator[None]:
    """Let numba ask that locator, for ours alone: other packages' functions lie where they did."""
    before = _config.CACHE_LOCATOR_CLASSES
    _config.CACHE_LOCATOR_CLASSES = f"{locator.__module__}.{locator.__qualname__}"
    try:
        yield
    finally:
        _config.CACHE_LOCATOR_CLASSES = before


class _LockedFolder(threading.local):
    """The folder that this thread's compiler is about to write to, locked.

    Another process may compile the same kernel for other types. Each reads the kernel's index, chooses a file for its
    code and writes the index anew: at once, one would lose its entry, or have the other's code."""

    def __init__(self) -> None:
        self._ends = ExitStack()

    def begin(self, folder: Path, at_end: Callable[[], None]) -> None:
        """Wait for other processes; do not, where the file system locks no folders."""
        descriptor = os.open(folder, os.O_RDONLY)
        self._ends.callback(os.close, descriptor)
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        self._ends.callback(at_end)

    def end(self) -> None:
        """Let others write, if anything was begun."""
        self._ends.close()


_writing = _LockedFolder()


def _compile_in_any_case(dispatcher: Any) -> Callable[[Any], Any]:
    """The dispatcher's method `compile`, through which all calls of types that are new to it come, but that files which
    cannot be read or written are no error."""
    by_numba = dispatcher.compile
    function = dispatcher.py_func

    def mend(error: Exception, *, is_compiled: bool) -> bool:
        """Whether to try again: where the code was compiled it is there by now, and where it was not, it will be."""
        if is_compiled:
            if isinstance(error, OSError):
                _say_not_kept(str(error))
            return isinstance(error, OSError)
        if isinstance(error, NumbaError):
            return False
        path = dispatcher.stats.cache_path
        _log.warning("%s: a compiled kernel cannot be loaded: %s: %s", path, type(error).__name__, error)
        KernelLocator(function, function.__code__.co_filename).give_up()
        with _asking(KernelLocator):
            dispatcher.enable_caching()
        return True

    def compile_in_any_case(signature: Any) -> Any:
        for tries_left in (2, 1, 0):
            misses = dispatcher.stats.cache_misses[signature]
            try:
                return by_numba(signature)
            except Exception as error:
                is_compiled = dispatcher.stats.cache_misses[signature] > misses
                if not tries_left or not mend(error, is_compiled=is_compiled):
                    raise
            finally:
                _writing.end()
        raise AssertionError("the last try returns or raises")

    return compile_in_any_case


@cache
def _say_not_kept(reason: str) -> None:
    _log.warning("compiled kernels are not kept, so that the next start compiles them again: %s", reason)


@cache
def _say_compiling(where: str) -> None:
    _log.info(
        "compiling kernels, which takes seconds: %s has none of this version and these types for %s",
        *(where, _config.CPU_NAME or "this very processor"),
    )


def watch_compiling() -> list[str]:
    """A list to which the name of each kernel is added as it is compiled, from now on."""
    compiled: list[str] = []
    on_compile(lambda name, arguments: compiled.append(f"{name}{arguments}"))
    return compiled


def on_compile(tell: Callable[[str, Any], None]) -> None:
    """Call `tell` with the name of each kernel, as KERNELS has it, and with numba's types of its arguments before it is
    compiled, from now on. Functions of numba's own library are told as well."""

    class Listener(events.Listener):
        def on_start(self, event: events.Event) -> None:
            tell(_name_of(event.data["dispatcher"].py_func), event.data["args"])

        def on_end(self, event: events.Event) -> None: ...

    events.register("numba:compile", Listener())


def _tell_of_compiling(name: str, _arguments: Any) -> None:
    if name in KERNELS:
        _say_compiling(str(folder_of(None) or "this installation"))


on_compile(_tell_of_compiling)
