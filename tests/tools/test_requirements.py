"""Versions of what breaks our programs most easily: a floor and an upper bound that tests have passed with."""

from __future__ import annotations

from importlib import metadata

import pytest
from packaging.requirements import Requirement
from packaging.version import Version
from tests.support.operator.declared_environment import declared_requirements

NEWEST_TESTED = {"kopf": "1.45.2", "torch": "2.15.0"}
"""Newest versions that the whole suite has passed with; the next minor release is not admitted. To admit one, install
it, run `make test`, and move the bound and this."""

REQUIREMENTS = {of.name: of for extra in ("operator", "all") for of in declared_requirements(extra)}


@pytest.mark.parametrize(("name", "newest"), NEWEST_TESTED.items())
def test_no_minor_release_is_admitted_that_was_not_tested(name: str, newest: str) -> None:
    admitted = REQUIREMENTS[name].specifier
    tested = Version(newest)
    assert admitted.contains(tested)
    assert not admitted.contains(f"{tested.major}.{tested.minor + 1}.0")
    assert any(of.operator == ">=" for of in admitted), "a floor, too"


@pytest.mark.parametrize("name", NEWEST_TESTED)
def test_the_newest_tested_version_is_one_that_was_installed_here(name: str) -> None:
    """CI's newest environment runs this with the newest version that is admitted."""
    installed, newest = Version(metadata.version(name)), Version(NEWEST_TESTED[name])
    assert REQUIREMENTS[name].specifier.contains(installed.base_version)
    assert installed.release <= newest.release, f"{name} {installed} passed: move NEWEST_TESTED to it"


def test_every_requirement_of_ours_has_a_floor() -> None:
    def has_floor(of: Requirement) -> bool:
        return any(part.operator in {">=", "=="} for part in of.specifier)

    assert [name for name, of in REQUIREMENTS.items() if not has_floor(of)] == []
