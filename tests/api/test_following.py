"""Which variants follow changes, by their names: what families say of the variants that are made of a spec."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gnnserve_api.errors import InputError
from gnnserve_api.manifest import Document, parse_document
from gnnserve_api.spec.following import fixed_names
from gnnserve_api.spec.service import GNNServiceSpec

UPDATES = {"log": {"sqlite": {}}}
STATIC = {"mode": "Static", "variant": "stored2"}
_LAYER = {"conv": "GraphSAGE", "width": 8}
_LISTED = {"layers": [_LAYER, _LAYER]}


def document(**spec: Any) -> Document:
    body = {
        "apiVersion": "gnnserve.dev/v1alpha1",
        "kind": "GNNService",
        "metadata": {"name": "digits"},
        "spec": {"graph": {"source": {"builtin": "Digits"}}, **spec},
    }
    return Document("digits.yaml", body)


def spec_of(**spec: Any) -> GNNServiceSpec:
    return GNNServiceSpec.model_validate_json(json.dumps(document(**spec).content["spec"]))


@pytest.mark.parametrize(
    ("model", "variants", "fixed"),
    [
        ({}, {"stored": [1, 2]}, {"stored2"}),
        ({}, {"stored": [1, 2], "storedFollowChanges": True}, set()),
        ({"fanouts": [5]}, {"stored": [1]}, {"stored1"}),
        ({**_LISTED, "fanouts": [5, 5]}, {"stored": [1, 2]}, {"stored2"}),
        ({**_LISTED, "fanouts": [5, 5]}, {"stored": [1, 2], "storedFollowChanges": True}, set()),
        ({"layers": [_LAYER], "fanouts": [5]}, {"stored": [1]}, set()),
        ({}, {"oneRow": [{"hops": 0}, {"hops": 2}], "storage": ["int8"]}, {"mlp2-int8"}),
        (
            {},
            {"oneRow": [{"hops": 2}], "cascades": [{"first": "mlp2", "then": "x1", "passOnPercents": [5]}]},
            {"mlp2", "mlp2-then-x1-p5"},
        ),
        (
            {"architecture": "SGC", "fanouts": [0]},
            {"pruning": {"factors": [1, 4]}, "oneRow": [{"hops": 0}]},
            {"x1", "x4", "projected"},
        ),
    ],
)
def test_what_holds_the_graph_as_it_was(model: dict[str, Any], variants: dict[str, Any], fixed: set[str]) -> None:
    spec = spec_of(model=model, variants=variants)
    assert fixed_names(spec.variants, spec.model) == fixed


def test_stored_rows_of_links_over_types_hold_the_graph_as_it_was() -> None:
    """Unasked for, what the last layer gives is stored where links are scored over several types."""
    source = {"graph": {"source": {"typed": {"npz": {"uri": "shop"}}}}, "task": {"links": {}}, "updates": UPDATES}
    spec = spec_of(**source)
    assert spec.standing_variants() == ("stored2",)
    assert spec.following_variants() == ("projected",)
    spec = spec_of(**source, variants={"stored": [2], "storedFollowChanges": True})
    assert spec.standing_variants() == ()


def test_routing_names_variants_that_follow_changes() -> None:
    variants = {"stored": [1, 2]}
    parse_document(document(variants=variants, routing=STATIC))
    parse_document(document(variants={**variants, "storedFollowChanges": True}, routing=STATIC, updates=UPDATES))
    with pytest.raises(InputError, match=r"spec.routing.variant: names stored2, which cannot follow changes of the gr"):
        parse_document(document(variants=variants, routing=STATIC, updates=UPDATES))


def test_what_a_search_may_find_is_known_too() -> None:
    spec = spec_of(variants={"search": "Auto"}, routing=STATIC, updates=UPDATES)
    assert spec.fixed_variants() == ("stored2",)
    assert "stored1-int8" in spec.following_variants()
    assert "mlp1" not in spec.following_variants()


def test_a_service_whose_variants_cannot_follow_at_all_has_no_updates() -> None:
    model = {"architecture": "SIGN", "fanouts": [0, 0]}
    with pytest.raises(InputError, match=r"spec.updates: none of spec.variants follows changes of the graph; add"):
        parse_document(document(model=model, updates=UPDATES))
    parse_document(document(model=model, updates=UPDATES, variants={"oneRow": [{"hops": 0}]}))


def test_networks_of_one_layer_have_no_embeddings_to_return() -> None:
    model = {"architecture": "SGC", "fanouts": [0]}
    with pytest.raises(InputError, match=r"spec.embeddings: model.fanouts \[0\] of SGC has one layer, and"):
        parse_document(document(model=model, embeddings={}))
    parse_document(document(model={"architecture": "SIGN", "fanouts": [0, 0]}, embeddings={}))
