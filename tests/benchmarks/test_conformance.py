"""What counts as the protocol's answer, whichever server gives it."""

from __future__ import annotations

import json

import pytest
from benchmarks.answers.conformance import judge
from tests.conformance.open_inference_calls import ANSWERED, PROTOCOL, TOLD, WRONG

_CALLS = {call.name: call for call in (*TOLD, *ANSWERED, *WRONG)}
_LABELS = {"name": "labels", "data": [40, 10]}


@pytest.mark.parametrize(
    ("name", "status", "text", "why"),
    [
        ("the server lives", 200, "", ""),
        ("the server lives", 404, "", "404"),
        ("an identifier comes back", 200, json.dumps({"id": "q 1 ë", "outputs": [_LABELS]}), ""),
        ("an identifier comes back", 200, json.dumps({"id": "other", "outputs": [_LABELS]}), "another answer"),
        ("a nested column of ids", 200, json.dumps({"outputs": [{"name": "labels", "data": [[40], [10]]}]}), ""),
        ("labels and scores are the default", 200, json.dumps({"outputs": []}), "another answer"),
        ("labels and scores are the default", 200, "[]", "another answer"),
        ("no JSON", 400, '{"error": "it is none"}', ""),
        ("no JSON", 400, '{"detail": []}', "400, no error"),
        ("no JSON", 400, "Bad Request", "400, no error"),
        ("no JSON", 500, '{"error": "it is none"}', "500, with error"),
        ("no JSON", 200, "{}", "200, answered"),
    ],
)
def test_answers_are_judged_by_what_the_protocol_says(name: str, status: int, text: str, why: str) -> None:
    assert judge(_CALLS[name], status, text) == why


def test_the_calls_of_any_server_are_among_all_calls() -> None:
    assert PROTOCOL.issubset(_CALLS)
