"""The path that serves equals torch_geometric's models on the same sampled neighbourhood."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from tests.support.graphs.graphs import (
    Tensors,
    dense_features,
    graph_of,
    network_manifest,
    projected_table_of,
    random_graph,
    random_tensors,
    table_of,
)
from tests.support.models.pyg import (
    assert_close,
    edges_of_graph,
    explicit_sample,
    last_hidden_of,
    module_of,
    scores_of,
    to_tensors,
)
from tests.support.models.serving_path import SHARE, infer, sample_of

from gnnserve_api.files.profile import Compute
from gnnserve_api.files.repository import NetworkManifest
from gnnserve_api.spec.model import Architecture
from gnnserve_api.variants import Storage
from gnnserve_worker.models import blas
from gnnserve_worker.models.network import Activations, Layer, Network, take
from gnnserve_worker.models.registry import build_network, compute_for
from gnnserve_worker.tables.formats import FORMATS
from gnnserve_worker.tables.table import Table

NODES, WIDTH = 70, 9
ARCHITECTURES = pytest.mark.parametrize("architecture", ["GraphSAGE", "GIN"])
MODELS = pytest.mark.parametrize(
    ("architecture", "mlp_hidden"),
    [
        pytest.param("GraphSAGE", None, id="GraphSAGE"),
        pytest.param("GIN", None, id="GIN"),
        pytest.param("GIN", 5, id="GIN, narrow inside"),
        pytest.param("GIN", 21, id="GIN, wide inside"),
    ],
)
FANOUTS = pytest.mark.parametrize(
    "fanouts",
    [(6,), (100,), (25, 10), (4, 1), (5, 3, 2), (3, 40, 2), (2, 2, 2, 2), (-1,), (-1, -1), (-1, -1, -1)],
    ids=str,
)
COMPUTE = pytest.mark.parametrize("compute", ["float32", "bfloat16"])
FIRST_WEIGHTS = {
    "GraphSAGE": ("convs.0.lin_l.weight", "convs.0.lin_r.weight"),
    "GIN": ("convs.0.nn.lins.0.weight",),
}


def _build(
    manifest: NetworkManifest,
    tensors: Tensors,
    columns: int,
    *,
    projected: bool = False,
    compute: Compute = "float32",
) -> Network[Layer]:
    return build_network(manifest, tensors, columns, projected, compute)


def _projected(tensors: Tensors, features: np.ndarray, storage: Storage) -> tuple[Table, Tensors]:
    """As generation does it: the first layer's products go to the table, and their weights with them."""
    first = FIRST_WEIGHTS["GraphSAGE" if "convs.0.lin_l.weight" in tensors else "GIN"]
    rows = [features @ tensors[key].T for key in first]
    rest = {key: tensor for key, tensor in tensors.items() if key not in first}
    return projected_table_of(rows[0], rows[1] if len(rows) > 1 else None, storage), rest


