"""Links: parted without a leak, learnt, judged, calibrated, and answered from a published revision."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from tests.support.generation.steps import HeardSteps
from tests.support.graphs.graphs import graph_of, npz_arrays, planted_graph, service_of, write_npz
from tests.support.graphs.link_folders import light_gcn, typed_folder
from tests.support.graphs.links import load_links
from tests.support.graphs.several_types import TypedParts, shop

from gnnserve_api.errors import DamagedError, InputError
from gnnserve_api.files.edges import Direction, EdgeRules
from gnnserve_api.files.graph_schema import GraphSchema, RelationManifest, TypeManifest
from gnnserve_api.files.links import EndManifest, LinksManifest
from gnnserve_api.files.repository import RevisionManifest
from gnnserve_api.spec.graph import GraphSource
from gnnserve_api.spec.service import GNNService, GNNServiceSpec
from gnnserve_api.spec.task import Decoder, Links
from gnnserve_worker.generation.light_gcn import Propagation
from gnnserve_worker.generation.pipeline import generate
from gnnserve_worker.graph.links import LinkSet, Pairs, PartedLinks, message_relations, pair_keys, part_edges
from gnnserve_worker.graph.overlay import overlay_arranger
from gnnserve_worker.graph.relation_lists import merged_lists, places_of
from gnnserve_worker.graph.store import Graph, Relation
from gnnserve_worker.inference.batch import infer_batch
from gnnserve_worker.models.decoder import build_decoder, probabilities, score_all
from gnnserve_worker.opening.folded_nodes import read_from_one_end
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.tasks.score_links import comparison
from gnnserve_worker.tasks.score_links.calibration import fit_calibration
from gnnserve_worker.tasks.score_links.course import LinkCourse
from gnnserve_worker.tasks.score_links.decoders import make_decoder
from gnnserve_worker.tasks.score_links.links import open_decoder, served_links
from gnnserve_worker.tasks.score_links.metrics import DecodedPairs, judge_links, roc_auc

GRAPH = planted_graph([2, 5, 9], nodes=200, columns=12)
TASK = Links(dimensions=16)
MANY = {"pruning": {"factors": [1, 2]}, "stored": [1], "channels": [{"factor": 2}]}


def parted(direction: Direction = Direction.UNDIRECTED, **split: int) -> LinkSet:
    graph = GRAPH.graph
    both = graph_of([sorted({*graph.list_of(node).tolist(), *_readers(graph, node)}) for node in range(graph.nodes)])
    data = GRAPH.with_lists(both if direction is Direction.UNDIRECTED else graph, EdgeRules(direction))
    return part_edges(data, Links.model_validate({"dimensions": 16, "split": split}))[1]


def _readers(graph: Graph, node: int) -> list[int]:
    return graph.targets()[graph.indices == node].tolist()


def keys_of(pairs: Pairs) -> set[int]:
    return {*pair_keys(pairs.first, pairs.second, GRAPH.graph.nodes).tolist()}


def entries_of(graph: Graph) -> set[int]:
    """A number for each entry of a neighbour list, as `pair_keys` of source and target."""
    return {*pair_keys(graph.indices, graph.targets(), graph.nodes).tolist()}


@pytest.mark.parametrize("direction", [*Direction])
def test_no_held_out_link_is_aggregated_in_either_direction(direction: Direction) -> None:
    links = parted(direction)

    def entries(pairs: Pairs) -> set[int]:
        """What the links would be in neighbour lists."""
        backwards = keys_of(Pairs(pairs.second, pairs.first))
        match direction:
            case Direction.UNDIRECTED:
                return keys_of(pairs) | backwards
            case Direction.DIRECTED:
                return keys_of(pairs)
            case Direction.REVERSED:
                return backwards

    aggregated = entries_of(links.message_graph())
    assert len(links.validation) and len(links.test)
    for held_out in map(entries, (links.validation, links.test)):
        assert held_out and not held_out & aggregated
    assert entries(links.train) <= aggregated


def test_a_planted_test_link_among_those_that_are_aggregated_would_raise_the_score() -> None:
    """What the parting is for: embeddings that sum one-hot rows of neighbours find each aggregated link."""
    links = parted()
    leaking = replace(
        links, train=Pairs(*(np.concatenate([getattr(links.train, end), getattr(links.test, end)]) for end in
                             ("first", "second"))),
    )  # fmt: skip

    def auc(of: LinkSet) -> float:
        nodes = of.nodes
        rows = np.zeros((nodes, nodes), np.float32)
        graph = of.message_graph()
        rows[graph.targets(), graph.indices] = 1

        def score(pairs: Pairs) -> np.ndarray:
            return rows[pairs.first, pairs.second]

        return roc_auc(score(links.test), score(links.test_negatives))

    assert auc(links) == 0.5
    assert auc(leaking) == 1


def test_links_that_a_batch_learns_are_not_aggregated_meanwhile() -> None:
    links = parted()
    course = LinkCourse(links, TASK, 0, lambda kept: [Relation("", "", "", links.message_graph(kept))])
    seen = []
    for part in course.parts(1):
        learnt, aggregated = links.train.at(part.items), entries_of(part.visible[0].lists)
        assert not keys_of(learnt) & aggregated
        seen += part.items.tolist()
    assert sorted(seen) == [*range(len(links.train))]


def test_parts_do_not_overlap_and_negatives_are_no_links() -> None:
    links = parted(validation_percent=20, test_percent=30, seed=3)
    train, validation, test = map(keys_of, (links.train, links.validation, links.test))
    total = len(train) + len(validation) + len(test)
    assert not train & validation and not train & test and not validation & test
    assert len(validation) == round(0.2 * total) and len(test) == round(0.3 * total)
    known = {*links.known_keys().tolist()}
    for pairs, of in ((links.validation_negatives, validation), (links.test_negatives, test)):
        assert len(pairs) == len(of)
        assert not keys_of(pairs) & known
        assert (pairs.first != pairs.second).all()


def test_the_same_seed_parts_alike_and_another_does_not() -> None:
    assert keys_of(parted(seed=1).test) == keys_of(parted(seed=1).test) != keys_of(parted(seed=2).test)


def test_auc_is_that_of_scikit_learn_with_equal_scores() -> None:
    draw = np.random.default_rng(0)
    of_links, of_others = (draw.integers(0, 9, 300).astype(np.float32) + shift for shift in (1, 0))
    truths = np.repeat([1, 0], 300)
    assert roc_auc(of_links, of_others) == pytest.approx(roc_auc_score(truths, np.concatenate([of_links, of_others])))


def test_rankings_leave_known_links_out_and_count_the_others() -> None:
    whole = LinkSet_of([(0, 1), (0, 2)], [(0, 3)], nodes=6)
    embeddings = np.eye(6, dtype=np.float32)
    # Node 0 scores 1 and 2 highest, which are known; 4 stands above the link that is asked about.
    embeddings[0] = [0, 9, 8, 3, 5, 1]
    scores = judge_links(
        whole,
        whole.validation,
        whole.validation_negatives,
        DecodedPairs(build_decoder("Dot", {}, 6)),
        lambda n: embeddings[n],
        2,
    ).scores
    assert scores.mrr == 0.5
    assert scores.recall_at_k == 1
    assert scores.ndcg_at_k == pytest.approx(1 / np.log2(3))
    assert scores.sources == 1


def test_equal_scores_have_their_mean_rank_and_a_random_order() -> None:
    """A node without links that are aggregated has a row of zeros: nothing is known of it, which is no good rank."""
    nodes = 1001
    held_out = [(0, node) for node in range(1, nodes, 10)]
    whole, embeddings = LinkSet_of([], held_out, nodes), np.zeros((nodes, 2), np.float32)
    scores = judge_links(
        whole,
        whole.validation,
        whole.validation_negatives,
        DecodedPairs(build_decoder("Dot", {}, 2)),
        lambda n: embeddings[n],
        100,
    ).scores
    assert scores.mrr == pytest.approx(1 / (1 + 900 / 2))
    assert 0.03 < scores.recall_at_k < 0.2  # a tenth of all nodes is among the first hundred


def LinkSet_of(train: list[tuple[int, int]], validation: list[tuple[int, int]], nodes: int) -> LinkSet:  # noqa: N802
    def pairs(of: list[tuple[int, int]]) -> Pairs:
        return Pairs(*(np.array([pair[end] for pair in of], np.int64) for end in (0, 1)))

    found = parted()
    end = replace(found.first, end=nodes)
    none = pairs([])
    return LinkSet(
        "", end, end, nodes, Direction.DIRECTED, pairs(train), pairs(validation), pairs([(4, 5)]), none, none, none
    )


@pytest.mark.parametrize("kind", [*Decoder])
def test_decoders_are_served_as_they_are_learnt(kind: Decoder) -> None:
    torch.manual_seed(0)
    learnt = make_decoder(kind, 8)
    first, second = (np.random.default_rng(seed).normal(size=(20, 8)).astype(np.float32) for seed in (1, 2))
    weights = {key: value.detach().numpy() for key, value in learnt.state_dict().items()}
    served = build_decoder(kind, weights, 8)
    with torch.no_grad():
        wanted = learnt(torch.from_numpy(first), torch.from_numpy(second)).numpy()
    assert served.score(first, second) == pytest.approx(wanted, abs=1e-5)
    assert np.diag(score_all(served, first, second)) == pytest.approx(wanted, abs=1e-5)


def test_decoder_weights_of_another_shape_are_named() -> None:
    with pytest.raises(ValueError, match=r"weights 'relation' have shape \[3\], expected \[8\]"):
        build_decoder("DistMult", {"relation": np.ones(3, np.float32)}, 8)


def test_weights_of_new_nodes_are_whole_or_refused() -> None:
    both = {"eigenvalues": np.array([0.5, 0], np.float32), "shares": np.ones(3, np.float32)}
    folding = build_decoder("Dot", both, 2).folding
    assert folding is not None and folding.own_of(np.array([1, 7], np.float32)).tolist() == [2, 0]
    assert build_decoder("Dot", {}, 2).folding is None
    for missing in both:
        with pytest.raises(ValueError, match=f"weights lack '{missing}'"):
            build_decoder("Dot", {key: value for key, value in both.items() if key != missing}, 2)


def test_who_reads_a_node_is_found_across_blocks_of_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gnnserve_worker.graph.store._BLOCK_ENTRIES", 2)
    graph = graph_of([[1, 2], [], [0, 2, 1], [1]])
    assert [graph.readers_of(node).tolist() for node in range(4)] == [[2], [0, 2, 3], [0, 2], []]


@pytest.mark.parametrize(
    ("both_ways", "reverse_of", "expected"),
    [(False, None, True), (True, None, False), (False, "rates", False)],
    ids=["one way", "both ways", "with a reverse"],
)
def test_what_joins_a_node_is_looked_for_at_other_nodes_where_a_relation_is_read_from_one_end(
    both_ways: bool, reverse_of: str | None, expected: bool
) -> None:
    types = (TypeManifest("user", 2, None, "Positions"), TypeManifest("item", 2, None, "Positions"))
    rates = RelationManifest("user", "rates", "item", 3, None, merges=True, both_ways=both_ways)
    back = RelationManifest("item", "rev_rates", "user", 3, reverse_of, merges=True, both_ways=False)
    relations = (rates,) if reverse_of is None else (rates, back)
    assert read_from_one_end(GraphSchema(types, relations)) is expected


def test_calibrated_probabilities_are_as_often_right_as_they_say() -> None:
    draw = np.random.default_rng(0)
    of_links, of_others = (draw.normal(shift, 1, 20_000).astype(np.float32) for shift in (1, -1))
    fitted = fit_calibration(of_links, of_others)
    # Of two normal distributions of deviation 1 the logit is the difference of the means times the score.
    assert fitted.slope == pytest.approx(2, rel=0.05)
    assert fitted.intercept == pytest.approx(0, abs=0.05)
    found = probabilities(np.array([0, 100, -100], np.float32), fitted.slope, fitted.intercept)
    assert found == pytest.approx([0.5, 1, 0], abs=0.02)


def test_calibration_of_scores_that_tell_nothing_is_the_share_of_links() -> None:
    alike = np.ones(50, np.float32)
    fitted = fit_calibration(alike, alike)
    assert (fitted.slope, probabilities(alike[:1], fitted.slope, fitted.intercept)[0]) == (0, 0.5)
    backwards = fit_calibration(-np.arange(50, dtype=np.float32), np.arange(50, dtype=np.float32))
    assert backwards.slope == 0


def test_light_gcn_propagates_as_torch_geometric_does() -> None:
    from torch_geometric.nn.models import LightGCN  # it warns where `networks` was not imported before

    links = parted()
    graph = links.message_graph()
    model = LightGCN(graph.nodes, 8, 3)
    edges = torch.from_numpy(np.stack([graph.indices.astype(np.int64), graph.targets()]))
    own = model.embedding.weight
    found = Propagation(graph, 3)(own)
    with torch.no_grad():
        assert found.numpy() == pytest.approx(model.get_embedding(edges).numpy(), abs=1e-6)


@pytest.mark.parametrize("at_once", [1, 7, 1 << 20])
def test_a_softmax_over_all_nodes_is_torchs(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loss and gradients, whatever the blocks."""
    links = parted()
    monkeypatch.setattr(comparison, "_BLOCK", at_once * links.second.nodes)
    drawn = torch.from_numpy(np.random.default_rng(1).normal(size=(links.nodes, 8)).astype(np.float32))
    found, expected = drawn.clone().requires_grad_(), drawn.clone().requires_grad_()
    batches = [*comparison.AllNodes(links, TASK).batches(40, np.random.default_rng(2))]
    assert sorted(zip(*np.concatenate([(one.first, one.second) for one in batches], axis=1), strict=True)) == sorted(
        zip(links.train.first, links.train.second, strict=True)
    )
    assert not {*batches[0].first} & {*batches[1].first}
    batch = batches[0]
    loss = comparison.AllNodes(links, TASK).loss(found, batch, np.random.default_rng(3))
    unit = torch.nn.functional.normalize(expected, dim=1)
    logits = unit[batch.first] @ unit[links.second.start : links.second.end].T / comparison.TEMPERATURE
    wanted = torch.nn.functional.cross_entropy(logits, torch.from_numpy(batch.second - links.second.start))
    loss.backward()
    wanted.backward()
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-5)
    assert found.grad is not None and expected.grad is not None
    assert found.grad.numpy() == pytest.approx(expected.grad.numpy(), abs=1e-6)


