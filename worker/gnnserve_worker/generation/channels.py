"""Pruning of hidden channels: which ones each layer keeps, and weights for what is left (*Accelerating large scale
real-time GNN inference using channel pruning*).

From the last layer backwards, one factor β per channel that a layer reads is shrunk by a growing penalty until as many
channels are left as are wanted: the regression that ranks feature columns (`ranking.py`), over hidden states of
the whole network. The layer is then fitted by least squares to what it computed of all channels (`moments.py`), the
layer before it loses the outputs that nothing reads any more, and is next. A GIN has channels between the products of a
layer, too.

A node's own row and those of its neighbours keep the same channels, also in a batch: a layer of the serving network
writes one row per node, which the next one reads for both. Training what is left further is for the caller. Nothing
here needs torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gnnserve_api.files.repository import NetworkManifest
from gnnserve_api.spec.model import Model
from gnnserve_api.spec.pruning import LassoSettings
from gnnserve_worker.generation.hidden import hidden_states
from gnnserve_worker.generation.moments import first_layer_moments, refit, sample_nodes
from gnnserve_worker.generation.ranking import gram_of, rank_by_lasso
from gnnserve_worker.generation.training_set import TrainingSet, visible_nodes
from gnnserve_worker.graph.store import Features, Graph
from gnnserve_worker.models.architecture import Axis, key_of
from gnnserve_worker.models.registry import Tensors, first_layer, layer_sizes, spec_of, with_first_layer
from gnnserve_worker.models.tail import behind, tail_tensors
from gnnserve_worker.progress import Progress, ProgressListener

_PATH = LassoSettings()
"""Rises of the penalty. Those of a manifest are for feature columns."""
_OF_ALL_HEADS = (Axis.HEADS, Axis.HEAD_OUTPUTS)
"""Dimensions that count, together, what all heads of a layer write."""


def narrow(
    tensors: Mapping[str, np.ndarray],
    network: NetworkManifest,
    wanted: NetworkManifest,
    features: Features,
    graph: Graph,
    nodes: np.ndarray,
) -> Tensors:
    """The weights of `network` with as many channels as `wanted` has.

    `features` are what its first layer reads. Channels are chosen, and layers fitted, over `nodes` (ids) and their
    neighbours in `graph`, whose hidden states are held in memory.
    """
    spec, columns = spec_of(network.architecture), features.shape[1]
    states = hidden_states(network, tensors, features, graph)
    of_all, of_left = layer_sizes(network, columns), layer_sizes(wanted, columns)
    left = dict(tensors)
    for layer in reversed(range(network.layers)):
        tail = tail_tensors(left, layer)
        inner, between = spec.split_inner(tail), states[layer].inner
        if inner is not None and between is not None and of_left[layer][Axis.INNER] < of_all[layer][Axis.INNER]:
            moments = first_layer_moments(inner, between, graph, nodes)
            kept = choose(gram_of(inner, moments), of_left[layer][Axis.INNER], groups=1)
            fitted = spec.inner_tensors(refit(inner, moments, kept))
            tail = _keep(tail, 0, network, {Axis.INNER: kept}) | {
                key_of(0, weight): np.ascontiguousarray(value, dtype=np.float32) for weight, value in fitted.items()
            }
        left = behind(left, layer, tail)
        if layer > 0:
            first = first_layer(tail)
            moments = first_layer_moments(first, states[layer - 1].outputs, graph, nodes)
            before = of_left[layer - 1]
            kept = choose(gram_of(first, moments), before[Axis.OUTPUTS], before[Axis.HEADS])
            left = behind(left, layer, with_first_layer(tail, refit(first, moments, kept)))
            left = _keep(left, layer - 1, network, {Axis.OUTPUTS: kept, Axis.ALL_OUTPUTS: kept})
    return left


def narrow_aloud(
    model: Model,
    wide: Tensors,
    factor: int,
    features: Features,
    data: TrainingSet,
    name: str,
    progress: ProgressListener,
) -> Tensors:
    """The weights of `wide`, a network of the model over these features, with a part of its channels: chosen over nodes
    that training may see, a sample where they are many."""
    stage = f"prune channels of {name}"
    progress(Progress(stage, 0, 1))
    training = model.training
    nodes = sample_nodes(visible_nodes(data.graph.nodes, data.splits, training.scope), training.seed)
    network, wanted = (one.network(data.classes) for one in (model, model.with_fewer_channels(factor)))
    left = narrow(wide, network, wanted, features, data.visible_graph, nodes)
    progress(Progress(stage, 1, 1, f"{wanted.hidden:,} of {network.hidden:,} in each hidden layer"))
    return left


def choose(gram: np.ndarray, count: int, groups: int) -> np.ndarray:
    """Ids of the `count` channels, ascending, that the layer which reads them needs most; as many of each of `groups`
    equal parts of all channels, which attention heads are. `gram`: as `rank_by_lasso` takes it."""
    return choose_in_parts(gram, [len(gram) // groups] * groups, [count // groups] * groups)


def choose_in_parts(gram: np.ndarray, parts: Sequence[int], counts: Sequence[int]) -> np.ndarray:
    """Ids of so many channels of each part, ascending, that what reads them needs most. `parts`: channels of each,
    beside each other; `gram`: as `rank_by_lasso` takes it, of all of them."""
    ranked, ends = rank_by_lasso(gram, _PATH), np.cumsum(parts)
    kept = [
        ranked[(ranked >= end - part) & (ranked < end)][:count]
        for part, end, count in zip(parts, ends, counts, strict=True)
    ]
    return np.sort(np.concatenate(kept))


def _keep(
    tensors: Mapping[str, np.ndarray], layer: int, network: NetworkManifest, kept: Mapping[Axis, np.ndarray]
) -> Tensors:
    """The weights with the given positions of some axes of one layer."""
    changed = dict(tensors)
    for weight, axes in spec_of(network.architecture).shapes.items():
        tensor = changed[key_of(layer, weight)]
        if axes[-2:] == _OF_ALL_HEADS and Axis.ALL_OUTPUTS in kept:
            heads = tensor.shape[-2]
            tensor = tensor.reshape(*tensor.shape[:-2], -1)[..., kept[Axis.ALL_OUTPUTS]]
            tensor = tensor.reshape(*tensor.shape[:-1], heads, -1)
        for place, axis in enumerate(axes):
            if axis in kept:
                tensor = np.take(tensor, kept[axis], axis=place)
        changed[key_of(layer, weight)] = np.ascontiguousarray(tensor)
    return changed
