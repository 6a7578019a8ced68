"""A service of the matrix: generated, opened, served in this process and asked.

What is asked of it follows from its manifest: every variant by itself; a new node, where requests may bring one; a
change, where there is a log; and what its fields add (`_ADDED`), of which one that is not known here fails.

What is expected: a new node that has the features and the edges of a stored one is called as that one is, by every
variant to 1e-5, whatever it computes, since nothing tells the two apart; variants that compute the same network
answer alike; networks over one type answer as plain arithmetic over all of the graph does; and after changes all answer
as over the graph built anew.
"""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import UNSET
from safetensors.numpy import load_file
from tests.matrix.cells import Cell, fields_of
from tests.matrix.columns import MOST_NEIGHBOURS, Column
from tests.support.changes.living import ROOM_BYTES, write_and_apply
from tests.support.generation.names import assert_named
from tests.support.generation.same_weights import KeptWeights
from tests.support.serving.following_index import followed
from tests.support.serving.grpc_worker import listening
from tests.support.serving.serving import Client, FakeWorker, running
from tests.support.serving.two_revisions import STAYS, DirectCalls

from gnnserve_api.families import ChannelAxis, ColumnAxis, NetworkAxis, point_of
from gnnserve_api.files.repository import RevisionManifest, VariantManifest
from gnnserve_api.generated.capabilities import manifest_of, merged
from gnnserve_api.manifest import Document, parse_document
from gnnserve_api.spec.paths import ManifestFolder
from gnnserve_api.spec.service import GNNService
from gnnserve_api.spec.task import Decoder
from gnnserve_api.variants import Storage
from gnnserve_worker.asking.naming import IdForm
from gnnserve_worker.changes.follower import catch_up
from gnnserve_worker.changes.options import SqliteFile, UpdatesOptions
from gnnserve_worker.changes.registry import opened_log
from gnnserve_worker.compaction.compact import compact
from gnnserve_worker.generation.embeddings.publishing import publish_embeddings
from gnnserve_worker.generation.pipeline import generate
from gnnserve_worker.inference.living import LivingRevision
from gnnserve_worker.inference.opening import served_revision
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.progress import silent
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.serving.http.changes.reading import read_changes
from gnnserve_worker.serving.process.canary import ServedCanary
from gnnserve_worker.tasks.embedding import embedded_task

CLOSE, ROUNDED = 1e-5, 0.02
"""Difference of two answers, as a share of the largest score: of rows that are exact, and of rounded ones, whose last
digit may turn."""
_UID = "f7b4c2a0-0000-4000-8000-000000000046"
_LENGTH = "Inference-Header-Content-Length"


# --- a revision that is open


@dataclass
class Opened:
    loaded: LoadedRevision
    living: LivingRevision | None
    served: ServedRevision

    @property
    def answering(self) -> list[str]:
        """Variants that answer at all."""
        capabilities, needed = self.served.capabilities, self.served.changes.needed
        return [name for name, gives in capabilities.items() if gives.cover(needed)]

    def taking(self, **needed: bool) -> list[str]:
        """Those that answer a request which needs more."""
        wanted = replace(self.served.changes.needed, **needed)
        return [name for name, gives in self.served.capabilities.items() if gives.cover(wanted)]

    def reads_all(self, name: str) -> bool:
        """Whether a variant draws no neighbours, since it samples as many as any node of the graph has."""
        manifest = self.served.manifest
        stages = {one.name: (one.first, one.then) for one in manifest.cascades}
        fanouts = {one.name: one.fanouts for one in manifest.variants}
        drawn = [drawn for stage in stages.get(name, (name,)) for drawn in fanouts[stage]]
        return all(one <= 0 or one >= MOST_NEIGHBOURS for one in drawn)

    @property
    def has_features(self) -> bool:
        """Whether nodes of the first type come with features."""
        types = self.loaded.new_nodes.types
        return bool(types) and types[0].columns is not None

    def new_node(self, column: Column, new: int | str | None = None) -> dict[str, Any]:
        """One with the features of the first one. `new`: its id; None: the column's."""
        id_ = column.new if new is None else new
        return {"id": id_, **({"features": column.features_of_first} if self.has_features else {})}

    @property
    def with_edge_columns(self) -> set[str]:
        """Names of relations whose edges have features and times: links that are scored have some where nothing is
        learnt of them."""
        return {one.name for one in self.loaded.graph.schema.relations if one.payload is not UNSET}

    def with_payload(self, column: Column, edges: Sequence[Sequence[Any]]) -> dict[str, list[Any]]:
        """See `Column.with_payload`."""
        return column.with_payload(edges, self.with_edge_columns)

    def edges_like(self, column: Column, new: int | str | None = None) -> list[list[Any]]:
        """Edges of the new node, or of that one, which make it the first one's like, from the lists as they are now."""
        new = column.new if new is None else new
        graph = self.served.graph
        number = graph.naming.find_one(column.first, "nodes[0]", "")
        if graph.naming.form is not IdForm.WITH_TYPES:
            return [[int(other), new] for other in graph.neighbours_of(number)]
        found, numbered = [], graph.numbered
        for place, listed in graph.lists_by_relation(number):
            relation = graph.types.relations[place]
            first = numbered.first_nodes[numbered.place_of(relation.source)]
            for other in (f"{relation.source}/{one - first}" for one in listed.tolist()):
                if relation.reverse_of is None:
                    found.append([other, relation.name, new])
                else:
                    found.append([new, relation.reverse_of, other])
        return found