def test_the_task_opens_its_own_files_and_names_what_is_damaged(tmp_path: Path) -> None:
    end = EndManifest("", 0, 4)
    told = LinksManifest("DistMult", 8, "", end, end, 1, 1, weights="decoder.safetensors")
    assert told.listed_files == ("decoder.safetensors",)
    (tmp_path / "decoder.safetensors").write_bytes(b"no tensors")
    with pytest.raises(DamagedError, match=r"decoder\.safetensors.*does not hold the weights of the decoder"):
        open_decoder(tmp_path, told)


# --- from a manifest to answers


def manifest(tmp_path: Path, **parts: Any) -> GNNService:
    uri = write_npz(tmp_path / "graph.npz", npz_arrays(GRAPH)).as_uri()
    training = {"epochs": 6, "batchSize": 128, "learningRate": 0.02}
    model = {"hidden": 16, "fanouts": [5, 5], "training": training, **parts.pop("model", {})}
    return service_of(uri, model=model, **parts)


def answers(repository: Repository, published: RevisionManifest, name: str, pairs: Pairs) -> np.ndarray:
    loaded = load_revision(repository, published.revision)
    served = served_links(published, loaded.origin.folder)
    nodes, places = np.unique(np.concatenate([pairs.first, pairs.second]), return_inverse=True)
    embeddings = infer_batch(loaded, name, nodes, key=0, with_embeddings=False).scores
    return served.score(embeddings, places[: len(pairs)], places[len(pairs) :])


