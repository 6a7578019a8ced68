"""Runs a program as a server does: ONNX Runtime, one thread."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnxruntime

from gnnserve_describe.graph import GraphTensors
from gnnserve_describe.layout import InputLayout


class ProgramSession:
    def __init__(self, path: Path, layout: InputLayout) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4
        self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self._layout = layout
        self.inputs = [each.name for each in self._session.get_inputs()]
        self.fixed = {each.name: each.shape for each in self._session.get_inputs()}
        self.columns = {each.name: each.shape for each in self._session.get_outputs()}

    def run(self, graph: GraphTensors) -> Mapping[str, np.ndarray]:
        tensors = self._layout.tensors_of(graph)
        given = {
            each.name: tensor.numpy()
            for each, tensor in zip(self._layout.inputs, tensors, strict=True)
            if each.name in self.inputs
        }
        names = [each.name for each in self._session.get_outputs()]
        return dict(zip(names, self._session.run(names, given), strict=True))
