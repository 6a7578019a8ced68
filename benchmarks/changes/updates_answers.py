"""Answers of a graph after many random changes, beside those of the same graph built from scratch.

Each architecture has one graph, with a variant of every family of architectures over one type that declares that it
follows changes, over float32 tables and full neighbourhoods; and so have listed layers. Changes are of all kinds, nodes
that leave among them. The graph that is built from scratch is generated anew, by the same weights; listed layers are
compared with torch_geometric's modules over it, by the weights of each variant. A cascade is two of these variants,
which are compared one by one.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tests.support.changes.listed import SAGE, module_scores, service_over, source_of, tensors_of
from tests.support.changes.living import FEATURES, MODELS, PlainGraph, ids_of
from tests.support.generation.generated import generate_over
from tests.support.graphs.graphs import random_tensors

from benchmarks.changes.updates_measured import AnswerErrors
from gnnserve_api.files.edges import Direction, Duplicates, EdgeRules
from gnnserve_api.files.repository import NetworkManifest
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_worker.generation.families.family import OneRowNetwork
from gnnserve_worker.generation.given_variants import GivenVariant
from gnnserve_worker.generation.layer_modules import GraphTensors
from gnnserve_worker.generation.pipeline import generate
from gnnserve_worker.generation.profile import BUDGET_VARIABLE
from gnnserve_worker.graph.change_batch import BatchEffect
from gnnserve_worker.graph.store import Features, GraphData, Splits
from gnnserve_worker.inference.batch import infer_batch
from gnnserve_worker.inference.living import LivingRevision
from gnnserve_worker.models.registry import Tensors, projection_of
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.tasks.generation import task_of

LISTED = "listed layers"
SUBJECTS = (*MODELS, LISTED)
_RULES = EdgeRules(Direction.UNDIRECTED, Duplicates.MERGE)
_RULES_OF_A_FILE = EdgeRules(Direction.UNDIRECTED, Duplicates.KEEP)
_NODES, _BATCH, _CLASSES = 600, 100, 3
_FANOUT = 200
"""No list is as long, so that variants with fan-outs read whole neighbourhoods, too."""
_LAYERS = 3
_GIVEN_COLUMNS = (7, 2, 9, 4)
_MOST_SEEDS = 256
_MAX_DELTA_BYTES = 1 << 33
_VARIANTS: dict[str, Any] = {
    "pruning": {"method": "Random", "factors": [1, 2]},
    "stored": [1, 2],
    "storedFollowChanges": True,
    "fanouts": [[_FANOUT] * _LAYERS],
    "given": [{"checkpoint": {"uri": "file:///given.safetensors"}, "columns": [*_GIVEN_COLUMNS]}],
    "channels": [{"factor": 2}, {"factor": 2, "table": "Projected"}, {"factor": 2, "table": "Stored"}],
    "oneRow": [{"hops": 0}],
    # Stages of a cascade are kept, also where another variant happens to be as fast.
    "cascades": [
        {"first": "projected", "then": f"projected-f{'x'.join([str(_FANOUT)] * _LAYERS)}", "passOnPercents": [5]}
    ],
}
_THREE_LAYERS: dict[str, Any] = {
    "layers": [{**SAGE, "width": 4}, {**SAGE, "width": 4}, SAGE], "head": [{}], "fanouts": [-1] * _LAYERS,
}  # fmt: skip
"""Listed layers whose products of nodes alone are narrower than features, so that these stand in rows."""
_OF_LISTED: dict[str, Any] = {
    "pruning": {"method": "Random", "factors": [1, 2]},
    "stored": [1, 2],
    "storedFollowChanges": True,
    "fanouts": [[_FANOUT] * _LAYERS],
    "channels": [*_VARIANTS["channels"], {"factor": 2, "columnFactor": 2}],
    "cascades": [
        {"first": first, "then": "x1", "passOnPercents": [5]}
        for first in ("projected", f"projected-f{'x'.join([str(_FANOUT)] * _LAYERS)}", "channels2-projected")
    ],
}


@dataclass(frozen=True, slots=True)
class _Changed:
    """A graph after its changes."""

    loaded: LoadedRevision
    """The revision that followed them."""
    positions: np.ndarray
    """Positions of its nodes there, in the order of `PlainGraph.lists`, int64 [nodes]."""
    changes: int

    def answers(self, variant: str) -> np.ndarray:
        """float32 [nodes, classes]"""
        return _answers_of(self.loaded, variant, self.positions)

    def errors(self, name: str, expected: Mapping[str, np.ndarray]) -> AnswerErrors:
        """`expected`: answers of each variant over the graph built from scratch, as of `answers`."""
        assert self.loaded.manifest is not None  # noqa: S101
        errors = {variant: _largest_error(self.answers(variant), wanted) for variant, wanted in expected.items()}
        families = {variant.family for variant in self.loaded.manifest.variants if variant.name in errors}
        return AnswerErrors(name, self.changes, len(self.positions), errors, tuple(sorted(families)))


def measure_answers(name: str, changes: int) -> AnswerErrors:
    """`name`: one of `SUBJECTS`."""
    plain = PlainGraph(_NODES, 20, _RULES_OF_A_FILE if name == LISTED else _RULES)
    with tempfile.TemporaryDirectory(prefix="gnnserve-updates-") as folder, short_profile():
        return (_of_listed if name == LISTED else _of_architecture)(Path(folder), name, plain, changes)


def _of_architecture(folder: Path, architecture: str, plain: PlainGraph, changes: int) -> AnswerErrors:
    changed = _change(_generated(folder, "living", architecture, plain, _MAX_DELTA_BYTES), plain, changes)
    rebuilt, nodes = _generated(folder, "rebuilt", architecture, plain), np.arange(len(changed.positions))
    both = [name for name in rebuilt.variants if name in changed.loaded.variants]
    return changed.errors(architecture, {name: _answers_of(rebuilt, name, nodes) for name in both})


def _of_listed(folder: Path, name: str, plain: PlainGraph, changes: int) -> AnswerErrors:
    repository = Repository(folder / "repository", "benchmarks", "listed")
    service = service_over(source_of(folder, plain), _THREE_LAYERS, _OF_LISTED, updates={"log": {"sqlite": {}}})
    manifest = generate(service, repository)
    changed = _change(load_revision(repository, manifest.revision, _MAX_DELTA_BYTES), plain, changes)
    graph, schema, expected = tensors_of(plain), changed.loaded.graph.schema, dict[str, np.ndarray]()
    halved = manifest.ranking.columns[: FEATURES // 2]
    fewer = GraphTensors([graph.features[0][:, [*halved]]], graph.edges, graph.edge_columns)
    # What else there is of a network reads all neighbours too, and other rows.
    for network, read in (("x1", graph), ("x2", fewer), ("channels2", graph), ("channels2-x2", fewer)):
        scores = module_scores(manifest, repository, schema, read, network)
        expected |= {one.name: scores for one in manifest.variants if _network_of(one.name) == network}
    return changed.errors(name, expected)


def _network_of(variant: str) -> str:
    """The variant whose network one computes: `channels2` of `channels2-stored1-f200`."""
    parts = [part for part in variant.split("-") if part.startswith(("channels", "x"))]
    return "-".join(parts) or "x1"


def _change(loaded: LoadedRevision, plain: PlainGraph, changes: int) -> _Changed:
    """Apply that many changes to both."""
    living, draw = LivingRevision(loaded, _MAX_DELTA_BYTES), np.random.default_rng(21)
    fresh, done = [*range(10**9, 10**9 + changes)], 0
    while done < changes:
        batch = plain.random_batch(draw, _BATCH, fresh)
        (said,) = living.apply(living.offset + 1, [batch])
        if not isinstance(said, BatchEffect):
            raise SystemExit(f"a batch was refused: {said.field}: {said.message}")
        done += batch.counts.items
    if (longest := max(map(len, plain.lists.values()))) > _FANOUT:
        raise SystemExit(f"a node has {longest} neighbours, more than the fan-out of {_FANOUT} that reads all")
    return _Changed(loaded, living.graph.ids.find(ids_of([*plain.lists])), done)


def _answers_of(loaded: LoadedRevision, variant: str, nodes: np.ndarray) -> np.ndarray:
    parts = [nodes[start : start + _MOST_SEEDS] for start in range(0, len(nodes), _MOST_SEEDS)]
    return np.concatenate([infer_batch(loaded, variant, part, 0).scores for part in parts])


def _largest_error(found: np.ndarray, expected: np.ndarray) -> float:
    # Of large scores the last digits differ: sums are made in another order.
    error = np.abs(found - expected) / np.maximum(1, np.abs(expected))
    return float(error.max()) if np.isfinite(error).all() else float("inf")


def _generated(
    root: Path, digest: str, architecture: str, plain: PlainGraph, max_delta_bytes: int | None = None
) -> LoadedRevision:
    """A revision of the graph as it is now, its nodes in the order of `plain.lists`."""
    graph, features, rules = plain.built()
    spec = GNNServiceSpec.model_validate(
        {
            "graph": {"source": {"builtin": "Digits"}, "normalization": "Disabled"},
            "model": {"fanouts": [-1] * _LAYERS, "hidden": 8, **MODELS[architecture]},
            "variants": _VARIANTS,
        }
    )
    nodes = len(features)
    data = GraphData.of_one_type(
        source="made up", digest=digest, graph=graph, features=features, labels=np.arange(nodes) % _CLASSES,
        classes=(*range(_CLASSES),), splits=Splits(*(np.arange(start, nodes, 3) for start in range(3))),
        edge_rules=rules,
    )  # fmt: skip
    repository, models = Repository(root, "benchmarks", digest), _RandomModels(spec)
    given = GivenVariant("given-1", np.array(_GIVEN_COLUMNS), random_tensors(models.network, len(_GIVEN_COLUMNS), 5))
    made = generate_over(
        spec, data, task_of(spec).pose(data).problem, repository, lambda data, features: models, given=[given],
        one_rows_of=lambda data, rows: _RandomOneRows(spec, data.normalized.features),
    )  # fmt: skip
    return load_revision(repository, made.revision, max_delta_bytes)


@dataclass(frozen=True, slots=True)
class _RandomModels:
    """Models with equal weights for every graph."""

    spec: GNNServiceSpec
    runs: Sequence[Any] = ()
    decoder: Mapping[str, np.ndarray] = field(default_factory=dict)

    @property
    def network(self) -> NetworkManifest:
        return self.spec.model.network(_CLASSES)

    def master(self, name: str) -> Tensors:
        return random_tensors(self.network, FEATURES, seed=1)

    def pruned(self, columns: np.ndarray, name: str) -> Tensors:
        return random_tensors(self.network, len(columns), seed=2)

    def narrowed(self, wide: Tensors, columns: np.ndarray | None, factor: int, name: str) -> Tensors:
        network = self.spec.model.with_fewer_channels(factor).network(_CLASSES)
        return random_tensors(network, FEATURES if columns is None else len(columns), seed=3)

    def another_master(self, seed: int, name: str) -> Tensors:
        return random_tensors(self.network, FEATURES, seed)


@dataclass(frozen=True, slots=True)
class _RandomOneRows:
    spec: GNNServiceSpec
    features: Features
    runs: Sequence[Any] = ()

    def teacher_of(self, master: Tensors | None, decoder: Mapping[str, np.ndarray]) -> Any:
        return master

    def one_row(self, hops: int, name: str, teacher: object) -> OneRowNetwork:
        network = self.spec.model.one_row(hops).network(_CLASSES)
        tensors = random_tensors(network, FEATURES, seed=4)
        return OneRowNetwork(network, tensors, np.asarray(self.features @ projection_of(tensors).rows, np.float32))


@contextmanager
def short_profile() -> Iterator[None]:
    """Latencies of these revisions are not read."""
    os.environ[BUDGET_VARIABLE] = "0.02"
    try:
        yield
    finally:
        del os.environ[BUDGET_VARIABLE]
