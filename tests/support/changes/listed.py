"""Networks of listed layers over a plain graph and over several types, a service of them, and what torch says of it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from msgspec import UNSET
from safetensors.numpy import load_file
from tests.support.changes.living import FEATURES, PlainGraph, write_and_apply
from tests.support.graphs.graphs import service_of, write_npz

from gnnserve_api.files.graph_schema import GraphSchema
from gnnserve_api.files.repository import RevisionManifest
from gnnserve_api.limits import RefreshBudget
from gnnserve_api.spec.service import GNNService
from gnnserve_worker.changes.follower import catch_up
from gnnserve_worker.changes.options import SqliteFile, UpdatesOptions
from gnnserve_worker.changes.registry import opened_log
from gnnserve_worker.generation.layer_modules import GraphTensors, LayersModule, load_canonical
from gnnserve_worker.generation.pipeline import generate
from gnnserve_worker.graph.change_batch import ChangeBatch
from gnnserve_worker.inference.living import LivingRevision
from gnnserve_worker.inference.opening import served_revision
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.layers.shapes import columns_of
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.repository.repository import Repository

if TYPE_CHECKING:  # a machine with a GPU has none of the packages of programs
    from tests.support.programs.program_types_generated import GrownGraph

CLASSES, ROOM_BYTES = 3, 1 << 24
UPDATES, UID = {"log": {"sqlite": {}}}, "f7b4c2a0-0000-4000-8000-000000000048"
FOLLOWING = {"storage": ["float32", "int8"], "stored": [1, 2], "storedFollowChanges": True}
"""Variants that follow changes."""
FIRST_NEW = 5000
"""Id of the first node that a request brings."""
SAGE = {"conv": "GraphSAGE", "width": 8, "activation": "Relu"}
ONE_TYPE: dict[str, dict[str, Any]] = {
    "attention and degrees": {
        "layers": [
            {"conv": "GATv2", "width": 8, "heads": 2, "norm": "Batch", "activation": "Elu", "residual": "Projected"},
            {"conv": "GCN", "width": 8, "activation": "Gelu"},
        ],
        "jumpingKnowledge": "Cat", "head": [{}], "fanouts": [-1, -1],
    },
    "what is read beside": {
        "before": [{"products": [{"width": 8, "activation": "Relu"}]}],
        "layers": [
            {**SAGE, "aggregations": ["Max", "Std"]},
            {"conv": "GCN", "width": 8, "residual": "Added", "residualOfInput": True},
            {"conv": "GIN", "mlp": [{"width": 8, "activation": "Relu"}, {"width": 8}]},
        ],
        "head": [{}], "headReadsInput": True, "fanouts": [-1, -1, -1],
    },
    "several hops": {
        "layers": [
            {"conv": "TAG", "width": 8, "hops": 2, "activation": "Tanh"}, {"conv": "SGC", "width": 8, "hops": 2},
        ],
        "head": [{}], "fanouts": [-1, -1, -1, -1],
    },
    "propagation": {
        "before": [{"products": [{"width": 8, "activation": "Relu"}]}],
        "layers": [
            {"conv": "GCNII", "alpha": 0.2, "activation": "Relu"}, {"conv": "APPNP", "hops": 2, "alpha": 0.2},
        ],
        "head": [{}], "fanouts": [-1, -1, -1],
    },
    "scaled by degrees": {
        "layers": [
            {"conv": "PNA", "width": 8, "aggregations": ["Mean", "Max"], "scalers": ["Identity", "Amplification"]},
            {"conv": "AGNN"}, {"conv": "FiLM", "width": 8},
        ],
        "head": [{}], "fanouts": [-1, -1, -1],
    },
}  # fmt: skip
BOTH_WAYS = {"layers": [{"conv": "Chebyshev", "width": 8, "hops": 2}, SAGE], "head": [{}], "fanouts": [-1, -1, -1]}
"""Degrees are those of the lists, a hop further than the layer reads."""
SEVERAL_TYPES: dict[str, Any] = {
    "before": [{"type": "item", "products": [{"width": 6, "activation": "Relu"}]}],
    "layers": [
        {
            "relations": [
                {"relation": {"source": "user", "name": "knows", "target": "user"}, "conv": "GraphSAGE", "width": 8},
                {
                    "relation": {"source": "item", "name": "bought_by", "target": "user"}, "conv": "GATv2", "width": 8,
                    "selfLoops": False, "edgeColumns": ["0", "1"],
                },
                {"relation": {"source": "user", "name": "buys", "target": "item"}, "conv": "GraphSAGE", "width": 8},
            ],
            "norm": "Layer", "activation": "Elu",
        },
        {"conv": "GraphSAGE", "width": 8, "aggregations": ["Max"], "residual": "Projected"},
    ],
    "jumpingKnowledge": "Cat", "head": [{}], "headReadsInput": True, "fanouts": [-1, -1],
}  # fmt: skip


def service_over(source: dict[str, Any], model: dict[str, Any], variants: dict[str, Any], **parts: Any) -> GNNService:
    """`source`: of the graph; `parts`: of the spec beside."""
    made = service_of(
        "file:///none.npz", model={"training": {"epochs": 1}, **model}, variants=variants,
        **{"normalization": "Disabled", **parts},
    )  # fmt: skip
    document = made.model_dump(by_alias=True, exclude_none=True)
    document["spec"]["graph"]["source"] = source
    return GNNService.model_validate(document)


def source_of(folder: Path, plain: PlainGraph) -> dict[str, Any]:
    """A file of the graph."""
    graph, features, rules = plain.built()
    labels, parts = np.arange(graph.nodes) % CLASSES, np.arange(graph.nodes) // 2 % 3
    masks = {f"{name}_mask": parts == place for place, name in enumerate(("train", "val", "test"))}
    arrays = {"indptr": graph.indptr, "indices": graph.indices, "features": features, "labels": labels, **masks}
    path = write_npz(folder / "graph.npz", arrays)
    return {"npz": {"uri": path.as_uri(), "direction": str(rules.direction)}}


def tensors_of(plain: PlainGraph) -> GraphTensors:
    graph, features, _ = plain.built()
    targets = np.repeat(np.arange(graph.nodes), np.diff(graph.indptr))
    edges = np.stack([graph.indices.astype(np.int64), targets])
    return GraphTensors([torch.from_numpy(features)], [torch.from_numpy(edges)], [{}])


def typed_tensors_of(grown: GrownGraph, schema: GraphSchema) -> GraphTensors:
    arrays = {name: torch.from_numpy(one) for name, one in grown.arrays().items()}
    first, second = arrays["attr"].T
    columns = {"bought_by": {"0": first, "1": second}}
    return GraphTensors(
        [arrays[f"x_{kind.name}"] for kind in schema.types],
        [arrays[one.name] for one in schema.relations],
        [columns.get(one.name, {}) for one in schema.relations],
    )


def drawn_request(plain: PlainGraph, draw: np.random.Generator) -> tuple[dict[str, Any], PlainGraph, np.ndarray]:
    """The body of a request, the graph that it sees, and places there of the nodes that it asks about."""
    seen, stored = copy.deepcopy(plain), [*plain.lists]
    new = [FIRST_NEW + place for place in range(draw.integers(0, 4))]
    other = draw.choice(stored, draw.integers(0, 3), replace=False).tolist()
    rows = {id_: draw.normal(size=FEATURES).astype(np.float32) for id_ in (*new, *other)}
    seen.lists |= {id_: [] for id_ in new}
    seen.features |= rows
    known = [*draw.choice(stored, 8, replace=False).tolist(), *new]
    edges = [[known[place] for place in ends] for ends in draw.integers(0, len(known), (draw.integers(0, 9), 2))]
    for source, target in edges:
        seen.add_edge(source, target)
    asked = [*draw.choice(stored, 5, replace=False).tolist(), *known]
    overlay = {
        "nodes": [{"id": id_, "features": rows[id_].tolist()} for id_ in new],
        "overrides": [{"id": id_, "features": rows[id_].tolist()} for id_ in other],
        "edges": edges,
    }
    places = {id_: place for place, id_ in enumerate(seen.lists)}
    return {"nodes": asked, "overlay": overlay}, seen, np.array([places[id_] for id_ in asked])


def module_scores(
    manifest: RevisionManifest, repository: Repository, schema: GraphSchema, graph: GraphTensors, variant: str = "x1"
) -> np.ndarray:
    """Scores of all nodes of the first type by torch_geometric's modules with the variant's weights. `graph`: with the
    columns that the variant reads."""
    whole = next(one for one in manifest.variants if one.name == variant)
    program = whole.network.program
    assert program is not UNSET and program.layers is not UNSET
    module = LayersModule(program.layers, schema, program.layers.columns or columns_of(schema)).eval()
    (path,) = repository.folder.glob(f"**/{manifest.revision}/{whole.weights}")
    load_canonical(module, load_file(path))
    with torch.no_grad():
        found: np.ndarray = module(graph).numpy()
    return found


class ListedScene:
    """A revision of listed layers, opened for changes."""

    def __init__(
        self, folder: Path, source: dict[str, Any], model: dict[str, Any], budget: RefreshBudget | None = None,
        variants: dict[str, Any] = FOLLOWING,
    ) -> None:  # fmt: skip
        self.repository = Repository(folder / "repository", "default", "tiny")
        self.updates, self.sequence = UpdatesOptions(SqliteFile(folder / "log.sqlite"), UID, ROOM_BYTES), 0
        self.service = service_over(source, model, variants, updates=UPDATES)
        self.manifest, self.budget = generate(self.service, self.repository), budget
        self.start()

    def start(self) -> None:
        """As a worker that begins to serve, which follows the log."""
        loaded = load_revision(self.repository, self.manifest.revision, ROOM_BYTES)
        self.living = LivingRevision(loaded, ROOM_BYTES, refresh=self.budget)
        with opened_log(self.updates.log, self.updates.uid) as log:
            catch_up(log, self.living, lambda _: None)
        self.served: ServedRevision = served_revision(loaded, self.living)

    def apply(self, batches: list[ChangeBatch]) -> None:
        self.sequence = write_and_apply(self.updates, self.sequence, self.living, batches)

    def module_scores(self, graph: GraphTensors, variant: str = "x1") -> np.ndarray:
        """As of `module_scores`."""
        return module_scores(self.manifest, self.repository, self.living.graph.graph.schema, graph, variant)