@pytest.mark.campaign
@pytest.mark.parametrize("decoder", [*Decoder])
def test_variants_score_links_with_one_decoder(decoder: Decoder, tmp_path: Path) -> None:
    service = manifest(
        tmp_path,
        task={"links": {"decoder": decoder, "dimensions": 8}},
        variants=MANY if decoder is Decoder.DIST_MULT else {"pruning": {"factors": [1]}},
    )
    repository = Repository(tmp_path / "repository", "default", "tiny")
    heard = HeardSteps()
    published = generate(service, repository, heard)
    heard.check()
    assert published.links is not None
    assert (published.links.decoder, published.links.dimensions) == (decoder, 8)
    assert published.profile.metric == "rocAuc"
    links = load_links(service.spec.graph.source, service.spec.task.links or TASK, Path("unused")).links
    for variant in published.profile.variants:
        judged = variant.validation_figures
        assert judged is not None and variant.test_figures is not None
        assert judged.links == len(links.validation)
        assert variant.validation_accuracy == judged.roc_auc
    names = {variant.name for variant in published.variants}
    assert ({"x1", "x2", "stored1", "channels2"} if decoder is Decoder.DIST_MULT else {"x1"}) <= names
    found = [answers(repository, published, "x1", pairs) for pairs in (links.test, links.test_negatives)]
    assert roc_auc(*found) == pytest.approx(published.profile.variant("x1").test_accuracy, abs=0.1)
    assert roc_auc(*found) > (0.5 if decoder is Decoder.MLP else 0.6)
    # The same again is found, not trained.
    assert generate(service, repository).revision == published.revision


