"""Wishes in head, JSON and parameters: they mean the same, the same words refuse them, and the body goes first."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import UNSET

from gnnserve_api.objective import NO_OBJECTIVE, Objective
from gnnserve_worker.asking.question import (
    IN_BODY,
    IN_HEAD,
    IN_PARAMETERS,
    MIN_OFFSET,
    NO_WISHES,
    PRIORITY,
    SEED,
    TIMEOUT,
    WISHES,
    RequestError,
    Wish,
    Wishes,
    given_in,
    wishes_of_body,
    wishes_of_head,
    wishes_of_parameters,
)


def of_head(wish: Wish, value: int) -> Wishes:
    return wishes_of_head({wish.header: str(value).encode()})


def of_body(wish: Wish, value: int) -> Wishes:
    nothing = dict.fromkeys(wish.field for wish in WISHES)
    return wishes_of_body(
        given_in(SimpleNamespace(**nothing | {"objective": None, "strict": UNSET, wish.field: value}))
    )


def of_parameters(wish: Wish, value: int) -> Wishes:
    return wishes_of_parameters(NO_OBJECTIVE, None, {wish.parameter: value * 1000 if wish is TIMEOUT else value})


READERS: dict[str, tuple[Callable[[Wish, int], Wishes], Any]] = {
    "head": (of_head, IN_HEAD), "body": (of_body, IN_BODY), "parameters": (of_parameters, IN_PARAMETERS),
}  # fmt: skip
IMPOSSIBLE = {SEED: 2**63, MIN_OFFSET: 2**63, TIMEOUT: 4_000_000, PRIORITY: 4}


@pytest.mark.parametrize("place", READERS)
@pytest.mark.parametrize("wish", IMPOSSIBLE, ids=lambda wish: wish.field)
def test_a_wish_is_the_same_wherever_it_stands(wish: Wish, place: str) -> None:
    read, places = READERS[place]
    assert read(wish, 2) == Wishes(**{wish.field: 2})
    with pytest.raises(RequestError) as refused:
        read(wish, IMPOSSIBLE[wish])
    with pytest.raises(RequestError) as first:
        of_body(wish, IMPOSSIBLE[wish])
    assert refused.value.where == places[wish.field]
    assert (refused.value.problem, refused.value.remedy) == (first.value.problem, first.value.remedy)


@pytest.mark.parametrize("wish", (TIMEOUT, PRIORITY), ids=lambda wish: wish.field)
def test_0_of_triton_is_no_wish(wish: Wish) -> None:
    assert of_parameters(wish, 0) == NO_WISHES


def test_the_body_goes_first() -> None:
    head = Wishes(Objective(5), strict=True, seed=7, variant="x4", priority=3)
    assert Wishes(strict=False, seed=0).or_else(head) == Wishes(Objective(5), False, 0, variant="x4", priority=3)
    assert NO_WISHES.or_else(head) == head
    assert head.or_else(NO_WISHES) is head


def test_what_may_be_accepted_where_others_are_refused_is_read() -> None:
    assert [wish.member for wish in WISHES if Wishes(**{wish.field: 1}).may_choose()] == ["variant", "priority"]
    assert Wishes(Objective(5)).may_choose()
    assert not Wishes(strict=True, seed=3).may_choose()
