"""What a service of each column of docs/capabilities.md answers and refuses at runtime, asked of one that is served.

`make capabilities` writes the second table of the page (two minutes); tests compare it, a column at a time.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from tests.matrix.cells import Cell
from tests.matrix.columns import COLUMNS_OF_PAGE, Column
from tests.matrix.scene import Opened, Scene, run, scene_of
from tests.support.serving.serving import Client, FakeWorker, running

from gnnserve_api.generated.capabilities import CAPABILITIES_PATH, FEATURES, SERVED_PART, page_with, row
from gnnserve_client import Overlay, TypedOverlay
from gnnserve_worker.serving.security.access import Access

_TOKEN = "writing-0123456789ab"  # noqa: S105
_WRITING = {"authorization": f"Bearer {_TOKEN}"}
_EMBEDDINGS = next(feature for feature in FEATURES if feature.parts == {"embeddings": {}})
_INTRODUCTION = f"""
{SERVED_PART}
     `make capabilities` writes it, `make test-matrix` compares it. -->

## What requests may ask for

Each cell says whether a service of the column's graph, task and model takes the row's request, here one with
`embeddings`. A number is that of the sentence below that refuses it, told by a server of such a graph.
"""


@dataclass(frozen=True)
class Request:
    name: str
    page: str
    """Page of docs that says what it is."""
    ask: Callable[[Scene, Client, Opened], Awaitable[httpx.Response]]


async def _predict(scene: Scene, client: Client, **fields: Any) -> httpx.Response:
    return await client.http.post("/v1/predict", json=scene.body(scene.column.first, **fields))


async def _embeddings(scene: Scene, client: Client, _: Opened) -> httpx.Response:
    asked = {"nodes": [scene.column.first], "return": ["embeddings"]}
    return await client.http.post("/v1/predict", json=asked)


async def _influences(scene: Scene, client: Client, _: Opened) -> httpx.Response:
    column = scene.column
    asked = {"pair": [column.first, column.other]} if column.asks_pairs else {"node": column.first}
    return await client.http.post("/v1/explain", json={**asked, "count": 2})


async def _new_node(scene: Scene, client: Client, opened: Opened) -> httpx.Response:
    edges = opened.with_payload(scene.column, opened.edges_like(scene.column))
    overlay = {"nodes": [opened.new_node(scene.column)], **edges}
    return await client.http.post("/v1/predict", json=scene.body(scene.column.new, overlay=overlay))


async def _arrays(scene: Scene, client: Client, opened: Opened) -> httpx.Response:
    ends = (7, 20) if scene.column.asks_pairs else (7,)
    headers = {"content-type": "application/octet-stream"}
    return await client.http.post("/v1/predict?return=scores", content=np.array(ends, "<i8").tobytes(), headers=headers)


def _brought(scene: Scene, opened: Opened) -> tuple[np.ndarray, Overlay | TypedOverlay]:
    """Nodes asked about, and a new node like the first one, as the client has them."""
    column, edges = scene.column, opened.edges_like(scene.column)
    asked, rows = np.array([-1, 20] if column.asks_pairs else [-1]), [column.features_of_first]

    def number(id_: int | str) -> int:
        return -1 if id_ == column.new else int(str(id_).rpartition("/")[2])

    if not column.named_types[0]:
        numbered = [[number(end) for end in edge] for edge in edges]
        return asked, Overlay(features=rows, edges=numbered, **_payload(opened, column, edges))
    related = _by_relation(edges)
    ends = {key: [(number(source), number(target)) for source, _, target in of_it] for key, of_it in related.items()}
    payload = {key: _payload(opened, column, of_it) for key, of_it in related.items()}
    by_argument = {
        name: {key: given[name] for key, given in payload.items() if name in given}
        for name in ("edge_features", "edge_times")
    }
    return asked, TypedOverlay(features={column.named_types[0]: rows}, edges=ends, **by_argument)


def _by_relation(edges: Sequence[Sequence[Any]]) -> dict[tuple[str, str, str], list[Sequence[Any]]]:
    found: dict[tuple[str, str, str], list[Sequence[Any]]] = {}
    for edge in edges:
        source, name, target = edge
        found.setdefault((source.partition("/")[0], name, target.partition("/")[0]), []).append(edge)
    return found


def _payload(opened: Opened, column: Column, edges: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """What edges of a relation have beside their ends, as the client calls it."""
    given = opened.with_payload(column, edges)
    called = {"edge_features": "edgeFeatures", "edge_times": "edgeTimes"}
    return {name: given[field] for name, field in called.items() if field in given and None not in given[field]}


async def _new_node_in_arrays(scene: Scene, client: Client, opened: Opened) -> httpx.Response:
    asked, overlay = _brought(scene, opened)
    return await client.http.post(
        "/v1/predict?return=scores", content=overlay.to_bytes(asked),
        headers={"content-type": "application/vnd.gnnserve.overlay"},
    )  # fmt: skip


async def _tensors(scene: Scene, client: Client, opened: Opened, *asked: Any, **brought: Any) -> httpx.Response:
    """`brought`: tensors of an overlay, without the beginning of their names."""
    column, tensors = scene.column, opened.served.task.tensors
    items = [[*asked, column.other]] if column.asks_pairs else [*asked]
    inputs = [_tensor(tensors.items, items), *(_tensor(f"overlay.{name}", one) for name, one in brought.items())]
    path = f"/v2/models/{scene.service.metadata.name}/infer"
    return await client.http.post(path, json={"inputs": inputs, "outputs": [{"name": "scores"}]})


def _tensor(name: str, data: list[Any]) -> dict[str, Any]:
    array = np.array(data)
    datatype = {"f": "FP32", "i": "INT64"}.get(array.dtype.kind, "BYTES")
    return {"name": name, "datatype": datatype, "shape": list(array.shape), "data": data}


async def _new_node_in_tensors(scene: Scene, client: Client, opened: Opened) -> httpx.Response:
    column, edges = scene.column, opened.edges_like(scene.column)
    type_ = column.named_types[0]
    brought: dict[str, Any] = {
        "nodes": [column.new],
        "edges": [[edge[0], edge[-1]] for edge in edges],
    }
    if "features" in opened.new_node(column):
        brought[f"nodes.features.{type_}".rstrip(".")] = [column.features_of_first]
    if not type_:
        of_all = {"": edges}
    else:
        brought["edges.relations"] = [edge[1] for edge in edges]
        of_all = {f".{'.'.join(key)}": of_it for key, of_it in _by_relation(edges).items()}
    for suffix, of_it in of_all.items():
        for name, rows in _payload(opened, column, of_it).items():
            brought[f"{name.replace('_', 's.')}{suffix}"] = rows
    return await _tensors(scene, client, opened, column.new, **brought)


async def _recommended(scene: Scene, client: Client, **fields: Any) -> httpx.Response:
    return await client.http.post("/v1/recommend", json={"node": scene.column.first, "count": 3, **fields})


async def _labels(scene: Scene, client: Client, opened: Opened) -> httpx.Response:
    body = opened.served.task.live_labels.example()
    return await client.http.post("/v1/labels", content=body, headers=_WRITING)


async def _recommended_for_new(scene: Scene, client: Client, opened: Opened) -> httpx.Response:
    edges = opened.edges_like(scene.column)
    if opened.served.task.recommending.folder is not None:  # embeddings are made of what links join
        edges = [edge for edge in edges if edge[1] == scene.column.scored]
    overlay = {"nodes": [opened.new_node(scene.column)], **opened.with_payload(scene.column, edges)}
    return await _recommended(scene, client, node=scene.column.new, overlay=overlay)


REQUESTS = (
    Request("scores (`return: [scores]`)", "http.md", lambda scene, client, _: _predict(scene, client)),
    Request(
        "labels (`return: [labels]`)", "http.md",
        lambda scene, client, _: _predict(scene, client, **{"return": ["labels"]}),
    ),
    Request("embeddings of nodes (`return: [embeddings]`)", "embeddings.md", _embeddings),
    Request("ids as arrays (`application/octet-stream`)", "http.md", _arrays),
    Request("a new node (`overlay`)", "http.md", _new_node),
    Request("… as arrays (`application/vnd.gnnserve.overlay`)", "http.md", _new_node_in_arrays),
    Request(
        "ids as tensors (Open Inference Protocol)", "open-inference.md",
        lambda scene, client, opened: _tensors(scene, client, opened, scene.column.first),
    ),
    Request("… a new node", "open-inference.md", _new_node_in_tensors),
    Request("recommendations (`/v1/recommend`)", "recommend.md", lambda scene, client, _: _recommended(scene, client)),
    Request("… for a new node", "recommend.md", _recommended_for_new),
    Request(
        "… of some classes (`filter.labels`)", "recommend.md",
        lambda scene, client, _: _recommended(scene, client, filter={"labels": [0]}),
    ),
    Request("influences (`/v1/explain`)", "http.md#looking-at-a-node", _influences),
    Request("labels that come later (`/v1/labels`)", "metrics.md", _labels),
)  # fmt: skip


def refusals_of(column: Column, files: Path, folder: Path) -> dict[str, str | None]:
    """By the name of each request, the sentence that refuses it; None: it is answered."""
    found: dict[str, str | None] = {}

    async def ask(scene: Scene) -> None:
        opened = scene.open(scene.manifest.revision)
        async with running(FakeWorker(loaded=False), scene.service, write_access=Access((_TOKEN,))) as client:
            client.switch(opened.served, scene.service)
            for request in REQUESTS:
                response = await request.ask(scene, client, opened)
                is_refused = response.status_code != 200
                found[request.name] = _sentence(response) if is_refused else _unexplained(response)

    with scene_of(Cell(column.setup, (_EMBEDDINGS,)), column, folder, files) as scene:
        run(ask(scene))
    return found


def _sentence(response: httpx.Response) -> str:
    error = response.json()["error"]
    told: str = (
        error if isinstance(error, str) else error["message"]
    )  # the Open Inference Protocol has the sentence alone
    return told.strip()


def _unexplained(response: httpx.Response) -> str | None:
    """Why an answer has not what it is asked for."""
    told = response.json() if response.headers["content-type"].startswith("application/json") else {}
    return told.get("unexplained") or None


def served_part(found: Mapping[str, Mapping[str, str | None]]) -> str:
    """The second table. `found`: by column, as `refusals_of` gives it."""
    sentences: list[str] = []
    rows = [row(["", *found]), row(["---"] * (1 + len(found)))]
    for request in REQUESTS:
        cells = [f"[{request.name}]({request.page})"]
        for refusals in found.values():
            said = refusals[request.name]
            if said is not None and said not in sentences:
                sentences.append(said)
            cells.append("yes" if said is None else f"{sentences.index(said) + 1}")
        rows.append(row(cells))
    listed = [f"{number}. {sentence}" for number, sentence in enumerate(sentences, start=1)]
    return "\n".join([_INTRODUCTION, *rows, "", *listed, ""])


def told_on_page(column: str) -> dict[str, str | None]:
    """The same of one column, as the page has it."""
    _, _, part = CAPABILITIES_PATH.read_text().partition(SERVED_PART)
    lines = part.splitlines()
    sentences = dict(line.split(". ", 1) for line in lines if line[:1].isdigit())
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    place = table[0].index(column)
    return {
        request.name: None if cells[place] == "yes" else sentences[cells[place]]
        for request, cells in zip(REQUESTS, table[2:], strict=True)
    }


def main() -> int:
    found = {}
    with tempfile.TemporaryDirectory() as root:
        for place, (name, column) in enumerate(COLUMNS_OF_PAGE.items()):
            files, folder = Path(root) / f"files-{place}", Path(root) / f"{place}"
            files.mkdir()
            folder.mkdir()
            column.write(files)
            found[name] = refusals_of(column, files, folder)
            print(f"{name}: {sum(said is not None for said in found[name].values())} of {len(REQUESTS)} are refused")
    CAPABILITIES_PATH.write_text(page_with(served_part(found)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
