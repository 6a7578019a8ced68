"""Programs that give rows of nodes of two types, whose pairs are scored."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from tests.support.programs.program_links import ask, assert_close
from tests.support.programs.program_links_types import IDS, Encoder, Given
from tests.support.programs.program_types import FEATURES, FREE, HIDDEN, ITEMS, USERS, example, whole_graph
from tests.support.programs.programs import export

from gnnserve_api.errors import InputError
from gnnserve_worker.generation.embeddings.publishing import publish_embeddings
from gnnserve_worker.inference.opening import served_revision
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.progress import silent


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Given:
    folder, module = tmp_path_factory.mktemp("rows"), Encoder().eval()
    export(module, example(), FREE, folder / "model.onnx", ("user", "item"))
    rows = np.concatenate(module.over(whole_graph()))
    np.savez(folder / "expected.npz", nodes=np.array(IDS), scores=rows)
    return Given(folder, module, rows)


@pytest.fixture(scope="module")
def served(given: Given) -> Iterator[ServedRevision]:
    revision = given.generate()
    publish_embeddings(given.repository, "default/tiny", revision.revision, None, {}, "a test", silent)
    loaded = load_revision(given.repository, revision.revision)
    yield served_revision(loaded)
    for one in loaded.programs:
        one.close()


def test_pairs_of_two_types_have_the_scores_of_the_module_over_the_whole_graph(
    given: Given, served: ServedRevision
) -> None:
    random = np.random.default_rng(4)
    ends = np.stack([random.integers(0, USERS, 40), USERS + random.integers(0, ITEMS, 40)], axis=1)
    answer = ask(served, "/v1/predict", {"pairs": [[IDS[first], IDS[second]] for first, second in ends]}).json()
    assert_close(answer["scores"], (given.rows[ends[:, 0]] * given.rows[ends[:, 1]]).sum(axis=1))


def test_a_pair_may_have_a_node_that_only_the_request_has(given: Given, served: ServedRevision) -> None:
    own = np.linspace(-1, 1, FEATURES["user"].shape[1], dtype=np.float32)
    overlay = {
        "nodes": [{"id": "user/900", "features": own.tolist()}],
        "edges": [["user/3", "knows", "user/900"], ["user/900", "buys", "item/5"]],
    }
    response = ask(
        served, "/v1/predict", {"pairs": [["user/900", "item/7"], ["user/900", "item/5"]], "overlay": overlay}
    )
    assert response.status_code == 200, response.text
    arrays = whole_graph()
    arrays["x_user"] = np.concatenate([arrays["x_user"], own[None]])
    arrays["knows"] = np.concatenate([arrays["knows"], [[3], [USERS]]], axis=1)
    arrays["buys"] = np.concatenate([arrays["buys"], [[USERS], [5]]], axis=1)
    users, items = given.module.over(arrays)
    assert_close(response.json()["scores"], items[[7, 5]] @ users[USERS])


@pytest.mark.parametrize(("node", "others"), [(7, slice(USERS, None)), (USERS + 3, slice(0, USERS))])
def test_either_end_is_recommended_for_the_other(
    given: Given, served: ServedRevision, node: int, others: slice
) -> None:
    answer = ask(served, "/v1/recommend", {"node": IDS[node], "count": 5, "exclude": "nothing"}).json()
    scores = given.rows[others] @ given.rows[node]
    assert_close([one["score"] for one in answer["items"]], -np.sort(-scores)[:5])
    found = [scores[IDS[others].index(one["id"])] for one in answer["items"]]
    assert_close(found, -np.sort(-scores)[:5])


def test_a_type_that_links_join_needs_an_output(given: Given) -> None:
    with pytest.raises(InputError, match="otherScores: has no output for nodes of type item, which are asked about"):
        given.generate(otherScores=[])
    with pytest.raises(InputError, match="item is of type 'author', and the graph has no such other type"):
        given.generate(otherScores=[{"name": "item", "type": "author", "columns": HIDDEN}])
    with pytest.raises(InputError, match=r"scores\.type: is absent, and links join types"):
        given.generate(scores={"name": "user", "columns": HIDDEN})
