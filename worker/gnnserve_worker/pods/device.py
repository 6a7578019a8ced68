"""The device that a worker computes on: the only module that imports `gpu/`, and only where a GPU is seen.

Detecting one imports nothing; torch takes two seconds and 290 MB, which a worker without a GPU should not pay.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from gnnserve_api.device import CachePolicy, Device
from gnnserve_api.errors import NO_GPU, DeviceError, InputError, RepositoryError
from gnnserve_api.extras import GPU
from gnnserve_api.files.device_layers import why_not_on_gpu
from gnnserve_api.pods.interface import CACHE_VARIABLE, DEVICE_VARIABLE, GPU_MEMORY_VARIABLE
from gnnserve_api.spec.device_rules import why_not_on_gpu as spec_problem_on_gpu
from gnnserve_worker.inference.device_stats import DeviceStats

if TYPE_CHECKING:
    from gnnserve_api.spec.service import GNNServiceSpec
    from gnnserve_worker.inference.living import LivingRevision
    from gnnserve_worker.inference.served import ServedRevision
    from gnnserve_worker.opening.loaded import LoadedRevision

NO_GPU_SEEN = f"{NO_GPU}: none is seen"
"""How `DeviceStats.problem` begins where there is no GPU, which is not an error."""
_DRIVER_FILES = ("nvidiactl", "nvidia0", "dxg")
"""Names in /dev of which a GPU driver creates at least one; the last is that of Windows' subsystem for Linux."""
_VISIBLE_VARIABLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True)
class DeviceSettings:
    device: Device = Device.AUTO
    cache: CachePolicy = CachePolicy.FREQUENCY
    memory_bytes: int | None = None
    """Limit for everything that the worker allocates of the GPU's memory; None: all that is free."""

    @staticmethod
    def read(environ: Mapping[str, str]) -> DeviceSettings:
        return DeviceSettings(
            _word(environ, DEVICE_VARIABLE, Device.AUTO),
            _word(environ, CACHE_VARIABLE, CachePolicy.FREQUENCY),
            _bytes(environ, GPU_MEMORY_VARIABLE),
        )


def require_device(
    settings: DeviceSettings, spec: GNNServiceSpec, environ: Mapping[str, str] = os.environ,
    devices: Path = Path("/dev"),
) -> None:  # fmt: skip
    """Raise the DeviceError that `open_served` would raise, before long work that precedes it."""
    if settings.device is not Device.GPU:
        return
    absent = why_no_gpu(environ, devices)
    if absent is not None:
        raise _absence(absent)
    if (problem := spec_problem_on_gpu(spec)) is not None:
        raise DeviceError(problem, "use spec.worker.device (--device) Auto or CPU")


def open_served(
    loaded: LoadedRevision,
    settings: DeviceSettings,
    environ: Mapping[str, str] = os.environ,
    devices: Path = Path("/dev"),
    replica: LivingRevision | None = None,
) -> ServedRevision:
    """Open a revision on the device that the settings want. `replica`: what applies changes to it, if anything does.
    Raises DeviceError where the GPU is wanted and cannot be used, DeviceLostError where this process can never use it
    again."""
    # Imported here: it takes a second, and `serve.py` reads its settings before that.
    from gnnserve_worker.inference.opening import served_revision  # noqa: PLC0415

    served = served_revision(loaded, replica)
    if settings.device is Device.CPU:
        return served
    try:
        return _on_gpu(loaded, served, settings, why_no_gpu(environ, devices))
    except DeviceError as error:
        if settings.device is Device.GPU:
            raise
        stats = DeviceStats("CPU", problem=str(error))
    return replace(served, compute=replace(served.compute, device_stats=lambda: stats))


def _on_gpu(
    loaded: LoadedRevision, served: ServedRevision, settings: DeviceSettings, absent: str | None
) -> ServedRevision:
    if absent is not None:
        raise _absence(absent)
    if loaded.programs:
        # Imported here: only servers of programs need it.
        from gnnserve_worker.inference.program_device import programs_on_gpu  # noqa: PLC0415

        return programs_on_gpu(loaded, served, settings.memory_bytes)
    from gnnserve_worker.models.network import Layer  # noqa: PLC0415

    # Layers by relation have no kernels there.
    require_listed_layers(loaded)
    layers = [layer for variant in loaded.variants.values() for layer in variant.network.layers]
    if not all(isinstance(layer, Layer) for layer in layers):
        raise DeviceError(
            "graphs of several types are computed on the CPU alone", "use spec.worker.device (--device) CPU"
        )
    try:
        # Imported here: only workers that see a GPU pay for torch.
        from gnnserve_worker.gpu.served import serve_on_gpu  # noqa: PLC0415
    except ImportError as error:
        raise DeviceError(
            f"the libraries for it are not installed ({error})", f"install a torch that is built for CUDA: {GPU.remedy}"
        ) from error
    on_gpu = serve_on_gpu(
        loaded, served, settings.cache, settings.memory_bytes, may_fall_back=settings.device is Device.AUTO
    )
    _require_unwritten(loaded)
    return on_gpu


def require_listed_layers(loaded: LoadedRevision) -> None:
    """Raise DeviceError where variants are of listed layers that a GPU does not compute. Before memory is planned."""
    # Imported here, as above.
    from gnnserve_worker.models.program import ProgramNetwork  # noqa: PLC0415

    for name, variant in loaded.variants.items():
        if isinstance(variant.network, ProgramNetwork):
            problem = why_not_on_gpu(variant.network.program, variant.network.schema)
            if problem:
                raise DeviceError(
                    f"it does not compute the layers of {name}: {problem}", "use spec.worker.device (--device) CPU"
                )


def _require_unwritten(loaded: LoadedRevision) -> None:
    """Raise RepositoryError if files may have changed while they were copied to the GPU, since copies stay when files
    are restored. A change of owner counts too: it may hide a write."""
    # Imported here, as above.
    from gnnserve_worker.repository.watched import FileChange  # noqa: PLC0415

    for finding in () if loaded.origin.files is None else loaded.origin.files.look():
        if finding.change is not FileChange.MOVED:
            raise RepositoryError(
                finding.path,
                f"{finding.words}, while it was being copied to the GPU",
                "published files must never change: find out who writes there, then load again",
            )


def _absence(why: str) -> DeviceError:
    return DeviceError(why, "run it where there is one, or with spec.worker.device (--device) CPU")


def why_no_gpu(environ: Mapping[str, str], devices: Path) -> str | None:
    """Why no GPU can be used; None: there seems to be one. Only CUDA itself can tell for sure."""
    visible = environ.get(_VISIBLE_VARIABLE)
    # CUDA reads the list up to the first device that does not exist.
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
