"""Generation proper: every variant of one revision, from the imported graph to the commit (paper A, section 3)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version

import numpy as np
import torch

from gnnserve_api.gnnservice import GNNServiceSpec, RankingMethod
from gnnserve_api.repository import NetworkManifest, RankingManifest, RevisionManifest
from gnnserve_api.variants import columns_of, variant_name
from gnnserve_worker.generation.features import keep_columns, normalize
from gnnserve_worker.generation.networks import CPU, reorder_columns, to_tensors
from gnnserve_worker.generation.profile import GeneratedVariant, measure_profile
from gnnserve_worker.generation.progress import Progress, ProgressListener
from gnnserve_worker.generation.ranking.rank import Ranking, rank
from gnnserve_worker.generation.train import Trained, train, training_set, visible_nodes
from gnnserve_worker.graph.store import Features, GraphData
from gnnserve_worker.repository.repository import Repository

Tensors = dict[str, np.ndarray]


def generate_revision(
    spec: GNNServiceSpec,
    recipe: str,
    graph: GraphData,
    repository: Repository,
    progress: ProgressListener,
    device: torch.device = CPU,
) -> RevisionManifest:
    """Train on `device`, rank, prune, profile, publish; nothing is visible before the last file is written."""
    factors = sorted(spec.variants.pruning.factors)
    features_count = graph.features.shape[1]
    width = columns_of(features_count, factors[0])
    visible = visible_nodes(graph.graph.nodes, graph.splits, spec.model.training.scope)
    features = normalize(graph.features, spec.graph.normalization, visible)
    # Before training, since a damaged copy of it in the repository should not cost the time.
    repository.put_graph(graph)
    ranking, weights = _train_variants(spec, graph, features, factors, progress, device)

    network = NetworkManifest(
        architecture=spec.model.architecture,
        hidden=spec.model.hidden,
        fanouts=spec.model.fanouts,
        classes=len(graph.classes),
    )
    with repository.stage(recipe, graph.digest) as staged:
        staged.write_table(features, ranking.columns[:width].tolist())
        generated = {
            variant_name(factor): GeneratedVariant(
                factor, staged.write_variant(variant_name(factor), weights[factor]).bytes
            )
            for factor in factors
        }
        loaded = staged.open(network, {variant_name(f): columns_of(features_count, f) for f in factors})
        profile = measure_profile(loaded, generated, lambda done, total: progress(Progress("profile", done, total)))
        return staged.commit(
            scope=spec.model.training.scope,
            network=network,
            ranking=RankingManifest(
                method=spec.variants.pruning.method,
                settings=ranking.settings,
                columns=tuple(ranking.columns.tolist()),
            ),
            profile=profile,
            generator=f"gnnserve {version('gnnserve')}, torch {version('torch')}, "
            f"torch_geometric {version('torch_geometric')}",
            created_at=datetime.now(UTC).isoformat(timespec="microseconds"),
        )


def _train_variants(
    spec: GNNServiceSpec,
    graph: GraphData,
    features: Features,
    factors: list[int],
    progress: ProgressListener,
    device: torch.device,
) -> tuple[Ranking, dict[int, Tensors]]:
    """The ranking, and the weights of every factor for inputs in rank order."""
    model, pruning = spec.model, spec.variants.pruning
    data = training_set(graph.graph, graph.labels, len(graph.classes), graph.splits, model.training.scope)

    def train_on(columns: Features, name: str) -> Trained:
        return train(data, columns, model, _reporter(progress, f"train {name}", model.training.epochs), device)

    ranked = [factor for factor in factors if factor != 1]
    master_name = variant_name(1) if 1 in factors else "master"
    if pruning.method == RankingMethod.RANDOM and 1 not in factors:
        ranking = rank(pruning, None, features, data, model.training.seed)
        weights: dict[int, Tensors] = {}
    else:
        master = train_on(features, master_name)
        stage = f"rank by {pruning.method}"
        progress(Progress(stage, 0, 1))
        ranking = rank(pruning, master.module, features, data, model.training.seed)
        progress(Progress(stage, 1, 1))
        weights = {1: reorder_columns(to_tensors(master.module), ranking.columns)}
    for factor in ranked:
        kept = ranking.columns[: columns_of(features.shape[1], factor)]
        weights[factor] = to_tensors(train_on(keep_columns(features, kept), variant_name(factor)).module)
    return ranking, weights


def _reporter(progress: ProgressListener, stage: str, epochs: int) -> Callable[[int, float], None]:
    return lambda epoch, score: progress(Progress(stage, epoch, epochs, f"validation {score:.3f}"))