@dataclass
class Scene:
    cell: Cell
    column: Column
    folder: Path
    files: Path
    """Folder with the files that the column's manifests name."""
    service: GNNService = field(init=False)
    repository: Repository = field(init=False)
    manifest: RevisionManifest = field(init=False)
    opened: list[Opened] = field(default_factory=list)
    learnt: KeptWeights = field(default_factory=KeptWeights)
    sequence: int = 0

    def __post_init__(self) -> None:
        self.repository = Repository(self.folder / "repository", "default", "service")
        spec = self.column.completed(*(one.parts for one in self.cell.features))
        if "canary" in spec.get("routing", {}):
            spec["routing"]["canary"]["revision"] = self._other_revision(spec)
        self.service = self._service_of(spec)
        with self.learnt.kept():
            self.manifest = generate(self.service, self.repository, silent)

    def _service_of(self, spec: Mapping[str, Any]) -> GNNService:
        return parse_document(Document("manifest", manifest_of(spec)), ManifestFolder(self.files, None))

    def _other_revision(self, spec: Mapping[str, Any]) -> str:
        """A second revision, which other requests are answered by: in float16 what the first one has in int8, and where
        storages are searched for, of a search that keeps fewer."""
        without = {**spec, "routing": {name: one for name, one in spec["routing"].items() if name != "canary"}}
        in_float16 = json.loads(json.dumps(without).replace("int8", "float16"))
        other = merged(in_float16, {"variants": {"storage": ["float32", "float16"], "budget": {"variants": 7}}})
        return generate(self._service_of(other), self.repository, silent).revision

    @property
    def learns_anew(self) -> bool:
        """Whether another graph has other weights, whatever is kept: rows of nodes that are learnt, and what a search
        finds."""
        spec = self.service.spec
        return spec.model.learns_embeddings or spec.variants.is_searched

    @property
    def updates(self) -> UpdatesOptions | None:
        if self.service.spec.updates is None:
            return None
        return UpdatesOptions(SqliteFile(self.folder / "log.sqlite"), _UID, ROOM_BYTES)

    def open(self, revision: str) -> Opened:
        if self.service.spec.embeddings is not None:
            publish_embeddings(self.repository, "default/service", revision, None, {}, "a test", silent)
        updates = self.updates
        if updates is None:
            loaded = load_revision(self.repository, revision)
            found = Opened(loaded, None, served_revision(loaded))
        else:
            loaded = load_revision(self.repository, revision, updates.max_delta_bytes)
            living = LivingRevision(loaded, updates.max_delta_bytes)
            with opened_log(updates.log, updates.uid) as log:
                catch_up(log, living, lambda _: None)
            found = Opened(loaded, living, served_revision(loaded, living))
        self.opened.append(found)
        return found

    def change(self, opened: Opened, body: Mapping[str, Any]) -> None:
        assert self.updates is not None and opened.living is not None
        _, batch = read_changes(json.dumps(body).encode(), b"application/json", opened.served)
        self.sequence = write_and_apply(self.updates, self.sequence, opened.living, [batch])

    def close(self) -> None:
        for one in self.opened:
            for program in one.loaded.programs:
                program.close()
        self.opened.clear()
        gc.collect()

    # Questions

    def body(self, *firsts: int | str, **fields: Any) -> dict[str, Any]:
        """A question about these nodes, or their pairs with another one."""
        asked = {"pairs": [[one, self.column.other] for one in firsts]} if self.column.asks_pairs else {"nodes": firsts}
        return {**asked, "return": ["scores"], **fields}