@pytest.fixture(autouse=True)
def _bfloat16_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the processor has no AMX, MKL does the same slowly."""
    monkeypatch.setattr(blas, "has_fast_bfloat16", lambda: True)


@pytest.mark.campaign
@MODELS
@FANOUTS
@SHARE
@pytest.mark.parametrize("columns", [WIDTH, 4, 1], ids=lambda c: f"{c} columns")
def test_scores_equal_pyg_on_the_same_sampled_neighbourhood(
    architecture: str, mlp_hidden: int | None, fanouts: tuple[int, ...], share: bool, columns: int
) -> None:
    # Without sharing, three full hops are every walk there is: a graph of fewer edges will do.
    graph = random_graph(NODES, seed=1, isolated=0.2, mean_degree=6 if fanouts[0] > 0 else 3)
    features = dense_features(NODES, WIDTH, seed=2)
    module = module_of(architecture, fanouts, columns, mlp_hidden=mlp_hidden)
    seeds = [*range(0, NODES, 2), 8, 8]
    sample = sample_of(graph, seeds, fanouts, share=share)

    network = _build(network_manifest(architecture, fanouts, mlp_hidden=mlp_hidden), to_tensors(module), columns)
    scores, embeddings = infer(network, table_of(features), sample)

    ids, edges = explicit_sample(sample)
    seed_rows = np.arange(len(seeds)) if sample.seed_rows is None else sample.seed_rows
    rows = np.ascontiguousarray(features[ids, :columns])
    assert scores.dtype == np.float32
    assert_close(scores, scores_of(module, rows, edges)[seed_rows])
    if len(fanouts) == 1:
        assert embeddings is None
    else:
        assert embeddings is not None
        assert embeddings.dtype == np.float32
        assert_close(embeddings, last_hidden_of(module, rows, edges)[seed_rows])


@ARCHITECTURES
@SHARE
@pytest.mark.parametrize("layers", [1, 2, 3, 4])
def test_full_neighbourhood_scores_equal_pyg_on_the_whole_graph(architecture: str, share: bool, layers: int) -> None:
    graph, features = random_graph(NODES, seed=3, isolated=0.2), dense_features(NODES, WIDTH, seed=4)
    fanouts = (-1,) * layers
    module = module_of(architecture, fanouts, WIDTH)
    seeds = [3, 69, 3, 0, 41]

    network = _build(network_manifest(architecture, fanouts), to_tensors(module), WIDTH)
    scores, embeddings = infer(network, table_of(features), sample_of(graph, seeds, fanouts, share=share))

    edges = edges_of_graph(graph)
    assert_close(scores, scores_of(module, features, edges)[seeds])
    if layers > 1:
        assert embeddings is not None
        assert_close(embeddings, last_hidden_of(module, features, edges)[seeds])


@ARCHITECTURES
@pytest.mark.parametrize("fanouts", [(3,), (3, 2), (3, 2, 2), (-1, -1)], ids=str)
def test_isolated_nodes_are_scored_by_their_own_features(architecture: str, fanouts: tuple[int, ...]) -> None:
    graph, features = graph_of([[], [], []]), dense_features(3, WIDTH, seed=9)
    module = module_of(architecture, fanouts, WIDTH)

    network = _build(network_manifest(architecture, fanouts), to_tensors(module), WIDTH)
    scores, _ = infer(network, table_of(features), sample_of(graph, [2, 0], fanouts))

    assert_close(scores, scores_of(module, features, edges_of_graph(graph))[[2, 0]])


@ARCHITECTURES
@pytest.mark.parametrize("storage", list(Storage), ids=str)
@COMPUTE
def test_a_stored_table_is_worth_its_decoded_numbers(architecture: str, storage: Storage, compute: Compute) -> None:
    """What serving loses to storage is what encoding lost; bfloat16 products lose another 8 bits' worth."""
    graph, fanouts = random_graph(NODES, seed=1), (5, 3)
    table = table_of(dense_features(NODES, WIDTH, seed=2), storage)
    module = module_of(architecture, fanouts, WIDTH)
    sample = sample_of(graph, list(range(NODES)), fanouts)

    network = _build(network_manifest(architecture, fanouts), to_tensors(module), WIDTH, compute=compute)
    scores, _ = infer(network, table, sample)

    ids, edges = explicit_sample(sample)
    decoded = FORMATS[storage].decode(table.rows.values, table.rows.scales)[:, :WIDTH]
    expected = scores_of(module, np.ascontiguousarray(decoded[ids]), edges)[:NODES]
    assert_close(scores, expected, 1e-5 if compute == "float32" else 2e-2)


@MODELS
@pytest.mark.parametrize("fanouts", [(6,), (5, 3), (5, 3, 2), (2, 2, 2, 2), (-1, -1)], ids=str)
@SHARE
def test_a_projected_network_equals_the_one_it_was_made_of(
    architecture: str, mlp_hidden: int | None, fanouts: tuple[int, ...], share: bool
) -> None:
    graph, features = random_graph(NODES, seed=1, isolated=0.2), dense_features(NODES, WIDTH, seed=2)
    manifest = network_manifest(architecture, fanouts, mlp_hidden=mlp_hidden)
    tensors = random_tensors(manifest, WIDTH, 0)
    sample = sample_of(graph, [*range(NODES), 8, 8], fanouts, share=share)
    expected, expected_embeddings = infer(_build(manifest, tensors, WIDTH), table_of(features), sample)

    table, rest = _projected(tensors, features, Storage.FLOAT32)
    network = _build(manifest, rest, table.columns, projected=True)
    scores, embeddings = infer(network, table, sample)

    assert_close(scores, expected)
    if expected_embeddings is None:
        assert embeddings is None
    else:
        assert embeddings is not None
        assert_close(embeddings, expected_embeddings)


