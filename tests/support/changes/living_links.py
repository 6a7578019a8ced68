"""Services that score links over graphs that change, each beside what its rows of nodes have to be.

`LinksOfOneType` has a graph built anew and generated anew, by the same weights; `LinksOfTypes` torch_geometric over the
graph in Python lists; `JoinedLinks` sums over what nodes are joined to, as LightGCN's rows are folded.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol
from unittest.mock import patch

import numpy as np
import safetensors.numpy
import torch
from tests.support.changes.living import MODELS, ROOM_BYTES, PlainGraph, RandomModels, ids_of, stored_ids
from tests.support.changes.living_relations import PlainTypedGraph
from tests.support.generation.generated import generate_over

from gnnserve_api.families import point_of
from gnnserve_api.files.edges import Direction, EdgeRules
from gnnserve_api.files.repository import ChangedSource, RevisionManifest
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.spec.task import Links
from gnnserve_worker.generation import one_relation
from gnnserve_worker.graph.change_batch import BatchEffect, ChangeBatch, ChangeCounts
from gnnserve_worker.graph.change_ids import TEXTS_WITH_TYPES, TextIds
from gnnserve_worker.graph.ids import lay_out
from gnnserve_worker.graph.links import Pairs
from gnnserve_worker.graph.store import GraphData, Splits
from gnnserve_worker.inference.batch import infer_batch
from gnnserve_worker.inference.living import LivingRevision
from gnnserve_worker.models.folding import EIGENVALUES, SHARES
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.tasks.generated import ImportedGraph
from gnnserve_worker.tasks.score_links.held_out import hold_out_links

UID = "f7b4c2a0-0000-4000-8000-000000000003"
VARIANTS = {"pruning": {"factors": [1, 2]}, "stored": [1, 2], "storedFollowChanges": True, "storage": ["float32"]}


def spec_of(architecture: str) -> GNNServiceSpec:
    return GNNServiceSpec.model_validate(
        {
            "graph": {"source": {"npz": {"uri": "file:///made-up.npz"}}, "normalization": "Disabled"},
            "model": {"fanouts": [-1, -1], "hidden": 8, **MODELS[architecture]},
            "task": {"links": {"dimensions": 6}},
            "variants": VARIANTS,
        }
    )


def data_of(plain: PlainGraph, digest: str) -> GraphData:
    graph, features, rules = plain.built()
    none, ids = Splits(*(np.zeros(0, np.int64) for _ in range(3))), stored_ids([*plain.lists])
    return GraphData.of_one_type("made up", digest, graph, features, np.zeros(0, np.int64), (), none, rules, ids)


def generated(repository: Repository, spec: GNNServiceSpec, imported: ImportedGraph) -> RevisionManifest:
    models = RandomModels(spec.model.network(6))
    with patch.object(one_relation, "worth_keeping", tuple):
        return generate_over(spec, imported.graph, imported.problem, repository, lambda data, features: models)


def pairs_of(*parts: Pairs) -> list[tuple[int, int]]:
    return [pair for part in parts for pair in zip(part.first.tolist(), part.second.tolist(), strict=True)]


def typed_batch(
    nodes: list[str], edges: list[tuple[str, str, str]], removed_edges: list[tuple[str, str, str]], removed: list[str]
) -> ChangeBatch:
    texts = [*nodes, *(text for edge in (*edges, *removed_edges) for text in edge), *removed]
    counts = ChangeCounts(len(nodes), 0, 0, len(edges), len(removed_edges), len(removed))
    return ChangeBatch(counts, TextIds(*lay_out(texts), TEXTS_WITH_TYPES), np.zeros((len(nodes), 0), np.float32))


def batch_of_body(body: dict[str, Any], width: int) -> ChangeBatch:
    """`body`: as clients send it. `width`: features of the type that has most."""
    nodes, overrides = body["nodes"], body["overrides"]
    texts = [one["id"] for one in nodes] + [f"{one['id']['type']}/{one['id']['id']}" for one in overrides]
    texts += [text for edge in (*body["edges"], *body["removedEdges"]) for text in edge] + body["removedNodes"]
    rows = np.zeros((len(nodes) + len(overrides), width), np.float32)
    for row, one in zip(rows, (*nodes, *overrides), strict=True):
        given = one.get("features", [])
        row[: len(given)] = given
    sizes = (len(body[name]) for name in ("edges", "removedEdges", "removedNodes"))
    counts = ChangeCounts(len(nodes), len(overrides), 0, *sizes)
    return ChangeBatch(counts, TextIds(*lay_out(texts), TEXTS_WITH_TYPES), rows)


class JoinedNodes:
    """LightGCN's rows by the ids of nodes: as they were generated, and what each node is joined to."""

    def __init__(self, loaded: LoadedRevision) -> None:
        graph, schema = loaded.graph, loaded.graph.schema
        names = [f"{kind.name}/{place}" for kind in schema.types for place in range(kind.nodes)]
        rows = infer_batch(loaded, "x1", np.arange(graph.nodes), 0).scores
        self.base, self.touched = dict(zip(names, rows, strict=True)), set[str]()
        self.joined = {name: {names[other] for other in graph.list_of(node)} for node, name in enumerate(names)}
        weights = read_tensors_of(loaded)
        shares = weights.get(SHARES, np.ones(len(names), np.float32))
        self.shares = dict(zip(names, shares.tolist(), strict=True))
        self.values = weights.get(EIGENVALUES)

    def random_batch(self, draw: np.random.Generator) -> ChangeBatch:
        def one(kind: str) -> str:
            found = [name for name in self.joined if name.startswith(kind)]
            return found[draw.integers(len(found))]

        new = [f"{kind}/{1000 + len(self.base)}" for kind in ("user", "item")]
        self.base |= dict.fromkeys(new, np.zeros(8, np.float32))
        self.shares |= dict.fromkeys(new, 0.0)
        self.joined |= {name: set() for name in new}
        self.touched |= {*new}
        are_many = sum(name.startswith("tag") for name in self.joined) > 2
        gone = one("tag") if draw.random() < 0.3 and are_many else ""
        edges = [(one("user"), "buys", one("item")) for _ in range(4)]
        user = one("user")
        there = [(user, "buys", other) for other in sorted(self.joined[user]) if other.startswith("item")][:1]
        there = [edge for edge in there if edge not in edges]
        for first, _, second in edges:
            self.change(first, second, adds=True)
        for first, _, second in there:
            self.change(first, second, adds=False)
        for other in self.joined.pop(gone, ()):
            self.joined[other].discard(gone)
            self.touched.add(other)
        return typed_batch(new, edges, there, [gone] if gone else [])

    def change(self, first: str, second: str, *, adds: bool) -> None:
        for one, other in ((first, second), (second, first)):
            if (other in self.joined[one]) is not adds:
                (self.joined[one].add if adds else self.joined[one].remove)(other)
                self.touched.add(one)

    def rows(self) -> dict[str, np.ndarray]:
        return {name: self._row(name) if name in self.touched else self.base[name] for name in self.joined}

    def _row(self, name: str) -> np.ndarray:
        found = sum((self.shares[one] * self.base[one] for one in sorted(self.joined[name])), np.zeros(8, np.float32))
        if self.values is not None:
            found = np.divide(found, self.values, out=np.zeros_like(found), where=self.values > 0)
        length = float(np.linalg.norm(found)) if self.values is None or name.startswith("user") else 1.0
        return found / length if length else found


