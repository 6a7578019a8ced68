"""Problems of a JSON body that msgspec refuses: the place, what was found there, what was expected, what to do.

msgspec's message tells the place and the types. The value is looked for in the body a second time, one level of it at a
time and only in bodies of ordinary size, so that a wrong request costs no more than a right one. A `BodyForm` has the
fields of one kind of body and their remedies; what requests of all tasks share is here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec
from msgspec import Raw

from gnnserve_api import decoding
from gnnserve_worker.asking.features import RANGE_REMEDY
from gnnserve_worker.asking.naming import IdForm
from gnnserve_worker.asking.question import WISHES, ErrorCode, RequestError, cut, shown_value
from gnnserve_worker.asking.served_graph import ServedGraph

FIELDS = ("objective", "strict", "return", "overlay", *(wish.member for wish in WISHES))
"""Fields of a request whatever the task is, as clients write them; those of its items stand before them."""
LARGEST_SEARCHED_BYTES = 1024 * 1024
"""Bodies up to here are searched for the value that is wrong: a few milliseconds at most."""
_LONGEST_SHOWN_BYTES = 4096
"""Lists and objects up to here are shown without their blanks."""
_LONGEST_PATH = 200
_UNNAMED = "[...]"
"""Stands in msgspec's paths for an entry of an object whose members have any name."""
_INDEX = re.compile(r"\[\d+\]")
_STEP = re.compile(r"([^.\[\]]+)|\[(\d+|\.\.\.)\]")
_NODE = '{"id": …, "features": …}'
_FEATURE = "give a number"
LIST_OF_PAIRS = "give a list of pairs of node ids: [[source, target], …]"
PAIR = "give a pair of node ids: [source, target]"
_BY_RELATION = {
    LIST_OF_PAIRS: 'give a list of edges, each a source, a relation and a target: [["user/17", "buys", "item/3"]]',
    PAIR: 'give a source, a relation and a target: ["user/17", "buys", "item/3"]',
}
"""Remedies that stand in their place where edges name their relation."""


def node_remedies(place: str) -> dict[str, str]:
    """Remedies of a list of nodes with features."""
    return {
        place: f"give a list of objects, each with a node's id and features: [{_NODE}]",
        f"{place}[]": f"give an object with a node's id and features: {_NODE}",
        f"{place}[].features": "give a list of numbers, or an object with the names of columns",
        f"{place}[].features[]": _FEATURE,
        f"{place}[].features[...]": "give a number, or a list of numbers if the source's column has lists",
        f"{place}[].features[...][]": _FEATURE,
    }


def payload_remedies(before: str) -> dict[str, str]:
    """Remedies of features and times of edges. `before`: what their fields stand in, `overlay.`; empty: in the body."""
    return {
        f"{before}edgeFeatures": "give a list with the features of each edge: [[number, …], …]",
        f"{before}edgeFeatures[]": "give the features of an edge as a list of numbers, or null where it has none",
        f"{before}edgeFeatures[][]": _FEATURE,
        f"{before}edgeTimes": "give a list with the time of each edge: [integer, …]",
        f"{before}edgeTimes[]": "give an integer, or null where the edge has no time",
    }


