"""Filters of recommendations: how they are read, whatever a request is written in, and which nodes pass their
conditions on columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from gnnserve_api import decoding
from gnnserve_api.http.recommend import ColumnCondition, Filter
from gnnserve_worker.asking.body_form import LARGEST_SEARCHED_BYTES, UNREADABLE, BodyForm, decode_body
from gnnserve_worker.asking.naming import IdForm, NodeNaming
from gnnserve_worker.asking.question import ErrorCode, RequestError, cut, shown_value
from gnnserve_worker.graph.feature_columns import FeatureColumns
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.nearest.columns import IndexColumns
from gnnserve_worker.nearest.conditions import passing, why_none_passes
from gnnserve_worker.nearest.revision_index import RevisionIndex
from gnnserve_worker.serving.http.codecs.large_json import LARGE_BYTES, has_more_values

_OPERATORS = tuple(one.encode_name for one in msgspec.structs.fields(ColumnCondition))
_MOST_VALUES = 262_144
"""Numbers and ids of a filter: as many are read and compared within tens of milliseconds, while others wait."""
_MOST_NAMED = 20
"""Columns that a message names."""
FILTER_MEMBERS = {"filter[...]": _OPERATORS}
_NUMBER = "give a number"
FILTER_REMEDIES = {
    "filter": 'give an object with labels, nodes, or columns, such as {"price": {"below": 20}}',
    "filter[...]": 'give an object such as {"below": 20} for a column; labels and nodes are lists',
    **{f"filter[...].{name}": _NUMBER for name in _OPERATORS},
    "filter[...].equals": "give one, 1 or true for a column of booleans",
    "filter[...].between": "give a list of two numbers, the least and the largest",
    "filter[...].between[]": _NUMBER,
    "filter[...].oneOf": "give a list of numbers",
    "filter[...].oneOf[]": "give one, 1 or true for a column of booleans",
}
FILTER_ENTRIES = {"filter": decoding.decoder(tuple[Any, ...] | ColumnCondition)}
_KINDS: Mapping[IdForm, tuple[type, ...]] = {
    IdForm.INTEGERS: (int,),
    IdForm.TEXTS: (str,),
    IdForm.WITH_TYPES: (object,),  # looked at where they are found
}
_WORDS = {(int,): "an integer", (str,): "text", (int, str): "an integer or a text"}


class _FilterBody(msgspec.Struct):
    filter: Filter


class _MembersBody(msgspec.Struct):
    filter: dict[str, msgspec.Raw]


_filtered, _membered = decoding.decoder(_FilterBody), decoding.decoder(_MembersBody)
_LISTS = ("labels", "nodes")
"""Members of a filter that are no columns, where they are lists."""
_TEXT_FORM = BodyForm(
    {"": ("filter",), **FILTER_MEMBERS}, frozenset(), FILTER_REMEDIES, lambda _: '{"price": {"below": 20}}',
    entries=FILTER_ENTRIES,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class NodeFilter:
    """A node has to pass all of it."""

    labels: tuple[int | str, ...] | None = None
    """Labels of the graph's source, one of which it has; None: it may have any."""
    nodes: tuple[Any, ...] | None = None
    """Ids, as JSON has them."""
    columns: Mapping[str, ColumnCondition] = field(default_factory=dict)
    """By the name of a column."""


