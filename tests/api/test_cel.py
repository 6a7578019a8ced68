"""Rules in CEL as Python functions. What the API server says of the same rules is asked of one in tests/cluster."""

from __future__ import annotations

from types import SimpleNamespace as Object
from typing import Any

import pytest

from gnnserve_api.spec.cel import compiled
from gnnserve_api.spec.rules import rule, rule_of_each, server_rule

SELF = Object(
    replicas=2,
    name=None,
    image="a/worker:1",
    fanouts=(25, 10),
    one_row=(),
    limits={"memory": "1Gi", "cpu": "500m"},
    variants=(Object(name="a", hops=1), Object(name="b", hops=None), Object(name="a", hops=3)),
    model=Object(hidden=10, is_given=True),
)


@pytest.mark.parametrize(
    ("cel", "value"),
    [
        ("self.replicas <= 1 || self.replicas == 2", True),
        ("!has(self.name) && has(self.oneRow) && size(self.oneRow) == 0", True),
        ("!(self.replicas > 1) || !self.model.isGiven", False),
        ("has(self.name) ? self.name == 'a' : self.image.matches(r'^[^ ]+:[0-9]$')", True),
        ("size(self.fanouts) < 3 ? 0.5 : size(self.fanouts) < 4 ? 1.5 : 2.5", 0.5),
        ("(has(self.name) ? 1 : 2) + 3 * self.replicas", 8),
        ("self.fanouts == [25, 10] && self.fanouts[1] in [10, 20] && !(self.image in ['b'])", True),
        ("[] == self.oneRow", True),
        ("self.model.hidden / 3 + self.model.hidden % 3", 4),
        ("self.fanouts.all(f, f == -1) || self.fanouts.exists(f, f > 20)", True),
        ("self.variants.all(one, self.variants.exists_one(other, other.name == one.name))", False),
        ("[has(self.name), has(self.image)].filter(given, given).size() == 1", True),
        ("self.limits.exists(name, name.startsWith('mem') && self.limits[name].contains('Gi'))", True),
        ("quantity(string(self.limits['cpu'])).add(quantity('1')).compareTo(quantity('1500m')) == 0", True),
        ("isQuantity(self.limits['memory']) && !isQuantity(self.image)", True),
        ("double(self.fanouts[0]) * (1.0 + double(self.fanouts[1]))", 275.0),
        ("true && !false", True),
    ],
)
def test_cel_is_computed(cel: str, value: object) -> None:
    assert compiled(cel)(SELF) == value


@pytest.mark.parametrize("cel", ["self.replicas)", "self.name.reverse()", "self.replicas @ 2", "self.a ==", "now()"])
def test_what_no_rule_says_is_an_error(cel: str) -> None:
    with pytest.raises((KeyError, SyntaxError)):
        compiled(cel)


def test_a_rule_says_its_sentence_with_values_and_the_api_server_without() -> None:
    few = rule(
        "self.replicas <= 1", "replicas {self.replicas} must be at most 1 with [0][: have {self.fanouts[0]} less]"
    )
    assert few.problem(SELF) == "replicas 2 must be at most 1 with [0]: have 25 less"
    assert few.as_validation() == {"rule": "self.replicas <= 1", "message": "replicas must be at most 1 with [0]"}
    assert few(lambda subject: f"not {subject.image}").problem(SELF) == "not a/worker:1"
    assert few.problem(Object(replicas=1)) is None


def test_a_rule_of_each_names_the_first_that_breaks_it() -> None:
    hops = rule_of_each(
        "self.variants", "one", "!has(one.hops) || one.hops < 3", "hops {one.hops} of {one.name} are many"
    )
    assert hops.cel == "!has(self.variants) || self.variants.all(one, !has(one.hops) || one.hops < 3)"
    assert hops.problem(SELF) == "hops 3 of a are many"
    assert hops.problem(Object(variants=())) is None


def test_a_rule_for_the_api_server_is_not_asked_here() -> None:
    subject: Any = Object()
    assert server_rule("self.name == oldSelf.name", "name is fixed").problem(subject) is None