@contextmanager
def scene_of(cell: Cell, column: Column, folder: Path, files: Path) -> Iterator[Scene]:
    scene = Scene(cell, column, folder, files)
    try:
        yield scene
    finally:
        scene.close()


# --- what is asked


async def scores_of(client: Client, body: Mapping[str, Any]) -> np.ndarray:
    response = await client.http.post("/v1/predict", json=body)
    assert response.status_code == 200, (body, response.text)
    scores = np.array(response.json()["scores"], np.float32)
    assert np.isfinite(scores).all(), (body, scores)
    return scores


def assert_close(found: np.ndarray, expected: np.ndarray, about: str, close: float = CLOSE) -> None:
    largest = max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(found, expected, rtol=0, atol=close * largest, err_msg=about)


async def ask_scene(scene: Scene) -> None:
    """Everything that is asked of a service of its manifest."""
    assert_named(scene.service.spec, scene.manifest)
    opened, gives = scene.open(scene.manifest.revision), embedded_task(scene.manifest).gives
    assert {one.name for one in scene.manifest.variants if gives(one)} <= {*scene.service.spec.embedding_variants()}
    if not scene.service.spec.variants.is_searched:
        assert not {*opened.answering}.intersection(scene.service.spec.standing_variants())
        assert {*opened.answering}.issubset(scene.service.spec.following_variants())
    async with running(FakeWorker(loaded=False), scene.service) as client:
        client.switch(opened.served, scene.service)
        for path in ("/v1/variants", "/v1/route", "/v1/nodes", "/openapi.json", "/v1/accuracy"):
            assert (await client.http.get(path)).status_code == 200, path
        await ask_variants(scene, client, opened)
        await ask_about_new(scene, client, opened)
        for path, _ in fields_of(scene.cell.spec):
            await _added_by(path)(scene, client, opened)
        if opened.living is not None:
            await ask_beside_rebuilt(scene, client, opened)


async def ask_variants(scene: Scene, client: Client, opened: Opened) -> None:
    by_network: dict[str, np.ndarray] = {}
    asked, kept = [scene.column.first, scene.column.between], {one.name: one for one in opened.served.manifest.variants}
    if scene.column.asks_pairs:
        asked = asked[:1]
    for name in opened.answering:
        scores = await scores_of(client, scene.body(*asked, variant=name, seed=1))
        if name not in kept or (network := _network_of(kept[name], opened)) is None:
            continue
        if network in by_network:
            assert_close(scores, by_network[network], f"{name} computes the network of another variant")
        by_network[network] = scores
        if (plain := plain_scores(scene, opened, kept[name])) is not None:
            assert_close(scores, plain[: len(asked)], f"{name} beside plain arithmetic")
    assert opened.answering, "no variant answers"


def _network_of(variant: VariantManifest, opened: Opened) -> str | None:
    """What all variants have in common that compute the model's network over all columns; None: it computes another."""
    point = point_of(variant)
    is_whole = point.columns is ColumnAxis.ALL or (
        point.columns is ColumnAxis.RANKED and variant.columns == opened.loaded.tables[variant.table].columns
    )
    of_model = point.network is NetworkAxis.MODEL and point.channels is ChannelAxis.ALL
    exact = opened.served.manifest.tables[variant.table].storage is Storage.FLOAT32 and variant.compute == "float32"
    return "model" if is_whole and of_model and exact and opened.reads_all(variant.name) else None


