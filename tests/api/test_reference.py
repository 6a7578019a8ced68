from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, get_args, get_origin

import pytest
from pydantic import BaseModel

from gnnserve_api.generated import reference
from gnnserve_api.manifest import parse_manifest
from gnnserve_api.spec.graph import Normalization
from gnnserve_api.spec.pool import GNNWorkerPoolSpec
from gnnserve_api.spec.service import GNNService

PAGE = reference.page()


def fields(model: type[BaseModel], path: str, seen: set[type[BaseModel]]) -> Iterator[str]:
    """A type that several fields have is described where it comes first."""
    seen.add(model)
    for name, info in model.model_fields.items():
        field = f"{path}{info.alias or name}"
        if field not in {"metadata", "spec"}:
            yield field
        for kind, step in sections(info.annotation, "."):
            if kind not in seen:
                yield from fields(kind, f"{field}{step}", seen)


def sections(annotation: object, step: str) -> Iterator[tuple[type[BaseModel], str]]:
    """Types of sections in a field's type, each with what stands between the names of both."""
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        yield annotation, step
    inside = get_args(annotation)[:1] if get_origin(annotation) is Annotated else get_args(annotation)
    for one in inside:
        yield from sections(one, "[]." if get_origin(annotation) is tuple else step)


def test_the_page_in_the_tree_is_up_to_date() -> None:
    assert reference.main(["--check"]) == 0


def test_an_outdated_page_is_reported_with_its_differences(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "manifest.md"
    assert reference.main(["--path", str(path)]) == 0
    assert reference.main(["--path", str(path), "--check"]) == 0
    path.write_text(path.read_text().replace("| `128` |", "| `127` |"))
    assert reference.main(["--path", str(path), "--check"]) == 1
    said = capsys.readouterr().err
    assert "manifest.md differs from the types; run `make generate`" in said
    assert "`127`" in said


def told_elsewhere() -> Iterator[tuple[str, str]]:
    """Fields of a section that an earlier one explains, each with its row there."""
    for section in PAGE.split("\n## ")[1:]:
        path, _, text = section.partition("\n")
        if found := re.match(r"\s*As in \[`(\S+)`\]\(#\w+\): ([^.]+)\.", text):
            for name in re.findall(r"`(\w+)`", found[2]):
                yield f"`{path}.{name}`", f"`{found[1]}.{name}`"


def test_every_field_has_one_row_or_is_said_to_be_as_in_an_earlier_section() -> None:
    rows = [line.split("|")[1].strip() for line in PAGE.splitlines() if line.startswith("| `")]
    elsewhere = dict(told_elsewhere())
    assert elsewhere
    assert {*elsewhere.values()} <= {*rows}
    seen: set[type[BaseModel]] = set()
    wanted = [*fields(GNNService, "", seen), *fields(GNNWorkerPoolSpec, "GNNWorkerPool.spec.", seen)]
    assert sorted([*rows, *elsewhere]) == sorted(f"`{field}`" for field in wanted)


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(
            "| `spec.model.hidden` | integer | `128` | 1 to 4096 | Width of the hidden layers, in channels. |",
            id="a default between two bounds",
        ),
        pytest.param(
            "| `spec.model.training.dropout` | number | `0.5` | at least 0, below 1 | "
            "Share of hidden units dropped in training, as a fraction of 1. |",
            id="an exclusive bound",
        ),
        pytest.param(
            "| `spec.graph.source` | [mapping](#specgraphsource) | required |  | "
            "Source of the graph: exactly one of builtin, npz, ogb, pyg, parquet, csv and typed. |",
            id="a required mapping leads to its fields",
        ),
        pytest.param(
            "| `spec.variants.pruning.factors` | list of integers | `[1, 2, 4, 8]` | "
            "0 to 16 entries, each 1 to 65536, none twice | ",
            id="a list says what its entries may be",
        ),
        pytest.param(
            "| `spec.objective.latencyMs` | number | none | above 0, at most 3600000 | ",
            id="a field that may be absent",
        ),
    ],
)
def test_rows_show_type_default_and_constraints(row: str) -> None:
    assert row in PAGE


def test_values_of_an_enum_are_explained() -> None:
    assert "Values of `spec.graph.normalization`:\n\n- `Auto`: Standardize dense features" in PAGE
    for member in Normalization:
        assert f"\n- `{member.value}`: " in PAGE


def test_rules_across_fields_are_listed_with_their_section() -> None:
    section = PAGE.split("## spec.worker.batching\n")[1]
    assert "\n- maxQueuedSeeds must be at least maxSeeds\n" in section


def test_links_to_sections_lead_somewhere() -> None:
    anchors = {f"#{re.sub(r'[^a-z]', '', line[3:].lower())}" for line in PAGE.splitlines() if line.startswith("## ")}
    links = {part.split(")")[0] for part in PAGE.split("](")[1:] if part.startswith("#")}
    assert links
    assert links <= anchors


def test_the_smallest_manifest_is_valid() -> None:
    assert reference.EXAMPLE in PAGE
    assert parse_manifest(reference.EXAMPLE, "the page").metadata.name == "digits"
