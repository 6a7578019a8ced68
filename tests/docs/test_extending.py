"""docs/extending.md is true: what it says exists is what exists, and what it names is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.support.pages.pages import ROOT, read_page, section
from tools.extensions import EXTENSIONS

from gnnserve_api.families import ChannelAxis, ColumnAxis, FollowAxis, HopAxis, NetworkAxis, RowAxis
from gnnserve_api.pods.routing import RoutingMode
from gnnserve_api.spec.model import Architecture
from gnnserve_api.spec.pruning import RankingMethod
from gnnserve_api.status.service_status import ConditionType
from gnnserve_api.variants import Storage

PAGE = read_page("extending.md")
PACKAGES = ("crds", "operator", "cli", "client", "describe", "worker")

ENUMERATIONS = {
    "A ranking method": (RankingMethod,),
    "An architecture": (Architecture,),
    "A table format": (Storage,),
    "A variant": (RowAxis, ColumnAxis, ChannelAxis, HopAxis, FollowAxis, NetworkAxis),
    "A routing mode": (RoutingMode,),
    "A condition": (ConditionType,),
}


def named_paths(text: str) -> set[str]:
    return {
        span for span in re.findall(r"`([^`]+)`", text) if re.match(rf"({'|'.join(PACKAGES)}|charts|docs|tests)/", span)
    }


def items(text: str) -> list[str]:
    """The numbered items of a section, each on one line."""
    return [" ".join(item.split()) for item in re.findall(r"^\d+\. (.*(?:\n   .*)*)", text, re.MULTILINE)]


def test_the_page_has_these_changes() -> None:
    assert re.findall(r"^## (.+)$", PAGE, re.MULTILINE) == list(EXTENSIONS)


def test_every_path_is_there() -> None:
    assert [path for path in sorted(named_paths(PAGE)) if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("change", EXTENSIONS)
def test_every_name_is_in_its_file(change: str) -> None:
    found = items(section(PAGE, change))
    assert len(found) >= 2
    for item in found:
        paths = [ROOT / path for path in re.findall(r"`([^`]+)`", item) if path in named_paths(item)]
        assert paths, item
        source = "\n".join(
            file.read_text(encoding="utf-8")
            for path in paths
            for file in (sorted(path.glob("*.py")) if path.is_dir() else [path])
        )
        names = [span for span in re.findall(r"`([^`]+)`", item) if re.fullmatch(r"[A-Za-z_]\w*", span)]
        assert [name for name in names if not re.search(rf"\b{name}\b", source)] == [], item


@pytest.mark.parametrize("change", ENUMERATIONS)
def test_no_other_file_names_a_member(change: str) -> None:
    member = re.compile(rf"\b({'|'.join(each.__name__ for each in ENUMERATIONS[change])})\.[A-Z]")
    listed = named_paths(section(PAGE, change))
    folders = tuple(path for path in listed if path.endswith("/"))
    naming = [
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in sorted(Path(ROOT, package).rglob("*.py"))
        if member.search(path.read_text(encoding="utf-8"))
    ]
    assert [path for path in naming if path not in listed and not path.startswith(folders)] == []