REMEDIES = {
    "objective": "give an object with latencyMs, accuracyTolerancePermille, or both",
    "objective.latencyMs": "give milliseconds as a number, or leave it out",
    "objective.accuracyTolerancePermille": "give permille as a number (10 is one point), or leave it out",
    "strict": "give true or false",
    **{wish.member: wish.remedy for wish in WISHES},
    "overlay": "give an object with nodes, edges and overrides, or leave it out",
    **payload_remedies("overlay."),
    "overlay.edges": LIST_OF_PAIRS,
    "overlay.edges[]": PAIR,
    **node_remedies("overlay.nodes"),
    **node_remedies("overlay.overrides"),
}
MEMBERS = {
    "objective": ("latencyMs", "accuracyTolerancePermille"),
    "overlay": ("nodes", "edges", "overrides", "edgeFeatures", "edgeTimes"),
    "overlay.nodes[]": ("id", "features"),
    "overlay.overrides[]": ("id", "features"),
}
IDS = frozenset({"overlay.nodes[].id", "overlay.overrides[].id", "overlay.edges[][]"})
"""Places of single ids in what requests bring along."""
_KINDS = {
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "str": "text",
    "null": "null",
    "object": "an object",
    "array": "a list",
    "array | object": "a list or an object",
    "object | array": "a list or an object",
    "float | array": "a number",
    "bool | float": "a number, true or false",
    "int | str": "an integer or a text",
    "int | str | array": "an integer, a text or a list of them",
    "int | str | object": "an integer, a text, or an object with type and id",
}
_LENGTH = re.compile(r" of length ([0-9]+)(?:, got [0-9]+)?$")
_TUPLES = {"2": "a pair"}
"""Lists of a certain length, by the length, where they have a name."""
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What a decoder raises of a body; `body_error` says it in our words."""
_members = decoding.decoder(dict[str, Raw])
_entries = decoding.decoder(list[Raw])
_feature = decoding.decoder(float | list[float])


class AskedRevision(Protocol):
    """The part of a revision that all forms look at; their own examples may look at more."""

    @property
    def graph(self) -> ServedGraph: ...


@dataclass(frozen=True, slots=True)
class BodyForm:
    """The fields of one kind of body."""

    members: Mapping[str, tuple[str, ...]]
    """Fields of each object that a body may have, by its place; the body's own under the empty text."""
    ids: frozenset[str]
    """Places of single ids."""
    remedies: Mapping[str, str]
    """By the place, with [] for an entry of a list and [...] for one of an object."""
    example: Callable[[Any], str]
    """A body that the graph permits, of the revision that was asked."""
    graph_remedies: Callable[[Any], Mapping[str, str]] = lambda _: {}
    """Remedies that depend on the graph, beside those of ids."""
    entries: Mapping[str, msgspec.json.Decoder[Any]] = field(default_factory=dict)
    """What decodes an entry of an object whose members have any name, by the object's place; others have features."""
    path: re.Pattern[str] = field(init=False)
    """The place at the end of a message of msgspec's."""

    def __post_init__(self) -> None:
        first, inner = self.members[""], sorted({name for names in self.members.values() for name in names})
        pattern = rf" - at `\$\.((?:{'|'.join(first)})(?:\.(?:{'|'.join(inner)})|\[(?:\d{{1,9}}|\.\.\.)\]){{0,6}})`$"
        object.__setattr__(self, "path", re.compile(pattern))

    def body_remedy(self, revision: AskedRevision) -> str:
        return f"send an object such as {self.example(revision)}"

    def remedy(self, where: str, revision: AskedRevision) -> str:
        place = _INDEX.sub("[]", where)
        if place == "body":
            return self.body_remedy(revision)
        if place in self.ids:
            return f"node ids of this graph are {'texts' if revision.graph.naming.are_texts else 'integers'}"
        found = self.graph_remedies(revision).get(place) or self.remedies.get(place, "")
        return _BY_RELATION.get(found, found) if revision.graph.naming.form is IdForm.WITH_TYPES else found


def decode_body(decoder: msgspec.json.Decoder[Any], body: bytes, revision: AskedRevision, form: BodyForm) -> Any:
    """What the decoder makes of a body. Raises RequestError."""
    try:
        return decoder.decode(body)
    except UNREADABLE as error:
        raise body_error(error, body, revision, form) from None


def body_error(error: Exception, body: bytes, revision: AskedRevision, form: BodyForm) -> RequestError:
    """What is wrong with a body that its decoder refused (`UNREADABLE`), whatever it is of."""
    if isinstance(error, msgspec.ValidationError):
        return _field_error(str(error), body, revision, form)
    problem = f"not JSON: {error}" if body.strip() else "it is empty"
    return RequestError(ErrorCode.INVALID_JSON, "body", problem, form.body_remedy(revision))


