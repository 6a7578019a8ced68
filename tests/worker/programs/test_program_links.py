"""Programs that give rows of nodes, whose pairs are scored over the graph with all links, as by their modules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch_geometric.nn as pyg
from safetensors.torch import save_file as save_torch
from sklearn.metrics import roc_auc_score
from tests.support.graphs.links import load_links
from tests.support.programs.program_links import (
    COLUMNS,
    EDGES,
    FEATURES,
    GRAPH,
    HIDDEN,
    NODES,
    Encoder,
    Given,
    ask,
    assert_close,
)

from gnnserve_api.errors import InputError
from gnnserve_api.files.edges import Direction, EdgeRules
from gnnserve_api.files.repository import RevisionManifest
from gnnserve_api.spec.model import ExpectedScores
from gnnserve_api.spec.task import Decoder, Links
from gnnserve_worker.generation.embeddings.publishing import publish_embeddings
from gnnserve_worker.generation.expected.file import ExpectedNodes
from gnnserve_worker.generation.expected.listed import ListedScores
from gnnserve_worker.generation.expected.pairs import compare_pairs
from gnnserve_worker.generation.given_program import decoder_tensors
from gnnserve_worker.generation.pipeline import find
from gnnserve_worker.graph.links import Pairs, part_edges, relations_without_held_out
from gnnserve_worker.graph.payload import EdgePayload
from gnnserve_worker.graph.store import Graph, GraphData
from gnnserve_worker.inference.opening import served_revision
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.models.decoder import build_decoder, score_all
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.progress import silent
from gnnserve_worker.tasks.generated import GivenDecoder
from gnnserve_worker.tasks.score_links.given_decoder import read_decoder


@dataclass(frozen=True)
class Published:
    given: Given
    revision: RevisionManifest
    served: ServedRevision


def published(folder: Path, module: Encoder, relation: np.ndarray | None = None, **program: Any) -> Iterator[Published]:
    given = Given.of(folder, module, relation)
    revision = given.generate(program)
    publish_embeddings(given.repository, "default/tiny", revision.revision, None, {}, "a test", silent)
    loaded = load_revision(given.repository, revision.revision)
    yield Published(given, revision, served_revision(loaded))
    for one in loaded.programs:
        one.close()


@pytest.fixture(scope="module")
def sage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Published]:
    yield from published(tmp_path_factory.mktemp("sage"), Encoder(pyg.SAGEConv))


@pytest.fixture(scope="module")
def gcn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Published]:
    """Counts edges, gives classes beside its rows, and has a decoder with weights."""
    module, relation = Encoder(pyg.GCNConv, has_head=True), np.linspace(-1, 2, HIDDEN, dtype=np.float32)
    yield from published(tmp_path_factory.mktemp("gcn"), module, relation, readsDegrees=True)


@pytest.fixture(params=["sage", "gcn"])
def either(request: pytest.FixtureRequest) -> Published:
    found: Published = request.getfixturevalue(request.param)
    return found


@pytest.mark.campaign
def test_pairs_have_the_scores_of_the_module_over_the_graph_with_all_links(either: Published) -> None:
    pairs = np.random.default_rng(1).integers(0, NODES, (40, 2))
    pairs[:10] = EDGES[:, :10].T
    rows = either.given.module.rows()
    answer = ask(either.served, "/v1/predict", {"pairs": pairs.tolist()}).json()
    assert_close(answer["scores"], either.given.scores(rows, pairs))
    curve = next(one.calibration for one in either.revision.variants if one.name == "x1")
    assert curve is not None
    wanted = 1 / (1 + np.exp(-(curve.slope * np.array(answer["scores"]) + curve.intercept)))
    np.testing.assert_allclose(answer["probabilities"], wanted, atol=1e-5)


def test_a_pair_may_have_a_node_that_only_the_request_has(either: Published) -> None:
    own = np.random.default_rng(8).normal(size=(1, COLUMNS)).astype(np.float32)
    overlay = {"nodes": [{"id": NODES, "features": own[0].tolist()}], "edges": [[7, NODES], [NODES, 12]]}
    pairs = [[NODES, 7], [3, NODES], [7, 12]]
    answer = ask(either.served, "/v1/predict", {"pairs": pairs, "overlay": overlay}).json()
    joined = np.array([[7, NODES, NODES, 12], [NODES, 7, 12, NODES]])
    rows = either.given.module.rows(np.concatenate([FEATURES, own]), np.concatenate([EDGES, joined], axis=1))
    assert_close(answer["scores"], either.given.scores(rows, pairs))


def test_the_best_pairs_are_those_of_the_module_and_no_known_ones(either: Published) -> None:
    answer = ask(either.served, "/v1/recommend", {"node": 5, "count": 6}).json()
    rows = either.given.module.rows()
    scores = either.given.scores(rows, [[5, other] for other in range(NODES)])
    left_out = {5, *GRAPH.graph.list_of(5).tolist()}
    best = [node for node in np.argsort(-scores, kind="stable").tolist() if node not in left_out][:6]
    found = answer["items"]
    assert [one["id"] for one in found] == best
    assert_close([one["score"] for one in found], scores[best])


def test_variants_are_judged_over_the_graph_without_held_out_links(sage: Published) -> None:
    source, links = sage.given.service().spec.graph.source, sage.given.service().spec.task.links
    assert links is not None
    parted = load_links(source, links, Path("unused")).links
    lists = parted.message_graph()
    hidden = sage.given.module.rows(edges=np.stack([lists.indices.astype(np.int64), lists.targets()]))

    def auc(rows: np.ndarray) -> float:
        pairs = (parted.validation, parted.validation_negatives)
        scores = [(rows[each.first] * rows[each.second]).sum(axis=1) for each in pairs]
        return float(roc_auc_score(np.repeat([1, 0], [len(each) for each in scores]), np.concatenate(scores)))

    profile = sage.revision.profile.variant("x1")
    assert profile.validation_accuracy == pytest.approx(auc(hidden), abs=1e-6)
    assert auc(hidden) != pytest.approx(auc(sage.given.module.rows()), abs=1e-3)
    # The same again is found; other shares of held-out links are another revision.
    assert find(sage.given.service(), sage.given.repository) == sage.revision
    assert find(sage.given.service(split={"validationPercent": 20}), sage.given.repository) is None


def test_what_is_published_says_how_far_rows_are_from_expected_ones(gcn: Published) -> None:
    (compared,) = gcn.revision.compared  # type: ignore[misc]
    assert compared.difference_permille <= compared.tolerance_permille == 0.01
    assert gcn.revision.links is not None
    assert (gcn.revision.links.decoder, gcn.revision.links.dimensions) == ("DistMult", HIDDEN)
    assert [one.name for one in gcn.revision.variants] == ["x1"]
    assert gcn.revision.training is None


@pytest.mark.parametrize("relation", [None, np.linspace(-1, 2, HIDDEN, dtype=np.float32)])
def test_another_program_scores_pairs_by_the_decoder_of_the_model(tmp_path: Path, relation: np.ndarray | None) -> None:
    given = Given.of(tmp_path, Encoder(pyg.SAGEConv), relation)
    other = Given.of(tmp_path / "other", Encoder(pyg.GraphConv), relation)
    revision = given.generate(parts={"variants": {"given": [other.as_variant()]}})
    assert [one.name for one in revision.variants] == ["x1", "given-1"]
    loaded = load_revision(given.repository, revision.revision)
    served = served_revision(loaded)
    pairs = np.random.default_rng(1).integers(0, NODES, (40, 2)).tolist()
    for name, of in (("x1", given), ("given-1", other)):
        answer = ask(served, "/v1/predict", {"pairs": pairs, "variant": name}).json()
        assert_close(answer["scores"], of.scores(of.module.rows(), pairs))
    for one in loaded.programs:
        one.close()


def test_a_decoder_of_its_own_is_refused(tmp_path: Path) -> None:
    given = Given.of(tmp_path, Encoder(pyg.SAGEConv), np.ones(HIDDEN, np.float32))
    other = Given.of(tmp_path / "other", Encoder(pyg.GraphConv), np.full(HIDDEN, 2, np.float32))
    refusal = given.refusal(parts={"variants": {"given": [other.as_variant()]}})
    assert "spec.variants.given[0].program.decoder: has other numbers than spec.model.program.decoder" in refusal


def test_rows_that_differ_are_refused_with_the_worst_nodes(tmp_path: Path) -> None:
    given = Given.of(tmp_path, Encoder(pyg.SAGEConv))
    rows = given.module.rows()
    rows[17, 5] += 3 * np.abs(rows).max()
    np.savez(tmp_path / "expected.npz", nodes=np.arange(NODES), scores=rows)
    refusal = given.refusal()
    assert "spec.model.expected: scores of 1 of 80 nodes differ by more than 0.01 permille" in refusal
    assert "node 17, dimension 5: expected " in refusal


def test_rows_of_another_width_than_the_dimensions_are_refused(tmp_path: Path) -> None:
    given = Given.of(tmp_path, Encoder(pyg.SAGEConv))
    refusal = given.refusal(dimensions=9)
    assert "task.links.dimensions 9 must be as many as the columns of model.program.embeddings" in refusal
    assert f"where there are no embeddings, {HIDDEN}: these are the rows" in refusal


# --- decoders with weights


def refusal_of_decoder(path: Path, decoder: Decoder, tensors: dict[str, torch.Tensor]) -> str:
    save_torch(tensors, path)
    with pytest.raises(InputError) as caught:
        read_decoder(Links(decoder=decoder, dimensions=HIDDEN), decoder_tensors(path))
    return str(caught.value)


@pytest.mark.parametrize("has_bias", [True, False])
def test_a_perceptron_is_read_as_torch_saves_it(tmp_path: Path, has_bias: bool) -> None:
    torch.manual_seed(1)
    module = torch.nn.Sequential(
        torch.nn.Linear(2 * HIDDEN, 5, bias=has_bias), torch.nn.ReLU(), torch.nn.Linear(5, 1, bias=has_bias)
    )
    save_torch(module.state_dict(), tmp_path / "decoder.safetensors")
    tensors = decoder_tensors(tmp_path / "decoder.safetensors")
    found = read_decoder(Links(decoder=Decoder.MLP, dimensions=HIDDEN), tensors)
    ends = torch.randn(2, 20, HIDDEN)
    with torch.no_grad():
        wanted = module(torch.cat([*ends], dim=1))[:, 0].numpy()
    assert_close(found.decoder.score(*ends.numpy()), wanted)
    assert_close(np.diag(score_all(found.decoder, *ends.numpy())), wanted)


def test_weights_of_another_decoder_are_refused_with_their_shapes(tmp_path: Path) -> None:
    path = tmp_path / "decoder.safetensors"
    three = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(3)))
    refusal = refusal_of_decoder(path, Decoder.MLP, three.state_dict())
    assert "0.weight [16, 16]" in refusal
    assert (
        f"not the weights of MLP over {HIDDEN} columns; write the tensors of Linear({2 * HIDDEN}, h), ReLU" in refusal
    )
    assert "a weight for each column" in refusal_of_decoder(path, Decoder.DIST_MULT, {"relation": torch.ones(5)})
    with pytest.raises(InputError, match=r"is absent, also in the folder of the program, and .* is MLP"):
        read_decoder(Links(decoder=Decoder.MLP, dimensions=HIDDEN), decoder_tensors(None))
    with pytest.raises(InputError, match=r"is decoder.safetensors in the folder .* task.links.decoder is Dot"):
        read_decoder(Links(dimensions=HIDDEN), decoder_tensors(path))


def compare(folder: Path, decoder: GivenDecoder, **pairs: Any) -> None:
    """Hold pairs of an expected file against rows that are the features."""
    path = folder / "expected.npz"
    np.savez(path, nodes=np.arange(NODES), scores=FEATURES, **pairs)
    expected = ExpectedScores.model_validate({"uri": path.as_uri(), "tolerancePermille": 0.01})
    listed = ListedScores("spec.model.expected", "spec.model", expected)
    compare_pairs(listed, ExpectedNodes(NODES, None, COLUMNS, "dimension"), lambda nodes: FEATURES[nodes], decoder)


def test_scores_of_pairs_tell_whether_the_decoder_is_the_models(tmp_path: Path) -> None:
    weights = {"relation": np.linspace(-1, 2, COLUMNS, dtype=np.float32)}
    decoder = GivenDecoder(weights, build_decoder(Decoder.DIST_MULT, weights, COLUMNS))
    dot = GivenDecoder({}, build_decoder(Decoder.DOT, {}, COLUMNS))
    pairs = np.array([[3, 7], [7, 3], [5, 5]])
    scores = (FEATURES[pairs[:, 0]] * weights["relation"] * FEATURES[pairs[:, 1]]).sum(axis=1)
    compare(tmp_path, decoder, pairs=pairs, pair_scores=scores)
    compare(tmp_path, dot)
    with pytest.raises(InputError, match="has no arrays pairs and pair_scores, which tell that the decoder's weights"):
        compare(tmp_path, decoder)
    with pytest.raises(InputError, match=r"scores of 3 of 3 pairs differ .* check task.links.decoder"):
        compare(tmp_path, dot, pairs=pairs, pair_scores=scores)
    with pytest.raises(InputError, match="pairs has 80, which is no node of the graph"):
        compare(tmp_path, dot, pairs=np.array([[3, NODES]]), pair_scores=scores[:1])
    with pytest.raises(InputError, match=r"has pairs \[3, 2\] and pair_scores \[2\], expected \[pairs, 2\]"):
        compare(tmp_path, dot, pairs=pairs, pair_scores=scores[:2])


# --- links that are hidden while variants are judged


@pytest.mark.parametrize("direction", [*Direction])
def test_lists_lose_held_out_links_alone_and_entries_keep_their_payload(direction: Direction) -> None:
    lists = GRAPH.graph
    if direction is not Direction.UNDIRECTED:  # about half of the edges one way
        is_kept = (EDGES.sum(axis=0) % 2 == 0) | (EDGES[0] < EDGES[1])
        counts = np.bincount(EDGES[1, is_kept], minlength=NODES)
        lists = Graph(np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), lists.indices[is_kept])
    lists = Graph(lists.indptr, lists.indices, payload_rows=np.arange(lists.edges, dtype=np.int32))
    own = (lists.indices.astype(np.int64), lists.targets())
    payload = EdgePayload(("weight",), np.arange(lists.edges, dtype=np.float32)[:, None], "", np.zeros(0, np.int64))
    data = GraphData.of_one_type(
        "a test", "0", lists, FEATURES, GRAPH.labels, GRAPH.classes, GRAPH.splits, EdgeRules(direction),
        payload=payload,
    )  # fmt: skip
    parted = part_edges(data, Links())
    (left,) = relations_without_held_out(parted.imported, parted.links)
    wanted = {*_keys(parted.graph.graph.indices, parted.graph.graph.targets())}
    assert {*_keys(left.lists.indices, left.lists.targets())} == wanted
    assert 0 < left.lists.edges < lists.edges
    rows = left.lists.payload_rows
    np.testing.assert_array_equal(own[0][rows], left.lists.indices)
    np.testing.assert_array_equal(own[1][rows], left.lists.targets())
    assert left.payload is payload


def _keys(read: np.ndarray, readers: np.ndarray) -> list[int]:
    pairs = Pairs(read.astype(np.int64), readers)
    return (pairs.first * NODES + pairs.second).tolist()  # type: ignore[no-any-return]
