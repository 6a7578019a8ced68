"""What counts as "as declared": the API server's defaults, quantities and omissions are no difference, edits are."""

from __future__ import annotations

from typing import Any

import pytest

from gnnserve_operator.kinds import is_declared, without_empty


def container(**fields: Any) -> dict[str, Any]:
    return {"containers": [{"name": "worker", **fields}]}


@pytest.mark.parametrize(
    ("desired", "live"),
    [
        pytest.param({"a": 1}, {"a": 1, "b": 2}, id="what the server adds"),
        pytest.param({"a": {"b": 1}}, {"a": {"b": 1, "c": 2}}, id="what it adds deeper"),
        pytest.param(container(), container(imagePullPolicy="Always"), id="what it adds to an entry of a list"),
        pytest.param({"limits": {"cpu": "1000m"}}, {"limits": {"cpu": "1"}}, id="a quantity written otherwise"),
        pytest.param({"limits": {"cpu": 2}}, {"limits": {"cpu": "2"}}, id="a quantity as a number"),
        pytest.param({"requests": {"storage": "1024Mi"}}, {"requests": {"storage": "1Gi"}}, id="a size of storage"),
        pytest.param({"emptyDir": {"sizeLimit": "0.5Gi"}}, {"emptyDir": {"sizeLimit": "512Mi"}}, id="a size limit"),
        pytest.param({"nodeSelector": {}, "tolerations": [], "value": "", "x": None}, {}, id="empty fields left out"),
        pytest.param({"tolerations": ()}, {"tolerations": None}, id="a null for an empty list"),
        pytest.param({"port": 80}, {"port": 80.0}, id="a whole number as a float"),
    ],
)
def test_no_difference(desired: Any, live: Any) -> None:
    assert is_declared(desired, live)


@pytest.mark.parametrize(
    ("desired", "live"),
    [
        pytest.param({"a": 1}, {}, id="a missing field"),
        pytest.param({"a": {"b": 1}}, {"a": "b"}, id="another shape"),
        pytest.param({"a": {"b": 1}}, None, id="nothing at all"),
        pytest.param({"a": {"b": ""}}, {"a": ["b"]}, id="a list for a mapping"),
        pytest.param({"replicas": 0}, {"replicas": 3}, id="another number"),
        pytest.param({"replicas": 0}, {}, id="a zero that is not there"),
        pytest.param({"on": True}, {"on": 1}, id="a number for a boolean"),
        pytest.param({"labels": {"v": "1000m"}}, {"labels": {"v": "1"}}, id="labels that would be equal quantities"),
        pytest.param({"limits": {"cpu": "1"}}, {"limits": {"cpu": "2"}}, id="another quantity"),
        pytest.param({"limits": {"cpu": "1"}}, {"limits": {"cpu": "much"}}, id="a quantity that is none"),
        pytest.param({"args": ["a", "b"]}, {"args": ["b", "a"]}, id="another order"),
        pytest.param({"args": ["a"]}, {"args": ["a", "b"]}, id="an entry more"),
        pytest.param({"args": ["a", "b"]}, {"args": ["a"]}, id="an entry less"),
        pytest.param(
            {"selector": {"app": "a"}}, {"selector": {"app": "a", "by": "hand"}}, id="a selector with a label more"
        ),
        pytest.param(
            {"podSelector": {"matchLabels": {"a": "b"}}},
            {"podSelector": {"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "c"}]}},
            id="a selector with an expression more",
        ),
        pytest.param(
            {"podSelector": {}}, {"podSelector": {"matchLabels": {"a": "b"}}}, id="a selector of all narrowed"
        ),
        pytest.param({"image": ""}, {"image": "x"}, id="a text that should be empty"),
    ],
)
def test_a_difference(desired: Any, live: Any) -> None:
    assert not is_declared(desired, live)


def test_empty_fields_make_no_two_statuses_of_one() -> None:
    kept = {"conditions": [{"type": "Ready", "status": "True"}], "replicas": 0}
    assert without_empty({**kept, "endpoint": None, "variants": [], "workers": {"selector": ""}}) == kept
