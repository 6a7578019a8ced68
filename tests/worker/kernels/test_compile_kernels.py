"""Kernels compiled ahead, as the image has them: a worker that serves with them compiles nothing."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba import typeof
from tests.support import campaigns
from tests.support.generation.learning import labelled_set
from tests.support.graphs.graphs import planted_graph
from tests.support.kubernetes.configmap_server import NAMESPACE, configmap_server
from tests.support.pods.pods import ROOT, WorkerPod, worker_pod

from gnnserve_api.files.repository import NodeIdKind
from gnnserve_api.objective import Objective
from gnnserve_api.pods.routing import RoutingTable
from gnnserve_api.spec.graph import Builtin, GraphSource
from gnnserve_api.spec.model import Architecture, Model, Scope
from gnnserve_api.variants import Storage, projected_name, variant_name
from gnnserve_worker import compile_kernels
from gnnserve_worker.generation.train import train_on_rows
from gnnserve_worker.graph.ids import integer_ids, lay_out, string_ids
from gnnserve_worker.graph.sources.load import load_source
from gnnserve_worker.inference.made_up import MadeUpVariant, made_up_types, publish_made_up, publish_made_up_types
from gnnserve_worker.inference.rehearsal import Half
from gnnserve_worker.kernel_cache import EVERYTHING, is_compiled, level, levels, watch_compiling
from gnnserve_worker.models.blas import preferred_compute
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.tables.formats import FORMATS

FACTORS = (1, 4, 16)
OTHER_LEVELS = [name for name in levels() if name != level()] or levels()
"""Levels that this processor is not of; where its kind of machine has one level alone, that one."""


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    """Of programs that find compiled kernels where a server of this user does."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    if is_compiled(EVERYTHING):
        return variables  # `make test` has compiled them; to look at each again takes a minute
    command = [sys.executable, "-m", "gnnserve_worker.compile_kernels", "--own-level"]
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.match(r"compiled \d+ kernels and found \d+ for ", done.stdout)
    return variables


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("architecture", "fanouts", "node_ids"),
    [
        (Architecture.GRAPHSAGE, (25, 10), NodeIdKind.POSITIONS),
        (Architecture.GIN, (5, 5, 5), NodeIdKind.INTEGERS),
        (Architecture.GCN, (-1, -1), NodeIdKind.STRINGS),
        (Architecture.GAT, (4, 3), NodeIdKind.POSITIONS),
    ],
    ids=["GraphSAGE", "GIN with three layers, ids of integers", "GCN of the full neighbourhood, ids of texts", "GAT"],
)
def test_worker_with_kernels_compiled_ahead_compiles_nothing(
    architecture: Architecture,
    fanouts: tuple[int, ...],
    node_ids: NodeIdKind,
    environment: dict[str, str],
    tmp_path: Path,
) -> None:
    revision = _publish_digits(tmp_path / "repository", architecture, fanouts, node_ids)
    with configmap_server() as api:
        api.put(RoutingTable(revision, "made-up"))
        with worker_pod(tmp_path, api, environ=environment, imports_anew=True) as pod:
            pod.wait_until("/readyz", "ok")
            for nodes in (1, 2, 33, 1500):
                _predict(pod, _IDS[node_ids][:nodes])
            if node_ids is not NodeIdKind.STRINGS:
                _predict_in_binary(pod, _IDS[node_ids][:40])
            api.put(RoutingTable(revision, "made-up", objective=Objective(accuracy_tolerance_permille=1000)))
            pod.wait_until("/v1/route", "1000")
            _predict(pod, [*_IDS[node_ids][:2], *_IDS[node_ids][:1]])
            said = [line["message"] for line in pod.log]
    assert any("warmed up" in message for message in said), said
    assert not any("compiling kernels" in message for message in said), said