@pytest.mark.parametrize("compared", [{"negatives": 16}, {"comparedWith": "All"}])
def test_light_gcn_serves_rows_of_length_one_and_calls_nodes_by_their_type(
    compared: dict[str, Any], tmp_path: Path
) -> None:
    parts = shop()
    edges = parts.edges["user", "buys", "item"]
    edges["split"] = (np.arange(len(edges["src"])) % 5).clip(2) - 2
    repository = Repository(tmp_path / "repository", "default", "tiny")
    heard = HeardSteps()
    published = generate(light_gcn(typed_folder(parts, tmp_path / "shop"), **compared), repository, heard)
    heard.check()
    links = published.links
    assert links is not None and links.relation == "user buys item"
    assert links.validation_links == int((edges["split"] == 1).sum())
    loaded = load_revision(repository, published.revision)
    assert loaded.ids.asked is not None
    assert loaded.ids.asked.shown(links.first.start, links.first.start + 2) == ["user/0", "user/1"]
    assert loaded.ids.asked.shown(links.second.end - 1, links.second.end) == ["item/19"]
    embeddings = infer_batch(loaded, published.variants[-1].name, np.arange(55), key=0, with_embeddings=False).scores
    lengths = np.linalg.norm(embeddings, axis=1)
    assert lengths[np.abs(lengths) > 0] == pytest.approx(1, abs=1e-5)
    held_out = {*zip(edges["src"][edges["split"] > 0].tolist(), edges["dst"][edges["split"] > 0].tolist(), strict=True)}
    for user in range(30):
        listed = loaded.graph.list_of(links.first.start + user)
        assert not held_out & {(user, int(node) - links.second.start) for node in listed}


