"""Requests that bring nodes, asked of each variant that stores layers, by HTTP and gRPC: over whole neighbourhoods all
variants compute one network, so that each answers as the one that reads features or their products does."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from tests.support.generation.given_links import Sage, service
from tests.support.graphs.several_types import shop, write_folder
from tests.support.models.networks_of_types import service_of
from tests.support.overlays.typed_overlays import described
from tests.support.programs.program_links import COLUMNS
from tests.support.serving.grpc_worker import GrpcClient, listening
from tests.support.serving.serving import Client, FakeWorker, running

from gnnserve_api.families import POINTS
from gnnserve_api.spec.service import GNNService
from gnnserve_worker.generation.pipeline import generate
from gnnserve_worker.inference.opening import served_revision
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.repository.repository import Repository

STORED = {"stored": [1, 2], "storedFollowChanges": True}
TYPED: dict[str, Any] = {
    "nodes": [{"id": "item/900", "features": [0.5, -1.0, 2.0]}, {"id": "user/900", "features": [1.0, 0.0, -1.0, 0.5]}],
    "edges": [["user/3", "buys", "item/900"], ["user/900", "buys", "item/900"], ["user/900", "knows", "user/3"]],
}
PLAIN: dict[str, Any] = {
    "nodes": [{"id": 900, "features": np.linspace(-1, 1, COLUMNS).tolist()}],
    "edges": [[900, 3], [7, 900]],
}


class Case(NamedTuple):
    service: GNNService
    items: str
    """The field of what is asked about."""
    asked: list[Any]
    overlay: dict[str, Any]


def classes_of_types(folder: Path) -> Case:
    _, made, _ = described(folder, "GraphSAGE", STORED)
    return Case(made, "nodes", ["user/900", "user/3", "user/5"], TYPED)


def links_of_types(folder: Path) -> Case:
    parts = shop()
    for name in ("labels", "train_mask", "val_mask", "test_mask"):
        del parts.nodes["user"][name]
    made = service_of(write_folder(folder / "graph", parts), {"training": {"epochs": 1}}, STORED)
    spec = made.model_dump(by_alias=True, exclude_unset=True)
    spec["spec"]["task"] = {"links": {"dimensions": 8, "relation": "buys"}}
    return Case(GNNService.model_validate(spec), "pairs", [["user/900", "item/900"], ["user/3", "item/4"]], TYPED)


def links_of_one_type(folder: Path) -> Case:
    checkpoint = {"checkpoint": {"uri": Sage().save(folder / "model.safetensors")}}
    return Case(service(folder, checkpoint, STORED), "pairs", [[900, 3], [3, 7]], PLAIN)


def tensor(name: str, rows: Sequence[Any]) -> tuple[dict[str, Any], bytes]:
    """A tensor of a call, and its raw contents."""
    array = np.array(rows)
    if array.dtype.kind == "U":
        raw = b"".join(struct.pack("<I", len(one)) + one.encode() for one in array.ravel())
        return {"name": name, "datatype": "BYTES", "shape": [*array.shape]}, raw
    datatype, form = ("FP32", "<f4") if array.dtype.kind == "f" else ("INT64", "<i8")
    return {"name": name, "datatype": datatype, "shape": [*array.shape]}, array.astype(form).tobytes()


def call_of(case: Case, variant: str) -> dict[str, Any]:
    """The same request as a call of gRPC."""
    nodes, edges = case.overlay["nodes"], case.overlay["edges"]
    tensors = [tensor(case.items, case.asked), tensor("overlay.nodes", [one["id"] for one in nodes])]
    tensors.append(tensor("overlay.edges", [[edge[0], edge[-1]] for edge in edges]))
    if isinstance(nodes[0]["id"], str):
        tensors.append(tensor("overlay.edges.relations", [edge[1] for edge in edges]))
        named = [f"overlay.nodes.features.{one['id'].partition('/')[0]}" for one in nodes]
        tensors += [tensor(name, [one["features"]]) for name, one in zip(named, nodes, strict=True)]
    else:
        tensors.append(tensor("overlay.nodes.features", [one["features"] for one in nodes]))
    return {
        "inputs": [one for one, _ in tensors],
        "raw_input_contents": [raw for _, raw in tensors],
        "outputs": [{"name": "scores"}],
        "parameters": {"seed": {"int64_param": 1}},
        "model_version": variant,
    }


@pytest.mark.campaign
@pytest.mark.parametrize("case_of", [classes_of_types, links_of_types, links_of_one_type])
def test_each_protocol_answers_about_new_nodes_by_each_stored_layer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case_of: Any
) -> None:
    monkeypatch.setenv("GNNSERVE_PROFILE_SECONDS", "0")
    case = case_of(tmp_path)
    repository = Repository(tmp_path / "served", "default", case.service.metadata.name)
    served = served_revision(load_revision(repository, generate(case.service, repository).revision))
    stored = [one.name for one in served.manifest.variants if one.stored is not None]
    assert {"stored1", "stored2"} <= {*stored}

    async def scenario(client: Client, rpc: GrpcClient) -> None:
        client.switch(served)
        told = (await client.http.get("/v1/variants")).json()["profile"]["variants"]
        assert all(POINTS[one["family"]].capabilities.overlay for one in told)
        found: dict[str, np.ndarray] = {}
        for name in (one["name"] for one in told):
            body = {case.items: case.asked, "overlay": case.overlay, "variant": name, "seed": 1, "return": ["scores"]}
            answer = await client.http.post("/v1/predict", json=body)
            assert answer.status_code == 200, answer.text
            assert answer.json()["variant"] == name
            found[name] = np.array(answer.json()["scores"], np.float32)
            ended = await rpc.call("ModelInfer", model_name=client.model.service, **call_of(case, name))
            assert ended.answer is not None, ended.sentence
            scores = np.frombuffer(ended.answer.raw_output_contents[0], "<f4")
            np.testing.assert_allclose(scores, found[name].ravel(), rtol=1e-6, err_msg=name)
        exact = found["projected"]
        for name in stored:
            np.testing.assert_allclose(found[name], exact, atol=1e-5 * np.abs(exact).max(), rtol=0, err_msg=name)

    async def run() -> None:
        async with running(FakeWorker(loaded=False)) as client, listening(client) as rpc:
            await scenario(client, rpc)

    asyncio.run(run())
