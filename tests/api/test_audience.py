"""Every field of a spec says for whom it is, and what programs are handed follows from that."""

from __future__ import annotations

from typing import Annotated

import pytest
from pydantic import BaseModel

from gnnserve_api.spec.audience import Audience, Selection, audiences_of, selection, without_empty_parts
from gnnserve_api.spec.fields import ApiModel
from gnnserve_api.spec.pool import GNNWorkerPoolSpec
from gnnserve_api.spec.service import GNNServiceSpec

REVISION, PODS, OPERATOR = Audience.REVISION, Audience.PODS, Audience.OPERATOR


class Inner(ApiModel):
    one: int = 0
    other: Annotated[int, OPERATOR] = 0


class OwnDefault(ApiModel):
    default_audience = PODS

    one: int = 0


class Nothing(ApiModel):
    pass


class Outer(ApiModel):
    inner: Annotated[Inner | None, REVISION] = None
    own: OwnDefault | None = None
    said: Annotated[OwnDefault | None, REVISION] = None
    nothing: Annotated[Nothing | None, OPERATOR] = None
    both: Annotated[int, REVISION | PODS] = 0


class Silent(ApiModel):
    quiet: int = 0


class SilentSection(ApiModel):
    said: Annotated[int, PODS] = 0
    section: Silent | None = None


class MixedList(ApiModel):
    entries: Annotated[tuple[Inner, ...], REVISION] = ()


@pytest.mark.parametrize("spec", [GNNServiceSpec, GNNWorkerPoolSpec])
def test_every_field_says_for_whom_it_is(spec: type[BaseModel]) -> None:
    assert [path for path, audience in audiences_of(spec) if not audience] == []


def test_no_field_is_for_the_operator_alone_and_for_others_too() -> None:
    assert [path for path, said in audiences_of(GNNServiceSpec) if OPERATOR in said and said != OPERATOR] == []


def test_a_field_is_for_whom_it_says_then_for_whom_its_section_says() -> None:
    assert dict(audiences_of(Outer)) == {
        "inner.one": REVISION,
        "inner.other": OPERATOR,
        "own.one": PODS,
        "said.one": REVISION,
        "nothing": OPERATOR,
        "both": REVISION | PODS,
    }


@pytest.mark.parametrize(("model", "path"), [(Silent, "Silent.quiet"), (SilentSection, "SilentSection.section.quiet")])
def test_a_field_that_says_nothing_is_an_error_that_names_it(model: type[BaseModel], path: str) -> None:
    with pytest.raises(TypeError, match=f"{path} does not say for whom it is"):
        [*audiences_of(model)]


def test_a_member_of_a_list_may_not_be_for_others_than_the_list() -> None:
    with pytest.raises(TypeError, match=r"MixedList\.entries: .* must all be for the same audience"):
        selection(MixedList, REVISION)


@pytest.mark.parametrize(
    ("audience", "selected"),
    [
        (REVISION, {"inner": {"one": True}, "said": True, "both": True}),
        (PODS, {"own": True, "both": True}),
        (REVISION | OPERATOR, {"inner": True, "said": True, "nothing": True, "both": True}),
        (Audience.EMBEDDINGS, {}),
    ],
)
def test_a_selection_has_the_fields_of_its_audience(audience: Audience, selected: Selection) -> None:
    assert selection(Outer, audience) == selected


def test_an_empty_section_stays_where_all_of_it_is_selected() -> None:
    selected: Selection = {"links": True, "the_graph": {"volume": True, "deep": {"er": True}}}
    assert without_empty_parts({"links": {}, "theGraph": {"deep": {}}}, selected) == {"links": {}}
