"""Fewer feature columns of listed layers: which come first of each type, and weights that are given fitted to them.

Which tensors read features follows from their shapes: those whose last axis grows with the columns of a type. A matrix
over several aggregates reads as many blocks of them, and a head reads them before what layers give.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import scipy.sparse as sp

from gnnserve_api.errors import InputError
from gnnserve_api.files.graph_schema import GraphSchema
from gnnserve_api.files.layers import Convolution, LayersManifest
from gnnserve_api.spec.model import Model
from gnnserve_api.spec.pruning import Pruning
from gnnserve_api.variants import check_factors
from gnnserve_worker.generation.moments import MAX_COLUMNS, standing_in
from gnnserve_worker.generation.ranking import Ranking, left_by, ranking_of, ranking_over_types
from gnnserve_worker.generation.relation_channels import nodes_seen
from gnnserve_worker.generation.training_set import TrainingSet
from gnnserve_worker.layers.convolutions.projected import PROJECTED
from gnnserve_worker.layers.shapes import problems_of, tensor_shapes, widths_of
from gnnserve_worker.models.registry import Tensors

_FIELD = "spec.variants.pruning.factors"


def over_columns(layers: LayersManifest, columns: Sequence[int]) -> LayersManifest:
    """Layers over so many columns of each type."""
    return msgspec.structs.replace(layers, columns=tuple(columns))


@dataclass(frozen=True, slots=True)
class ReadColumns:
    """Columns of features that the last axis of a tensor begins with."""

    type: int
    """Place of the type whose features these are."""
    blocks: int
    """How often all of them stand there."""


@dataclass(frozen=True, slots=True)
class LayerColumns:
    """Listed layers as readers of the columns of each type of nodes."""

    layers: LayersManifest
    schema: GraphSchema
    features: tuple[int, ...]
    """Columns of each type; 0: it has no features."""

    def readers(self) -> dict[str, ReadColumns]:
        """Tensors that read features, by their keys: each those of one type."""
        own, found = self._shapes(self.features), dict[str, ReadColumns]()
        for kind in self.featured:
            for key, shape in self._shapes(self._wider(kind)).items():
                blocks = shape[-1] - own[key][-1] if len(shape) > 1 else 0
                if blocks:
                    found[key] = ReadColumns(kind, blocks)
        return found

    def why_not_fitted(self) -> str:
        """Why weights that are given cannot be fitted to fewer columns, as a clause; empty: they can, since what reads
        columns are products of rows."""
        own = self._shapes(self.features)
        for kind in self.featured:
            more = self._shapes(self._wider(kind))
            if any(shape[:-1] != more[key][:-1] for key, shape in own.items()) or any(
                len(shape) == 1 and shape != more[key] for key, shape in own.items()
            ):
                return "weights are as wide as features that are no products of these"
        if self.layers.before or not self.layers.layers:
            return ""
        written = self._first_outputs(self.features)
        if any(self._first_outputs(self._wider(kind)) != written for kind in self.featured):
            return "the first layer gives as many columns as features have"
        for conv in self.layers.layers[0].convs:
            if conv.conv in (Convolution.GRAPH_SAGE, Convolution.GRAPH_CONV) and (
                problem := PROJECTED[conv.conv].why_not(conv)
            ):
                return f"layers[0]: conv {conv.conv}: {problem}"
        return ""

    def check(self, factors: Sequence[int], *, is_learnt: bool) -> None:
        """InputError: layers cannot read as few columns. `is_learnt`: whether weights are learnt for them."""
        if max(factors, default=1) == 1:
            return
        check_factors(factors, max(self.features))
        for factor in factors:
            if problem := self._problem_of([left_by(factor, count) for count in self.features]):
                raise InputError(_FIELD, f"{factor}: {problem}", "leave fewer columns out")
        if len(self.features) > 1 and any(self._problem_of(self._wider(kind)) for kind in self.featured):
            raise InputError(
                _FIELD, "columns of each type are chosen by themselves, and model.layers multiply those of two types "
                "by one matrix", "use [1], or give these types products in model.before",
            )  # fmt: skip
        if not is_learnt and (problem := self.why_not_fitted()):
            raise InputError(
                _FIELD, f"given weights cannot be fitted to fewer columns: {problem}",
                "use [1], or leave model.checkpoint out, so that networks are trained for them",
            )  # fmt: skip

    def ranking(self, pruning: Pruning, tensors: Tensors, data: TrainingSet, model: Model, seed: int) -> Ranking:
        """Order of the columns of each type by what reads them, most important first."""
        of = ranking_over_types if len(self.features) > 1 else ranking_of
        return of(pruning, _RankedColumns(self, tensors, data, model), seed)

    def weights(self, tensors: Tensors) -> list[np.ndarray]:
        """All that a column of each type is multiplied by, float32 [columns, weights]."""
        readers = self.readers()
        if not readers:
            raise InputError(
                "spec.variants.pruning.method", "ranks columns by weights, and no weights of the layers read features",
                "use Random",
            )  # fmt: skip

        def of_type(kind: int, columns: int) -> np.ndarray:
            read = [
                self._blocks(tensors[key], one)[0].reshape(-1, columns).T
                for key, one in readers.items()
                if one.type == kind
            ]
            return np.concatenate([np.zeros((columns, 0), np.float32), *read], axis=1)

        return [of_type(kind, columns) for kind, columns in enumerate(self.features)]

    def moments(self, data: TrainingSet, kind: int, nodes: np.ndarray, *, is_centred: bool) -> np.ndarray:
        """Second moments of the columns of a type over some of its nodes, float32 [columns, columns]."""
        if self.features[kind] > MAX_COLUMNS:
            raise InputError(
                "spec.variants.pruning", f"measures all columns together, and there are {self.features[kind]:,}; up to "
                f"{MAX_COLUMNS:,} are", "use Greedy, without model.checkpoint",
            )  # fmt: skip
        scaled = data.features[kind]
        assert scaled is not None  # noqa: S101 - asked of types with features alone
        features = scaled.features[nodes]
        rows = np.asarray(features.toarray() if sp.issparse(features) else features, np.float32)
        rows = rows - rows.mean(axis=0) if is_centred else rows
        found: np.ndarray = rows.T @ rows / np.float32(max(1, len(rows)))
        return found

    def fitted(self, tensors: Tensors, kept: Sequence[np.ndarray], data: TrainingSet, model: Model) -> Tensors:
        """Weights over the kept columns of each type (ids, in their order), which stand in for the others as far as
        these can be told by them."""
        nodes = nodes_seen(model, data)
        standing = {kind: self._standing_in(kind, kept[kind], data, nodes[kind]) for kind in self.featured}
        readers = self.readers()

        def fit(tensor: np.ndarray, read: ReadColumns) -> np.ndarray:
            own, (blocks, beside) = kept[read.type], self._blocks(tensor, read)
            dropped = np.setdiff1d(np.arange(self.features[read.type]), own)
            whole: np.ndarray = blocks[..., own] + blocks[..., dropped] @ standing[read.type].T
            joined = np.concatenate([whole.reshape(*tensor.shape[:-1], -1), beside], axis=-1)
            return np.ascontiguousarray(joined, np.float32)

        return {key: fit(tensor, readers[key]) if key in readers else tensor for key, tensor in tensors.items()}

    def _standing_in(self, kind: int, kept: np.ndarray, data: TrainingSet, nodes: np.ndarray) -> np.ndarray:
        """What the kept columns of a type tell of the others, float64 [kept, others]."""
        dropped = np.setdiff1d(np.arange(self.features[kind]), kept)
        moments = self.moments(data, kind, nodes, is_centred=False).astype(np.float64)
        return standing_in(moments[np.ix_(kept, kept)], moments[np.ix_(kept, dropped)], np.eye(len(dropped)))

    def _blocks(self, tensor: np.ndarray, read: ReadColumns) -> tuple[np.ndarray, np.ndarray]:
        """Its blocks of columns of features, [..., blocks, columns], and what stands behind them."""
        columns = self.features[read.type]
        end = read.blocks * columns
        return tensor[..., :end].reshape(*tensor.shape[:-1], read.blocks, columns), tensor[..., end:]

    @property
    def featured(self) -> list[int]:
        """Places of the types that have features."""
        return [kind for kind, columns in enumerate(self.features) if columns]

    def _wider(self, kind: int) -> tuple[int, ...]:
        """Columns of each type, with one more of that one."""
        return tuple(columns + (place == kind) for place, columns in enumerate(self.features))

    def _problem_of(self, columns: Sequence[int]) -> str:
        """What is wrong with the layers over so many columns of each type; empty: nothing."""
        fewer = over_columns(self.layers, columns)
        return next(iter(problems_of(fewer, self.schema, fewer.columns)), "")

    def _shapes(self, columns: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        return tensor_shapes(over_columns(self.layers, columns), self.schema, columns)

    def _first_outputs(self, columns: tuple[int, ...]) -> dict[int, int]:
        return dict(widths_of(over_columns(self.layers, columns), self.schema, columns).layers[0].outputs)


@dataclass(frozen=True, slots=True)
class _RankedColumns:
    """Listed layers with their weights, as ranking asks about their columns."""

    read: LayerColumns
    tensors: Tensors
    data: TrainingSet
    model: Model

    @property
    def columns(self) -> Sequence[int]:
        return self.read.features

    def sizes(self) -> Sequence[np.ndarray]:
        return [np.abs(weights).sum(axis=1) for weights in self.read.weights(self.tensors)]

    def grams(self) -> Sequence[np.ndarray]:
        weights = self.read.weights(self.tensors)
        nodes = [self.data.splits.train, *nodes_seen(self.model, self.data)[1:]]
        found = [np.zeros((0, 0), np.float32) for _ in self.columns]
        for kind in self.read.featured:
            covariance = self.read.moments(self.data, kind, nodes[kind], is_centred=True)
            found[kind] = covariance * (weights[kind] @ weights[kind].T)
        return found
