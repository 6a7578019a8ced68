"""Training on a GPU computes what training on the CPU does, but for rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from tests.support.generation.learning import labelled_set
from tests.support.graphs.graphs import planted_graph
from tests.support.lacks import needs_gpu

from gnnserve_api.spec.model import Model, Scope
from gnnserve_worker.generation.blocks import block_of
from gnnserve_worker.generation.layers import CPU, training_device
from gnnserve_worker.generation.networks import MODULES, build_module, network_of
from gnnserve_worker.generation.train import train_on_rows
from gnnserve_worker.graph.store import Features
from gnnserve_worker.sampling.subgraph import SubgraphSampler

DATA = planted_graph((2, 5, 7))
GPU = torch.device("cuda", 0)
NEEDS_GPU = needs_gpu()


@pytest.fixture(params=list(MODULES))
def model(request: pytest.FixtureRequest) -> Model:
    settings = {"epochs": 3, "batchSize": 64, "dropout": 0}
    return Model.model_validate({"architecture": request.param, "hidden": 16, "fanouts": [4, 3], "training": settings})


@pytest.fixture(params=["dense", "sparse"])
def features(request: pytest.FixtureRequest) -> Features:
    dense = np.asarray(DATA.features)
    return dense if request.param == "dense" else sp.csr_array(np.where(np.abs(dense) > 0.5, dense, 0))


def _gradients(device: torch.device, model: Model, features: Features) -> dict[str, Any]:
    torch.manual_seed(0)
    module = build_module(model, features.shape[1], len(DATA.classes)).to(device)
    sampler = SubgraphSampler(DATA.graph.indptr, DATA.graph.indices)
    subgraph = sampler.sample(np.arange(64), model.fanouts, key=0)
    scores = network_of(module, dropout=0.0).outputs(block_of(subgraph, features, device), trains=True)
    (scores**2).sum().backward()  # type: ignore[no-untyped-call]
    gradients = {name: parameter.grad for name, parameter in module.named_parameters()}
    found = {"scores": scores.detach(), **{name: tensor for name, tensor in gradients.items() if tensor is not None}}
    assert {tensor.device.type for tensor in found.values()} == {device.type}
    return {name: tensor.cpu().numpy() for name, tensor in found.items()}


@pytest.mark.gpu
@NEEDS_GPU
def test_scores_and_gradients_are_those_of_the_cpu(model: Model, features: Features) -> None:
    on_gpu, on_cpu = _gradients(GPU, model, features), _gradients(CPU, model, features)
    assert on_gpu.keys() == on_cpu.keys()
    for name, found in on_gpu.items():
        np.testing.assert_allclose(found, on_cpu[name], rtol=1e-3, atol=1e-3, err_msg=name)


@pytest.mark.gpu
@NEEDS_GPU
def test_training_ends_on_the_cpu_with_about_the_same_score(model: Model, features: Features) -> None:
    data = labelled_set(DATA.graph, DATA.labels, len(DATA.classes), DATA.splits, Scope.INDUCTIVE)
    trained = train_on_rows(data, features, model, device=GPU)
    assert all(np.isfinite(tensor).all() for tensor in trained.tensors.values())
    assert trained.run.score == pytest.approx(train_on_rows(data, features, model).run.score, abs=0.05)


def test_device_is_named() -> None:
    device, which = training_device()
    assert (device.type == "cuda") is torch.cuda.is_available()
    assert ("torch sees no GPU" in which) is (device.type == "cpu")
