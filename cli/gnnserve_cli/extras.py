"""Packages of the optional extras: only the commands that use them need them.

`pictures` brings numpy and 60 MB, `export` what translates and runs ONNX.
"""

from __future__ import annotations

import importlib.util

from gnnserve_api.errors import ResourceError


def require_pictures(option: str, *packages: str) -> None:
    """Raises where pictures cannot be made. It is called before the work that they show, whose end is too late to learn
    that."""
    _require("pictures", option, *packages)


def require_onnx(option: str) -> None:
    """Raises where ONNX cannot be written and compared."""
    _require("export", option, "onnx", "onnxscript", "onnxruntime")


def require_describing() -> None:
    """Raises where models cannot be described."""
    _require("describe", "model describe", "onnx", "onnxscript", "onnxruntime", "safetensors")
    _require("worker", "model describe", "torch")


def _require(extra: str, option: str, *packages: str) -> None:
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise ResourceError(
                f"{option}: needs {package}, which is not installed; `pip install 'gnnserve[{extra}]'` brings it"
            )
