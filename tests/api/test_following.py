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
        ({}, {"oneRow": [{"hops": 0}, {"hops": 2}], "storedFollowChanges": True}, set()),
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


LINKS = {"task": {"links": {}}}
OF_TYPES = {"graph": {"source": {"typed": {"npz": {"uri": "shop"}}}}, **LINKS}
BESIDE = {"updates": UPDATES}
ONE_HOP = {"oneRow": [{"hops": 1}]}


@pytest.mark.parametrize(
    ("spec", "named", "words"),
    [
        ({}, "x3", "variant x3 is none that spec.variants generates; name one of x1, x2, x4, x8, projected, or leave"),
        ({"variants": {"stored": [2]}}, "stored2", "variant stored2 gives no embeddings; name one of x1"),
        ({"variants": {"channels": [{"factor": 2}]}}, "channels2", "variant channels2 gives no embeddings"),
        ({"variants": {"oneRow": [{"hops": 0}]}}, "mlp0", "variant mlp0 gives no embeddings"),
        ({**LINKS, "variants": {"stored": [1]}}, "stored1", "variant stored1 gives no embeddings"),
        ({**LINKS, "variants": {"search": "Auto"}}, "mlp0-x", "variant mlp0-x is none that spec.variants generates"),
        ({**LINKS, **BESIDE, "variants": ONE_HOP}, "mlp1", "variant mlp1 cannot follow changes of the graph, spec.up"),
        ({**LINKS, **BESIDE, "variants": {"stored": [2]}}, "stored2", "variant stored2 cannot follow changes of the"),
        (
            {**BESIDE, "model": {"architecture": "SIGN", "fanouts": [0, 0]}, "variants": {"oneRow": [{"hops": 0}]}},
            None,
            "no variant that gives embeddings, x1, x2, x4, x8, projected, follows changes of the graph",
        ),
    ],
)
def test_embeddings_are_of_a_variant_that_gives_some_and_answers(
    spec: dict[str, Any], named: str | None, words: str
) -> None:
    embeddings = {} if named is None else {"variant": named}
    with pytest.raises(InputError, match=rf"spec\.embeddings: {words}"):
        parse_document(document(**spec, embeddings=embeddings))


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ({}, "x2"),
        ({}, None),
        ({**LINKS, "variants": {"oneRow": [{"hops": 1}], "stored": [2]}}, "mlp1"),
        ({**LINKS, "variants": {"stored": [2]}}, "stored2"),
        ({**LINKS, **BESIDE, "variants": {"stored": [2], "storedFollowChanges": True}}, "stored2"),
        ({**OF_TYPES, **BESIDE}, "stored2"),  # beside it the model's own variants follow changes
        ({**OF_TYPES, **BESIDE}, None),
        ({"variants": {"search": "Auto"}}, "x4-int8"),
        ({"variants": {"fanouts": [[5, 5]]}}, "projected-f5x5"),
        ({"revision": "0123456789ab"}, "anything"),
    ],
)
def test_variants_that_embeddings_may_be_of(spec: dict[str, Any], named: str | None) -> None:
    parse_document(document(**spec, embeddings={} if named is None else {"variant": named}))


def test_rows_in_databases_may_be_of_a_variant_that_holds_the_graph_as_it_was() -> None:
    spec = {**LINKS, **BESIDE, "variants": ONE_HOP}
    embeddings = {"variant": "mlp1", "index": False, "sinks": [{"postgres": {"secretName": "vectors"}}]}
    parse_document(document(**spec, embeddings=embeddings))


def test_stored_layers_of_a_search_follow_changes_where_that_is_asked_for() -> None:
    spec = spec_of(variants={"search": "Auto"}, updates=UPDATES)
    assert "stored2" in spec.standing_variants()
    followed = spec_of(variants={"search": "Auto", "storedFollowChanges": True}, updates=UPDATES)
    assert "stored2" in followed.following_variants()
    assert spec.recipe() != followed.recipe()
    assert followed.recipe() == spec_of(variants={"search": "Auto", "storedFollowChanges": True}).recipe()