def plain_scores(scene: Scene, opened: Opened, variant: VariantManifest) -> np.ndarray | None:
    """Scores of the questions by plain arithmetic over the whole graph, of GraphSAGE over features of one type; None:
    it is another network."""
    loaded, table = opened.loaded, opened.served.manifest.tables[variant.table]
    network = variant.network
    task, is_sage = scene.service.spec.task.links, (table.kind, network.architecture) == ("features", "GraphSAGE")
    if not is_sage or scene.column.named_types[0] or (task is not None and task.decoder is not Decoder.DOT):
        return None
    assert loaded.origin.folder is not None
    weights = load_file(loaded.origin.folder / variant.weights)
    order = table.source_columns or opened.served.manifest.ranking.columns
    rows = np.load(scene.files / "graph.npz")["features"][:, list(order[: variant.columns])]
    lists = [opened.served.graph.neighbours_of(node) for node in range(len(rows))]
    for layer in range(network.layers):
        read = np.stack([rows[one].mean(axis=0) if len(one) else np.zeros_like(rows[0]) for one in lists])
        own, neighbours = (weights[f"convs.{layer}.lin_{side}.weight"] for side in "rl")
        rows = read @ neighbours.T + weights[f"convs.{layer}.lin_l.bias"] + rows @ own.T
        rows = np.maximum(rows, 0) if layer < network.layers - 1 else rows
    column = scene.column
    if column.asks_pairs:
        return np.array([rows[column.first] @ rows[column.other]])
    return rows[[column.first, column.between]]


async def ask_about_new(scene: Scene, client: Client, opened: Opened) -> None:
    """Of a new node with the edges of a stored one, and an edge more of either: a row that was learnt of the stored one
    (LightGCN) is made anew then, as the new one's is."""
    column, edges = scene.column, opened.edges_like(scene.column)
    more = [_joined(opened, node, column.between) for node in (column.first, column.new)]
    overlay = {"nodes": [opened.new_node(column)], **opened.with_payload(column, edges + more)}
    for name in opened.taking(overlay=True):
        stored, new = await scores_of(
            client, scene.body(column.first, column.new, variant=name, seed=1, overlay=overlay)
        )
        if opened.reads_all(name):
            assert_close(new, stored, f"{name} of a new node like a stored one")
    if not opened.taking(overlay=True):
        response = await client.http.post("/v1/predict", json=scene.body(column.new, overlay=overlay))
        assert response.status_code == 400, response.text
        assert opened.served.compute.overlays.why in response.json()["error"]["message"]


# --- what fields add


Added = Callable[[Scene, Client, Opened], Awaitable[None]]


async def _nothing(scene: Scene, client: Client, opened: Opened) -> None:
    """Its variants are asked like all others."""


async def ask_after_changes(scene: Scene, client: Client, opened: Opened) -> None:
    """A new node with the edges of a stored one, and an edge more of either."""
    column, edges = scene.column, opened.edges_like(scene.column)
    more = [_joined(opened, node, column.between) for node in (column.first, column.new)]
    scene.change(opened, {"nodes": [opened.new_node(column)], **opened.with_payload(column, edges + more)})
    assert opened.living is not None
    _refresh(opened.living)
    asked = scene.body(column.first, column.new, seed=1, minOffset=opened.living.offset)
    for name in opened.answering:
        stored, new = await scores_of(client, {**asked, "variant": name})
        if opened.reads_all(name):
            assert_close(new, stored, f"{name} of an added node like a stored one")


async def ask_while_stale(scene: Scene, client: Client, opened: Opened) -> None:
    """One more edge, which leaves rows stale: all variants answer with some of them and without."""
    column, living = scene.column, opened.living
    assert living is not None and living.refreshing.budget is not None
    scene.change(opened, opened.with_payload(column, [_joined(opened, column.first, column.between)]))
    asked = scene.body(column.first, seed=1, minOffset=living.offset)
    for name in opened.answering:
        assert np.isfinite(await scores_of(client, {**asked, "variant": name})).all(), name
    _refresh(living)
    told = (await client.http.get("/v1/variants")).json()["stale"]
    assert [one["rows"] for one in told] == [0] * len(living.refreshing.layers)


def _refresh(living: LivingRevision) -> None:
    while living.refreshing.is_any_stale:
        living.refresh_worst()


def _joined(opened: Opened, node: int | str, other: int | str) -> list[Any]:
    if opened.served.graph.naming.form is not IdForm.WITH_TYPES:
        return [other, node]
    kinds = [str(one).partition("/")[0] for one in (node, other)]
    name = next(
        one.name for one in opened.served.graph.types.relations
        if one.reverse_of is None and [one.source, one.target] == kinds
    )  # fmt: skip
    return [node, name, other]


