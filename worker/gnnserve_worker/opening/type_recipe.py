"""Recipe of rows of new nodes that a revision over several types keeps: the features of each type, and how they were
scaled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from msgspec import UNSET

from gnnserve_api.files.graph_schema import GraphSchema
from gnnserve_api.files.repository import RowSource
from gnnserve_api.spec.graph import Normalization
from gnnserve_worker.graph.feature_columns import FeatureColumns
from gnnserve_worker.models.architecture import moment_key
from gnnserve_worker.models.feature_products import Scaling
from gnnserve_worker.opening.loaded import TypeRowRecipe


@dataclass(frozen=True, slots=True)
class TypeRecipe:
    types: tuple[TypeRowRecipe, ...]
    scalings: tuple[Scaling, ...]
    """How features of each type were scaled."""
    tensors: Mapping[str, np.ndarray]
    """All that rows are made by."""


def type_recipe(
    source: RowSource,
    schema: GraphSchema,
    tensors: Mapping[str, np.ndarray],
    default_of: Callable[[int], np.ndarray],
) -> TypeRecipe:
    """`default_of`: by the place of a type without features, what new nodes of it begin with. KeyError and ValueError:
    something is missing, or does not fit."""
    assert source.types is not UNSET  # noqa: S101 - of several types
    types: list[TypeRowRecipe] = []
    scalings, columns = list[Scaling](), list(source.columns)
    for place, (kind, rows) in enumerate(zip(schema.types, source.types, strict=True)):
        if rows.normalization is None:
            types.append(TypeRowRecipe(None, default_of(place)))
            scalings.append(Scaling(Normalization.DISABLED))
            continue
        mean, deviation = (tensors.get(moment_key(place, moment)) for moment in ("mean", "deviation"))
        own, columns = columns[: rows.columns], columns[rows.columns :]
        scaling = Scaling(Normalization(rows.normalization), mean, deviation)
        scaling.check(kind.features or 0)
        scalings.append(scaling)
        types.append(TypeRowRecipe(FeatureColumns(kind.features or 0, tuple(own)), None))
    return TypeRecipe(tuple(types), tuple(scalings), tensors)
