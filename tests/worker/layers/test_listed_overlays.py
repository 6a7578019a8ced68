"""Stored layers that a manifest lists, where requests bring nodes: they answer as torch_geometric's module with the
same weights does over the graph that each request sees, and as the stored layers of architectures do."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch_geometric.nn as pyg
from safetensors.numpy import save_file
from tests.support.changes.listed import (
    ONE_TYPE,
    SAGE,
    SEVERAL_TYPES,
    drawn_request,
    module_scores,
    service_over,
    source_of,
    tensors_of,
    typed_tensors_of,
)
from tests.support.changes.living import FEATURES, PlainGraph
from tests.support.models.pyg import to_tensors
from tests.support.programs.program_types_generated import GrownGraph, hetero_data
from tests.support.serving.questions import question_of

from gnnserve_api.families import point_of
from gnnserve_api.files.edges import Direction, Duplicates, EdgeRules
from gnnserve_worker.generation.pipeline import generate
from gnnserve_worker.inference.batch import infer_batch, warm_up
from gnnserve_worker.inference.opening import served_revision
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.sampling.batch_view import Part, view_of
from gnnserve_worker.serving.http.codecs.json import JsonCodec

NODES = 60
RULES = [EdgeRules(Direction.UNDIRECTED, Duplicates.KEEP), EdgeRules(Direction.DIRECTED, Duplicates.KEEP)]
VARIANTS = {"storage": ["float32", "int8"], "stored": [1, 2], "storedFollowChanges": True}
ONE_HOP = {name: model for name, model in ONE_TYPE.items() if name != "several hops"}
CLOSE = {"stored1": 1e-5, "stored1-int8": 0.1, "stored2": 1e-5, "stored2-int8": 0.1}
"""Largest difference of a score, as a part of the largest one."""


class Scene:
    """A revision whose layers were trained for an epoch."""

    def __init__(self, folder: Path, source: dict[str, Any], model: dict[str, Any], variants: dict[str, Any]) -> None:
        self.repository = Repository(folder / "repository", "default", "tiny")
        self.manifest = generate(service_over(source, model, variants), self.repository)
        self.loaded = load_revision(self.repository, self.manifest.revision)
        self.served: ServedRevision = served_revision(self.loaded)
        warm_up(self.loaded)

    def answers(self, variant: str, bodies: Sequence[dict[str, Any]], key: int = 0) -> np.ndarray:
        """Scores that all of these requests are given in one batch."""
        questions = [
            question_of(JsonCodec(), json.dumps(body).encode(), self.served, max_nodes=1_000) for body in bodies
        ]
        seeds = np.concatenate([one.nodes for one in questions])
        parts = [Part(len(one.nodes), one.overlay, one.wishes.seed) for one in questions]
        view = view_of(self.loaded.graph.nodes, parts, seeds)
        return infer_batch(self.loaded, variant, seeds, key, view=view).scores

    def assert_answers(self, bodies: Sequence[dict[str, Any]], expected: np.ndarray) -> None:
        for variant, close in CLOSE.items():
            if self.loaded.variants[variant].rows is None:
                continue
            found = self.answers(variant, bodies)
            most = close * float(np.abs(expected).max())
            np.testing.assert_allclose(found, expected, rtol=0, atol=most, err_msg=variant)


@pytest.mark.campaign
@pytest.mark.parametrize("rules", RULES, ids=lambda rules: rules.direction)
@pytest.mark.parametrize("model", ONE_HOP.values(), ids=ONE_HOP)
def test_what_requests_bring_is_answered_as_the_module_answers_over_what_they_see(
    tmp_path: Path, model: dict[str, Any], rules: EdgeRules
) -> None:
    plain, draw = PlainGraph(NODES, 3, rules), np.random.default_rng(5)
    scene = Scene(tmp_path, source_of(tmp_path, plain), model, VARIANTS)
    families = {one.name: one.family for one in scene.manifest.variants}
    assert families["stored1"] == families["stored1-int8"] == "stored-overlays-layers"
    # A layer of several hops.
    assert (families["stored2"] == "stored-overlays-layers") == (model is not ONE_TYPE["propagation"])
    schema = scene.loaded.graph.schema
    for _ in range(6):
        drawn = [drawn_request(plain, draw) for _ in range(3)]
        expected = [
            module_scores(scene.manifest, scene.repository, schema, tensors_of(seen))[asked] for _, seen, asked in drawn
        ]
        scene.assert_answers([body for body, _, _ in drawn], np.concatenate(expected))


@pytest.mark.campaign
def test_requests_over_several_types_bring_edges_with_columns(tmp_path: Path) -> None:
    source = {"typed": {**hetero_data(tmp_path), "target": "user", "reverse": "Disabled"}}
    scene, draw = Scene(tmp_path, source, SEVERAL_TYPES, VARIANTS), np.random.default_rng(7)
    schema = scene.loaded.graph.schema
    for _ in range(6):
        bodies, expected = [], []
        for grown in (GrownGraph() for _ in range(3)):
            overlay = grown.drawn(draw)
            places = draw.integers(0, len(grown.users), 5)
            bodies.append({"nodes": [f"user/{grown.users[place]}" for place in places], "overlay": overlay})
            scores = module_scores(scene.manifest, scene.repository, schema, typed_tensors_of(grown, schema))
            expected.append(scores[places])
        scene.assert_answers(bodies, np.concatenate(expected))


@pytest.mark.campaign
def test_a_layer_that_an_architecture_has_too_answers_as_that_does(tmp_path: Path) -> None:
    """Sampled neighbours are the same ones."""
    plain, draw = PlainGraph(NODES, 3, RULES[0]), np.random.default_rng(6)
    torch.manual_seed(4)
    module = torch.nn.ModuleDict({
        "convs": torch.nn.ModuleList([pyg.SAGEConv(FEATURES, 8), pyg.SAGEConv(8, 3)]),
    })  # fmt: skip
    save_file(to_tensors(module), tmp_path / "model.safetensors")
    whole = {"checkpoint": {"uri": (tmp_path / "model.safetensors").as_uri()}, "fanouts": [3, 2]}
    layers = [SAGE, {**SAGE, "width": 3, "activation": "None"}]
    ways = [{"layers": layers}, {"architecture": "GraphSAGE", "hidden": 8}]
    listed, built = (
        Scene(tmp_path / str(way), source_of(tmp_path, plain), {**whole, **model}, VARIANTS)
        for way, model in enumerate(ways)
    )
    for key in range(6):
        bodies = [drawn_request(plain, draw)[0] for _ in range(3)]
        expected = built.answers("stored1", bodies, key)
        found = listed.answers("stored1", bodies, key)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * float(np.abs(expected).max()))


def test_a_request_may_ask_for_the_variant_by_its_name(tmp_path: Path) -> None:
    plain, draw = PlainGraph(NODES, 3, RULES[0]), np.random.default_rng(8)
    model = {"layers": [SAGE, {"conv": "GCN", "width": 8}], "head": [{}], "fanouts": [-1, -1]}
    scene = Scene(tmp_path, source_of(tmp_path, plain), model, VARIANTS)
    (stored,) = (one for one in scene.manifest.profile.variants if one.name == "stored1")
    assert point_of(stored).capabilities.overlay
    assert stored.new_nodes
    body, seen, asked = drawn_request(plain, draw)
    graph = tensors_of(seen)
    expected = module_scores(scene.manifest, scene.repository, scene.loaded.graph.schema, graph)[asked]
    scene.assert_answers([body], expected)


def test_a_layer_of_several_hops_leaves_what_requests_bring_to_others(tmp_path: Path) -> None:
    plain = PlainGraph(NODES, 3, RULES[0])
    scene = Scene(tmp_path, source_of(tmp_path, plain), ONE_TYPE["several hops"], VARIANTS)
    families = {one.name: one.family for one in scene.manifest.variants}
    assert families["stored1"] == "stored-following-layers"
    assert _takes_overlays(scene.loaded) == {"x1", "x1-int8"}


def _takes_overlays(loaded: LoadedRevision) -> set[str]:
    return {name for name, one in loaded.variants.items() if one.rows is not None}
