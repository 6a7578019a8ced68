"""Extras of the distribution: which packages each brings, and the sentence for one that is not installed.

`pyproject.toml` declares the versions; tests/tools/test_extras.py holds both lists together. Code that needs a package
of an extra either asks before long work (`require`), or lets the import fail: the edges of programs turn the error into
the same sentence (`lack_of_package`).
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

from gnnserve_api.errors import ResourceError


@dataclass(frozen=True, slots=True)
class Extra:
    """Optional requirements of the distribution, installed as `gnnserve[name]`."""

    name: str
    packages: tuple[str, ...]
    """Packages that it brings beside those of other extras that it includes, as they are imported."""
    includes: tuple[Extra, ...] = ()
    image: str = ""
    """Target of the Dockerfile whose image has it; empty: every image of workers has it, or none needs it."""

    def brings(self, package: str) -> bool:
        return package in self.packages or any(of.brings(package) for of in self.includes)

    @property
    def remedy(self) -> str:
        """Next step where a package of it is missing."""
        in_cluster = f", and in a cluster an image of target `{self.image}`" if self.image else ""
        return f"`pip install 'gnnserve[{self.name}]'` brings it{in_cluster}"

    def words(self, package: str) -> str:
        return f"{package}, which is not installed; {self.remedy}"

    def require(self, what: str, *packages: str) -> None:
        """Raise ResourceError where a package of the extra is missing that `what` needs. `packages`: those that it
        needs; none: all of the extra."""
        for package in packages or self.packages:
            if is_missing(package):
                raise ResourceError(f"{what}: needs {self.words(package)}")


CLI = Extra("cli", ("httptools", "httpx", "rich", "typer"))
SERVE = Extra(
    "serve",
    (
        "faiss", "fastapi", "google.protobuf", "grpc", "grpc_reflection", "llvmlite", "numba", "numpy", "orjson",
        "prometheus_client", "psycopg", "safetensors", "scipy", "swagger_ui_bundle", "threadpoolctl", "uvloop",
    ),
    (CLI,),
)  # fmt: skip
GENERATE = Extra("generate", ("pyarrow", "sklearn", "torch", "torch_geometric"), (SERVE,), "generate")
GPU = Extra("gpu", ("torch", "triton"), (SERVE,), "worker-gpu")
OPERATOR = Extra("operator", ("aiohttp", "kopf", "prometheus_client"))
CLIENT = Extra("client", ("httpx", "numpy"))
PICTURES = Extra("pictures", ("jinja2", "matplotlib"))
PROGRAMS = Extra("programs", ("onnx", "onnxruntime"))
EXPORT = Extra("export", ("onnx", "onnxruntime", "onnxscript"))
DESCRIBE = Extra("describe", ("numpy", "onnx", "onnxruntime", "onnxscript", "safetensors"))
TRACING = Extra("tracing", ("opentelemetry.exporter.otlp.proto.http", "opentelemetry.sdk"))

EXTRAS = (CLI, SERVE, GENERATE, GPU, OPERATOR, CLIENT, PICTURES, PROGRAMS, EXPORT, DESCRIBE, TRACING)
"""A missing package is told by the first that brings it."""


def is_missing(package: str) -> bool:
    """Whether a package, named as it is imported, is not installed. It is not imported."""
    try:
        return importlib.util.find_spec(package) is None
    except ModuleNotFoundError:  # of the package that it is in
        return True


def lack_of_package(error: BaseException, needed: Extra | None = None) -> str | None:
    """The package that was to be imported, with what brings it; None: the error is another one, or of a package that no
    extra brings. `needed`: the extra to be told, if it brings the package."""
    if not isinstance(error, ModuleNotFoundError):
        return None
    for extra in EXTRAS:
        for package in extra.packages:
            # Where no distribution has the folder that several share, such as `google`, that folder is what is told.
            if f"{package}.".startswith(f"{error.name}.") and is_missing(package):
                return (needed if needed is not None and needed.brings(package) else extra).words(package)
    return None
