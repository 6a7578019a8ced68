"""Generation proper: every variant of one revision, from the imported graph to the commit.

Dynamic GNN inference as-a-service, section 3.3, describes both ways: finished variants or a master. Weights come from
`trained.py` or `given.py`; nothing here needs torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

import msgspec
import numpy as np

from gnnserve_api.errors import InputError
from gnnserve_api.families import FamilyName
from gnnserve_api.profile import Profile, VariantProfile
from gnnserve_api.repository import NetworkManifest, RankingManifest, RankingRun, RevisionManifest, VariantManifest
from gnnserve_api.spec.graph import Normalization
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.spec.variants import Projection, RankingMethod
from gnnserve_api.training import TrainingManifest
from gnnserve_api.variants import Storage, columns_of, projected_name, variant_name
from gnnserve_worker.generation.features import normalize
from gnnserve_worker.generation.frontier import worth_keeping
from gnnserve_worker.generation.identity import Identity
from gnnserve_worker.generation.profile import GeneratedVariant, measure_profile
from gnnserve_worker.generation.ranking.rank import Ranking, rank
from gnnserve_worker.generation.tensors import Tensors, first_layer, keep_columns_of, without_first_product
from gnnserve_worker.generation.training_set import TrainingSet, training_set, visible_nodes
from gnnserve_worker.graph.store import Features, GraphData
from gnnserve_worker.models.build import compute_for
from gnnserve_worker.models.first_layer import FirstLayer
from gnnserve_worker.progress import Progress, ProgressListener
from gnnserve_worker.repository import paths
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.repository.staged import StagedRevision
from gnnserve_worker.tables.table import feature_blocks, projected_blocks

_FLOAT16_END = 65_520.0
"""From here on, float16 rounds to infinity."""


class Models(Protocol):
    """Where weights come from. `name` is what progress calls them."""

    @property
    def training(self) -> TrainingManifest | None:
        """How the networks so far were trained, those of other seeds apart. None: the weights are given."""
        ...

    def master(self, name: str) -> Tensors:
        """For all columns, in the order of the source."""
        ...

    def pruned(self, columns: np.ndarray, name: str) -> Tensors:
        """For the given columns (ids), in their order."""
        ...

    def another_master(self, seed: int, name: str) -> Tensors:
        """A master that differs in its seed alone. Only where weights are trained."""
        ...


def generate_revision(
    spec: GNNServiceSpec,
    identity: Identity,
    graph: GraphData,
    repository: Repository,
    progress: ProgressListener,
    models_of: Callable[[TrainingSet, Features], Models],
    generator: str,
) -> RevisionManifest:
    """Rank, prune, project, profile, publish; nothing is visible before the last file is written."""
    training = spec.model.training
    visible = visible_nodes(graph.graph.nodes, graph.splits, training.scope)
    features = normalize(graph.features, _normalization(spec), visible)
    _check_range(features, spec.variants.storage)
    # Before training, since a damaged copy of it in the repository should not cost the time.
    repository.put_graph(graph)
    data = training_set(graph.graph, graph.labels, len(graph.classes), graph.splits, training.scope)
    models = models_of(data, features)
    weights = _make_weights(spec, data, features, models, progress)
    other_rankings = _rank_again(spec, data, features, models, progress)
    network = NetworkManifest(
        architecture=spec.model.architecture,
        hidden=spec.model.hidden,
        fanouts=spec.model.fanouts,
        classes=len(graph.classes),
        mlp_hidden=spec.model.mlp_hidden,
    )
    with repository.stage(identity.recipe, identity.graph, identity.checkpoint) as staged:
        generated = _write(spec, network, features, weights, staged, progress)
        loaded = staged.open([made.variant for made in generated])
        measured = measure_profile(loaded, generated, lambda done, total: progress(Progress("profile", done, total)))
        profile = _keep_the_frontier(measured, staged)
        kept = {variant.name for variant in profile.variants}
        return staged.commit(
            scope=training.scope,
            ranking=RankingManifest(
                method=spec.variants.pruning.method,
                settings=weights.ranking.settings,
                columns=tuple(weights.ranking.columns.tolist()),
                others=other_rankings,
            ),
            variants=[made.variant for made in generated if made.variant.name in kept],
            profile=profile,
            generator=generator,
            created_at=datetime.now(UTC).isoformat(timespec="microseconds"),
            training=models.training,
        )


def _check_range(features: Features, storages: Sequence[Storage]) -> None:
    """Before training, since this shows only when tables are written."""
    if Storage.FLOAT16 not in storages or min(features.shape) == 0:
        return
    largest = max(float(features.max()), -float(features.min()))
    if largest >= _FLOAT16_END:
        raise InputError(
            "spec.variants.storage",
            f"float16 ends at 65,504, and the graph's features reach {largest:,.6g}",
            "use bfloat16 or float32, or scale them (spec.graph.normalization)",
        )


def _normalization(spec: GNNServiceSpec) -> Normalization:
    """Given weights expect the features that they were trained on."""
    if spec.model.checkpoint is not None and spec.graph.normalization is Normalization.AUTO:
        return Normalization.DISABLED
    return spec.graph.normalization


# --- weights


@dataclass(frozen=True, slots=True)
class _Weights:
    ranking: Ranking
    by_factor: Mapping[int, Tensors]
    """For inputs in rank order."""
    master: Tensors | None
    """For inputs in the order of the source. None: nobody needs it."""


def _make_weights(
    spec: GNNServiceSpec, data: TrainingSet, features: Features, models: Models, progress: ProgressListener
) -> _Weights:
    pruning = spec.variants.pruning
    factors = sorted(pruning.factors)
    master: Tensors | None = None
    first: FirstLayer | None = None
    if 1 in factors or pruning.method != RankingMethod.RANDOM or spec.variants.projection is Projection.AUTO:
        master = models.master(variant_name(1) if 1 in factors else "master")
        first = first_layer(master)
    stage = f"rank by {pruning.method}"
    progress(Progress(stage, 0, 1))
    ranking = rank(pruning, first, features, data, spec.model.training.seed)
    progress(Progress(stage, 1, 1))
    by_factor: dict[int, Tensors] = {}
    for factor in factors:
        if factor == 1 and master is not None:
            by_factor[factor] = keep_columns_of(master, ranking.columns)
        else:
            kept = ranking.columns[: columns_of(features.shape[1], factor)]
            by_factor[factor] = models.pruned(kept, variant_name(factor))
    return _Weights(ranking, by_factor, master)


def _rank_again(
    spec: GNNServiceSpec, data: TrainingSet, features: Features, models: Models, progress: ProgressListener
) -> tuple[RankingRun, ...]:
    """By masters of other seeds, which are not kept: how far the order of columns depends on the seed."""
    pruning, seed = spec.variants.pruning, spec.model.training.seed
    runs = []
    for other in range(seed + 1, seed + 1 + pruning.stability_seeds):
        first = first_layer(models.another_master(other, f"master of seed {other}"))
        stage = f"rank by {pruning.method}, seed {other}"
        progress(Progress(stage, 0, 1))
        columns = rank(pruning, first, features, data, other).columns
        progress(Progress(stage, 1, 1))
        runs.append(RankingRun(seed=other, columns=tuple(columns.tolist())))
    return tuple(runs)


# --- tables and variants


def _write(
    spec: GNNServiceSpec,
    network: NetworkManifest,
    features: Features,
    weights: _Weights,
    staged: StagedRevision,
    progress: ProgressListener,
) -> list[GeneratedVariant]:
    """Tables and weights of every variant, in the order of the profile."""
    storages = [storage for storage in Storage if storage in spec.variants.storage]
    projected = spec.variants.projection is Projection.AUTO and weights.master is not None
    unprojected = storages if weights.by_factor else []
    total = len(unprojected) + (len(storages) if projected else 0)
    for done, storage in enumerate(unprojected):
        progress(Progress("write tables", done, total, _features_table(storage)))
        _write_features(features, weights, storage, staged)
    generated: list[GeneratedVariant] = []

    def add(name: str, family: FamilyName, factor: int, table: str, columns: int, tensors: Tensors) -> None:
        written = staged.write_variant(name, tensors)
        variant = VariantManifest(
            name=name,
            family=family,
            table=table,
            columns=columns,
            fanouts=network.fanouts,
            network=network,
            compute=compute_for(spec.model.architecture, storage),
            weights=paths.weights_of(name),
        )
        generated.append(GeneratedVariant(variant, factor, written.bytes))

    for factor, tensors in weights.by_factor.items():
        for storage in storages:
            columns = columns_of(features.shape[1], factor)
            name = variant_name(factor, storage)
            add(name, FamilyName.PRUNED, factor, _features_table(storage), columns, tensors)
    if projected and weights.master is not None:
        first = first_layer(weights.master)
        for done, storage in enumerate(storages, start=len(unprojected)):
            table = _projected_table(storage)
            progress(Progress("write tables", done, total, table))
            try:
                _write_projected(features, first, storage, staged)
            except ValueError as error:
                # Nobody asked for this one by name.
                progress(Progress("write tables", done, total, f"{table} is left out: {error}"))
                continue
            tensors = without_first_product(weights.master)
            add(projected_name(storage), FamilyName.PROJECTED, 1, table, first.outputs, tensors)
    progress(Progress("write tables", total, total))
    if not generated:
        raise InputError(
            "spec.variants.storage",
            "holds no projected table, and without variants.pruning.wideTables: Keep there is no other",
            "add float32 or bfloat16, or set wideTables to Keep",
        )
    return generated


def _features_table(storage: Storage) -> str:
    return f"features-{storage}"


def _projected_table(storage: Storage) -> str:
    return f"projected-{storage}"


def _write_features(features: Features, weights: _Weights, storage: Storage, staged: StagedRevision) -> None:
    columns = weights.ranking.columns[: columns_of(features.shape[1], min(weights.by_factor))]
    blocks = feature_blocks(features, columns.tolist())
    staged.write_table(_features_table(storage), "features", storage, len(columns), blocks)


def _write_projected(features: Features, first: FirstLayer, storage: Storage, staged: StagedRevision) -> None:
    own = None if first.own is None else projected_blocks(features, np.ascontiguousarray(first.own))
    rows = projected_blocks(features, np.ascontiguousarray(first.neighbours))
    staged.write_table(_projected_table(storage), "projected", storage, first.outputs, rows, own)


def _keep_the_frontier(measured: Profile, staged: StagedRevision) -> Profile:
    kept = worth_keeping(measured.variants)
    dropped = [variant for variant in measured.variants if variant not in kept]
    for variant in dropped:
        staged.discard_variant(variant.name)
    for table in sorted(_tables(dropped) - _tables(kept)):
        staged.discard_table(table)
    return msgspec.structs.replace(measured, variants=kept)


def _tables(variants: Sequence[VariantProfile]) -> set[str]:
    return {variant.table for variant in variants}