@pytest.mark.campaign
@pytest.mark.parametrize("architecture", [Architecture.GRAPHSAGE, Architecture.GAT])
def test_worker_over_several_types_with_kernels_compiled_ahead_compiles_nothing(
    architecture: Architecture, environment: dict[str, str], tmp_path: Path
) -> None:
    network = Model(architecture=architecture, hidden=48, fanouts=(4, 3)).network(2)
    variants = [
        MadeUpVariant(projected_name(storage), 1, "projected", storage, compute)
        for storage in Storage
        for compute in ("float32" if network.attention is not None else preferred_compute(storage),)
    ]
    repository = Repository(tmp_path / "repository", NAMESPACE, "digits")
    revision = publish_made_up_types(repository, made_up_types(400, 6, 10, 2), network, variants).revision
    overlay = {
        "nodes": [{"id": "user/400", "features": [0.5] * 10}, {"id": "item/400"}],
        "edges": [["user/400", "buys", "item/3"], ["user/5", "buys", "item/400"], ["user/400", "knows", "user/7"]],
    }
    with configmap_server() as api:
        api.put(RoutingTable(revision, "made-up"))
        with worker_pod(tmp_path, api, environ=environment, imports_anew=True) as pod:
            pod.wait_until("/readyz", "ok")
            for variant in variants:
                for nodes in (1, 2, 350):
                    _predict(pod, [f"user/{node}" for node in range(nodes)], variant=variant.name)
                _predict(pod, ["user/400", "user/5", 7], variant=variant.name, overlay=overlay)
            said = [line["message"] for line in pod.log]
    assert any("warmed up" in message for message in said), said
    assert not any("compiling kernels" in message for message in said), said


@pytest.mark.parametrize("architecture", ["GraphSAGE", "GCN"])
@pytest.mark.usefixtures("environment")
def test_training_with_kernels_compiled_ahead_compiles_nothing(architecture: str) -> None:
    data = planted_graph((1, 2), nodes=60)
    model = Model.model_validate(
        {"architecture": architecture, "hidden": 8, "fanouts": [3, 2], "training": {"epochs": 1}}
    )
    compiled = watch_compiling()

    subject = labelled_set(data.graph, data.labels, len(data.classes), data.splits, Scope.INDUCTIVE)
    train_on_rows(subject, data.features, model)

    assert compiled == []


@pytest.mark.campaign
def test_sums_of_rows_compile_for_other_levels_of_processors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only kernels with vectors are compiled here: LLVM has to express those in what the level has. `make test`
    compiles all kernels for one level."""
    storages = campaigns.share([*Storage])
    told = [("gnnserve_worker.tables.table._gather", _gather_types(storage)) for storage in storages]
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    for name in OTHER_LEVELS:
        assert _compiled_for(name, told).compiled >= len(told)


def test_a_level_compiles_kernels_of_modules_that_serving_imports_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    wide, narrow = np.zeros(1, np.int64), np.zeros(1, np.int32)
    arguments = (wide, wide, wide, wide, narrow, narrow, 1, 1, wide, wide)
    told = ("gnnserve_worker.models.relation_rows._name_rows", tuple(map(typeof, arguments)))

    assert _compiled_for(OTHER_LEVELS[0], [told]).compiled >= 1


def test_a_level_that_fails_keeps_no_rehearsal_waiting() -> None:
    """More is told than a queue holds: 64 KiB."""
    told = [("gnnserve_worker.tables.table.none_of_this_name", tuple(map(typeof, [1] * 200)))] * 200
    with pytest.raises(KeyError):
        _compiled_for(OTHER_LEVELS[0], told)


def test_each_half_of_the_rehearsal_has_a_process() -> None:
    assert tuple(Half) == compile_kernels._HALVES


def _compiled_for(name: str, told: Sequence[compile_kernels.Compiled]) -> compile_kernels.Counts:
    """What the process of a level does that is told these kernels, as by the rehearsals of an image's build."""
    queue: compile_kernels.CompiledQueue = multiprocessing.get_context("spawn").SimpleQueue()
    with ExitStack() as pools:
        compiling = compile_kernels.begin(pools, queue, name)
        for each in (*told, None):
            queue.put(each)
        return compiling.result()