@ARCHITECTURES
@pytest.mark.parametrize(
    ("storage", "tolerance"), [(Storage.FLOAT16, 2e-3), (Storage.BFLOAT16, 2e-2), (Storage.INT8, 4e-2)], ids=str
)
@COMPUTE
def test_a_projected_network_loses_little_to_storage(
    architecture: str, storage: Storage, tolerance: float, compute: Compute
) -> None:
    graph, features = random_graph(NODES, seed=1), dense_features(NODES, WIDTH, seed=2)
    manifest = network_manifest(architecture, (5, 3), hidden=32)
    tensors = random_tensors(manifest, WIDTH, 0)
    sample = sample_of(graph, list(range(NODES)), (5, 3))
    expected, _ = infer(_build(manifest, tensors, WIDTH), table_of(features), sample)

    table, rest = _projected(tensors, features, storage)
    scores, _ = infer(_build(manifest, rest, table.columns, projected=True, compute=compute), table, sample)

    assert_close(scores, expected, tolerance + (2e-2 if compute == "bfloat16" else 0))


@MODELS
def test_a_projected_table_of_another_width_is_refused(architecture: str, mlp_hidden: int | None) -> None:
    manifest = network_manifest(architecture, (5, 3), mlp_hidden=mlp_hidden)

    wanted = f"a projected table has 9 columns, expected {mlp_hidden or 8}: the first product's outputs"
    with pytest.raises(ValueError, match=wanted):
        _build(manifest, random_tensors(manifest, WIDTH, 0), 9, projected=True)


def test_a_projected_network_without_hidden_layers_reads_its_scores() -> None:
    """Its table is as wide as there are classes."""
    manifest = network_manifest("GraphSAGE", (4,))
    tensors = random_tensors(manifest, WIDTH, 0)
    table, rest = _projected(tensors, dense_features(NODES, WIDTH, seed=2), Storage.FLOAT32)

    network = _build(manifest, rest, table.columns, projected=True)

    assert table.columns == 3
    assert network.layers[0].products == ()
    scores, embeddings = infer(network, table, sample_of(random_graph(NODES, seed=1), [1, 2], (4,)))
    assert scores.min() < 0
    assert embeddings is None


@ARCHITECTURES
@pytest.mark.parametrize("projected", [False, True])
def test_scipys_blas_gives_the_same_scores(monkeypatch: pytest.MonkeyPatch, architecture: str, projected: bool) -> None:
    graph, features = random_graph(NODES, seed=1), dense_features(NODES, WIDTH, seed=2)
    manifest = network_manifest(architecture, (5, 3))
    tensors = random_tensors(manifest, WIDTH, 0)
    sample = sample_of(graph, list(range(NODES)), (5, 3))
    table = table_of(features)
    if projected:
        table, tensors = _projected(tensors, features, Storage.FLOAT32)
    expected, _ = infer(_build(manifest, tensors, table.columns, projected=projected), table, sample)

    monkeypatch.setattr(blas, "mkl", lambda: None)
    scores, _ = infer(_build(manifest, tensors, table.columns, projected=projected), table, sample)

    assert_close(scores, expected)


