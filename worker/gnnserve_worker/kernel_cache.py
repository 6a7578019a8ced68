"""Kernels: Python functions that numba compiles to machine code once and keeps on disk.

numba's own cache is made for one machine. This one also serves pods, which may have no writable folder and should not
compile at all:

- Kernels are compiled for a level of processors, not for the local one, so that an image with compiled kernels
  (`compile_kernels.py`) suits other machines, and profiles measure the very code that serves.
- A read-only folder will do: it lies beside the source, in `__pycache__`.
- The cache is stale once any file with kernels changes, since kernels are inlined into those of other files.
- A start pays for what it runs: a kernel's folder is looked for when the kernel is first called, and what the compiler
  needs is loaded when a kernel is compiled, not when one is read from disk.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import platform
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, cached_property
from pathlib import Path
from typing import Any, TypeVar, cast

import llvmlite.binding
from numba import __version__ as numba_version
from numba import config, njit
from numba.core import caching
from numba.core import event as events
from numba.core.runtime.nrt import rtsys

_log = logging.getLogger(__name__)

_config: Any = config
"""numba's configuration; its fields are made at run time, hence Any."""

F = TypeVar("F", bound=Callable[..., Any])

PACKAGE = Path(__file__).parent
_SOURCES = ("sampling", "graph", "tables", "models", "caching")
"""Folders whose code may be part of a kernel."""

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
    """Decorator: compile the function to run without the GIL, cached on disk where a folder is writable
    (NUMBA_CACHE_DIR names one)."""
    return _compiled(function, inline=False)


def brief_kernel(function: F) -> F:
    """Decorator: as `kernel`, for a function that takes microseconds and keeps the GIL: where another thread waits for
    it, to give it away and to wait for it in turn takes longer."""
    return _compiled(function, inline=False, nogil=False)


def inlined(function: F) -> F:
    """Decorator: a part of kernels that is inlined where it is called, since passing ten arrays costs more than its
    body."""
    return _compiled(function, inline=True)


def _compiled(function: F, *, inline: bool, nogil: bool = True) -> F:
    _choose_own_level()
    dispatcher: Any = njit(nogil=nogil, forceinline=inline)(function)
    dispatcher._cache = _WhenCalled(function)  # as its enable_caching() does, later
    KERNELS[f"{function.__module__}.{function.__qualname__}"] = dispatcher
    return cast("F", dispatcher)


KERNELS: dict[str, Any] = {}
"""numba's dispatchers, by module and name."""


EVERYTHING = "everything"
"""All kernels that serving needs."""
_NOTED_BESIDE = "gnnserve_worker.graph.living_lists._change"
"""The kernel in whose folder is noted what was compiled."""


def note_compiled(what: str, target: str | None = None) -> None:
    """Note that compiling `what` has come to its end, beside the kernels. To be called after the last of them: a
    process that was killed before has compiled some. `target`: the level that they are for; None: this process's."""
    with suppress(OSError):
        note = _note_of(what, target)
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_bytes(source_stamp())


def is_compiled(what: str) -> bool:
    """Whether compiling `what` of these sources, for this process, has come to its end."""
    try:
        return _note_of(what, None).read_bytes() == source_stamp()
    except OSError:
        return False


def can_be_kept() -> bool:
    """Whether another process could compile kernels for this one: there is a folder to keep them in."""
    cache: _Cache = KERNELS[_NOTED_BESIDE]._cache.made
    return cache.can_be_written


def _note_of(what: str, target: str | None) -> Path:
    own = _config.CPU_NAME or llvmlite.binding.get_host_cpu_name()
    read_by = (what, target or own, numba_version, llvmlite.__version__, sys.implementation.cache_tag)
    name = hashlib.sha256("\0".join(map(str, read_by)).encode()).hexdigest()[:16]
    return Path(KERNELS[_NOTED_BESIDE]._cache.cache_path) / f"compiled.{name}.nbm"


def compile_for(name: str) -> None:
    """Compile for that level for the life of this process. To be called before the first kernel, where numba fixes its
    target."""
    _config.CPU_NAME, _config.CPU_FEATURES = name, ""


@cache
def _choose_own_level() -> None:
    # An administrator's choice by NUMBA_CPU_NAME takes precedence.
    if _config.CPU_NAME is None and (name := level()) is not None:
        compile_for(name)


@cache
def source_stamp() -> bytes:
    """Digest of all sources that may be part of a kernel."""
    digest = hashlib.sha256()
    for path in sorted(path for folder in _SOURCES for path in (PACKAGE / folder).rglob("*.py")):
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.digest()


class _OwnStamp:
    def get_source_stamp(self) -> bytes:
        return source_stamp()


