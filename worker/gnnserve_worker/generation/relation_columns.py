"""Fewer feature columns of networks over relations: what `ranking.py` and `moments.py` do of those over one list.

Each type keeps a part of its own columns, those that its own importance ranks first: the first layer's matrices of all
relations that read the type, and of the type itself, count together. A type without features has the columns of its
embeddings, as the network of all columns has learnt them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from gnnserve_api.errors import InputError
from gnnserve_api.files.factors import ChosenFactors
from gnnserve_api.files.graph_schema import GraphSchema
from gnnserve_api.spec.made_variants import made_variants
from gnnserve_api.spec.model import Model
from gnnserve_api.spec.searched import SEARCHED_FACTORS
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.variants import columns_of, variant_name
from gnnserve_api.wording import in_words
from gnnserve_worker.generation.families.registry import with_factors
from gnnserve_worker.generation.families.relation_tables import States
from gnnserve_worker.generation.moments import MAX_COLUMNS
from gnnserve_worker.generation.ranking import Ranking, left_by
from gnnserve_worker.generation.relation_channels import (
    MeasuredSum,
    as_seen,
    fitted,
    grams_of,
    measured_sums,
    nodes_seen,
)
from gnnserve_worker.generation.training_set import TrainingSet, keep_columns, means_by_relation
from gnnserve_worker.graph.store import GraphData
from gnnserve_worker.models.architecture import RelationalLayer
from gnnserve_worker.progress import Progress, ProgressListener


@dataclass(frozen=True, slots=True)
class RelationalColumns:
    """The first layer of the network of all columns as a reader of those of each type."""

    model: Model
    first: RelationalLayer
    subject: TrainingSet
    states: States
    """What it reads of each type."""

    @property
    def columns(self) -> Sequence[int]:
        return [state.shape[1] for state in self.states]

    def sizes(self) -> Sequence[np.ndarray]:
        return [_weight_of(self.first, kind, width, self.subject.schema) for kind, width in enumerate(self.columns)]

    def grams(self) -> Sequence[np.ndarray]:
        field, remedy = "spec.variants.pruning.method", "use Greedy"
        return grams_of(_first_sums(self.model, self.first, self.subject, self.states, field, remedy), self.columns)


def choose_by_width(spec: GNNServiceSpec, ranking: Ranking, data: GraphData, products: int) -> ChosenFactors:
    """Leave out factors whose rows are no narrower than those of products, as wide as given: these are read by all that
    a batch samples, and multiplied by nothing."""
    of_types = ranking.widths or [len(ranking.columns)]
    widths = {factor: mean_width(data.schema, of_types, factor) for factor in made_variants(spec).optional_factors}
    left_out = tuple(factor for factor, width in widths.items() if width >= products)
    of_products = f"rows of projected have {products:,} columns"
    if not left_out:
        return ChosenFactors((), f"{of_products}, and those of all factors fewer", 0.0)
    names, found = (
        in_words([variant_name(one) for one in left_out]),
        in_words([f"{widths[one]:,.0f}" for one in left_out]),
    )
    verb = "were" if len(left_out) > 1 else "was"
    return ChosenFactors(left_out, f"{names} {verb} not trained: {of_products}, and theirs {found} on average", 0.0)


def mean_width(graph: GraphSchema, widths: Sequence[int], factor: int) -> float:
    """Columns of a row that networks of the factor read, of so many of each type: rows count as often as lists have
    their type."""
    edges = np.zeros(len(graph.types), np.int64)
    for one in graph.relations:
        edges[graph.place_of(one.source)] += one.edges
    return float(edges @ np.array([left_by(factor, width) for width in widths])) / max(1, int(edges.sum()))


def widths_of(graph: GraphSchema, model: Model) -> list[int]:
    """Columns of each type, before embeddings are learnt of those without features."""
    return [model.hidden if kind.features is None else kind.features for kind in graph.types]


def with_narrow_factors(spec: GNNServiceSpec, graph: GraphSchema, products: int) -> GNNServiceSpec:
    """The spec with the factors that a search looks at: those that leave a column, and whose rows are narrower than
    those of products, as wide as given."""
    widths = widths_of(graph, spec.model)
    return with_factors(
        spec,
        tuple(
            factor
            for factor in SEARCHED_FACTORS
            if factor > 1 and columns_of(max(widths), factor) and mean_width(graph, widths, factor) < products
        ),
    )


def _weight_of(first: RelationalLayer, kind: int, width: int, graph: GraphSchema) -> np.ndarray:
    """Sums of the absolute weights of each column of a type, float [width]."""
    name = graph.types[kind].name
    read = [matrix for place, matrix in first.relations.items() if graph.relations[place].source == name]
    read += [first.own[kind]] if kind in first.own else []
    return sum((np.abs(matrix).sum(axis=1) for matrix in read), np.zeros(width))


def _first_sums(
    model: Model, first: RelationalLayer, subject: TrainingSet, states: States, field: str, remedy: str
) -> list[MeasuredSum]:
    """What the first layer adds up of the columns of all types. InputError: too many are added up to be measured."""
    data = as_seen(subject)
    most = max(
        sum(states[data.schema.place_of(one.source)].shape[1] for one in data.relations if one.target == kind.name)
        + states[place].shape[1]
        for place, kind in enumerate(data.types)
    )
    if most > MAX_COLUMNS:
        problem = f"has columns measured together, and a type reads {most:,}; up to {MAX_COLUMNS:,} are"
        raise InputError(field, problem, remedy)
    means = [means_by_relation(data, one) for one in data.relations]
    return measured_sums(first, data, means, states, nodes_seen(model, subject), first.biases.keys())


def refit_columns(
    model: Model, layers: Sequence[RelationalLayer], kept: Sequence[np.ndarray], subject: TrainingSet, states: States,
    name: str, progress: ProgressListener,
) -> list[RelationalLayer]:  # fmt: skip
    """The network over the columns (ids) that are kept of each type, its first layer fitted to what it gives over all
    of them."""
    stage = f"refit {name}"
    progress(Progress(stage, 0, 1))
    remedy = "leave out factors above 1, or train the network (no model.checkpoint)"
    sums = _first_sums(model, layers[0], subject, states, "spec.variants.pruning.factors", remedy)
    left = fitted(layers[0], sums, kept, subject.data)
    progress(Progress(stage, 1, 1))
    return [left, *layers[1:]]


def first_columns(layer: RelationalLayer, kept: Sequence[np.ndarray], graph: GraphSchema) -> RelationalLayer:
    """A first layer over the columns (ids) that are kept of each type, in their order, with the weights it has."""
    return replace(
        layer,
        relations={
            place: np.ascontiguousarray(matrix[kept[graph.place_of(graph.relations[place].source)]])
            for place, matrix in layer.relations.items()
        },
        own={kind: np.ascontiguousarray(matrix[kept[kind]]) for kind, matrix in layer.own.items()},
    )


def with_columns(subject: TrainingSet, kept: Sequence[np.ndarray]) -> TrainingSet:
    """The same with the columns (ids) that are kept of the features of each type, of which each must have some."""
    features = [
        None if one is None else replace(one, features=keep_columns(one.features, columns))
        for one, columns in zip(subject.features, kept, strict=True)
    ]
    return replace(subject, features=features)


def schema_of_columns(graph: GraphSchema, kept: Sequence[np.ndarray]) -> GraphSchema:
    """The graph whose types have as many features as columns are kept of them."""
    kinds = zip(graph.types, kept, strict=True)
    return msgspec.structs.replace(
        graph, types=tuple(msgspec.structs.replace(kind, features=len(columns)) for kind, columns in kinds)
    )
