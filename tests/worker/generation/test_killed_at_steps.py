"""A generation that is killed at each of its steps in turn: each next one goes on there, whatever the graph, the task
and the model are."""

from __future__ import annotations

import copy
import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support import campaigns
from tests.support.generation import killed_at_steps
from tests.support.graphs.graphs import npz_arrays, planted_graph, write_npz
from tests.support.graphs.several_types import shop, write_folder
from tests.support.machine import fork_server
from tests.support.pods import generating_pod
from tests.support.programs.programs import write_linear

COLUMNS, CLASSES = 12, (2, 5, 9)
BRIEF = {"epochs": 2, "batchSize": 64, "seed": 5}
NETWORKS = {"hidden": 8, "fanouts": [4, 3], "training": BRIEF}
LIGHT_GCN = {"architecture": "LightGCN", "fanouts": [0], "training": {"epochs": 3, "batchSize": 32}}
ONE_NETWORK = {"pruning": {"factors": [1]}}
TWO_NETWORKS = {"pruning": {"method": "Greedy", "factors": [1, 2]}, "projection": "Disabled"}
BUYS = {"links": {"relation": "buys", "dimensions": 8}}
PARTS: dict[str, dict[str, Any]] = {
    "one type": {"model": NETWORKS, "variants": TWO_NETWORKS},
    "relations": {"graph": "typed", "model": NETWORKS, "variants": ONE_NETWORK},
    "links": {"model": NETWORKS, "variants": ONE_NETWORK, "task": {"links": {"decoder": "DistMult", "dimensions": 8}}},
    "links over types": {"graph": "typed", "model": NETWORKS, "variants": ONE_NETWORK, "task": BUYS},
    "learnt rows of users and items": {"graph": "typed", "model": LIGHT_GCN, "variants": ONE_NETWORK, "task": BUYS},
    "a program": {"model": {"expected": {}, "program": {
        "hops": 0, "inputs": [{"name": "x", "is": "Features"}], "scores": {"name": "scores", "columns": len(CLASSES)},
    }}},
}  # fmt: skip

KINDS = campaigns.share([*PARTS], len(PARTS))
AT: tuple[str, ...] = campaigns.whole_or((), ("learn", "publish"))
"""Steps; empty: all of them. With all kinds they take a minute of a processor."""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What became of each manifest."""
    folder = tmp_path_factory.mktemp("killed")
    (folder / "manifests.json").write_text(json.dumps(manifests_in(folder)))
    fork_server.prepare(generating_pod.__name__)
    arguments = (str(folder / "manifests.json"), str(folder), *AT)
    with fork_server.started(killed_at_steps.__name__, *arguments, stdout=True) as process:
        assert process.stdout is not None
        lines = process.stdout.read().splitlines()
        assert process.wait() == 0
    return {one["name"]: one for one in map(json.loads, lines)}


def manifests_in(folder: Path) -> dict[str, Any]:
    """By name; what they refer to is written into the folder."""
    data, weights = planted_graph(CLASSES, nodes=80, columns=COLUMNS), np.eye(COLUMNS, len(CLASSES), dtype=np.float32)
    assert isinstance(data.features, np.ndarray)
    graph = {"npz": {"uri": write_npz(folder / "graph.npz", npz_arrays(data)).as_uri()}}
    np.savez(folder / "expected.npz", nodes=np.arange(80), scores=data.features @ weights)
    files = {"expected": folder / "expected.npz", "program": write_linear(folder / "model.onnx", weights)}
    typed, made = write_folder(folder / "shop", shop()), {}
    for name in KINDS:
        spec = copy.deepcopy(PARTS[name])
        for part, file in files.items():
            if part in spec["model"]:
                spec["model"][part]["uri"] = file.as_uri()
        spec["graph"] = {"source": {"typed": typed} if "graph" in spec else graph}
        made[name] = {
            "apiVersion": "gnnserve.dev/v1alpha1", "kind": "GNNService", "metadata": {"name": "tiny"}, "spec": spec,
        }  # fmt: skip
    return made


@pytest.mark.campaign
@pytest.mark.parametrize("name", KINDS)
def test_killed_at_every_step_the_next_goes_on_there_and_the_revision_is_the_same(
    told: dict[str, dict[str, Any]], name: str
) -> None:
    one = told[name]
    *killed, last = one["runs"]
    assert one["statuses"] == [-signal.SIGKILL] * len(one["steps"]) + [0]
    assert [run["published"] for run in killed] == [[]] * len(killed)
    assert last["published"] == one["undisturbed"]["published"]
    assert len(last["published"]) == 1
    # No network is learnt twice, and none behind the step that was begun.
    learnt = [run["learnt"] for run in one["runs"]]
    assert [network for run in learnt for network in run] == one["undisturbed"]["learnt"]
    if "learn" in one["steps"]:
        at = one["steps"].index("learn")
        assert [len(run) for run in learnt[: at + 1]] == [0] * at + [1]
        assert learnt[at + 2 :] == [[]] * (len(learnt) - at - 2)
