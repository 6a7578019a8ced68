"""Forms of programs: how each is written, and how it is run to be compared. One object each, found by `FORMATS`."""

from __future__ import annotations

import io
import logging
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn
from torch.export import Dim, ExportedProgram

from gnnserve_api.files.export import ExportedArray, ExportFormat
from gnnserve_worker.export.inputs import Inputs
from gnnserve_worker.export.refusals import refuse_untraced, refuse_untranslated, running_modules

Program = Callable[[Inputs], Inputs]
"""A program that was written and read back: from inputs to outputs by their names, float32 [targets, columns]."""
_TRACED_SIZE = 5
"""Sizes of inputs while a program is traced; sizes of 0 and 1 would be taken for constants."""


def trace(module: nn.Module, inputs: tuple[ExportedArray, ...]) -> ExportedProgram:
    """The module for inputs of any size. InputError: torch cannot trace it."""
    sizes = sorted({size for each in inputs for size in each.shape if isinstance(size, str)})
    # Different ones, so that no two are taken for equal.
    traced = {name: _TRACED_SIZE + number for number, name in enumerate(sizes)}
    made_up = {
        each.name: torch.zeros(
            [traced[size] if isinstance(size, str) else size for size in each.shape], dtype=getattr(torch, each.dtype)
        )
        for each in inputs
    }
    with _quietly(), running_modules(module) as running:
        try:
            program = torch.export.export(
                module.eval(), (), kwargs=made_up, dynamic_shapes={"inputs": _dynamic_shapes(inputs)}
            )
        except Exception as error:  # kinds of torch's own, which have no common base
            raise refuse_untraced(running.words, error) from error
    # They would be pickled into the archive, and are of no use to others.
    program.example_inputs = None
    return program


def _dynamic_shapes(inputs: tuple[ExportedArray, ...]) -> dict[str, dict[int, Any]]:
    names = {size for each in inputs for size in each.shape if isinstance(size, str)}
    dims = {name: Dim(name) for name in names}
    return {
        each.name: {axis: dims[size] for axis, size in enumerate(each.shape) if isinstance(size, str)}
        for each in inputs
    }


class ProgramFormat(ABC):
    format: ClassVar[ExportFormat]
    file: ClassVar[str]

    @abstractmethod
    def write(
        self, program: ExportedProgram, inputs: tuple[ExportedArray, ...], outputs: tuple[ExportedArray, ...],
        path: Path, *, sums_by_segments: bool,
    ) -> None:  # fmt: skip
        """`sums_by_segments`: as of `VariantExport`. InputError: the form has no such operation."""

    @abstractmethod
    def load(self, path: Path) -> Program:
        """Read back what was written, to run it as others will."""


class _TorchFormat(ProgramFormat):
    format = ExportFormat.TORCH
    file = "model.pt2"

    def write(
        self, program: ExportedProgram, inputs: tuple[ExportedArray, ...], outputs: tuple[ExportedArray, ...],
        path: Path, *, sums_by_segments: bool,
    ) -> None:  # fmt: skip
        # Not by torch itself, which ends the process where the disk is full.
        archive = io.BytesIO()
        torch.export.save(program, archive)
        path.write_bytes(archive.getbuffer())

    def load(self, path: Path) -> Program:
        module = torch.export.load(path).module()

        def run(inputs: Inputs) -> Inputs:
            found = module(**{name: torch.tensor(array) for name, array in inputs.items()})
            return {name: tensor.numpy() for name, tensor in found.items()}

        return run


class _OnnxFormat(ProgramFormat):
    format = ExportFormat.ONNX
    file = "model.onnx"

    def write(
        self, program: ExportedProgram, inputs: tuple[ExportedArray, ...], outputs: tuple[ExportedArray, ...],
        path: Path, *, sums_by_segments: bool,
    ) -> None:  # fmt: skip
        from gnnserve_worker.export.segments import TRANSLATIONS  # noqa: PLC0415 - of an extra

        with _quietly():
            try:
                made = torch.onnx.export(
                    program,
                    custom_translation_table=dict(TRANSLATIONS) if sums_by_segments else {},
                    output_names=[each.name for each in outputs],
                    dynamic_shapes={"inputs": _dynamic_shapes(inputs)},
                    verbose=False,
                )
            except torch.onnx.OnnxExporterError as error:
                raise refuse_untranslated(program, error) from error
        if made is None:
            raise RuntimeError("torch.onnx.export returned no program")
        made.save(path, external_data=False)

    def load(self, path: Path) -> Program:
        import onnxruntime  # noqa: PLC0415 - of an extra

        # With its own number of threads, as users run it.
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

        names = [each.name for each in session.get_outputs()]

        def run(inputs: Inputs) -> Inputs:
            return dict(zip(names, session.run(names, dict(inputs)), strict=True))

        return run


FORMATS: Mapping[ExportFormat, ProgramFormat] = {made.format: made for made in (_TorchFormat(), _OnnxFormat())}


@contextmanager
def _quietly() -> Iterator[None]:
    """What torch says of its own insides while it traces and translates is nothing to a user."""
    was_disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(was_disabled)