TYPED_LINKS = [
    ("GraphSAGE", {}),
    ("GAT", {"decoder": "DistMult"}),
    ("RGCN", {"decoder": "MLP", "negatives": 2}),
]


@pytest.mark.parametrize(("architecture", "task"), TYPED_LINKS)
def test_a_network_over_types_learns_links_and_stores_what_it_gives(
    architecture: str, task: dict[str, Any], tmp_path: Path
) -> None:
    """`changes/test_new_ends.py` shows, with weights of torch_geometric, that other variants compute the same."""
    repository = Repository(tmp_path / "repository", "default", "tiny")
    model = {"architecture": architecture, "hidden": 8, "fanouts": [-1, -1], "training": {"epochs": 2}}
    service = light_gcn(typed_folder(shop(), tmp_path / "shop"), model, **task)
    published = generate(service, repository)
    assert published.links is not None and published.training is not None
    assert [(run.name, run.learnt_from) for run in published.training.runs] == [("network", "links")]
    assert {variant.name for variant in published.variants} == {"stored2", "projected"}
    assert {*service.spec.possible_variants()} == {"stored2", "projected"}
    loaded, links = load_revision(repository, published.revision), published.links
    assert loaded.ids.asked is not None
    assert loaded.ids.asked.shown(links.first.start, links.first.start + 2) == ["user/0", "user/1"]
    rows = infer_batch(loaded, "stored2", np.arange(loaded.graph.nodes), key=0, with_embeddings=False).scores
    at_ends = np.zeros(len(rows), bool)
    at_ends[links.first.start : links.first.end] = at_ends[links.second.start : links.second.end] = True
    assert np.abs(rows[at_ends]).max(axis=1).min() > 0
    judged = [variant.test_figures for variant in published.profile.variants]
    assert judged[0] is not None and judged[1] is not None and 0 < judged[0].roc_auc <= 1
    assert judged[0].roc_auc == pytest.approx(judged[1].roc_auc, abs=0.02)
    # What an interrupted generation has learnt is found, and a finished one whole.
    assert generate(service, repository).revision == published.revision


