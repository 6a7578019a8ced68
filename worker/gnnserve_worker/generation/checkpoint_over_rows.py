"""Given weights of a network over rows of nodes, with one list of neighbours, held against manifest and graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from gnnserve_api.spec.model import Architecture, Model, column_blocks
from gnnserve_worker.generation.checkpoint_description import architecture_of, looks, refusal_of
from gnnserve_worker.generation.checkpoint_layout import CheckpointLayout, LayoutError, layout_of
from gnnserve_worker.generation.checkpoint_settings import needed_settings, sizes_of, tells_hops
from gnnserve_worker.models.architecture import Axis
from gnnserve_worker.models.layer_kind import Shapes
from gnnserve_worker.models.registry import Tensors, head_sizes, spec_of
from gnnserve_worker.readers.description import describe
from gnnserve_worker.readers.misfit import MisfitError


@dataclass(frozen=True, slots=True)
class WantedOverRows:
    """A `checkpoint.WantedNetwork`."""

    model: Model
    columns: int
    """What its first layer reads of a node."""
    classes: int
    columns_remedy: str | None = None
    """What to change where it reads other columns, which replaces `{}`; None: the graph is another one."""

    def fit(self, tensors: Tensors) -> Tensors:
        architecture = self._fitting_architecture(tensors)
        layout = layout_of(tensors, architecture)
        renamed = {key: tensors[found] for key, found in layout.keys.items()}
        needed = self._needed({key: tensor.shape for key, tensor in renamed.items()}, architecture)
        if architecture is not self.model.architecture:
            says = looks(describe({key: tensor.shape for key, tensor in tensors.items()}))
            problem = f"{says}, so it holds a {architecture}, and spec.model.architecture is {self.model.architecture}"
            raise MisfitError(problem, needed)
        self._check(renamed, layout, needed)
        return renamed

    def _fitting_architecture(self, tensors: Tensors) -> Architecture:
        """The architecture that all layers of the file are of. MisfitError: there is none, and what would help."""
        description = describe({key: tensor.shape for key, tensor in tensors.items()})
        if (refusal := refusal_of(description)) is None:
            return _known(architecture_of(description))
        if refusal.shapes is None:
            raise MisfitError(refusal.problem, refusal.remedy)
        # Once its tensors have other names, nothing else may be in the way.
        architecture = _known(architecture_of(describe(refusal.shapes)))
        try:
            layout = layout_of(refusal.shapes, architecture)
        except LayoutError as error:
            problem = f"{refusal.problem}, and {error.problem}"
            raise MisfitError(problem, f"{refusal.remedy}; {error.remedy}") from None
        needed = self._needed({key: refusal.shapes[found] for key, found in layout.keys.items()}, architecture)
        raise MisfitError(refusal.problem, f"{refusal.remedy}, and {needed}" if needed else refusal.remedy)

    def _needed(self, shapes: Shapes, architecture: Architecture) -> str:
        """All that has to change, in one sentence; empty: nothing. `shapes`: under torch_geometric's keys. MisfitError:
        nothing that a manifest can say fits."""
        model = self.model
        layers = 1 + max(int(key.split(".")[1]) for key in shapes)
        sizes = sizes_of(shapes, architecture, layers)
        features = self.columns // column_blocks(model.architecture, model.network(1).hops)
        needed = needed_settings(sizes, architecture, model, features)
        inputs, outputs = sizes.of(Axis.INPUTS), sizes.of(Axis.OUTPUTS)
        fits = tells_hops(architecture) and any("spec.model.hops" in one for one in needed)
        expected = features if architecture is not model.architecture else self.columns
        if inputs and inputs[0] != expected and not fits:
            of_graph = f"the graph has {expected} feature columns: give the graph that the model was trained on"
            needed.append(of_graph if self.columns_remedy is None else self.columns_remedy.format(inputs[0]))
        if outputs and outputs[-1] != self.classes:
            needed.append(_other_classes(outputs[-1], self.classes))
        return ", and ".join(needed)

    def _check(self, tensors: Mapping[str, np.ndarray], layout: CheckpointLayout, needed: str) -> None:
        """Check names and shapes. Messages use the names in the file. `needed`: all that has to change, which each of
        them advises together."""
        layers, stated, expected = len(layout.layers), len(self.model.fanouts), self._expected()
        module = f"torch_geometric.nn.{spec_of(self.model.architecture).module}"
        whole = f"the whole state dict of a {module}"
        if layers != stated:
            raise MisfitError(f"has {layers} layers, and spec.model.fanouts has {stated} entries", needed)
        for key, shape in expected.items():
            if key not in tensors:
                there = ", ".join(sorted(layout.keys.values()))
                problem = f"has no {layout.shown(key)}, expected it {list(shape)}; it has {there}"
                raise MisfitError(problem, f"save {whole}{f', and {needed}' if needed else ''}")
            if tensors[key].shape != shape:
                problem = f"{layout.shown(key)} is {list(tensors[key].shape)}, expected {list(shape)}"
                raise MisfitError(problem, needed or f"save {whole}")
        if beyond := sorted(layout.keys[key] for key in tensors.keys() - expected.keys()):
            problem = f"has {', '.join(beyond)}, which a {module} does not have"
            raise MisfitError(problem, needed or f"save {whole}")

    def _expected(self) -> dict[str, tuple[int, ...]]:
        model, network = self.model, self.model.network(self.classes)
        widths = [self.columns, *[model.hidden] * (len(model.fanouts) - 1), self.classes]
        shapes: dict[str, tuple[int, ...]] = {}
        for layer, (inputs, outputs) in enumerate(pairwise(widths)):
            sizes = {
                **head_sizes(network, layer, outputs), Axis.INPUTS: inputs, Axis.INNER: model.mlp_hidden or outputs,
                Axis.OUTPUTS: outputs, Axis.ONE: 1,
            }  # fmt: skip
            shapes |= spec_of(model.architecture).shapes_of(layer, sizes)
        return shapes


def _known(architecture: Architecture | None) -> Architecture:
    if architecture is None:
        raise ValueError("layers that are not refused are of one architecture")
    return architecture


def _other_classes(found: int, classes: int) -> str:
    has = f"the labels of the graph have {classes} classes, and the model gives {found}"
    if found == 1:
        return f"{has}, as a regression does, or one logit for two classes: neither is served yet"
    more = found > classes
    return f"{has}: {'label a node of each class' if more else 'give the labels that the model was trained on'}"
