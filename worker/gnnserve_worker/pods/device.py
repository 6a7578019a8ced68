"""What a worker computes on: the one door to the GPU's floor, which is entered only where a GPU is seen.

Looking costs nothing and loads nothing; torch takes two seconds and 290 MB, for which a worker without a GPU has no
use.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from gnnserve_api.device import CachePolicy, Device
from gnnserve_api.errors import NO_GPU, DeviceError, InputError, RepositoryError
from gnnserve_api.pods import CACHE_VARIABLE, DEVICE_VARIABLE, GPU_MEMORY_VARIABLE
from gnnserve_worker.inference.device_stats import DeviceStats

if TYPE_CHECKING:
    from gnnserve_worker.inference.served import ServedRevision
    from gnnserve_worker.repository.loaded import LoadedRevision

NO_GPU_SEEN = f"{NO_GPU}: none is seen"
"""How `DeviceStats.problem` begins where simply no GPU is there, which is nothing to worry about."""
_DRIVER_FILES = ("nvidiactl", "nvidia0", "dxg")
"""Of which a driver has at least one in /dev; the last is the Windows subsystem's."""
_VISIBLE_VARIABLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True)
class DeviceSettings:
    device: Device = Device.AUTO
    cache: CachePolicy = CachePolicy.FREQUENCY
    memory_bytes: int | None = None
    """Of the GPU's memory, for all that the worker takes of it; None: all that is free."""

    @staticmethod
    def read(environ: Mapping[str, str]) -> DeviceSettings:
        return DeviceSettings(
            _word(environ, DEVICE_VARIABLE, Device.AUTO),
            _word(environ, CACHE_VARIABLE, CachePolicy.FREQUENCY),
            _bytes(environ, GPU_MEMORY_VARIABLE),
        )


def require_device(
    settings: DeviceSettings, environ: Mapping[str, str] = os.environ, devices: Path = Path("/dev")
) -> None:
    """For whoever has something long to do before `open_served`. DeviceError: that would fail."""
    absent = why_no_gpu(environ, devices) if settings.device is Device.GPU else None
    if absent is not None:
        raise _absence(absent)


def open_served(
    loaded: LoadedRevision,
    settings: DeviceSettings,
    environ: Mapping[str, str] = os.environ,
    devices: Path = Path("/dev"),
) -> ServedRevision:
    """A revision, on the device that the settings want. DeviceError: on the GPU, and it cannot be; DeviceLostError: nor
    will it ever be in this process."""
    # Imported here: it takes a second, and `serve.py` reads its settings before that.
    from gnnserve_worker.inference.served import served_revision  # noqa: PLC0415

    served = served_revision(loaded)
    if settings.device is Device.CPU:
        return served
    try:
        return _on_gpu(loaded, served, settings, why_no_gpu(environ, devices))
    except DeviceError as error:
        if settings.device is Device.GPU:
            raise
        stats = DeviceStats("CPU", problem=str(error))
    return replace(served, device_stats=lambda: stats)


def _on_gpu(
    loaded: LoadedRevision, served: ServedRevision, settings: DeviceSettings, absent: str | None
) -> ServedRevision:
    if absent is not None:
        raise _absence(absent)
    try:
        # Imported here: only workers that see a GPU pay for torch.
        from gnnserve_worker.gpu.served import serve_on_gpu  # noqa: PLC0415
    except ImportError as error:
        raise DeviceError(
            f"the libraries for it are not installed ({error})", "install a torch that is built for CUDA"
        ) from error
    on_gpu = serve_on_gpu(
        loaded, served, settings.cache, settings.memory_bytes, may_fall_back=settings.device is Device.AUTO
    )
    _require_unwritten(loaded)
    return on_gpu


def _require_unwritten(loaded: LoadedRevision) -> None:
    """Raises RepositoryError: what the GPU has copies of may not be what was verified, and copies stay when files are
    put back. So it does where only a file's owner was set: a write may hide in that."""
    # Imported here, as above.
    from gnnserve_worker.repository.watched import Change  # noqa: PLC0415

    for finding in () if loaded.files is None else loaded.files.look():
        if finding.change is not Change.MOVED:
            raise RepositoryError(
                finding.path,
                f"{finding.words}, while it was being copied to the GPU",
                "published files must never change: find out who writes there, then load again",
            )


def _absence(why: str) -> DeviceError:
    return DeviceError(why, "run it where there is one, or with spec.worker.device (--device) CPU")


def why_no_gpu(environ: Mapping[str, str], devices: Path) -> str | None:
    """None: there seems to be one that this process may use. CUDA itself has the last word."""
    visible = environ.get(_VISIBLE_VARIABLE)
    # CUDA reads the list up to the first that there is not.
    if visible is not None and visible.split(",")[0].strip() in ("", "-1", "none", "void", "NoDevFiles"):
        return f"{_VISIBLE_VARIABLE} is {visible!r}, which hides every GPU"
    if not any((devices / name).exists() for name in _DRIVER_FILES):
        return f"none is seen: there is no {devices / _DRIVER_FILES[0]}"
    return None


Word = TypeVar("Word", Device, CachePolicy)


def _word(environ: Mapping[str, str], variable: str, default: Word) -> Word:
    text = environ.get(variable) or default.value
    kind = type(default)
    try:
        return kind(text)
    except ValueError:
        raise InputError(
            f"environment variable {variable}", f"{text!r} is unknown", f"choose from {', '.join(kind)}"
        ) from None


def _bytes(environ: Mapping[str, str], variable: str) -> int | None:
    text = environ.get(variable) or None
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise InputError(f"environment variable {variable}", f"{text!r} is no number of bytes", "as in 8589934592")
    return int(text)