def read_tensors_of(loaded: LoadedRevision) -> dict[str, np.ndarray]:
    assert loaded.manifest is not None and loaded.manifest.links is not None and loaded.origin.folder is not None
    weights = loaded.manifest.links.weights
    return {} if weights is None else safetensors.numpy.load_file(loaded.origin.folder / weights)


def rows_of(loaded: LoadedRevision, names: list[str], variant: str = "x1") -> np.ndarray:
    if loaded.changes is None:
        assert loaded.ids.asked is not None
        return infer_batch(loaded, variant, loaded.ids.asked.find_texts(names), 0).scores
    graph = loaded.changes.graph
    kinds = [graph.stored.place_of(name.partition("/")[0]) for name in names]
    numbers = [
        int(
            graph.places.first_nodes[kind]
            + graph.ids_of[kind].find_integers(np.array([int(name.partition("/")[2])]))[0]
        )
        for kind, name in zip(kinds, names, strict=True)
    ]
    return infer_batch(loaded, variant, np.array(numbers), 0).scores


# --- services beside what they have to answer


Rows = dict[str, tuple[np.ndarray, np.ndarray]]
"""By variant, rows of the same nodes as they are answered and as they have to be, float32 [nodes, dimensions]."""


class ChangingLinks(Protocol):
    def change(self, draw: np.random.Generator) -> int:
        """Apply a batch of random changes; how many there are in it."""

    def rows(self) -> Rows: ...


def apply(living: LivingRevision, batch: ChangeBatch) -> int:
    (said,) = living.apply(living.offset + 1, [batch])
    assert isinstance(said, BatchEffect), said
    return batch.counts.items