def read_filter(given: Mapping[str, Any] | None, naming: NodeNaming) -> NodeFilter | None:
    """`given`: as `Filter`. None: all nodes pass. Raises RequestError."""
    if given is None:
        return None
    lists = {name: value for name, value in given.items() if not isinstance(value, ColumnCondition)}
    columns = {name: value for name, value in given.items() if isinstance(value, ColumnCondition)}
    for where, listed in (*lists.items(), *((f"{cut(name)}.oneOf", one.one_of) for name, one in columns.items())):
        if listed is not None and len(listed) > _MOST_VALUES:
            raise _too_many(f"filter.{where}", len(listed))
    labels, nodes = lists.pop("labels", None), lists.pop("nodes", None)
    if lists:
        name = next(iter(lists))
        raise RequestError(
            ErrorCode.UNKNOWN_FIELD, f"filter.{cut(name)}", "is a list, and labels and nodes alone are",
            'give an object such as {"below": 20} for a column',
        )  # fmt: skip
    _check_kinds(labels, (int, str), "filter.labels", "give a label, as the graph's source has it")
    ids = "texts" if naming.are_texts else "integers"
    _check_kinds(nodes, _KINDS[naming.form], "filter.nodes", f"node ids of this graph are {ids}")
    for name, condition in columns.items():
        if why := why_none_passes(condition):
            remedy = f"give one or several of {', '.join(_OPERATORS)}, which a number can meet together"
            raise RequestError(ErrorCode.INVALID_VALUE, f"filter.{cut(name)}", why, remedy)
    return NodeFilter(labels, nodes, columns)


def check_size(body: bytes) -> None:
    """Refuse a body whose filter has more values than any may have, without decoding it. Raises RequestError."""
    if len(body) > LARGE_BYTES and has_more_values(body, 2 * _MOST_VALUES):
        raise _too_many("filter", 2 * _MOST_VALUES, "more than ")


def _too_many(where: str, count: int, over: str = "") -> RequestError:
    return RequestError(
        ErrorCode.INVALID_VALUE, where, f"{over}{count:,} values, where {_MOST_VALUES:,} may be",
        "split the list over several requests, or give a range: between, atLeast, atMost",
    )  # fmt: skip


def body_of(text: str) -> bytes:
    """A body that has the filter in a text, which may be no JSON."""
    return b'{"filter":%b}' % text.encode()


def read_filter_text(text: str, revision: ServedRevision) -> dict[str, Any]:
    """A filter that stands as JSON in a text. Raises RequestError."""
    body = body_of(text)
    check_size(body)
    try:
        filtered: _FilterBody = decode_body(_filtered, body, revision, _TEXT_FORM)
    except RequestError as error:
        if error.code is not ErrorCode.INVALID_JSON:
            raise
        problem = f"not JSON: {shown_value(text)}"
        raise RequestError(error.code, "filter", problem, FILTER_REMEDIES["filter"]) from None
    return filtered.filter


def passing_columns(
    columns: Mapping[str, ColumnCondition], held: RevisionIndex, revision: ServedRevision
) -> np.ndarray:
    """Nodes that pass all conditions, bool [positions]. Raises RequestError."""
    part, kept = held.part, _columns_of(held, revision)
    allowed = np.zeros(revision.graph.nodes, bool)
    allowed[part.start : part.end] = True
    for name, condition in columns.items():
        feature = _feature_of(name, kept.columns, part.type)
        passes = np.zeros(part.end - part.start, bool)
        passes[: part.nodes] = passing(kept.values_of(feature), condition)
        if (latest := revision.changes.latest) is not None:
            brought = latest.column(feature)
            own = (brought.nodes >= part.start) & (brought.nodes < part.end)
            passes[brought.nodes[own] - part.start] = passing(brought.values[own], condition)
        allowed[part.start : part.end] &= passes
    return allowed


def _columns_of(held: RevisionIndex, revision: ServedRevision) -> IndexColumns:
    name, kept = revision.manifest.revision, held.columns
    if held.columns_problem:
        raise _no_columns(
            f"columns of revision {name} could not be read: {held.columns_problem}",
            "have them read again by `gnnserve generate` or by the Job of embeddings",
        )
    if kept is None:
        raise _no_columns(
            f"the index of revision {name} was made without columns of its nodes",
            "have them kept by `gnnserve generate` or by the Job of embeddings",
        )
    if revision.changes.log.offset is not None and revision.changes.latest is None:
        raise _no_columns(
            "the graph changes, and this worker kept nothing of what changes brought before an index was asked for",
            "start the worker anew",
        )
    return kept


