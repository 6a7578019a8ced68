"""Candidates of a search: what planners would make, known from shapes alone, before anything is trained.

Planners plan them as they plan what is made, over weights of which nothing but the shapes is true; so a candidate's
columns, fan-outs and tables are those of the variant that generation would make. Nothing is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gnnserve_api.families import PRUNED
from gnnserve_api.files.repository import NetworkManifest, VariantManifest
from gnnserve_api.files.training import TrainingRun
from gnnserve_api.spec.heterogeneous_rules import reads_products
from gnnserve_api.spec.made_variants import search_space
from gnnserve_api.spec.model import Model
from gnnserve_api.spec.searched import Round
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.variants import Storage, columns_of, variant_name
from gnnserve_worker.generation.families.family import Ingredients, OneRowNetwork, plan_variant, storages_of
from gnnserve_worker.generation.families.layered import features_table
from gnnserve_worker.generation.families.registry import plan_families
from gnnserve_worker.generation.lessons import LearntNetworks, Teacher, WeightSources, networks_of, take_lessons
from gnnserve_worker.generation.ranking import Ranking
from gnnserve_worker.generation.relation_columns import mean_width, widths_of
from gnnserve_worker.graph.store import Graph
from gnnserve_worker.models.blas import preferred_compute
from gnnserve_worker.models.registry import Tensors, layer_sizes, spec_of
from gnnserve_worker.repository.revision_files import stored_bytes


@dataclass(frozen=True, slots=True)
class Candidate:
    manifest: VariantManifest
    storage: Storage
    is_product: bool
    """Whether a row is a layer's product, not feature columns."""
    table_bytes: int
    """What the rows that it reads take on the disk."""
    trains: str
    """The network that must be trained for it, beside the first one, as `Round.trains`; empty: none."""


@dataclass(frozen=True, slots=True)
class Shapes:
    """Shapes of candidates, as a graph and a manifest decide on them."""

    spec: GNNServiceSpec
    """With the factors that are searched."""
    graph: Graph
    """Lists of all types."""
    source_columns: int
    """Features of the source."""
    classes: int
    validation_nodes: int = 0

    @property
    def network(self) -> NetworkManifest:
        return self.spec.model.network(self.classes)


def all_candidates(shapes: Shapes) -> list[Candidate]:
    """In the order in which a search makes them."""
    space = search_space(shapes.spec, shapes.spec.variants.pruning.factors)
    return [candidate for each in space.rounds for candidate in candidates_of(shapes, each)]


def candidates_of(shapes: Shapes, searched: Round) -> list[Candidate]:
    """The variants that a round may make. A round that makes nothing of the first network reads the counts of the graph
    and the model alone: whatever that network is, perceptrons beside it are alike."""
    spec = shapes.spec.model_copy(update={"variants": searched.variants})
    if reads_products(spec) and searched.variants.pruning.factors:
        return _over_types(shapes, spec)
    network, nodes = shapes.network, shapes.graph.nodes
    columns = spec.model.row_columns(shapes.source_columns)
    one_rows = _ShapedOneRows(spec.model, shapes.source_columns, shapes.classes, nodes)
    sources = WeightSources(_ShapedModels(spec.model, shapes.classes, columns), one_rows)
    master = None if searched.variants.are_all_given else _shaped(network, columns)
    networks = networks_of(spec)
    learnt = take_lessons(networks, sources, LearntNetworks(spec, Ranking(np.arange(columns), {}), master))
    features = np.broadcast_to(np.float32(0), (nodes, columns))
    made_from = Ingredients(
        spec, network, shapes.graph, features, learnt.ranking, master, learnt.networks, one_rows=learnt.one_rows
    )
    plans = plan_families(made_from)
    tables = {table.name: table for plan in plans for table in plan.tables}
    found = []
    for planned in (variant for plan in plans for variant in plan.variants):
        manifest, table = planned.manifest, tables[planned.manifest.table]
        matrices = 1 if table.own is None else 2
        size = matrices * stored_bytes(nodes, manifest.columns, table.storage)
        trains = max((one.name for one in networks if _is_of(manifest.name, one.name)), key=len, default="")
        found.append(Candidate(manifest, table.storage, table.kind == "projected", size, trains))
    return found


def _over_types(shapes: Shapes, spec: GNNServiceSpec) -> list[Candidate]:
    """Networks over fewer columns of several types: rows are counted as wide as they are on average."""
    schema, network, found = shapes.graph.schema, shapes.network, list[Candidate]()
    widths = widths_of(schema, spec.model)
    for factor in spec.variants.pruning.factors:
        columns = max(1, round(mean_width(schema, widths, factor)))
        for storage in storages_of(spec):
            name, compute = variant_name(factor, storage), preferred_compute(storage)
            planned = plan_variant(
                PRUNED, name, features_table(storage), columns, network, storage, {}, factor, compute=compute
            )
            size = stored_bytes(shapes.graph.nodes, max(1, columns_of(max(widths), factor)), storage)
            found.append(Candidate(planned.manifest, storage, False, size, variant_name(factor)))
    return found


def _is_of(variant: str, network: str) -> bool:
    """Whether a variant is named after a network, before its storage and fan-outs."""
    return variant == network or variant.startswith(f"{network}-")


def _shaped(network: NetworkManifest, columns: int) -> Tensors:
    spec = spec_of(network.architecture)
    return {
        key: np.zeros(shape, np.float32)
        for layer, sizes in enumerate(layer_sizes(network, columns))
        for key, shape in spec.shapes_of(layer, sizes).items()
    }


@dataclass(frozen=True, slots=True)
class _ShapedModels:
    """The `lessons.Models` of weights that have shapes and nothing else."""

    model: Model
    classes: int
    columns: int

    @property
    def runs(self) -> Sequence[TrainingRun]:
        return ()

    @property
    def decoder(self) -> Tensors:
        return {}

    def master(self, name: str) -> Tensors:
        return _shaped(self.model.network(self.classes), self.columns)

    def pruned(self, columns: np.ndarray, name: str) -> Tensors:
        return _shaped(self.model.network(self.classes), len(columns))

    def narrowed(self, wide: Tensors, columns: np.ndarray | None, factor: int, name: str) -> Tensors:
        network = self.model.with_fewer_channels(factor).network(self.classes)
        return _shaped(network, self.columns if columns is None else len(columns))

    def another_master(self, seed: int, name: str) -> Tensors:
        return self.master(name)


@dataclass(frozen=True, slots=True)
class _ShapedOneRows:
    """Shapes of `OneRowModels`, and of the `Teacher` that they learn nothing from."""

    model: Model
    source_columns: int
    classes: int
    nodes: int

    @property
    def runs(self) -> Sequence[TrainingRun]:
        return ()

    @property
    def digest(self) -> str:
        return ""

    @property
    def decoder(self) -> Mapping[str, np.ndarray]:
        return {}

    @property
    def embedded(self) -> Mapping[int, np.ndarray]:
        return {}

    def scores(self, nodes: np.ndarray) -> np.ndarray:
        return np.zeros((len(nodes), self.classes), np.float32)

    def teacher_of(self, master: Tensors | None, decoder: Mapping[str, np.ndarray]) -> Teacher:
        return self

    def one_row(self, hops: int, name: str, teacher: Teacher) -> OneRowNetwork:
        model = self.model.one_row(hops)
        network = model.network(self.classes)
        tensors = _shaped(network, model.row_columns(self.source_columns))
        return OneRowNetwork(network, tensors, np.broadcast_to(np.float32(0), (self.nodes, network.projected_columns)))
