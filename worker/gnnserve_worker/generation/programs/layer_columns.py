"""Fewer feature columns of listed layers over one type: which come first, and weights that are given fitted to them.

Which tensors read features follows from their shapes: those whose last axis grows with the columns. A matrix over
several aggregates reads as many blocks of them, and a head reads them before what layers give.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

import msgspec
import numpy as np
import scipy.sparse as sp

from gnnserve_api.errors import InputError
from gnnserve_api.files.graph_schema import GraphSchema
from gnnserve_api.files.layers import Convolution, LayersManifest
from gnnserve_api.spec.model import Scope
from gnnserve_api.spec.pruning import Pruning, RankingMethod
from gnnserve_api.variants import check_factors, columns_of
from gnnserve_worker.generation.moments import MAX_COLUMNS, sample_nodes, standing_in
from gnnserve_worker.generation.ranking import Ranking, rank_at_random, rank_by_lasso
from gnnserve_worker.generation.training_set import TrainingSet, visible_nodes
from gnnserve_worker.layers.convolutions.projected import PROJECTED
from gnnserve_worker.layers.shapes import problems_of, tensor_shapes, widths_of
from gnnserve_worker.models.registry import Tensors

_FIELD = "spec.variants.pruning.factors"


def over_columns(layers: LayersManifest, columns: int) -> LayersManifest:
    """Layers over so many columns of the one type."""
    return msgspec.structs.replace(layers, columns=(columns,))


@dataclass(frozen=True, slots=True)
class LayerColumns:
    """Listed layers as readers of the columns of one type."""

    layers: LayersManifest
    schema: GraphSchema
    features: int

    def readers(self) -> dict[str, int]:
        """Blocks of columns of features that the last axis of a tensor begins with, by its key."""
        own, more = self._shapes(self.features), self._shapes(self.features + 1)
        blocks = {key: more[key][-1] - shape[-1] for key, shape in own.items() if len(shape) > 1}
        return {key: count for key, count in blocks.items() if count}

    def why_not_fitted(self) -> str:
        """Why weights that are given cannot be fitted to fewer columns, as a clause; empty: they can, since what reads
        columns are products of rows."""
        own, more = self._shapes(self.features), self._shapes(self.features + 1)
        if any(shape[:-1] != more[key][:-1] or (len(shape) == 1 and shape != more[key]) for key, shape in own.items()):
            return "weights are as wide as features that are no products of these"
        if self.layers.before or not self.layers.layers:
            return ""
        written, wider = (self._first_outputs(columns) for columns in (self.features, self.features + 1))
        if written != wider:
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
        check_factors(factors, self.features)
        for factor in factors:
            fewer = over_columns(self.layers, columns_of(self.features, factor))
            if problems := problems_of(fewer, self.schema, fewer.columns):
                raise InputError(_FIELD, f"{factor}: {problems[0]}", "leave fewer columns out")
        if not is_learnt and (problem := self.why_not_fitted()):
            raise InputError(
                _FIELD, f"given weights cannot be fitted to fewer columns: {problem}",
                "use [1], or leave model.checkpoint out, so that networks are trained for them",
            )  # fmt: skip

    def rank(self, pruning: Pruning, tensors: Tensors, data: TrainingSet, seed: int) -> Ranking:
        """Order of the columns by what reads them, most important first."""
        match pruning.method:
            case RankingMethod.RANDOM:
                return Ranking(rank_at_random(self.features, seed), {"seed": seed})
            case RankingMethod.GREEDY:
                return Ranking(np.argsort(-np.abs(self._weights(tensors)).sum(axis=1), kind="stable"), {})
            case RankingMethod.LASSO:
                weights = self._weights(tensors)
                covariance = self._moments(data, data.splits.train, is_centred=True)
                columns = rank_by_lasso(covariance * (weights @ weights.T), pruning.lasso)
                settings = pruning.lasso.model_dump(by_alias=True)
                return Ranking(columns, {key: float(value) for key, value in settings.items()})
            case _:
                assert_never(pruning.method)

    def fitted(self, tensors: Tensors, kept: np.ndarray, data: TrainingSet, nodes: np.ndarray) -> Tensors:
        """Weights over the kept columns (ids, in their order), which stand in for the others as far as these can be
        told by them. `nodes`: those that it is fitted over."""
        dropped = np.setdiff1d(np.arange(self.features), kept)
        moments = self._moments(data, nodes, is_centred=False).astype(np.float64)
        identity = np.eye(len(dropped))
        stands_in = standing_in(moments[np.ix_(kept, kept)], moments[np.ix_(kept, dropped)], identity)
        readers = self.readers()

        def fit(tensor: np.ndarray, count: int) -> np.ndarray:
            blocks, beside = self._blocks(tensor, count)
            whole: np.ndarray = blocks[..., kept] + blocks[..., dropped] @ stands_in.T
            joined = np.concatenate([whole.reshape(*tensor.shape[:-1], -1), beside], axis=-1)
            return np.ascontiguousarray(joined, np.float32)

        return {key: fit(tensor, readers[key]) if key in readers else tensor for key, tensor in tensors.items()}

    def _blocks(self, tensor: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Its blocks of columns of features, [..., blocks, columns], and what stands behind them."""
        end = count * self.features
        return tensor[..., :end].reshape(*tensor.shape[:-1], count, self.features), tensor[..., end:]

    def _weights(self, tensors: Tensors) -> np.ndarray:
        """All that a column is multiplied by, float32 [columns, weights]."""
        read = [
            self._blocks(tensors[key], count)[0].reshape(-1, self.features).T for key, count in self.readers().items()
        ]
        if not read:
            raise InputError(
                "spec.variants.pruning.method", "ranks columns by weights, and no weights of the layers read features",
                "use Random",
            )  # fmt: skip
        return np.concatenate(read, axis=1)

    def _moments(self, data: TrainingSet, nodes: np.ndarray, *, is_centred: bool) -> np.ndarray:
        """Second moments of the columns over some nodes, float32 [columns, columns]."""
        if self.features > MAX_COLUMNS:
            raise InputError(
                "spec.variants.pruning", f"measures all columns together, and there are {self.features:,}; up to "
                f"{MAX_COLUMNS:,} are", "use Greedy, without model.checkpoint",
            )  # fmt: skip
        features = data.normalized.features[nodes]
        rows = np.asarray(features.toarray() if sp.issparse(features) else features, np.float32)
        rows = rows - rows.mean(axis=0) if is_centred else rows
        found: np.ndarray = rows.T @ rows / np.float32(max(1, len(rows)))
        return found

    def _shapes(self, columns: int) -> dict[str, tuple[int, ...]]:
        return tensor_shapes(over_columns(self.layers, columns), self.schema, (columns,))

    def _first_outputs(self, columns: int) -> dict[int, int]:
        return dict(widths_of(over_columns(self.layers, columns), self.schema, (columns,)).layers[0].outputs)


def fitted_over(data: TrainingSet, scope: Scope, seed: int) -> np.ndarray:
    """Nodes that weights are fitted over, int64."""
    return sample_nodes(visible_nodes(data.graph.nodes, data.splits, scope), seed)
