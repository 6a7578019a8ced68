"""From a manifest over a graph of several types to a published revision: what `pipeline.py` is for graphs of one type.

Every variant reads products, as wide as the hidden layer for each relation: pruning feature columns would leave these
as wide as they are, so that no variant is made for `spec.variants.pruning.factors`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version

import msgspec
import numpy as np

from gnnserve_api.errors import InputError
from gnnserve_api.families import FamilyName
from gnnserve_api.repository import (
    NOT_RANKED,
    FollowedManifest,
    LayerTables,
    NetworkManifest,
    RankingManifest,
    RevisionManifest,
    RowSource,
    SourceColumn,
    StoredManifest,
    VariantManifest,
)
from gnnserve_api.spec.graph import Normalization
from gnnserve_api.spec.model import AUTO, Model
from gnnserve_api.spec.scoring import Thresholds
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.spec.typed import TypedSource
from gnnserve_api.training import TrainingManifest, TrainingRun
from gnnserve_api.typed import TypedGraphManifest, TypeRows
from gnnserve_api.variants import Storage, fanouts_name, projected_name, stored_layer_name, stored_name
from gnnserve_worker.generation.checkpoint import read_checkpoint
from gnnserve_worker.generation.families.family import FamilyPlan, PlannedVariant, storages_of
from gnnserve_worker.generation.families.write import write_plans
from gnnserve_worker.generation.identity import RevisionIdentity
from gnnserve_worker.generation.profile import measure_profile, profile_budget_s, with_thresholds
from gnnserve_worker.generation.resume import Resumption
from gnnserve_worker.generation.scores import metric_of
from gnnserve_worker.generation.tensors import Tensors
from gnnserve_worker.generation.thresholds import check_thresholds
from gnnserve_worker.generation.typed.checkpoint import check_typed
from gnnserve_worker.generation.typed.subject import TypedTrainingSet, typed_training_set
from gnnserve_worker.generation.typed.tables import States, hidden_states, plan_table
from gnnserve_worker.graph.sources.load import load_typed_source
from gnnserve_worker.graph.typed import TypedGraphData
from gnnserve_worker.graph.typed_lists import describe_typed
from gnnserve_worker.models.dense import preferred_compute
from gnnserve_worker.models.tail import tail_of
from gnnserve_worker.models.typed.architecture import RelationalLayer, TypedShape, embedding_key
from gnnserve_worker.models.typed.build import default_key, layer_tensors, moment_key
from gnnserve_worker.models.typed.registry import TYPED_ARCHITECTURES
from gnnserve_worker.progress import Progress, ProgressListener
from gnnserve_worker.repository import paths
from gnnserve_worker.repository.loaded import CORRECTION
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.repository.staged import StagedRevision

MASTER = "master"
"""Name of the one network that is trained."""


def generate_typed(
    spec: GNNServiceSpec,
    source: TypedSource,
    identity: RevisionIdentity,
    repository: Repository,
    progress: ProgressListener,
    *,
    use_gpu: bool,
    graph_version: str | None = None,
) -> RevisionManifest:
    """Generate the revision, which is not published yet. `graph_version` and errors: as of `pipeline.generate`."""
    progress(Progress("import graph", 0, 1))
    data = load_typed_source(source, progress) if graph_version is None else _read_version(repository, graph_version)
    typed = describe_typed(data)
    counts = f"{data.nodes:,} nodes of {len(data.types)} types, {data.edges:,} edges by {len(data.relations)} relations"
    progress(Progress("import graph", 1, 1, counts))
    for finding in data.findings:
        progress(Progress(f"imported: {finding.what}", 1, 1, f"{finding.count:,}  {finding.example}".rstrip()))
    # Before training, since a metric may not fit the graph, and a variable may be no number.
    metric = metric_of(data.multi_label, spec.variants.metric)
    profile_budget = profile_budget_s()
    check_thresholds(spec.variants.thresholds, multi_label=data.multi_label, classes=len(data.classes))
    fanouts_by_relation(spec.model, typed)
    architecture = TYPED_ARCHITECTURES[spec.model.architecture]
    network = spec.model.network(len(data.classes))
    shape = TypedShape(typed, spec.model.hidden, len(data.classes), network.layers, spec.model.bases, network.attention)
    given = None
    if spec.model.checkpoint is not None and identity.checkpoint is not None:
        given = check_typed(
            read_checkpoint(spec.model.checkpoint, identity.checkpoint), architecture, shape, spec.model
        )
    waiting = Progress("wait for another process that is generating", 0, 1)
    with repository.locked(on_wait=lambda: progress(waiting)):
        published = repository.find(identity.recipe, identity.graph, identity.checkpoint, identity.given)
        if published is not None:
            return published
        repository.put_graph(data)
        method = spec.graph.normalization
        if given is not None and method is Normalization.AUTO:
            method = Normalization.DISABLED
        subject = typed_training_set(data, typed, method, spec.model.training.scope, metric)
        tensors, generator = given or {}, f"gnnserve {version('gnnserve')}"
        runs: Sequence[TrainingRun] = ()
        if given is None:
            packages = ("gnnserve", "torch", "torch_geometric")
            generator = ", ".join(f"{package} {version(package)}" for package in packages)
            tensors, runs = _train(spec, identity, shape, subject, repository, generator, progress, use_gpu=use_gpu)
        layers = [_as_arrays(layer) for layer in architecture.layers(tensors, shape)]
        states = _states(subject, tensors)
        plan = _plan(spec, network, layers, subject, states)
        with repository.stage(identity.recipe, identity.graph, identity.checkpoint, identity.given) as staged:
            generated = write_plans([plan], staged, progress)
            loaded = staged.open([made.variant for made in generated])
            if spec.variants.thresholds is Thresholds.PER_CLASS:
                generated = with_thresholds(loaded, generated)
            profile = measure_profile(
                loaded, generated, lambda done, total: progress(Progress("profile", done, total)), metric,
                profile_budget,
            )  # fmt: skip
            stated = spec.model.training.epochs
            return staged.commit(
                scope=spec.model.training.scope,
                # The columns of the type that is classified, as its source has them.
                ranking=RankingManifest(NOT_RANKED, settings={}, columns=tuple(range(typed.target.features or 0))),
                variants=[made.variant for made in generated],
                profile=profile,
                generator=generator,
                created_at=datetime.now(UTC).isoformat(timespec="microseconds"),
                training=TrainingManifest(epochs=None if stated == AUTO else stated, runs=tuple(runs))
                if runs
                else None,
                row_source=_write_row_source(subject, states, layers[0], staged),
            )


def _read_version(repository: Repository, digest: str) -> TypedGraphData:
    data = repository.read_typed_graph(digest)
    for kind in data.types:
        if not kind.nodes:
            raise InputError(
                "spec.graph.source.typed",
                f"changes have removed all nodes of type {kind.name}, so that nothing can be learned about the type",
                "add nodes of the type, or leave the networks as they are: without retraining",
            )
    return data


def _write_row_source(
    subject: TypedTrainingSet, states: States, first: RelationalLayer, staged: StagedRevision
) -> RowSource:
    """Write what is needed to make rows of new nodes: how features were scaled, the mean of the embeddings of types
    that have none, and the first layer."""
    tensors = layer_tensors(0, first)
    kinds, columns = [], []
    for place, (scaled, kind) in enumerate(zip(subject.features, subject.data.types, strict=True)):
        if scaled is None:
            tensors[default_key(place)] = states[place].mean(axis=0, dtype=np.float64).astype(np.float32)
            kinds.append(TypeRows(0, None))
            continue
        if scaled.mean is not None and scaled.deviation is not None:
            tensors |= {moment_key(place, "mean"): scaled.mean, moment_key(place, "deviation"): scaled.deviation}
        kinds.append(TypeRows(len(kind.feature_columns), scaled.method))
        columns += [SourceColumn(column.name, column.width, column.fill) for column in kind.feature_columns]
    return RowSource(tuple(columns), Normalization.DISABLED, staged.write_row_source(tensors), tuple(kinds))


def _train(
    spec: GNNServiceSpec, identity: RevisionIdentity, shape: TypedShape, subject: TypedTrainingSet,
    repository: Repository, generator: str, progress: ProgressListener, *, use_gpu: bool,
) -> tuple[Tensors, Sequence[TrainingRun]]:  # fmt: skip
    # Imported here: torch takes many seconds.
    progress(Progress("load torch", 0, 1))
    from gnnserve_worker.generation.device import training_device  # noqa: PLC0415
    from gnnserve_worker.generation.networks import CPU  # noqa: PLC0415
    from gnnserve_worker.generation.typed.train import train_typed  # noqa: PLC0415

    device, which = training_device() if use_gpu else (CPU, "")
    progress(Progress("load torch", 1, 1, which))
    kept = repository.kept_networks(identity.recipe, identity.graph, 0)
    made_for = {
        "recipe": identity.recipe, "graph": identity.graph, "generator": generator, "device": device.type,
    }  # fmt: skip
    architecture = TYPED_ARCHITECTURES[spec.model.architecture]

    def train() -> tuple[Tensors, Sequence[TrainingRun]]:
        tensors, run = train_typed(architecture, shape, subject, spec.model, MASTER, progress, device)
        return tensors, (run,)

    return Resumption(kept, made_for, progress).network(MASTER, {"columns": "all"}, train)


def _states(subject: TypedTrainingSet, tensors: Mapping[str, np.ndarray]) -> States:
    return [
        tensors[embedding_key(kind.name)] if one is None else one.features
        for one, kind in zip(subject.features, subject.data.types, strict=True)
    ]


def _as_arrays(layer: RelationalLayer) -> RelationalLayer:
    def arrays(matrices: Mapping[int, np.ndarray]) -> dict[int, np.ndarray]:
        return {place: np.ascontiguousarray(matrix, dtype=np.float32) for place, matrix in matrices.items()}

    return RelationalLayer(
        arrays(layer.relations), arrays(layer.own), arrays(layer.biases), arrays(layer.shifts), layer.heads
    )


def _plan(
    spec: GNNServiceSpec, network: NetworkManifest, layers: Sequence[RelationalLayer], subject: TypedTrainingSet,
    states: States,
) -> FamilyPlan:  # fmt: skip
    """Projected variants, those of stored layers, and each of them with fewer neighbours; from each storage."""
    graph, storages = subject.typed, storages_of(spec)
    tables, variants = [], []
    for storage in storages:
        name = stored_name("projected", storage)
        tables.append(plan_table(name, storage, graph, layers[0], states, is_last=len(layers) == 1))
        projected = _variant(projected_name(storage), FamilyName.PROJECTED, name, network, layers, 0, storage)
        variants += [projected, *_with_fewer(spec, projected, FamilyName.PROJECTED_FANOUTS, 0)]
    products = stored_name("projected", Storage.FLOAT32)
    if 1 in spec.variants.stored and Storage.FLOAT32 not in storages:
        # What rows of the stored layer are made of where the graph changes.
        tables.append(plan_table(products, Storage.FLOAT32, graph, layers[0], states, is_last=False))
    hidden = states
    for stored in range(1, max(spec.variants.stored, default=0) + 1):
        hidden = hidden_states(subject, layers[stored - 1], hidden)
        for storage in storages if stored in spec.variants.stored else ():
            name = stored_layer_name(stored, storage)
            is_last = stored == len(layers) - 1
            tables.append(plan_table(name, storage, graph, layers[stored], hidden, is_last=is_last))
            if stored > 1:
                one = _variant(name, FamilyName.STORED_DEEPER, name, network, layers, stored, storage)
                variants += [one, *_with_fewer(spec, one, FamilyName.STORED_DEEPER_FANOUTS, stored)]
                continue
            one = _variant(name, FamilyName.STORED_DEEPER_FOLLOWING, name, network, layers, stored, storage)
            one = _following(one, network, layers[stored], products)
            variants += [one, *_with_fewer(spec, one, FamilyName.STORED_DEEPER_FOLLOWING_FANOUTS, stored)]
    if spec.model.relation_fanouts:
        own = fanouts_by_relation(spec.model, graph)
        variants = [_by_relation(one, own) for one in variants]
    return FamilyPlan(tables=tables, variants=variants)


def fanouts_by_relation(model: Model, graph: TypedGraphManifest) -> Sequence[Sequence[int]]:
    """Fan-outs of the model's layers by each relation of the graph. Raises InputError for a relation that is not
    there."""
    found = [list(model.fanouts) for _ in graph.relations]
    named: dict[int, str] = {}
    for place, one in enumerate(model.relation_fanouts):
        field, there = f"spec.model.relationFanouts[{place}].relation", ", ".join(each.key for each in graph.relations)
        places = [at for at, each in enumerate(graph.relations) if one.relation in {each.name, each.key}]
        if not places:
            raise InputError(
                field, f"is {one.relation!r}, which is no relation; there are {there}", "name one of these"
            )
        if len(places) > 1:
            keys = ", ".join(graph.relations[at].key for at in places)
            problem = f"is {one.relation!r}, which {len(places)} relations are called"
            raise InputError(field, problem, f"name one of {keys}")
        if places[0] in named:
            raise InputError(field, f"is {one.relation!r}, which stands at {named[places[0]]} already", "give it once")
        named[places[0]], found[places[0]] = field, list(one.fanouts)
    return found


def _by_relation(variant: PlannedVariant, own: Sequence[Sequence[int]]) -> PlannedVariant:
    """The variant with the fan-outs of each relation, as far as they are smaller than its own."""
    smaller = tuple(tuple(map(min, variant.manifest.fanouts, one)) for one in own)
    return replace(variant, manifest=msgspec.structs.replace(variant.manifest, relation_fanouts=smaller))


def _variant(
    name: str, family: FamilyName, table: str, network: NetworkManifest, layers: Sequence[RelationalLayer], stored: int,
    storage: Storage,
) -> PlannedVariant:  # fmt: skip
    """The network behind so many stored layers, over the products of the next one."""
    tail = tail_of(network, stored)
    tensors: Tensors = {}
    for number, layer in enumerate(layers[stored:]):
        # Of the layer in the table biases alone are left, where what is summed comes before them.
        left = RelationalLayer({}, {}, layer.biases) if number == 0 else layer
        tensors |= layer_tensors(number, left) if number or layer.heads is not None else {}
    manifest = VariantManifest(
        name=name,
        family=family,
        table=table,
        columns=layers[stored].columns,
        fanouts=tail.fanouts,
        network=tail,
        compute="float32" if layers[stored].heads is not None else preferred_compute(storage),
        weights=paths.weights_of(name),
        stored=StoredManifest(layer=stored) if stored else None,
    )
    return PlannedVariant(manifest, factor=1, tensors=tensors)


def _following(
    variant: PlannedVariant, network: NetworkManifest, layer: RelationalLayer, products: str
) -> PlannedVariant:
    """The same with what rows of its table are made of where the graph changes: the first layer's products, in this
    table, and the weights of `layer`, whose products the rows are."""
    kept = {f"{CORRECTION}{key}": tensor for key, tensor in layer_tensors(1, layer).items()}
    followed = FollowedManifest(network, (LayerTables(products),))
    manifest = msgspec.structs.replace(variant.manifest, stored=StoredManifest(layer=1, followed=followed))
    return PlannedVariant(manifest, variant.factor, {**(variant.tensors or {}), **kept})


def _with_fewer(spec: GNNServiceSpec, base: PlannedVariant, family: FamilyName, stored: int) -> list[PlannedVariant]:
    fewer = spec.variants.fanouts if not stored else spec.variants.fanouts_left(stored)
    return [
        PlannedVariant(
            msgspec.structs.replace(
                base.manifest, name=fanouts_name(base.manifest.name, fanouts), family=family, fanouts=fanouts
            ),
            factor=1,
            tensors=None,
        )
        for fanouts in fewer
    ]