def test_light_gcn_and_a_network_over_types_keep_graphs_of_their_own(tmp_path: Path) -> None:
    """They hold out the same links of the same source, and one of the graphs has no types."""
    repository = Repository(tmp_path / "repository", "default", "tiny")
    uri = typed_folder(shop(), tmp_path / "shop")
    model = {"architecture": "GraphSAGE", "hidden": 8, "fanouts": [4], "training": {"epochs": 1}}
    of_types, rows = (generate(light_gcn(uri, each), repository) for each in (model, None))
    assert of_types.graph != rows.graph
    assert of_types.links is not None and rows.links is not None
    assert of_types.links.test_links == rows.links.test_links
    # Networks of one layer answer about either end, too.
    ends = np.arange(of_types.links.second.start, of_types.links.second.end)
    found = infer_batch(
        load_revision(repository, of_types.revision), "projected", ends, key=0, with_embeddings=False
    ).scores
    assert np.abs(found).max(axis=1).min() > 0


def test_lists_of_links_that_are_learnt_from_lack_the_others(tmp_path: Path) -> None:
    """Both the scored relation and its reverse lack them; the other relations stay as they are."""
    source = light_gcn(typed_folder(shop(), tmp_path / "shop")).spec
    assert source.task.links is not None
    loaded = load_links(source.graph.source, source.task.links, tmp_path)
    kept = np.arange(len(loaded.links.train)) % 2 == 0
    relations = message_relations(loaded.imported, loaded.links, kept)
    learnt = loaded.links.train.at(np.flatnonzero(kept))
    expected = sorted(
        zip(learnt.first - loaded.links.first.start, learnt.second - loaded.links.second.start, strict=True)
    )
    for made, whole in zip(relations, loaded.imported.relations, strict=True):
        if whole.name == "buys":
            assert sorted(zip(made.lists.indices, made.lists.targets(), strict=True)) == expected
        elif whole.reverse_of == "buys":
            assert sorted(zip(made.lists.targets(), made.lists.indices, strict=True)) == expected
        else:
            assert made is whole