@ARCHITECTURES
@pytest.mark.parametrize("fanouts", [(3,), (3, 2), (2, 2, 2)], ids=str)
def test_scratch_may_have_been_used_by_any_other_network(architecture: str, fanouts: tuple[int, ...]) -> None:
    """Large batches before small ones, other widths, other depths; and what was answered stays as it was."""
    graph, features = random_graph(NODES, seed=1), dense_features(NODES, WIDTH, seed=2)
    scratch = Activations()
    answers = []
    for _ in range(2):
        for hidden, count in ((32, NODES), (4, 1), (8, 20)):
            manifest = network_manifest(architecture, fanouts, hidden=hidden)
            network = _build(manifest, random_tensors(manifest, WIDTH, hidden), WIDTH)
            sample = sample_of(graph, list(range(count)), fanouts)
            table = table_of(features)
            answer = infer(network, table, sample, scratch)
            answers.append((answer, infer(network, table, sample)))

    for (scores, embeddings), (expected, expected_embeddings) in answers:
        assert_close(scores, expected)
        assert (embeddings is None) == (expected_embeddings is None)
        if embeddings is not None:
            assert expected_embeddings is not None
            assert_close(embeddings, expected_embeddings)


@ARCHITECTURES
def test_inference_changes_neither_weights_nor_sample(architecture: str) -> None:
    graph, manifest = random_graph(NODES, seed=1), network_manifest(architecture, (3, 2))
    network = _build(manifest, random_tensors(manifest, WIDTH, 0), WIDTH)
    sample, table, scratch = (
        sample_of(graph, list(range(10)), (3, 2)),
        table_of(dense_features(NODES, WIDTH, 0)),
        Activations(),
    )
    nodes, neighbours = sample.nodes.copy(), sample.neighbours.copy()

    (first, first_embeddings), (second, second_embeddings) = (infer(network, table, sample, scratch) for _ in range(2))

    assert first_embeddings is not None
    assert second_embeddings is not None
    assert_close(first, second)
    assert_close(first_embeddings, second_embeddings)
    np.testing.assert_array_equal(sample.nodes, nodes)
    np.testing.assert_array_equal(sample.neighbours, neighbours)


def test_gin_computes_in_float32_what_it_sums_and_graphsage_as_it_is_told() -> None:
    compute_of = {
        architecture: {
            product.compute
            for layer in _build(manifest, random_tensors(manifest, WIDTH, 0), WIDTH, compute="bfloat16").layers
            for product in layer.products
        }
        for architecture in ("GraphSAGE", "GIN")
        for manifest in [network_manifest(architecture, (5, 3))]
    }

    assert compute_of == {"GraphSAGE": {"bfloat16"}, "GIN": {"float32"}}


@MODELS
def test_bytes_per_row_are_what_the_first_layer_reads_and_writes(architecture: str, mlp_hidden: int | None) -> None:
    manifest = network_manifest(architecture, (5, 3), mlp_hidden=mlp_hidden)

    network = _build(manifest, random_tensors(manifest, WIDTH, 0), WIDTH)

    wanted = {"GraphSAGE": 4 * (2 * WIDTH + 8), "GIN": 4 * (WIDTH + (mlp_hidden or 8) + 8)}
    assert network.bytes_per_row == wanted[architecture]