def _no_columns(problem: str, remedy: str) -> RequestError:
    return RequestError(ErrorCode.NO_RECOMMENDATIONS, "filter", problem, remedy)


def _feature_of(name: str, columns: FeatureColumns, type_: str) -> int:
    """The feature that a filter names: a column, or a number of one that has lists, `vector[3]`. Raises
    RequestError."""
    of_type, place = f" of type {type_}" if type_ else "", columns.place(name)
    if place is not None and place[1] == 1:
        return place[0]
    where = f"filter.{cut(name)}"
    if place is not None:
        raise RequestError(
            ErrorCode.INVALID_VALUE, where, f"the column has lists of {place[1]} numbers", f"name one, as {name}[0]"
        )
    if (listed := _listed_feature(name, columns)) is not None:
        return listed
    raise RequestError(
        ErrorCode.UNKNOWN_COLUMN, where, f"{shown_value(name)} is no feature of nodes{of_type}", _known_words(columns)
    )


def _listed_feature(name: str, columns: FeatureColumns) -> int | None:
    """The feature of a number in a column that has lists, `vector[3]`; None: there is none."""
    list_name, _, rest = name.rpartition("[")
    number, listed = rest.removesuffix("]"), columns.place(list_name) if list_name else None
    if listed is None or not number.isdecimal() or not rest.endswith("]") or int(number) >= listed[1]:
        return None
    return listed[0] + int(number)


@contextmanager
def telling_columns(body: bytes, revision: ServedRevision) -> Iterator[None]:
    """Tell of a column that the filter of a body names and no index has, before what is wrong with its condition: a
    column of texts, which is no feature, is not to be compared with a number either."""
    try:
        yield
    except RequestError as error:
        if error.where.startswith("filter.") and len(body) <= LARGEST_SEARCHED_BYTES:
            for name in _named_columns(body):
                _check_known(name, revision)
        raise


def _named_columns(body: bytes) -> list[str]:
    """Columns that the filter of a body names, whatever it says of them."""
    try:
        given = _membered.decode(body).filter
    except UNREADABLE:
        return []
    return [name for name, value in given.items() if name not in _LISTS or not bytes(value).lstrip().startswith(b"[")]


def _check_known(name: str, revision: ServedRevision) -> None:
    """Raises RequestError where indexes have columns, and none has this one."""
    kept = [(held.part.type, held.columns.columns) for held in revision.compute.indexes if held.columns is not None]
    if not kept or any(one.place(name) is not None or _listed_feature(name, one) is not None for _, one in kept):
        return
    types = " or ".join(type_ for type_, _ in kept)
    known = "; ".join(f"{f'of {type_}, ' * (len(kept) > 1)}{_known_words(one)}" for type_, one in kept)
    of_types = f" of type {types}" if types else ""
    problem = f"{shown_value(name)} is no feature of nodes{of_types}"
    raise RequestError(ErrorCode.UNKNOWN_COLUMN, f"filter.{cut(name)}", problem, known)


def _known_words(columns: FeatureColumns) -> str:
    if not columns.features:
        return "they have none: filter by nodes, or by labels where nodes have some"
    if not columns.columns:
        return f"features are columns without names, called 0 to {columns.features - 1}"
    names = [one.name if one.width == 1 else f"{one.name}[0]" for one in columns.columns]
    more = f" and {len(names) - _MOST_NAMED:,} more" if len(names) > _MOST_NAMED else ""
    return f"features are {', '.join(map(cut, names[:_MOST_NAMED]))}{more}"


def _check_kinds(given: tuple[Any, ...] | None, kinds: tuple[type, ...], where: str, remedy: str) -> None:
    for place, one in enumerate(given or ()):
        if not isinstance(one, kinds) or (isinstance(one, bool) and kinds != (object,)):
            problem = f"expected {_WORDS[kinds]}, got {shown_value(one)}"
            raise RequestError(ErrorCode.INVALID_TYPE, f"{where}[{place}]", problem, remedy)