def largest_error(links: ChangingLinks, pairs: int, draw: np.random.Generator) -> dict[str, float]:
    """Largest difference of scores of random pairs by each variant, relative where they are above 1."""
    errors: dict[str, float] = {}
    for variant, (found, expected) in links.rows().items():
        first, second = draw.integers(0, len(expected), (2, pairs))
        found_scores, scores = ((rows[first] * rows[second]).sum(axis=1) for rows in (found, expected))
        error = np.abs(found_scores - scores) / np.maximum(1, np.abs(scores))
        errors[variant] = float(error.max()) if np.isfinite(error).all() else float("inf")
    return errors


class LinksOfOneType:
    def __init__(
        self, folder: Path, architecture: str, *, nodes: int = 60, seed: int = 3, room_bytes: int = ROOM_BYTES
    ) -> None:
        self._plain = PlainGraph(nodes, seed, EdgeRules(Direction.UNDIRECTED))
        self._spec, self._source = spec_of(architecture), data_of(self._plain, "source")
        self._links = self._spec.task.asked()
        assert isinstance(self._links, Links)
        imported = hold_out_links(self._spec, self._links, self._source)
        for pair in pairs_of(imported.problem.links.validation, imported.problem.links.test):  # type: ignore[attr-defined]
            self._plain.remove_edge(*pair)
        self._repository = Repository(folder, "tests", "links")
        manifest = generated(self._repository, self._spec, imported)
        self._loaded = load_revision(self._repository, manifest.revision, room_bytes)
        self._living = LivingRevision(self._loaded, room_bytes)
        self._fresh = [*range(10**9, 10**8, -1000)]

    def change(self, draw: np.random.Generator) -> int:
        return apply(self._living, self._plain.random_batch(draw, 100, self._fresh))

    def rows(self) -> Rows:
        links, offset = self._links, self._living.offset
        assert isinstance(links, Links) and self._loaded.changes is not None
        version = replace(
            data_of(self._plain, f"version-{offset}"), made_of=ChangedSource("source", UID, offset, offset, offset)
        )
        anew = hold_out_links(self._spec, links, self._source, version)
        rebuilt = load_revision(self._repository, generated(self._repository, self._spec, anew).revision)
        positions = ids_of([*self._plain.lists]).find_in(self._loaded.changes.graph.ids)
        return {
            name: (
                infer_batch(self._loaded, name, positions, 0).scores,
                infer_batch(rebuilt, name, np.arange(len(positions)), 0).scores,
            )
            for name in following(self._loaded)
        }


class LinksOfTypes:
    def __init__(self, repository: Repository, revision: str, data: GraphData, model: Any) -> None:
        """`model`: torch_geometric's, whose weights the revision has, in float32."""
        self._loaded = load_revision(repository, revision, ROOM_BYTES)
        self._living, self._model = LivingRevision(self._loaded, ROOM_BYTES), model
        self._plain = PlainTypedGraph(data, model)

    def change(self, draw: np.random.Generator) -> int:
        body = self._plain.random_batch(draw, 40)
        return apply(self._living, batch_of_body(body, self._loaded.new_nodes.features))

    def rows(self) -> Rows:
        names, expected = expected_rows(self._plain, self._model)
        return {name: (rows_of(self._loaded, names, name), expected) for name in following(self._loaded)}


def following(loaded: LoadedRevision) -> list[str]:
    """Variants that answer once the graph has changed."""
    assert loaded.manifest is not None
    return [one.name for one in loaded.manifest.variants if point_of(one).capabilities.changes]


def expected_rows(plain: PlainTypedGraph, model: Any) -> tuple[list[str], np.ndarray]:
    """Ids of users and items, and what the model gives of them."""
    built, inputs = plain.built()
    before = dict(model.embeddings.items())
    for name, module in before.items():
        rows = torch.from_numpy(inputs[name]).to(module.weight.dtype)
        model.embeddings[name] = torch.nn.Embedding.from_pretrained(rows)
    with torch.no_grad():
        outputs = model.outputs(built)
    for name, module in before.items():
        model.embeddings[name] = module
    names = [f"{kind}/{id_}" for kind in ("user", "item") for id_ in plain.rows[kind]]
    return names, np.concatenate([outputs[kind].numpy() for kind in ("user", "item")])


class JoinedLinks:
    def __init__(self, repository: Repository, revision: str, room_bytes: int = ROOM_BYTES) -> None:
        self._loaded = load_revision(repository, revision, room_bytes)
        self._plain = JoinedNodes(load_revision(repository, revision))
        self._living = LivingRevision(self._loaded, room_bytes)

    def change(self, draw: np.random.Generator) -> int:
        return apply(self._living, self._plain.random_batch(draw))

    def rows(self) -> Rows:
        names, expected = [*self._plain.joined], np.stack([*self._plain.rows().values()])
        return {name: (rows_of(self._loaded, names, name), expected) for name in following(self._loaded)}