def _field_error(text: str, body: bytes, revision: AskedRevision, form: BodyForm) -> RequestError:
    """msgspec's message in ours: with the value that was found and what to write instead.

    The text may quote the client's own, of any length, so nothing here relies on more than its beginning and its end.
    """
    at = form.path.search(text, max(0, len(text) - _LONGEST_PATH))
    path = at[1] if at else ""
    problem = text[: at.start()] if at else text
    remedy = form.remedy(path or "body", revision)
    if problem.startswith("Object contains unknown field"):
        name = cut(problem.removeprefix("Object contains unknown field").strip(" `"))
        known = ", ".join(form.members.get(_INDEX.sub("[]", path), form.members[""]))
        within = _look_at(body, path, form)[0] if _UNNAMED in path else path
        where = f"{within}.{name}" if within else name
        return RequestError(ErrorCode.UNKNOWN_FIELD, where, "there is no such field", f"known are {known}")
    if problem.startswith("Object missing required field"):
        name = problem.split("`")[1]
        where = f"{path}.{name}" if path else name
        return RequestError(ErrorCode.MISSING_FIELD, where, "it is missing", form.remedy(where, revision))
    where, found = _look_at(body, path, form)
    if problem.startswith("Expected"):
        told = problem.split("`")
        length = _LENGTH.search(problem)
        kind = _kind(told[1]) if length is None else _TUPLES.get(length[1], f"a list of {length[1]}")
        if not found:
            found = _kind(told[3]) if len(told) > 3 else "another list"
        return RequestError(ErrorCode.INVALID_TYPE, where, f"expected {kind}, got {found}", remedy)
    if problem.endswith("out of range"):
        if ".features" in path:
            remedy = RANGE_REMEDY
        return RequestError(ErrorCode.INVALID_VALUE, where, "the number is out of range", remedy)
    return RequestError(ErrorCode.INVALID_VALUE, where, f"{found or 'this'} is not possible here", remedy)


def _kind(type_: str) -> str:
    type_ = type_.removesuffix(" | null")
    return _KINDS.get(type_, type_)


def _look_at(body: bytes, path: str, form: BodyForm) -> tuple[str, str]:
    """Where the value at that path stands, with the name of a column for msgspec's `[...]`, and the value, shown.

    Empty where the value is not looked for, or is not there: a key that is given twice has its last value here, and
    msgspec may have refused the first.
    """
    unnamed = path.replace(_UNNAMED, "") or "body"
    if len(body) > LARGEST_SEARCHED_BYTES:
        return unnamed, ""
    where, value = "", Raw(body)
    try:
        for name, index in _STEP.findall(path):
            if name:
                where, value = f"{where}.{name}" if where else name, _members.decode(value)[name]
            elif index == "...":
                decoder = form.entries.get(where, _feature)
                entries = _members.decode(value).items()
                column, value = next((n, given) for n, given in entries if not _is_right(given, decoder))
                where = f"{where}.{cut(column)}"
            else:
                where, value = f"{where}[{index}]", _entries.decode(value)[int(index)]
        return where or "body", _shown(bytes(value).strip())
    except (LookupError, StopIteration, ValueError, RecursionError):
        return unnamed, ""


def _is_right(entry: Raw, decoder: msgspec.json.Decoder[Any]) -> bool:
    try:
        decoder.decode(entry)
    except msgspec.DecodeError:
        return False
    return True


def _shown(value: bytes) -> str:
    """A value as the client wrote it; a list or an object without its blanks."""
    if value[:1] in b"[{" and len(value) <= _LONGEST_SHOWN_BYTES:
        try:
            return shown_value(msgspec.json.decode(value))
        except (ValueError, RecursionError):
            pass  # a number or a text in it cannot be read
    return cut(value[:_LONGEST_SHOWN_BYTES].decode("utf-8", "replace"))
