"""Programs over several types, from a manifest to a server's answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch_geometric.nn as pyg
from msgspec import UNSET
from tests.support.graphs import service_of
from tests.support.programs import export
from tests.support.secured_worker import started
from tests.support.several_types import TypedParts, write_hetero, write_tables
from tests.worker.test_program_generation import ProgramWorker
from tests.worker.test_program_types import (
    CLASSES,
    COLUMNS,
    COUNTS,
    FEATURES,
    FREE,
    HIDDEN,
    PROGRAM,
    RELATIONS,
    USERS,
    Model,
    example,
    whole_graph,
)

from gnnserve_api.errors import InputError
from gnnserve_api.families import FamilyName
from gnnserve_api.overlay import DEFAULT_OVERLAY_LIMITS
from gnnserve_api.repository import RevisionManifest
from gnnserve_api.spec.graph import Normalization
from gnnserve_worker.asking.question import Question, RequestError
from gnnserve_worker.generation.features import fit_normalization
from gnnserve_worker.generation.pipeline import find, generate
from gnnserve_worker.inference.batch import infer_batch, warm_up
from gnnserve_worker.inference.opening import served_revision
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.sampling.batch_view import Part, view_of
from gnnserve_worker.serving.http.codecs.json import JsonCodec
from gnnserve_worker.serving.http.wishes import NO_WISHES
from gnnserve_worker.serving.security.credentials import Credentials


def graph_parts(*, as_columns: bool) -> TypedParts:
    """The graph of `test_program_types`, as a source has it. `as_columns`: what edges have is a column each."""
    parts, arrays = TypedParts(), whole_graph()
    parts.nodes = {name: {"num_nodes": np.array(COUNTS[name]), "features": FEATURES[name]} for name in COUNTS}
    part = np.arange(USERS) * 3 // USERS
    masks = {name: part == place for place, name in enumerate(("train_mask", "val_mask", "test_mask"))}
    parts.nodes["user"] |= {"labels": np.arange(USERS) % CLASSES, **masks}
    for one in RELATIONS:
        src, dst = arrays[one.name]
        parts.edges[one.source, one.name, one.target] = {"src": src, "dst": dst}
    price, stars = arrays["attr"].T
    named = {"price": price, "stars": stars, "at": arrays["time"]}
    whole = {"edge_attr": arrays["attr"], "edge_time": arrays["time"]}
    parts.edges["item", "bought_by", "user"] |= named if as_columns else whole
    return parts


def hetero_data(folder: Path) -> dict[str, Any]:
    made = write_hetero(folder, graph_parts(as_columns=False))
    made["heteroData"]["edgeColumns"] = "Read"
    return made


def tables(folder: Path) -> dict[str, Any]:
    made: dict[str, Any] = write_tables(folder, graph_parts(as_columns=True), ids={"user": "u", "item": "i"})
    (bought,) = (one for one in made["csv"]["edges"] if one["relation"] == "bought_by")
    bought |= {"features": ["price", "stars"], "time": "at"}
    for one in made["csv"]["edges"]:
        one["duplicates"] = "Keep"
    return made


def contract(**more: Any) -> dict[str, Any]:
    inputs = []
    for each in PROGRAM.inputs:
        relation = {name: getattr(each.relation, name) for name in ("source", "name", "target")}
        of = {"relation": relation} if each.relation.name else {"type": each.type}
        inputs.append({"name": each.name, "is": str(each.role), **of})
    scores, embeddings = {"name": "scores", "columns": CLASSES}, {"name": "hidden", "columns": HIDDEN}
    return {"hops": 2, "inputs": inputs, "scores": scores, "embeddings": embeddings, **more}


@pytest.fixture(scope="module")
def model() -> Model:
    return Model().eval()


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory, model: Model) -> Path:
    return export(model, example(), FREE, tmp_path_factory.mktemp("program") / "model.onnx", ("scores", "hidden"))


@pytest.fixture(scope="module")
def expected(model: Model) -> tuple[np.ndarray, np.ndarray]:
    """Scores and embeddings of all users."""
    with torch.no_grad():
        found = model(**{name: torch.tensor(array) for name, array in whole_graph().items()})
    return found[0].numpy(), found[1].numpy()


class Given:
    """A manifest of the program over a source, and where it is generated."""

    def __init__(self, folder: Path, program: Path, scores: np.ndarray, source: Callable[[Path], Any]) -> None:
        self.folder, self.program, self.source = folder, program, source(folder)
        self.repository = Repository(folder / "repository", "default", "tiny")
        self.ids: Any = [f"u{node}" for node in range(USERS)] if source is tables else np.arange(USERS)
        self.expect(scores)

    def expect(self, scores: np.ndarray) -> None:
        np.savez(self.folder / "expected.npz", nodes=self.ids, scores=scores)

    def service(self, given: dict[str, Any], **parts: Any) -> Any:
        typed = {**self.source, "target": "user", "reverse": "Disabled"}
        model = {
            "program": {"uri": self.program.as_uri(), **given},
            "expected": {"uri": (self.folder / "expected.npz").as_uri()},
        }
        spec = service_of("file:///none.npz", model=model, **parts).model_dump(by_alias=True, exclude_none=True)
        spec["spec"]["graph"]["source"] = {"typed": typed}
        return type(service_of("file:///none.npz")).model_validate(spec)

    def generate(self, given: dict[str, Any], **parts: Any) -> RevisionManifest:
        return generate(self.service(given, **parts), self.repository)

    def refusal(self, given: dict[str, Any], **parts: Any) -> str:
        with pytest.raises(InputError) as caught:
            self.generate(given, **parts)
        assert not self.repository.revisions()
        return str(caught.value)


@pytest.fixture
def given(tmp_path: Path, program: Path, expected: tuple[np.ndarray, np.ndarray]) -> Given:
    return Given(tmp_path, program, expected[0], hetero_data)


def assert_close(found: np.ndarray, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5 * float(np.abs(wanted).max()))


@pytest.mark.parametrize("source", [hetero_data, tables])
def test_a_server_gives_what_the_module_gives_over_the_whole_graph(
    tmp_path: Path, program: Path, expected: tuple[np.ndarray, np.ndarray], source: Callable[[Path], Any]
) -> None:
    made = Given(tmp_path, program, expected[0], source)
    revision = made.generate(contract())
    (variant,) = revision.variants
    assert (variant.name, variant.family, variant.columns) == ("x1", FamilyName.PROGRAM, max(COLUMNS.values()))
    (compared,) = revision.compared  # type: ignore[misc]
    assert compared.difference_permille <= 0.01
    assert find(made.service(contract()), made.repository) == revision
    worker = ProgramWorker(load_revision(made.repository, revision.revision))
    with started(Credentials(), of=worker) as served:  # type: ignore[arg-type]
        connection = served.connect(None)
        nodes = [each if isinstance(each, str) else int(each) for each in made.ids]
        body = json.dumps({"nodes": nodes, "return": ["scores", "embeddings"]})
        connection.request("POST", "/v1/predict", body, {"content-type": "application/json"})
        answer = json.loads(connection.getresponse().read())
        connection.close()
    worker.loaded.variants["x1"].network.runner.close()  # type: ignore[attr-defined]
    assert_close(np.array(answer["scores"]), expected[0])
    assert_close(np.array(answer["embeddings"]), expected[1])


def test_storages_and_smaller_fanouts_are_made_beside_it(given: Given, expected: tuple[np.ndarray, np.ndarray]) -> None:
    variants = {"storage": ["float32", "int8"], "fanouts": [[2, 1]]}
    revision = given.generate(contract(), variants=variants)
    names = {variant.name for variant in revision.profile.variants}
    assert names == {*given.service(contract(), variants=variants).spec.possible_variants()}
    assert names == {"x1", "x1-int8", "x1-f2x1", "x1-int8-f2x1"}
    loaded = load_revision(given.repository, revision.revision)
    rounded = infer_batch(loaded, "x1-int8", np.arange(USERS), 1).scores
    assert 0 < np.abs(rounded - expected[0]).max() < 0.1 * np.abs(expected[0]).max()


def test_scores_that_differ_are_refused_with_the_worst_node_by_its_id(
    tmp_path: Path, program: Path, expected: tuple[np.ndarray, np.ndarray]
) -> None:
    wrong = expected[0].copy()
    wrong[17] += 3 * np.abs(wrong).max()
    refusal = Given(tmp_path, program, wrong, tables).refusal(contract())
    assert "scores of 1 of 90 nodes differ by more than 0.01 permille" in refusal
    assert "node 'u17', class" in refusal


def test_fewer_hops_than_layers_are_named_as_the_cause(given: Given) -> None:
    assert "set spec.model.program.hops to 2" in given.refusal(contract(hops=1))


@pytest.mark.parametrize(
    ("name", "changed", "words"),
    [
        ("x_user", {"type": "buyer"}, "x_user is of type 'buyer'; the graph has 'user', 'item'"),
        ("x_user", {"type": "item"}, "x_user takes 5 columns, and nodes of type 'item' have 3 features"),
        ("buys", {"relation": {"source": "item", "name": "buys", "target": "user"}}, "buys is of relation 'item buys"),
        (
            "attr",
            {"relation": {"source": "user", "name": "knows", "target": "user"}},
            "attr is features of edges of user knows user, which have none; let the source read them",
        ),
        (
            "time",
            {"relation": {"source": "user", "name": "knows", "target": "user"}},
            "time is times of edges of user knows user, which have none; let the source read them",
        ),
    ],
)
def test_a_contract_that_does_not_fit_the_types_is_refused_by_name(
    given: Given, name: str, changed: dict[str, Any], words: str
) -> None:
    program = contract()
    (one,) = (each for each in program["inputs"] if each["name"] == name)
    one |= changed
    assert words in given.refusal(program)


def test_features_of_each_type_are_scaled_by_those_of_its_own(given: Given, model: Model) -> None:
    seen = {"user": np.arange(USERS // 3), "item": np.arange(COUNTS["item"])}
    method = Normalization.STANDARDIZE
    scaled = {name: fit_normalization(FEATURES[name], method, seen[name]).features for name in COUNTS}
    arrays = whole_graph() | {f"x_{name}": np.asarray(scaled[name]) for name in COUNTS}
    with torch.no_grad():
        scores = model(**{name: torch.tensor(array) for name, array in arrays.items()})[0].numpy()
    given.expect(scores)
    assert "set spec.graph.normalization to Standardize" in given.refusal(contract())
    revision = given.generate(contract(), normalization="Standardize")
    assert_close(
        infer_batch(load_revision(given.repository, revision.revision), "x1", np.arange(USERS), 1).scores, scores
    )
    assert revision.row_source is not None
    assert revision.row_source.types is not UNSET
    assert [one.normalization for one in revision.row_source.types] == ["Standardize"] * 2


class GrownGraph:
    """The graph with what requests and changes bring to it, as inputs of the module."""

    def __init__(self) -> None:
        self.arrays = whole_graph()

    @property
    def counts(self) -> dict[str, int]:
        return {name: len(self.arrays[f"x_{name}"]) for name in COUNTS}

    def bring(self, overlay: dict[str, Any]) -> None:
        """Nodes of a type are called by their positions, and new ones come in their order."""
        for node in (*overlay["nodes"], *overlay.get("overrides", ())):
            kind, _, place = node["id"].partition("/")
            rows = self.arrays[f"x_{kind}"]
            if int(place) == len(rows):
                rows = np.concatenate([rows, np.zeros((1, COLUMNS[kind]), np.float32)])
            rows = rows.copy()
            rows[int(place)] = node["features"]
            self.arrays[f"x_{kind}"] = rows
        given = zip(overlay["edges"], overlay["edgeFeatures"], overlay["edgeTimes"], strict=True)
        for (source, name, target), features, time in given:
            ends = np.array([[int(end.partition("/")[2])] for end in (source, target)])
            self.arrays[name] = np.concatenate([self.arrays[name], ends], 1)
            if features is not None:
                self.arrays["attr"] = np.concatenate([self.arrays["attr"], np.array([features], np.float32)])
                self.arrays["time"] = np.concatenate([self.arrays["time"], np.array([time])])

    def scores(self, model: Model) -> np.ndarray:
        with torch.no_grad():
            found: np.ndarray = model(**{name: torch.tensor(array) for name, array in self.arrays.items()})[0].numpy()
        return found


def drawn_overlay(counts: dict[str, int], draw: np.random.Generator) -> dict[str, Any]:
    """New nodes of either type, edges by each relation with what these have, and other features of stored nodes."""
    more, nodes = dict(counts), []
    for _ in range(draw.integers(0, 5)):
        kind = ("user", "item")[draw.integers(2)]
        nodes.append({"id": f"{kind}/{more[kind]}", "features": draw.normal(size=COLUMNS[kind]).tolist()})
        more[kind] += 1
    edges, features, times = list[list[str]](), list[list[float] | None](), list[int | None]()
    for _ in range(draw.integers(0, 9)):
        one = RELATIONS[draw.integers(3)]
        ends = [f"{kind}/{draw.integers(more[kind])}" for kind in (one.source, one.target)]
        edges.append([ends[0], one.name, ends[1]])
        has_payload = one.payload is not None
        features.append(draw.normal(size=2).tolist() if has_payload else None)
        times.append(int(draw.integers(0, 100)) if has_payload else None)
    overrides = [
        {"id": f"{kind}/{node}", "features": draw.normal(size=COLUMNS[kind]).tolist()}
        for kind in COUNTS
        for node in draw.choice(counts[kind], draw.integers(0, 3), replace=False).tolist()
    ]
    return {"nodes": nodes, "edges": edges, "edgeFeatures": features, "edgeTimes": times, "overrides": overrides}


@pytest.fixture(scope="module")
def published(
    tmp_path_factory: pytest.TempPathFactory, program: Path, expected: tuple[np.ndarray, np.ndarray]
) -> tuple[Given, RevisionManifest]:
    made = Given(tmp_path_factory.mktemp("published"), program, expected[0], hetero_data)
    return made, made.generate(contract())


@pytest.fixture(scope="module")
def loaded(published: tuple[Given, RevisionManifest]) -> LoadedRevision:
    return load_revision(published[0].repository, published[1].revision)


def read(served: ServedRevision, body: dict[str, Any]) -> Question:
    return JsonCodec().parse_question(json.dumps(body).encode(), b"", NO_WISHES, served, 1_000, DEFAULT_OVERLAY_LIMITS)


def test_requests_that_bring_nodes_and_edges_are_answered_as_torch_does_over_the_grown_graph(
    loaded: LoadedRevision, model: Model
) -> None:
    served, draw = served_revision(loaded), np.random.default_rng(11)
    warm_up(loaded)
    for _ in range(10):
        overlays = [drawn_overlay(COUNTS, draw) for _ in range(3)]
        grown = [GrownGraph() for _ in overlays]
        for graph, overlay in zip(grown, overlays, strict=True):
            graph.bring(overlay)
        asked = [draw.integers(0, graph.counts["user"], 5).tolist() for graph in grown]
        named = ([f"user/{node}" for node in nodes] for nodes in asked)
        questions = [
            read(served, {"nodes": nodes, "overlay": overlay}) for nodes, overlay in zip(named, overlays, strict=True)
        ]
        seeds = np.concatenate([one.nodes for one in questions])
        view = view_of(loaded.graph.nodes, [Part(len(one.nodes), one.overlay, one.seed) for one in questions], seeds)
        found = infer_batch(loaded, "x1", seeds, 0, view=view).scores
        wanted = [graph.scores(model)[nodes] for graph, nodes in zip(grown, asked, strict=True)]
        assert_close(found, np.concatenate(wanted))


@pytest.mark.parametrize(
    ("overlay", "words"),
    [
        ({"nodes": [{"id": "user/90", "features": [1.0]}]}, "overlay.nodes[0].features"),
        ({"nodes": [{"id": "item/40"}]}, "overlay.nodes[0].features: it is missing"),
        ({"edges": [["item/3", "bought_by", "user/7"]]}, "overlay.edgeFeatures[0]: it is missing; edges of item bought_by user have 2 features"),
        ({"edges": [["item/3", "buys", "user/7"]]}, "overlay.edges[0]"),
    ],
)
def test_what_is_wrong_with_what_a_request_brings_is_told_by_its_place(
    loaded: LoadedRevision, overlay: dict[str, Any], words: str
) -> None:
    with pytest.raises(RequestError) as caught:
        read(served_revision(loaded), {"nodes": ["user/7"], "overlay": overlay})
    assert words in str(caught.value)


class NormOfAll(Model):
    """Divides by the deviation of all users together."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = pyg.LayerNorm(HIDDEN)  # type: ignore[assignment]


def test_a_norm_over_all_nodes_of_a_type_is_named_as_the_cause(tmp_path: Path) -> None:
    model = NormOfAll().eval()
    program = export(model, example(), FREE, tmp_path / "model.onnx", ("scores", "hidden"))
    with torch.no_grad():
        scores = model(**{name: torch.tensor(array) for name, array in whole_graph().items()})[0].numpy()
    refusal = Given(tmp_path, program, scores, hetero_data).refusal(contract())
    assert "over the whole graph at once the scores are equal to " in refusal


def test_inputs_by_layer_are_of_graphs_of_one_type(given: Given) -> None:
    program = contract()
    program["inputs"] = [{"name": "rows", "is": "Rows"}, {"name": "edges_1", "is": "LayerEdges", "layer": 1}]
    assert "rows, edges_1 are by layer, which programs over one type have" in given.refusal(program)


def test_features_of_a_type_that_has_none_are_refused_by_its_name(given: Given) -> None:
    given.source["withoutFeatures"] = ["item"]
    assert "x_item is features of type 'item', whose nodes have none" in given.refusal(contract())
