"""Networks as layers are trained by the loop of all networks: over the whole graph or samples, with what edges have."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.generation.learning import labels_of
from tests.support.models.random_layers import several_types

from gnnserve_api.files.edges import Direction, EdgeRules
from gnnserve_api.files.layers import (
    Activation,
    Convolution,
    ConvolutionManifest,
    DenseManifest,
    LayerManifest,
    LayersManifest,
    Norm,
)
from gnnserve_api.spec.graph import Normalization
from gnnserve_api.spec.model import Model, Scope
from gnnserve_worker.generation.layer_modules import LayersModule, load_canonical
from gnnserve_worker.generation.programs.layer_training import LearningLayers, trainee_of_layers
from gnnserve_worker.generation.train import TrainedNetwork, outputs_of, train
from gnnserve_worker.generation.training_set import TrainingSet, training_set
from gnnserve_worker.graph.payload import EdgePayload
from gnnserve_worker.graph.store import Graph, GraphData, Splits
from gnnserve_worker.progress import silent

NODES, READ = 300, 5
DRAW = np.random.default_rng(4)
LABELS = DRAW.integers(0, 2, NODES)
AMOUNTS = DRAW.normal(size=(NODES * READ, 1)).astype(np.float32) + 2 * np.repeat(LABELS, READ)[:, None]
PAYLOAD = EdgePayload(("amount",), AMOUNTS.astype(np.float32), "", np.zeros(0, np.int64))
LISTS = Graph(
    np.arange(NODES + 1, dtype=np.int64) * READ, DRAW.integers(0, NODES, NODES * READ).astype(np.int32),
    payload_rows=np.arange(NODES * READ, dtype=np.int32),
)  # fmt: skip
SPLITS = Splits(*np.split(DRAW.permutation(NODES), [180, 240]))
DATA = GraphData.of_one_type(
    "made up", "0", LISTS, DRAW.normal(size=(NODES, 4)).astype(np.float32), LABELS, (0, 1), SPLITS,
    EdgeRules(Direction.DIRECTED), payload=PAYLOAD,
)  # fmt: skip
"""A class is told by what the edges have that a node reads, and by nothing else."""


def subject_of(scope: Scope = Scope.TRANSDUCTIVE) -> TrainingSet:
    return training_set(DATA, labels_of(DATA), 2, scope, Normalization.DISABLED)


def layers_of(kind: Convolution = Convolution.TRANSFORMER, **fields: Any) -> LayersManifest:
    columns = fields.pop("edge_columns", ("amount",))
    conv = ConvolutionManifest(kind, width=16, edge_columns=columns, **fields)
    layer = LayerManifest((conv,), norm=Norm.BATCH, activation=Activation.RELU)
    return LayersManifest((layer,), head=(DenseManifest(2),))


def model_of(**training: Any) -> Model:
    settings = {"epochs": 40, "batchSize": 64, "learningRate": 0.01, **training}
    return Model.model_validate({"fanouts": [READ], "hidden": 16, "training": settings})


def trained(layers: LayersManifest, model: Model, scope: Scope = Scope.TRANSDUCTIVE) -> TrainedNetwork:
    subject = subject_of(scope)
    trainee = trainee_of_layers(layers, model, subject, "x1", silent)
    return train(trainee, subject.problem.course(subject.visible, model.training.seed), model.training)


def accuracy_of(tensors: Any, layers: LayersManifest, model: Model) -> float:
    subject = subject_of()
    module = LayersModule(layers, subject.schema, [4])
    load_canonical(module, tensors)
    blocks = trainee_of_layers(layers, model, subject, "x1", silent).blocks
    scores = outputs_of(LearningLayers(module, (0,)), blocks, SPLITS.test)
    return float((scores.argmax(axis=1) == LABELS[SPLITS.test]).mean())


@pytest.mark.parametrize("batches", ["WholeGraph", "Sampled"])
def test_what_edges_have_is_learnt(batches: str) -> None:
    layers, model = layers_of(), model_of(batches=batches, dropout=0.2)
    found = trained(layers, model)
    assert accuracy_of(found.tensors, layers, model) > 0.9
    blind = layers_of(edge_columns=())
    assert accuracy_of(trained(blind, model).tensors, blind, model) < 0.7


def test_a_network_is_made_again_from_its_seed() -> None:
    model = model_of(epochs=3, batches="Sampled")
    one, again, other = (trained(layers_of(), each) for each in (model, model, model_of(epochs=3, seed=7)))
    assert all(np.array_equal(one.tensors[key], again.tensors[key]) for key in one.tensors)
    assert not all(np.array_equal(one.tensors[key], other.tensors[key]) for key in one.tensors)


def test_training_sees_what_its_scope_allows() -> None:
    """Inductive training reads no node that it does not learn from, and so learns another network."""
    model = model_of(epochs=3)
    found = [trained(layers_of(), model, scope).tensors["head.0.weight"] for scope in Scope]
    assert not np.array_equal(*found)


def test_averages_of_degrees_are_those_of_the_graph() -> None:
    found = trained(layers_of(Convolution.PNA, scalers=("Identity",)), model_of(epochs=1))
    np.testing.assert_allclose(found.tensors["layers.0.convs.0.aggr_module.avg_deg_lin"], [READ])
    np.testing.assert_allclose(found.tensors["layers.0.convs.0.aggr_module.avg_deg_log"], [np.log(READ + 1)], rtol=1e-6)


def test_a_batch_may_be_one_node_without_neighbours() -> None:
    """Statistics of one row would be its own."""
    model = model_of(epochs=1, batches="Sampled", batchSize=1)
    assert all(np.isfinite(one).all() for one in trained(layers_of(), model).tensors.values())


@pytest.mark.parametrize("batches", ["WholeGraph", "Sampled"])
def test_outputs_of_several_types_are_those_of_each(batches: str) -> None:
    """Seeds of two types stand in one order, whose rows stand type after type."""
    graph = several_types(np.random.default_rng(0))
    schema, count = graph.data.schema, len(graph.data.schema.relations)
    convs = tuple(ConvolutionManifest(Convolution.GRAPH_SAGE, place, width=8) for place in range(count))
    layers = LayersManifest((LayerManifest(convs),), head=(DenseManifest(3),))
    subject = training_set(graph.data, labels_of(graph.data), 2, Scope.TRANSDUCTIVE, Normalization.DISABLED)
    of_users_and_tags: Any = SimpleNamespace(answered_types=lambda _: (0, 2))
    model = model_of(batches=batches).model_copy(update={"fanouts": (1000,)})
    trainee = trainee_of_layers(layers, model, replace(subject, problem=of_users_and_tags), "x1", silent)
    network: Any = trainee.draw(subject.problem.course(subject.visible, 0))
    last, first = schema.types[0].nodes - 1, schema.first_nodes[2]
    found = outputs_of(network, trainee.blocks, np.array([first + 3, 1, last, first, 0]))
    of_users, of_tags = network.module.eval().scores_of(graph.tensors(torch.float32), (0, 2))
    expected = torch.stack([of_tags[3], of_users[1], of_users[last], of_tags[0], of_users[0]]).detach().numpy()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * float(np.abs(expected).max()))
