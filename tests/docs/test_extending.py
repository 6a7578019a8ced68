"""docs/extending.md is true: what it says exists is what exists, and what it names is there."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from tests.support.pages.pages import ROOT, read_page, section

from gnnserve_api.families import ChannelAxis, ColumnAxis, FollowAxis, HopAxis, NetworkAxis, RowAxis
from gnnserve_api.pods.routing import RoutingMode
from gnnserve_api.spec.graph import GraphSource
from gnnserve_api.spec.model import Architecture
from gnnserve_api.spec.pruning import RankingMethod
from gnnserve_api.status.service_status import ConditionType
from gnnserve_api.variants import Storage
from gnnserve_cli.render import METRIC_NAMES
from gnnserve_operator.desired.children import CHILDREN
from gnnserve_worker.asking.question import WISHES
from gnnserve_worker.generation.families.registry import PLANNERS
from gnnserve_worker.layers.convolutions.registry import KINDS
from gnnserve_worker.models.registry import ARCHITECTURES
from gnnserve_worker.serving.http.codecs.registry import CODECS
from gnnserve_worker.tables.formats import FORMATS
from gnnserve_worker.tasks.generation import TASKS

PAGE = read_page("extending.md")
PACKAGES = ("crds", "operator", "cli", "client", "describe", "worker")

REGISTRIES: dict[str, Callable[[], Iterable[str]]] = {
    "A ranking method": lambda: list(RankingMethod),
    "An architecture": lambda: ARCHITECTURES,
    "A convolution of layers": lambda: KINDS,
    "A table format": lambda: FORMATS,
    "A graph source": lambda: GraphSource.model_fields,
    "A variant": lambda: [planner.__name__ for planner in PLANNERS],
    "A codec": lambda: dict.fromkeys(codec.content_type for codec in CODECS),
    "A wish": lambda: [wish.member for wish in WISHES],
    "A kind of child": lambda: [child.kind.name for child in CHILDREN],
    "A routing mode": lambda: list(RoutingMode),
    "A metric of accuracy": lambda: METRIC_NAMES,
    "A task": lambda: [asked.__name__ for asked in TASKS],
    "A condition": lambda: list(ConditionType),
}
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
    assert re.findall(r"^## (.+)$", PAGE, re.MULTILINE) == list(REGISTRIES)


@pytest.mark.parametrize("change", REGISTRIES)
def test_what_exists_today_is_what_the_code_has(change: str) -> None:
    told = section(PAGE, change).strip().split("\n\n")[0]
    assert told.startswith("Today:")
    assert re.findall(r"`([^`]+)`", told) == [str(name) for name in REGISTRIES[change]()]


def test_every_path_is_there() -> None:
    assert [path for path in sorted(named_paths(PAGE)) if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("change", REGISTRIES)
def test_every_name_is_in_its_file(change: str) -> None:
    found = items(section(PAGE, change))
    assert len(found) >= 3
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