def _without(key: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {name: tensor for name, tensor in tensors.items() if name != key}


def _with_shape(key: str, *shape: int) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {**tensors, key: np.zeros(shape, dtype=np.float32)}


@pytest.mark.parametrize(
    ("architecture", "spoil", "message"),
    [
        pytest.param(
            "GraphSAGE", _without("convs.1.lin_r.weight"),
            r"weights lack 'convs\.1\.lin_r\.weight'; they have convs\.0\.lin_l\.bias, ",
            id="a missing tensor is named, with those that are there",
        ),
        pytest.param(
            "GIN", _without("convs.0.nn.lins.1.bias"), r"weights lack 'convs\.0\.nn\.lins\.1\.bias'",
            id="GIN too names a missing tensor",
        ),
        pytest.param(
            "GraphSAGE", _with_shape("convs.0.lin_l.weight", 8, 5), r"'convs\.0\.lin_l\.weight' have shape \[8, 5\], "
            r"expected \[8, 9\]", id="weights of another variant's width are refused",
        ),
        pytest.param(
            "GraphSAGE", _with_shape("convs.1.lin_l.bias", 1), r"'convs\.1\.lin_l\.bias' have shape \[1\], "
            r"expected \[3\]", id="a bias that numpy would broadcast is refused",
        ),
        pytest.param(
            "GIN", _with_shape("convs.1.nn.lins.1.weight", 3, 8), r"have shape \[3, 8\], expected \[3, 3\]",
            id="GIN's second matrix is square unless the manifest says otherwise",
        ),
    ],
)  # fmt: skip
def test_weights_that_do_not_fit_are_refused_by_name(
    architecture: str, spoil: Callable[[Tensors], Tensors], message: str
) -> None:
    manifest = network_manifest(architecture, (5, 3))

    with pytest.raises(ValueError, match=message):
        _build(manifest, spoil(random_tensors(manifest, WIDTH, 0)), WIDTH)


def test_weights_of_another_architecture_are_refused() -> None:
    tensors = random_tensors(network_manifest("GIN", (5, 3)), WIDTH, 0)

    with pytest.raises(ValueError, match=r"weights lack 'convs\.0\.lin_l\.weight'"):
        _build(network_manifest("GraphSAGE", (5, 3)), tensors, WIDTH)


@ARCHITECTURES
@pytest.mark.parametrize("dtype", [np.float64, np.float16])
def test_weights_of_another_precision_are_read_as_float32(architecture: str, dtype: type[np.floating]) -> None:
    manifest = network_manifest(architecture, (5,))
    exact = {key: tensor.astype(dtype) for key, tensor in random_tensors(manifest, WIDTH, 0).items()}
    rounded = {key: tensor.astype(np.float32) for key, tensor in exact.items()}
    table = table_of(dense_features(NODES, WIDTH, seed=2))
    sample = sample_of(random_graph(NODES, seed=1), [1, 2], (5,))

    scores, _ = infer(_build(manifest, exact, WIDTH), table, sample)

    assert scores.dtype == np.float32
    assert_close(scores, infer(_build(manifest, rounded, WIDTH), table, sample)[0])


@ARCHITECTURES
def test_weights_may_be_read_only(architecture: str) -> None:
    manifest = network_manifest(architecture, (5, 3))
    tensors = random_tensors(manifest, WIDTH, 0)
    table, sample = table_of(dense_features(NODES, WIDTH, 2)), sample_of(random_graph(NODES, seed=1), [1, 2], (5, 3))
    expected, _ = infer(_build(manifest, tensors, WIDTH), table, sample)
    for tensor in tensors.values():
        tensor.setflags(write=False)

    assert_close(infer(_build(manifest, tensors, WIDTH), table, sample)[0], expected)


def test_a_tensor_is_taken_as_it_is_where_it_fits() -> None:
    tensors = {"a": np.arange(6, dtype=np.float64).reshape(2, 3).T, "b": np.zeros(1, dtype=np.float32)}

    taken = take(tensors, "a", (3, 2))

    assert taken.dtype == np.float32
    assert taken.flags.c_contiguous
    np.testing.assert_array_equal(taken, tensors["a"])
    with pytest.raises(ValueError, match=r"^weights lack 'c'; they have a, b$"):
        take(tensors, "c", (1,))
    with pytest.raises(ValueError, match=r"^weights 'b' have shape \[1\], expected \[3\]$"):
        take(tensors, "b", (3,))


def test_an_unknown_architecture_is_refused() -> None:
    manifest = msgspec.structs.replace(network_manifest("GCN", (5,)), architecture="PNA")
    with pytest.raises(ValueError, match="'PNA' is not a valid Architecture"):
        _build(manifest, {}, WIDTH)


@pytest.mark.parametrize("storage", list(Storage))
def test_gin_is_computed_in_float32_and_says_so(monkeypatch: pytest.MonkeyPatch, storage: Storage) -> None:
    """What a profile names is what was measured."""
    monkeypatch.setattr(blas, "has_fast_bfloat16", lambda: True)

    assert compute_for(Architecture.GIN, storage) == "float32"
    assert compute_for(Architecture.GRAPHSAGE, storage) == blas.preferred_compute(storage)