def _gather_types(storage: Storage) -> tuple[Any, ...]:
    """Types of the arguments that sum rows of this storage."""
    rows, scales = np.zeros((2, 64), FORMATS[storage].dtype), np.zeros(2 if storage is Storage.INT8 else 0, np.float32)
    nodes, starts, floats = np.zeros(1, np.int32), np.zeros(2, np.int64), np.zeros(64, np.float32)
    read: tuple[Any, ...] = (rows, scales, rows, scales, None, None, None, None, 64)
    return tuple(map(typeof, (*read, nodes, starts, nodes, True, False, 0.0, floats, False, floats)))


def test_worker_without_them_says_that_it_compiles(environment: dict[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "repository"
    revision = _publish_digits(folder, Architecture.GRAPHSAGE, (3,), NodeIdKind.POSITIONS, (Storage.FLOAT32,))
    with configmap_server() as api:
        api.put(RoutingTable(revision, "made-up"))
        empty = environment | {"NUMBA_CACHE_DIR": str(tmp_path / "kernels")}
        with worker_pod(tmp_path, api, environ=empty, imports_anew=True) as pod:
            # Compiling takes a minute, and is what every other test did once.
            assert str(tmp_path / "kernels") in pod.logged("compiling kernels")["message"]


_IDS: dict[NodeIdKind, list[Any]] = {
    NodeIdKind.POSITIONS: list(range(1797)),
    NodeIdKind.INTEGERS: [7 * position - 100 for position in range(1797)],
    NodeIdKind.STRINGS: [f"digit {position}" for position in range(1797)],
}


def _publish_digits(
    root: Path,
    architecture: Architecture,
    fanouts: tuple[int, ...],
    node_ids: NodeIdKind,
    storages: Sequence[Storage] = tuple(Storage),
) -> str:
    """The digits graph with every kind of variant, and weights that nobody trained."""
    graph = load_source(GraphSource(builtin=Builtin.DIGITS), Path("unused"))
    match node_ids:
        case NodeIdKind.INTEGERS:
            graph = graph.with_ids(integer_ids(np.array(_IDS[node_ids])))
        case NodeIdKind.STRINGS:
            graph = graph.with_ids(string_ids(*lay_out(_IDS[node_ids])))
    heads = 4 if architecture is Architecture.GAT else None
    network = Model(architecture=architecture, hidden=48, fanouts=fanouts, heads=heads).network(len(graph.classes))
    variants = [
        variant
        for storage in storages
        for compute in (preferred_compute(storage),)
        for variant in (
            *(MadeUpVariant(variant_name(k, storage), k, "features", storage, compute) for k in FACTORS),
            MadeUpVariant(projected_name(storage), 1, "projected", storage, compute),
        )
    ]
    return publish_made_up(Repository(root, NAMESPACE, "digits"), graph, network, variants).revision


def _predict_in_binary(pod: WorkerPod, nodes: list[int]) -> None:
    connection = pod.connect()
    body, headers = np.array(nodes, "<i8").tobytes(), {"Content-Type": "application/octet-stream"}
    connection.request("POST", "/v1/predict", body, headers)
    response = connection.getresponse()
    assert response.status == 200, response.read()
    assert response.headers["gnnserve-shape"] == f"{len(nodes)},10"


def _predict(pod: WorkerPod, nodes: list[Any], **wishes: Any) -> None:
    connection = pod.connect()
    connection.request("POST", "/v1/predict", json.dumps({"nodes": nodes, "return": ["scores"], **wishes}))
    response = connection.getresponse()
    answer = json.loads(response.read())
    assert response.status == 200, answer
    assert len(answer["scores"]) == len(nodes)