def loaded_links(parts: TypedParts, folder: Path, *, reverse: str = "Add", relation: str = "buys") -> PartedLinks:
    source = GraphSource.model_validate({"typed": {"npz": {"uri": typed_folder(parts, folder)}, "reverse": reverse}})
    return load_links(source, Links(relation=relation), folder)


def test_a_reverse_that_the_source_lists_itself_loses_what_is_held_out(tmp_path: Path) -> None:
    parts = shop()
    bought = parts.edges["user", "buys", "item"]
    parts.edges["item", "sold", "user"] = {"src": bought["dst"], "dst": bought["src"]}
    loaded = loaded_links(parts, tmp_path / "shop", reverse="Disabled")
    made = {one.name: one for one in message_relations(loaded.imported, loaded.links)}
    assert made["sold"].reverse_of == "buys"
    assert made["sold"].lists.edges == made["buys"].lists.edges == len(loaded.links.train) < len(bought["src"])
    # As one graph of one type it is the same as where importing adds the reverse.
    added = loaded_links(shop(), tmp_path / "added")
    assert np.array_equal(loaded.graph.graph.indptr, added.graph.graph.indptr)


def test_an_edge_of_an_overlay_goes_into_every_reverse_of_the_scored_relation(tmp_path: Path) -> None:
    parts = shop()
    buys = parts.edges["user", "buys", "item"]
    for name in ("sold", "chosen"):
        parts.edges["item", name, "user"] = {"src": buys["dst"], "dst": buys["src"]}
    typed = loaded_links(parts, tmp_path / "shop", reverse="Disabled").imported
    described = typed.schema
    graph = Graph(*merged_lists(described, [one.lists for one in typed.relations]), described)
    place = next(i for i, one in enumerate(described.relations) if one.name == "buys")
    # From a new user to the first item.
    edge = np.array([[graph.nodes, described.first_nodes[described.place_of("item")]]])
    user = np.array([described.place_of("user")])
    overlay, _ = overlay_arranger(graph, places_of(described)).arrange(
        np.zeros((1, 4), np.float32), np.zeros(0, np.int64), edge, np.array([graph.nodes]), user, np.array([place])
    )
    assert overlay.edges == 3


def test_a_link_that_is_listed_twice_is_held_out_once_and_whole(tmp_path: Path) -> None:
    parts = shop()
    bought = parts.edges["user", "buys", "item"]
    parts.edges["user", "buys", "item"] = {end: np.tile(bought[end], 3) for end in ("src", "dst")}
    links = loaded_links(parts, tmp_path / "shop").links
    keys = [pair_keys(part.first, part.second, links.nodes) for part in (links.train, links.validation, links.test)]
    together = np.concatenate(keys)
    assert len(together) == len(np.unique(together)) == len(bought["src"])


def test_a_link_between_nodes_of_one_type_is_one_whichever_end_is_named_first(tmp_path: Path) -> None:
    parts, knows = shop(), ("user", "knows", "user")
    known = parts.edges[knows]
    apart = known["src"] < known["dst"]
    first, second = known["src"][apart], known["dst"][apart]
    split = (np.arange(len(first)) % 5).clip(2) - 2
    edges = {"src": np.append(first, second), "dst": np.append(second, first), "split": np.append(split, split)}
    parts.edges[knows] = edges
    links = loaded_links(parts, tmp_path / "shop", relation="knows").links
    assert len(links.train) + len(links.validation) + len(links.test) == len(set(zip(first, second, strict=True)))
    parts.edges[knows] = edges | {"split": np.append(split, (split + 1) % 3)}
    with pytest.raises(InputError, match="put every edge into one part, both ways of it"):
        loaded_links(parts, tmp_path / "torn", relation="knows")


