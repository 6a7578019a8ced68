"""Names of children: deterministic, apart, and never longer than a DNS label."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnnserve_operator.desired import metadata as names

NAMES: list[Callable[[str], str]] = [
    names.service_name,
    names.worker_name,
    names.generation_name,
    names.routing_name,
    names.repository_claim_name,
    lambda service: names.job_name(service, "0123456789abcdef"),
]
LABEL = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
services = st.from_regex(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True)


@given(services)
def test_every_name_is_a_dns_label(service: str) -> None:
    made = [name(service) for name in NAMES]
    assert [name for name in made if not LABEL.fullmatch(name)] == []
    assert len(set(made)) == len(made)
    assert made == [name(service) for name in NAMES]


def test_short_names_stay_readable() -> None:
    assert [name("digits") for name in NAMES] == [
        "digits",
        "digits-worker",
        "digits-generate",
        "digits-routing",
        "digits-repository",
        "digits-generate-01234567",
    ]


@pytest.mark.parametrize("name", NAMES[1:])
def test_long_names_that_begin_alike_stay_apart(name: Callable[[str], str]) -> None:
    first, second = "a" * 62 + "b", "a" * 62 + "c"
    assert name(first) != name(second)
    assert len(name(first)) == 63


def test_a_cut_leaves_no_double_hyphen() -> None:
    assert "--" not in names.worker_name("a" * 48 + "-" + "b" * 14)


def test_the_longest_name_that_fits_is_not_cut() -> None:
    service = "a" * (63 - len("-worker"))
    assert names.worker_name(service) == f"{service}-worker"
    assert names.worker_name(service + "a") != f"{service}a-worker"