async def ask_beside_rebuilt(scene: Scene, client: Client, opened: Opened) -> None:
    """After further changes, of all kinds, answers are those of a worker that begins with the log, and those of a
    revision that is generated over the graph as it is now, with the same weights."""
    column, living, updates = scene.column, opened.living, scene.updates
    assert living is not None and updates is not None
    changes: dict[str, Any] = {"removedEdges": [_joined(opened, column.first, column.between)]}
    if opened.with_edge_columns:
        # The last one, which is not of the links that are scored.
        given = opened.edges_like(column, column.first)[-1:]
        changes |= {"edges": given, "edgeFeatures": [[2.0, -1.0]], "edgeTimes": [1]}
    if opened.has_features:
        features = [2 * number for number in column.features_of_first]
        changes["overrides"] = [{"id": column.first, "features": features}]
    scene.change(opened, changes)
    _refresh(living)
    found = await _answers_of(scene, client, opened)
    begun = scene.open(scene.manifest.revision)
    assert begun.living is not None and begun.living.offset == living.offset
    client.switch(begun.served, scene.service)
    _compare(await _answers_of(scene, client, begun), found, scene.manifest, "of a worker that begins with the log")
    if scene.learns_anew:
        return
    with scene.learnt.used():
        made = compact(scene.service, scene.repository, updates, retrain=True)
    rebuilt = scene.open(made.revision)
    client.switch(rebuilt.served, scene.service)
    _compare(await _answers_of(scene, client, rebuilt), found, made, "over the graph built anew")
    client.switch(opened.served, scene.service)


async def _answers_of(scene: Scene, client: Client, opened: Opened) -> dict[str, np.ndarray]:
    """Scores of nodes of the graph, one of which changes brought, and of one that a request brings, by each variant
    that draws no neighbours."""
    column = scene.column
    edges = opened.with_payload(column, opened.edges_like(column, column.newer))
    brought = {"nodes": [opened.new_node(column, column.newer)], **edges}
    asked = scene.body(column.first, column.new, seed=1)
    of_request = scene.body(column.newer, seed=1, overlay=brought)
    variants = {one.name for one in opened.served.manifest.variants if opened.reads_all(one.name)}
    found = {}
    for name in variants.intersection(opened.answering):
        found[name] = await scores_of(client, {**asked, "variant": name})
    for name in variants.intersection(opened.taking(overlay=True)):
        found[f"{name} of a new node"] = await scores_of(client, {**of_request, "variant": name})
    return found


def _compare(
    found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray], manifest: RevisionManifest, about: str
) -> None:
    made, names = {one.name: one for one in manifest.variants}, found.keys() & expected.keys()
    # What is measured decides whether some variants are kept.
    assert names, about
    for name, scores in ((name, found[name]) for name in sorted(names)):
        variant = made[name.partition(" ")[0]]
        is_exact = manifest.tables[variant.table].storage is Storage.FLOAT32 and variant.compute == "float32"
        assert_close(scores, expected[name], f"{name} {about}", CLOSE if is_exact else ROUNDED)


async def ask_once_retrained(scene: Scene, client: Client, opened: Opened) -> None:
    assert scene.updates is not None
    made = compact(scene.service, scene.repository, scene.updates, retrain=True)
    assert made.revision != scene.manifest.revision
    again = scene.open(made.revision)
    client.switch(again.served, scene.service)
    await ask_variants_of(scene, client, again)
    client.switch(opened.served, scene.service)


async def ask_variants_of(scene: Scene, client: Client, opened: Opened) -> None:
    for name in opened.answering:
        await scores_of(client, scene.body(scene.column.first, scene.column.new, variant=name))


async def ask_canary(scene: Scene, client: Client, opened: Opened) -> None:
    """Half of the requests are answered by the other revision."""
    canary = scene.service.spec.routing.canary
    assert canary is not None and canary.revision != scene.manifest.revision
    other = scene.open(canary.revision)
    second = ServedCanary(
        client.model.service,
        canary.revision,
        client.engine,
        client.app.predict,
        DirectCalls(),
        1.0,
        STAYS,
        lambda _: None,
    )
    second.open(50)
    second.switch(other.served, scene.service.spec.routing_table(canary.revision), 0.5)
    told = [await client.http.post("/v1/predict", json=scene.body(scene.column.first)) for _ in range(8)]
    assert {one.json()["revision"] for one in told} == {opened.served.manifest.revision, canary.revision}
    second.close()


async def ask_shadows(scene: Scene, client: Client, opened: Opened) -> None:
    assert client.model.watch.shadows.permille == scene.service.spec.routing.shadow_permille > 0
    await scores_of(client, scene.body(scene.column.first))
    assert (await client.http.get("/v1/accuracy")).status_code == 200