def test_links_of_one_type_that_are_read_one_way_are_all_there(tmp_path: Path) -> None:
    graph = shop()
    known = graph.edges["user", "knows", "user"]
    links = loaded_links(graph, tmp_path / "shop", reverse="Disabled", relation="knows").links
    parts = (links.train, links.validation, links.test)
    first, second = (np.concatenate([getattr(part, end) for part in parts]) for end in ("first", "second"))
    first, second = first - links.first.start, second - links.second.start
    assert sorted(zip(first, second, strict=True)) == sorted(zip(known["src"], known["dst"], strict=True))


def test_an_end_that_no_relation_leads_to_is_named_before_training(tmp_path: Path) -> None:
    parts = shop()
    del parts.edges["user", "knows", "user"]
    model = {"architecture": "GraphSAGE", "hidden": 8, "fanouts": [-1], "training": {"epochs": 1}}
    service = light_gcn(typed_folder(parts, tmp_path / "shop"), model, reverse="Disabled")
    with pytest.raises(InputError, match="GraphSAGE of 1 layers gives nothing for nodes of type user"):
        generate(service, Repository(tmp_path / "repository", "default", "tiny"))


@pytest.mark.parametrize(
    ("links", "problem"),
    [
        ({"relation": None}, r"task.links.relation: is absent, and the source has 3 relations: .*user buys item"),
        ({"relation": "likes"}, r"task.links.relation: is 'likes', which is no relation; there are "),
    ],
)
def test_relations_that_are_not_there_are_named(links: dict[str, Any], problem: str, tmp_path: Path) -> None:
    service = light_gcn(typed_folder(shop(), tmp_path / "shop"), **links)
    with pytest.raises(InputError, match=problem):
        generate(service, Repository(tmp_path / "repository", "default", "tiny"))


def test_a_graph_of_one_type_has_no_relation(tmp_path: Path) -> None:
    service = manifest(tmp_path, task={"links": {"relation": "cites"}})
    with pytest.raises(InputError, match=r"task.links.relation: is 'cites', and a graph of one type has no relations"):
        generate(service, Repository(tmp_path / "repository", "default", "tiny"))


@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        (
            {"model": {"architecture": "SGC", "fanouts": [0]}},
            "task.links must not be given with model.architecture SGC",
        ),
        ({"variants": {"metric": "Accuracy"}}, "variants.metric Accuracy must be Auto, ROCAUC"),
        (
            {"model": {"architecture": "LightGCN", "fanouts": [0]}},
            "LightGCN must not be given without task.links",
        ),
        (
            {"task": {"links": {"comparedWith": "All"}}},
            "task.links.comparedWith All and Nothing must not be given but for model.architecture LightGCN",
        ),
        ({"task": {}, "variants": {"metric": "MRR"}}, "variants.metric MRR must be Auto, ROCAUC"),
    ],
)
def test_what_links_cannot_have_is_refused_when_a_manifest_is_read(parts: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        GNNServiceSpec.model_validate({"graph": {"source": {"builtin": "Digits"}}, "task": {"links": {}}, **parts})


def test_recipes_of_classification_stay_and_those_of_links_differ() -> None:
    graph = {"graph": {"source": {"builtin": "Digits"}}}
    recipes = [
        GNNServiceSpec.model_validate({**graph, **task}).recipe()
        for task in ({}, {"task": {}}, {"task": {"links": {}}}, {"task": {"links": {"decoder": "MLP"}}})
    ]
    assert recipes[0] == recipes[1] == "edf3d744c86fae1e"
    assert len({*recipes}) == 3