class _Named(_OwnStamp, caching.UserProvidedCacheLocator):
    """The folder that NUMBA_CACHE_DIR names."""


class _BesideSource(_OwnStamp, caching.InTreeCacheLocator):
    @classmethod
    def from_function(cls, py_func: Callable[..., Any], py_file: str) -> _BesideSource | None:
        locator = cls(py_func, py_file)
        folder = Path(locator.get_cache_path())
        is_filled = next(folder.glob(f"{Path(py_file).stem}.{py_func.__qualname__}-*.nbi"), None) is not None
        return locator if is_filled or super().from_function(py_func, py_file) else None


class _UserWide(_OwnStamp, caching.UserWideCacheLocator):
    """The user's cache folder, for an installation that the user cannot write to."""


class _Nowhere(_OwnStamp, caching.InTreeCacheLocator):
    """No folder: nothing is loaded, and nothing can be written."""

    @classmethod
    def from_function(cls, py_func: Callable[..., Any], py_file: str) -> _Nowhere:
        return cls(py_func, py_file)


class _Implementation(caching.CompileResultCacheImpl):
    _locator_classes: list[type[object]] = [_Named, _BesideSource, _UserWide, _Nowhere]  # noqa: RUF012 - numba's type


class _Cache(caching.FunctionCache):
    """numba's cache, except that an unreadable kernel is compiled again, an unwritable one is not kept, and reading one
    prepares nothing for the compiler."""

    _impl_class = _Implementation
    has_missed = False
    """Whether any instance has missed (class attribute)."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        # numba's own `load_overload` first completes the target: half a second and 25 MB of imports, implementations of
        # all of Python and numpy. Machine code needs only the addresses of the run-time functions that it calls, and
        # the compiler completes its target itself.
        rtsys.initialize(target_context)
        try:
            found = self._load_overload(sig, target_context)
        except Exception as error:  # noqa: BLE001  (whatever is wrong with the file, compiling is right)
            _log.warning("%s: a compiled kernel cannot be loaded: %s: %s", self.cache_path, type(error).__name__, error)
            found = None
        if found is None and not _Cache.has_missed:
            _Cache.has_missed = True
            _log.info(
                "compiling kernels, which takes seconds: %s has none of this version and these types for %s",
                *(self.cache_path, _config.CPU_NAME or "this very processor"),
            )
        return found

    def _read_index(self) -> dict[Any, str] | None:
        """Files by what they were compiled for; None: the index is damaged."""
        try:
            return cast("dict[Any, str]", self._cache_file._load_index())
        except Exception:  # noqa: BLE001  (as above: a damaged one is compiled again)
            return None

    @property
    def can_be_written(self) -> bool:
        return not isinstance(self._impl.locator, _Nowhere)

    def save_overload(self, sig: Any, data: Any) -> None:
        with suppress(OSError):
            self._impl.locator.ensure_cache_path()
            # Another process may compile the same kernel, for another level above all. Each reads the kernel's index,
            # chooses a file for its code and writes the index anew: at once, one would lose its entry, or have the
            # other's code.
            with _alone_in(Path(self.cache_path)):
                if not self._read_index():
                    self._remove_files()
                super().save_overload(sig, data)

    def _remove_files(self) -> None:
        """Remove an index that is damaged or of other sources, and its files. numba fails where it cannot read an
        index that it adds to, and with it the call that the kernel was compiled for. Of other sources it keeps the
        files, and tells the index the name of one before it writes that: where the disk is full or the process is
        killed then, that name would be of code of other sources."""
        folder, base = Path(self.cache_path), self._impl.filename_base
        for path in (folder / f"{base}.nbi", *folder.glob(f"{base}.*.nbc")):
            path.unlink(missing_ok=True)


class _WhenCalled(caching._Cache):
    """A kernel's cache, made when the kernel is first called: a start calls 30 of 150 kernels, and each cache tries
    whether its folder can be written to."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    @cached_property
    def made(self) -> _Cache:
        return _Cache(self._function)

    @property
    def cache_path(self) -> str:
        return str(self.made.cache_path)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        return self.made.load_overload(sig, target_context)

    def save_overload(self, sig: Any, data: Any) -> None:
        self.made.save_overload(sig, data)

    def enable(self) -> None:
        self.made.enable()

    def disable(self) -> None:
        self.made.disable()

    def flush(self) -> None:
        self.made.flush()


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Wait for other processes that are in here for that folder; do not, where its file system locks no folders."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


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
            function = event.data["dispatcher"].py_func
            tell(f"{function.__module__}.{function.__qualname__}", event.data["args"])

        def on_end(self, event: events.Event) -> None: ...

    events.register("numba:compile", Listener())