async def ask_for_recommendations(scene: Scene, client: Client, opened: Opened) -> None:
    body = {"node": scene.column.first, "count": 5}
    if opened.living is None:
        told = (await client.http.post("/v1/recommend", json=body)).json()
    else:
        told = await followed(client, body, opened.living.offset)
    assert len(told.get("items", ())) == 5, told
    measures = [one.get("score", one.get("cosine")) for one in told["items"]]
    assert measures == sorted(measures, reverse=True)


_ADDED: Mapping[str, Added] = {
    "updates.log.sqlite": ask_after_changes,
    "updates.refresh": ask_while_stale,
    "updates.compaction.retrain": ask_once_retrained,
    "routing.canary.revision": ask_canary,
    "routing.shadowPermille": ask_shadows,
    "embeddings": ask_for_recommendations,
}
"""What is asked where a manifest has a field, by its path. Fields of sections that decide what is learnt and kept
(`_OF_GENERATION`) are asked about by the variants that they make."""
_BESIDE_OTHERS = ("routing.canary.percent",)
_OF_GENERATION = ("graph.", "model.", "task.", "variants.")


def is_asked_about(path: str) -> bool:
    return path in _ADDED or path in _BESIDE_OTHERS or path.startswith(_OF_GENERATION)


def _added_by(path: str) -> Added:
    return _ADDED.get(path, _nothing)


# --- protocols


async def ask_in_every_form(scene: Scene) -> None:
    """The same question by JSON, arrays, and the Open Inference Protocol over HTTP and gRPC has one answer."""
    opened = scene.open(scene.manifest.revision)
    async with running(FakeWorker(loaded=False), scene.service) as client, listening(client) as channel:
        client.switch(opened.served, scene.service)
        variant, column = opened.answering[0], scene.column
        ids: Any = [[column.first, column.other]] if column.asks_pairs else [column.first]
        expected = await scores_of(client, scene.body(column.first, variant=variant, seed=1))
        found: dict[str, np.ndarray] = {}
        kind, raw = _as_tensor(ids)
        if kind == "INT64":
            headers = {"content-type": "application/octet-stream", "gnnserve-variant": variant, "gnnserve-seed": "1"}
            response = await client.http.post("/v1/predict?return=scores", content=raw, headers=headers)
            assert response.status_code == 200, response.text
            found["arrays"] = np.frombuffer(response.content, "<f4")
        tensor = {"name": opened.served.task.tensors.items, "datatype": kind, "shape": [*np.array(ids).shape]}
        path, parameters = f"/v2/models/{client.model.service}/versions/{variant}/infer", {"seed": 1}
        outputs = [{"name": "scores"}]
        asked = {"inputs": [{**tensor, "data": np.array(ids).ravel().tolist()}], "outputs": outputs}
        response = await client.http.post(path, json={**asked, "parameters": parameters})
        assert response.status_code == 200, response.text
        found["protocol"] = np.array(response.json()["outputs"][0]["data"])
        behind = {**tensor, "parameters": {"binary_data_size": len(raw)}}
        head = json.dumps(
            {"inputs": [behind], "outputs": outputs, "parameters": {**parameters, "binary_data_output": True}}
        ).encode()
        response = await client.http.post(path, content=head + raw, headers={_LENGTH: str(len(head))})
        assert response.status_code == 200, response.text
        found["protocol, bytes"] = np.frombuffer(response.content[int(response.headers[_LENGTH]) :], "<f4")
        ended = await channel.call(
            "ModelInfer", model_name=client.model.service, model_version=variant, inputs=[tensor], outputs=outputs,
            parameters={"seed": {"uint64_param": 1}}, raw_input_contents=[raw],
        )  # fmt: skip
        assert ended.answer is not None, ended.sentence
        found["gRPC"] = np.frombuffer(ended.answer.raw_output_contents[0], "<f4")
        for form, scores in found.items():
            assert_close(scores.ravel(), expected.ravel(), form)


def _as_tensor(ids: Any) -> tuple[str, bytes]:
    """Datatype and raw bytes."""
    flat = np.array(ids).ravel().tolist()
    if isinstance(flat[0], str):
        return "BYTES", b"".join(len(one.encode()).to_bytes(4, "little") + one.encode() for one in flat)
    return "INT64", np.array(flat, "<i8").tobytes()


def run(asked: Awaitable[None]) -> None:
    async def scenario() -> None:
        await asked

    asyncio.run(scenario())
