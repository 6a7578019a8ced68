"""The fields of an architecture that a file of weights fits as it is, if it fits any: `gnnserve model inspect` writes
them, since architectures have more variants than layers that are listed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from pydantic import ValidationError

from gnnserve_api.spec.model import Architecture, Model
from gnnserve_worker.generation.checkpoint_description import architecture_of, refusal_of
from gnnserve_worker.generation.checkpoint_layout import layout_of
from gnnserve_worker.generation.checkpoint_over_relations import fields_over_relations
from gnnserve_worker.generation.checkpoint_over_rows import WantedOverRows
from gnnserve_worker.generation.checkpoint_settings import samples_nothing, sizes_of, tells_hops
from gnnserve_worker.models.architecture import Axis
from gnnserve_worker.models.registry import spec_of
from gnnserve_worker.readers.description import describe
from gnnserve_worker.readers.misfit import MisfitError
from gnnserve_worker.readers.parts import shapes_of


def architecture_fields(tensors: Mapping[str, np.ndarray]) -> dict[str, Any] | None:
    """Fields of `spec.model`, all neighbours read; None: the file is of no architecture."""
    if (fields := fields_over_relations(shapes_of(tensors))) is not None:
        return fields
    description = describe(shapes_of(tensors))
    if refusal_of(description) is not None or (architecture := architecture_of(description)) is None:
        return None
    try:
        layout = layout_of(tensors, architecture)
        shapes = {key: tensors[found].shape for key, found in layout.keys.items()}
        sizes = sizes_of(shapes, architecture, len(layout.layers))
        inputs, outputs = sizes.of(Axis.INPUTS), sizes.of(Axis.OUTPUTS)
        fields = _fields(architecture, len(layout.layers), outputs, sizes.of(Axis.HEADS), sizes.of(Axis.INNER))
        WantedOverRows(Model.model_validate(fields), inputs[0], outputs[-1]).fit(dict(tensors))
    except (MisfitError, ValidationError, IndexError):
        return None
    return fields


def _fields(
    architecture: Architecture, layers: int, outputs: list[int], heads: list[int], inner: list[int]
) -> dict[str, Any]:
    fields: dict[str, Any] = {"architecture": str(architecture)}
    if layers > 1:
        fields["hidden"] = outputs[0]
    if heads:
        fields |= {"heads": heads[0], "outputHeads": heads[-1]}
    if inner and inner != outputs:
        fields["mlpHidden"] = inner[0]
    if "hops" in spec_of(architecture).own_fields:
        fields["hops"] = 0 if tells_hops(architecture) else 2
    return {**fields, "fanouts": [0 if samples_nothing(architecture) else -1] * layers}
