from __future__ import annotations

import subprocess
import sys
from enum import StrEnum

from gnnserve_api.docstrings import attribute_docstrings


class Drink:
    price: int = 2
    """Price of a glass,
    in euros."""
    nameless: str = ""
    origin: str = ""
    """Where it comes from."""

    def pour(self) -> None:
        amount: int = 1
        """No attribute of the class."""
        print(amount)


class Tea(Drink):
    origin: str = "Assam"
    """The garden."""
    minutes = 3
    """How long it draws."""


class Size(StrEnum):
    SMALL = "Small"
    """Half a glass."""
    LARGE = "Large"


def test_docstrings_belong_to_the_attribute_above_them() -> None:
    assert attribute_docstrings(Drink) == {
        "price": "Price of a glass,\nin euros.",
        "origin": "Where it comes from.",
    }


def test_a_class_has_the_docstrings_of_attributes_that_it_inherits_and_its_own_go_first() -> None:
    assert attribute_docstrings(Tea) == {
        "price": "Price of a glass,\nin euros.",
        "origin": "The garden.",
        "minutes": "How long it draws.",
    }


def test_members_of_an_enum_have_docstrings() -> None:
    found = attribute_docstrings(Size)
    assert {name: found.get(name) for name in Size.__members__} == {"SMALL": "Half a glass.", "LARGE": None}


def test_a_class_without_source_has_none() -> None:
    assert attribute_docstrings(type("Unwritten", (), {"price": 1})) == {}


def test_importing_the_types_reads_no_source() -> None:
    # Reading it makes the import of every command, worker and operator take half as long again.
    program = (
        "import linecache, gnnserve_api.spec.service, gnnserve_api.status.service_status\n"
        "print(*[name for name in linecache.cache if 'gnnserve_api' in name])"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == ""
