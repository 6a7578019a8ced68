"""Hostile overlays in numbers: every answer is the oracle's or a refusal that names the place, also to others.

`make bench-malformed ONLY=overlays` sends a hundred times as many.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from benchmarks.answers.looks import count_errors
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.campaigns import examples
from tests.support.kubernetes.configmap_server import configmap_server
from tests.support.overlays.hostile_overlays import FORMS, MANGLED, Answer, Hostile, Wanted, make, why_wrong
from tests.support.overlays.overlay_clients import send_overlays
from tests.support.overlays.overlay_oracle import RULES, Oracle, publish
from tests.support.overlays.overlay_readers import Form, read_arrays, read_json, read_message, read_tensors_of_json
from tests.support.pods.pods import WorkerPod, table_of, worker_pod

from gnnserve_api.pods.interface import GRPC_VARIABLE

pytestmark = pytest.mark.campaign("served")

REQUESTS = 400


@pytest.fixture(scope="module", params=RULES, ids=lambda rules: rules.direction)
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[WorkerPod, Oracle]]:
    folder = tmp_path_factory.mktemp("overlays")
    manifest, oracle = publish(folder / "repository", request.param)
    with configmap_server() as api:
        api.put(table_of(manifest))
        with worker_pod(folder, api, environ={**os.environ, GRPC_VARIABLE: "0"}) as pod:
            pod.wait_until("/readyz", "ok")
            yield pod, oracle


def test_hostile_overlays_get_the_oracles_answer_or_a_refusal_that_names_the_place(
    served: tuple[WorkerPod, Oracle],
) -> None:
    pod, oracle = served
    grpc_port = int(pod.logged("for gRPC on port")["message"].rpartition(" ")[2])
    noted = send_overlays(pod.port, grpc_port, range(REQUESTS), oracle)
    assert noted.wrong == []
    assert (noted.wrong_bystanders, noted.bystanders > 0) == ([], True)
    assert {200, 400, 413} <= noted.statuses.keys()
    assert count_errors(pod.log) == 0


# The generator, the readers and the oracle


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    return publish(tmp_path_factory.mktemp("oracle"), RULES[0])[1]


@settings(max_examples=examples(100), deadline=None, database=None)
@given(number=st.integers(0, 2**64))
def test_a_number_makes_the_same_request_each_time(oracle: Oracle, number: int) -> None:
    one, again = make(number, oracle.features), make(number, oracle.features)
    assert (one.body, one.kind, one.wanted.places) == (again.body, again.kind, again.wanted.places)
    assert one.wanted.meaning is not None or one.wanted.places


def test_every_form_is_made_as_often_as_it_says_and_some_of_each_may_be_accepted(oracle: Oracle) -> None:
    made = [make(number, oracle.features) for number in range(600)]
    for form, share in FORMS.items():
        of_form = [one for one in made if one.form is form]
        assert len(of_form) == pytest.approx(6 * share, rel=0.5)
        accepted = sum(one.wanted.meaning is not None for one in of_form)
        assert 0 < accepted < len(of_form)


@settings(max_examples=examples(200), deadline=None, database=None)
@given(number=st.integers(0, 2**64))
def test_readers_read_what_a_request_that_is_right_means(oracle: Oracle, number: int) -> None:
    made = make(number, oracle.features)
    if made.kind == MANGLED or made.wanted.meaning is None:
        return
    readers = {
        Form.JSON: lambda: read_json(made.body, oracle.features),
        Form.ARRAYS: lambda: read_arrays(made.body, made.variant),
        Form.TENSORS: lambda: read_tensors_of_json(made.body, made.json_bytes, made.variant),
        Form.BEHIND: lambda: read_tensors_of_json(made.body, made.json_bytes, made.variant),
        Form.GRPC: lambda: read_message(made.body, made.json_bytes, made.variant),
    }
    read = readers[made.form]()
    assert read is not None
    assert oracle.is_right(made.wanted.meaning, oracle.scores(read))


def right_request(oracle: Oracle) -> Hostile:
    """A request that is right, and brings an edge."""
    made = (make(number, oracle.features) for number in range(10_000))
    return next(one for one in made if one.kind == "right" and one.wanted.meaning and len(one.wanted.meaning.edges))


def test_an_answer_of_which_one_edge_is_forgotten_is_wrong(oracle: Oracle) -> None:
    asked = right_request(oracle)
    meaning = asked.wanted.meaning
    assert meaning is not None
    # Asked for all ends, so that one edge less shows.
    meaning = replace(meaning, asked=np.unique(meaning.edges), edges=meaning.edges[:1])
    asked = replace(asked, wanted=Wanted(meaning, ()))
    assert why_wrong(asked, Answer(200, "", oracle.scores(meaning)), oracle.is_right) == ""
    forgotten = oracle.scores(replace(meaning, edges=meaning.edges[:0]))
    assert why_wrong(asked, Answer(200, "", forgotten), oracle.is_right) == "other scores than the oracle's"


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        pytest.param(Answer(200, "", np.zeros((1, 3))), "accepted", id="accepted"),
        pytest.param(Answer(500, "error 12: …", None), "status 500", id="an error of the server"),
        pytest.param(Answer(0, "no answer", None), "status 0", id="no answer"),
        pytest.param(Answer(400, "body: no", None), "does not begin", id="another place"),
        pytest.param(Answer(400, "overlay.edges", None), "does not begin", id="no sentence"),
        pytest.param(Answer(400, "overlay.edges[3][1]: node 99 is not in the graph", None), "", id="as wanted"),
    ],
)
def test_a_refusal_is_right_where_its_sentence_begins_with_the_place(
    oracle: Oracle, answer: Answer, expected: str
) -> None:
    asked = Hostile(Form.JSON, "edge", "x1", b"", None, Wanted(None, ("overlay.edges[3]",)))
    why = why_wrong(asked, answer, oracle.is_right)
    assert (expected in why) if expected else why == ""


def test_a_request_that_is_right_may_not_be_refused(oracle: Oracle) -> None:
    asked = right_request(oracle)
    assert "refused" in why_wrong(asked, Answer(400, "overlay: no", None), oracle.is_right)
