"""Requests that bring hostile overlays, made from a seed, with what each has to get.

A draft of a request that is right is changed in one way (a kind), which tells whether the answer is to be right, or a
refusal whose sentence begins with the place of the mistake. Bytes that are mangled at random are read by a reader of
our own: where it cannot make sense of them, they may not be accepted; where it can, the answer has to be the one of
what it read, or a refusal.

Forms: JSON and arrays of our own protocol, the Open Inference Protocol in JSON, with bytes behind it, and over gRPC.
"""

from __future__ import annotations

import json
import math
import random
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tests.support.overlays.overlay_oracle import COLUMNS, FEATURES, NODES, SERVICE, VARIANTS, Meaning
from tests.support.overlays.overlay_readers import (
    Draft,
    Form,
    read_arrays,
    read_json,
    read_message,
    read_tensors_of_json,
)
from tests.support.serving.malformed import flip, splice

from gnnserve_api.limits import DEFAULT_OVERLAY_LIMITS
from gnnserve_worker.serving.grpc.messages import ModelInferRequest

FORMS = {Form.JSON: 40, Form.ARRAYS: 25, Form.TENSORS: 8, Form.BEHIND: 7, Form.GRPC: 20}
"""Share of each form, of a hundred."""
MANGLED = "mangled"
_MAX_NODES, _MAX_EDGES = DEFAULT_OVERLAY_LIMITS.max_nodes, DEFAULT_OVERLAY_LIMITS.max_edges
_ANYWHERE = ("",)
"""Any place: bytes at random may make a field of any name."""
_NO_IDS: Sequence[Any] = ("0", "", None, True, 0.5, [0], [], {}, {"id": 0})
_NO_LISTS: Sequence[Any] = (None, True, 7, "x", "[0, 1]", 0.5, {"0": 1})
_NO_NUMBERS: Sequence[Any] = ("1", "", None, True, [1.0], [], {}, {"0": 1.0})
_LITERALS = (
    b"NaN", b"-Infinity", b"1e999", b"01", b"+1", b"nul", b"\xff", b"\xed\xa0\x80", b"\0", b"[" * 5000, b"{" * 900,
    b'{"nodes":' * 900, b",", b":", b"9" * 5000, b'"edges":[],', b'"nodes":[],', b"[[0,1]],", b"-", b"e5", b"\\u0000",
    b"\\ud800",
)  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Wanted:
    """What a request has to get."""

    meaning: Meaning | None
    """What it means where it may be accepted; None: it may not."""
    places: tuple[str, ...]
    """What the sentence of a refusal may begin with; empty: it may not be refused."""


@dataclass(frozen=True, slots=True, eq=False)
class Hostile:
    form: Form
    kind: str
    variant: str
    body: bytes
    """Body of a POST, or a gRPC message."""
    json_bytes: int | None
    """Length of the JSON in front of tensors; None: there are no bytes behind it."""
    wanted: Wanted


def make(number: int, features: np.ndarray) -> Hostile:
    """The same one for the same number, over a graph of which nodes have these features."""
    draw = random.Random(number)  # noqa: S311 - no secret
    form = draw.choices(list(FORMS), list(FORMS.values()))[0]
    return _MAKERS[form](draw, form, features)


def drafted(draw: random.Random, form: Form) -> Draft:
    """A request that is right, and that brings something."""
    new, edges, overridden = draw.choice((0, 1, 1, 2, 3)), draw.choice((0, 1, 3, 20)), draw.choice((0, 0, 1, 2))
    if not (new or edges or overridden):
        new = 1
    ids: list[Any] = [-1 - k for k in range(new)]
    if form is not Form.ARRAYS:
        ids = draw.sample((*range(NODES, NODES + 20), *range(-20, 0), 2**62, 2**63 - 1, -(2**63)), new)
    ends = [*range(NODES), *(ids * 9)]
    return Draft(
        form, draw.choice(list(VARIANTS)),
        draw.choices(ends, k=draw.choice((1, 1, 2, 7))), ids, [_row(draw) for _ in ids],
        [draw.choices(ends, k=2) for _ in range(edges)],
        stored := draw.sample(range(NODES), overridden), [_row(draw) for _ in stored],
    )  # fmt: skip


def _row(draw: random.Random) -> list[float]:
    return [round(draw.uniform(-4, 4), 3) for _ in range(FEATURES)]


# What may be wrong, or much, in every form: a change of the draft, which returns where the sentence may begin


Change = Callable[[random.Random, Draft], tuple[str, ...]]


def _nothing(_draw: random.Random, _draft: Draft) -> tuple[str, ...]:
    return ()


def _repeat_edges(draw: random.Random, draft: Draft) -> tuple[str, ...]:
    draft.edges += draw.choices(draft.edges or [[0, 1]], k=draw.choice((1, 5, 300)))
    return ()


def _loop(draw: random.Random, draft: Draft) -> tuple[str, ...]:
    draft.edges += [[node, node] for node in draw.choices([*range(NODES), *draft.new], k=draw.choice((1, 9)))]
    return ()


def _make_hub(draw: random.Random, draft: Draft) -> tuple[str, ...]:
    """Give one node as many edges as a request may have, most of them from the same few."""
    hub, count = draw.choice([*range(NODES), *draft.new]), _MAX_EDGES - len(draft.edges)
    others = draw.choices([*range(NODES), *draft.new], k=count)
    draft.edges += [[hub, other] if draw.random() < 0.5 else [other, hub] for other in others]
    draft.asked.append(hub)
    return ()


def _bring_many(draw: random.Random, draft: Draft) -> tuple[str, ...]:
    """Bring as many nodes as a request may, in a chain."""
    count = _MAX_NODES - len(draft.new) - len(draft.overridden)
    _bring(draw, draft, count)
    draft.edges += [list(pair) for pair in zip(draft.new, draft.new[1:], strict=False)]
    return ()


def _bring(draw: random.Random, draft: Draft, count: int) -> None:
    start = 10**6
    first = len(draft.new)
    draft.new += [-1 - first - k if draft.form is Form.ARRAYS else start + k for k in range(count)]
    draft.rows += [_row(draw) for _ in range(count)]


def _ask_often(draw: random.Random, draft: Draft) -> tuple[str, ...]:
    draft.asked *= draw.choice((50, 300))
    return ()


def _override_all(draw: random.Random, draft: Draft) -> tuple[str, ...]:
    draft.overridden = draw.sample(range(NODES), NODES)
    draft.other_rows = [_row(draw) for _ in draft.overridden]
    return ()


def _enlarge(draw: random.Random, draft: Draft) -> tuple[str, ...]:
    """Features in whose products float32 ends: they may be refused, and may not be answered wrongly."""
    _bring_one(draw, draft)
    draft.rows[-1] = [draw.choice((3e38, -3e38, 1e30, 1e-45, -0.0)) for _ in range(FEATURES)]
    draft.asked.append(draft.new[-1])
    return ("overlay",)


def _bring_one(draw: random.Random, draft: Draft) -> None:
    if not draft.new:
        _bring(draw, draft, 1)


def _ask_unknown(draw: random.Random, draft: Draft) -> tuple[str, ...]:
    draft.asked.append(_unknown(draw, draft))
    return (f"nodes[{len(draft.asked) - 1}]",)


def _unknown(draw: random.Random, draft: Draft) -> int:
    if draft.form is Form.ARRAYS:
        return draw.choice((-1 - len(draft.new), NODES, 2**63 - 1, -(2**63)))
    return draw.choice((NODES + 999, -999, 2**61))


def _name_unknown_end(draw: random.Random, draft: Draft) -> tuple[str, ...]:
    end = draw.randrange(2)
    edge = [draw.randrange(NODES)] * 2
    edge[end] = _unknown(draw, draft)
    draft.edges.append(edge)
    return (f"overlay.edges[{len(draft.edges) - 1}][{end}]",)


def _override(draft: Draft, node: Any) -> tuple[str, ...]:
    draft.overridden.append(node)
    draft.other_rows.append([1.0] * FEATURES)
    return (f"overlay.overrides[{len(draft.overridden) - 1}].id",)


def _override_unknown(draw: random.Random, draft: Draft) -> tuple[str, ...]:
    return _override(draft, _unknown(draw, draft))


def _override_new(draw: random.Random, draft: Draft) -> tuple[str, ...]:
    _bring_one(draw, draft)
    return _override(draft, draft.new[0])


def _override_twice(draw: random.Random, draft: Draft) -> tuple[str, ...]:
    if not draft.overridden:
        _override(draft, draw.randrange(NODES))
    return _override(draft, draft.overridden[0])


def _bring_too_many(draw: random.Random, draft: Draft) -> tuple[str, ...]:
    _bring(draw, draft, _MAX_NODES + draw.choice((1, 200)) - len(draft.new) - len(draft.overridden))
    return ("overlay.nodes",)


def _list_too_many(draw: random.Random, draft: Draft) -> tuple[str, ...]:
    draft.edges = [[draw.randrange(NODES), 0]] * (_MAX_EDGES + draw.choice((1, 900)))
    return ("overlay.edges",)


def _ask_nothing(_draw: random.Random, draft: Draft) -> tuple[str, ...]:
    draft.asked = []
    return ("nodes", "body")


def _lose_a_number(draw: random.Random, draft: Draft) -> tuple[str, ...]:
    """A feature that is no number."""
    _bring_one(draw, draft)
    row, column = draw.randrange(len(draft.rows)), draw.randrange(FEATURES)
    draft.rows[row][column] = draw.choice((math.nan, math.inf, -math.inf))
    if draft.form in {Form.JSON, Form.TENSORS}:  # JSON has no such numbers
        return ("body",)
    return (f"overlay.nodes[{row}].features[{column}]",)


_EVERYWHERE: Mapping[str, tuple[int, Change]] = {
    "right": (6, _nothing),
    "repeated edges": (4, _repeat_edges),
    "self-loops": (4, _loop),
    "hub": (1, _make_hub),
    "many new nodes": (1, _bring_many),
    "asked often": (2, _ask_often),
    "all overridden": (2, _override_all),
    "enormous features": (3, _enlarge),
    "unknown node": (4, _ask_unknown),
    "edge to a missing node": (5, _name_unknown_end),
    "override of a missing node": (4, _override_unknown),
    "override of a new node": (4, _override_new),
    "node overridden twice": (4, _override_twice),
    "too many nodes": (1, _bring_too_many),
    "too many edges": (1, _list_too_many),
    "no nodes": (2, _ask_nothing),
    "NaN or infinity": (6, _lose_a_number),
}
"""Kinds of every form, with how often each is made."""


def _take_a_stored_id(draw: random.Random, draft: Draft) -> tuple[str, ...]:
    draft.new.append(draw.randrange(NODES))
    draft.rows.append(_row(draw))
    return (f"overlay.nodes[{len(draft.new) - 1}].id",)


def _bring_twice(draw: random.Random, draft: Draft) -> tuple[str, ...]:
    _bring_one(draw, draft)
    draft.new.append(draft.new[0])
    draft.rows.append(_row(draw))
    return (f"overlay.nodes[{len(draft.new) - 1}].id",)


_WITH_IDS: Mapping[str, tuple[int, Change]] = {
    "id of a stored node": (5, _take_a_stored_id),
    "id of another new node": (5, _bring_twice),
}
"""Kinds of forms in which new nodes have ids of their own."""
_OF_DRAFTS = {**_EVERYWHERE, **_WITH_IDS}


# JSON: a change of what is written, behind the draft


def write_json(draft: Draft) -> dict[str, Any]:
    """The prefix that stays whole where the rest is mangled comes first: what is returned, and the variant."""
    return {
        "return": ["scores"],
        "variant": draft.variant,
        "overlay": {
            "nodes": [{"id": id_, "features": row} for id_, row in zip(draft.new, draft.rows, strict=True)],
            "edges": draft.edges,
            "overrides": [
                {"id": id_, "features": row} for id_, row in zip(draft.overridden, draft.other_rows, strict=True)
            ],
        },
        "nodes": draft.asked,
    }


JsonChange = Callable[[random.Random, Draft, dict[str, Any], np.ndarray], tuple[str, ...]]
"""Changes what is written, and the draft where the request stays right; takes the features of stored nodes."""


def _add_edge(values: Callable[[random.Random], Any], place: str = "") -> JsonChange:
    def change(draw: random.Random, _draft: Draft, asked: dict[str, Any], _features: np.ndarray) -> tuple[str, ...]:
        edges = asked["overlay"]["edges"]
        edges.append(values(draw))
        return (f"overlay.edges[{len(edges) - 1}]{place}",)

    return change


def _mistype_end(draw: random.Random, _draft: Draft, asked: dict[str, Any], _features: np.ndarray) -> tuple[str, ...]:
    edges, end = asked["overlay"]["edges"], draw.randrange(2)
    edge: list[Any] = [0, 0]
    edge[end] = draw.choice(_NO_IDS)
    edges.append(edge)
    return (f"overlay.edges[{len(edges) - 1}][{end}]",)


def _brought(draw: random.Random, asked: dict[str, Any], node: Any) -> tuple[str, ...]:
    nodes = asked["overlay"]["nodes"]
    nodes.append(node)
    return (f"overlay.nodes[{len(nodes) - 1}]",)


def _mistype_node(draw: random.Random, _draft: Draft, asked: dict[str, Any], _features: np.ndarray) -> tuple[str, ...]:
    node: dict[str, Any] = {"id": NODES + 500, "features": [1.0] * FEATURES}
    match draw.randrange(6):
        case 0:
            node["id"] = draw.choice(_NO_IDS)
        case 1:
            node["features"] = draw.choice((None, True, 7, "x", 0.5))
        case 2:
            node["features"][draw.randrange(FEATURES)] = draw.choice(_NO_NUMBERS)
        case 3:
            del node[draw.choice(("id", "features"))]
        case 4:
            node[draw.choice(("Id", "feature", "edges", "", "x" * 3000))] = 1
        case _:
            return _brought(draw, asked, draw.choice((None, 3, "node", [node], [])))
    return _brought(draw, asked, node)


def _change_width(draw: random.Random, _draft: Draft, asked: dict[str, Any], _features: np.ndarray) -> tuple[str, ...]:
    width = draw.choice((0, 1, FEATURES - 1, FEATURES + 1, 5000))
    (place,) = _brought(draw, asked, {"id": NODES + 500, "features": [1.0] * width})
    return (f"{place}.features",)


def _exceed_float32(
    draw: random.Random, _draft: Draft, asked: dict[str, Any], _features: np.ndarray
) -> tuple[str, ...]:
    row, column = [1.0] * FEATURES, draw.randrange(FEATURES)
    row[column] = draw.choice((1e39, -1e300, 3.5e38))
    (place,) = _brought(draw, asked, {"id": NODES + 500, "features": row})
    return (f"{place}.features[{column}]",)


def _exceed_64_bits(
    draw: random.Random, _draft: Draft, asked: dict[str, Any], _features: np.ndarray
) -> tuple[str, ...]:
    value = draw.choice((2**63, -(2**63) - 1, 2**64, 10**40))
    overlay = asked["overlay"]
    match draw.randrange(3):
        case 0:
            asked["nodes"].append(value)
            return (f"nodes[{len(asked['nodes']) - 1}]",)
        case 1:
            overlay["edges"].append([0, value])
            return (f"overlay.edges[{len(overlay['edges']) - 1}][1]",)
        case _:
            return _brought(draw, asked, {"id": value, "features": [1.0] * FEATURES})


def _misname_a_column(
    draw: random.Random, _draft: Draft, asked: dict[str, Any], _features: np.ndarray
) -> tuple[str, ...]:
    named: dict[str, Any] = {"amount": 1.0, "hour": 2.0}
    wrong, value = draw.choice((
        ("Amount", 1.0), ("0", 1.0), ("", 1.0), ("x" * 3000, 1.0), ("place", 1.0), ("place", [1.0]),
        ("place", [1.0] * 4), ("age", [1.0, 2.0]), ("age", []), ("age", None), ("age", "1"), ("age", 1e39),
    ))  # fmt: skip
    named[wrong] = value
    (place,) = _brought(draw, asked, {"id": NODES + 500, "features": named})
    return (f"{place}.features",)


def _leave_out_a_column(
    draw: random.Random, _draft: Draft, asked: dict[str, Any], _features: np.ndarray
) -> tuple[str, ...]:
    left, other = draw.choice((("amount", "hour"), ("hour", "amount")))
    (place,) = _brought(draw, asked, {"id": NODES + 500, "features": {other: 1.0, "age": 3.0}})
    return (f"{place}.features.{left}",)


def _name_columns(draw: random.Random, draft: Draft, asked: dict[str, Any], features: np.ndarray) -> tuple[str, ...]:
    """Features by the names of columns, some left out: filled in for new nodes, and kept for stored ones."""
    _bring_one(draw, draft)
    if not draft.overridden:
        _override(draft, draw.randrange(NODES))
    asked.update(write_json(draft))
    overlay = asked["overlay"]
    for node, row in zip(overlay["nodes"], draft.rows, strict=True):
        node["features"] = _named(draw, row, draft.rows[0] is row, None)
    for node, row in zip(overlay["overrides"], draft.other_rows, strict=True):
        node["features"] = _named(draw, row, draw.random() < 0.5, features[node["id"]])
    return ()


def _named(draw: random.Random, row: list[float], all_given: bool, stored: np.ndarray | None) -> dict[str, Any]:
    """Columns by name; `row` gets what those that are left out have. `stored`: what they stay at; None: their fill."""
    named, start = dict[str, Any](), 0
    for column in COLUMNS:
        place = slice(start, start + column.width)
        start += column.width
        may_miss = stored is not None or column.fill is not None
        if may_miss and not all_given and draw.random() < 0.5:
            row[place] = stored[place].tolist() if stored is not None else list(column.fill or ())
            continue
        values = row[place]
        named[column.name] = values if column.width > 1 else values[0]
    return dict(draw.sample(list(named.items()), len(named)))


def _mistype_overlay(
    draw: random.Random, _draft: Draft, asked: dict[str, Any], _features: np.ndarray
) -> tuple[str, ...]:
    overlay = asked["overlay"]
    if draw.random() < 0.4:
        asked["overlay"] = draw.choice(([], [overlay], "x", True, 3, 0.5))
        return ("overlay",)
    if draw.random() < 0.5:
        name = draw.choice(("node", "Edges", "", "overlay", "x" * 3000))
        overlay[name] = []
        return (f"overlay.{name[:20]}",)
    field = draw.choice(("nodes", "edges", "overrides"))
    overlay[field] = draw.choice(_NO_LISTS)
    return (f"overlay.{field}",)


def _nest(draw: random.Random, _draft: Draft, asked: dict[str, Any], _features: np.ndarray) -> tuple[str, ...]:
    """A list in a list, as deep as a text may be: Python's own writer would not write it."""
    field = draw.choice(("nodes", "edges", "overrides"))
    asked["overlay"][field] = _DEEP
    return ("body", "overlay")


def _exceed_values(draw: random.Random, _draft: Draft, asked: dict[str, Any], _features: np.ndarray) -> tuple[str, ...]:
    many: list[Any] = draw.choice(([0] * 400_000, [[]] * 120_000, [[0, 0]] * 200_000))
    asked["overlay"][draw.choice(("nodes", "edges"))] = many
    return ("overlay",)


_DEEP = "a list in a list in a list"
_JSON: Mapping[str, tuple[float, JsonChange]] = {
    "edge of a wrong length": (4, _add_edge(lambda draw: draw.choice(([], [0], [0, 1, 2], [0] * 900)))),
    "edge that is no list": (3, _add_edge(lambda draw: draw.choice(_NO_LISTS))),
    "end that is no id": (4, _mistype_end),
    "node of wrong types": (8, _mistype_node),
    "features of a wrong length": (5, _change_width),
    "features beyond float32": (4, _exceed_float32),
    "id beyond 64 bits": (4, _exceed_64_bits),
    "column that there is not": (5, _misname_a_column),
    "column that is missing": (3, _leave_out_a_column),
    "features by name": (5, _name_columns),
    "overlay of wrong types": (6, _mistype_overlay),
    "deep nesting": (2, _nest),
    "far too many values": (0.3, _exceed_values),
}


def _make_json(draw: random.Random, form: Form, features: np.ndarray) -> Hostile:
    draft = drafted(draw, form)
    kinds = {MANGLED: 25.0, "names in escapes": 3.0}
    kinds |= {name: float(weight) for name, (weight, _) in _OF_DRAFTS.items()}
    kinds |= {name: weight for name, (weight, _) in _JSON.items()}
    kind = draw.choices(list(kinds), list(kinds.values()))[0]
    places: tuple[str, ...] = ()
    if kind in _OF_DRAFTS:
        places = _OF_DRAFTS[kind][1](draw, draft)
    asked = write_json(draft)
    if kind in _JSON:
        places = _JSON[kind][1](draw, draft, asked, features)
    body = json.dumps(asked, separators=(",", ":")).encode()
    if kind == "deep nesting":
        depth = draw.choice((30, 900, 5000, 100_000))
        body = body.replace(f'"{_DEEP}"'.encode(), b"[" * depth + b"]" * depth)
    if kind == "names in escapes":
        name = draw.choice(("overlay", "nodes", "edges", "features"))
        escaped = b"".join(b"\\u%04x" % ord(letter) for letter in name)
        body = body.replace(b'"%b"' % name.encode(), b'"%b"' % escaped)
    if kind == MANGLED:
        body = _mangle(draw, body, body.index(b'"overlay"'))
        return Hostile(form, kind, draft.variant, body, None, Wanted(read_json(body, features), _ANYWHERE))
    return Hostile(form, kind, draft.variant, body, None, _wanted(draft, kind, places))


def _wanted(draft: Draft, kind: str, places: tuple[str, ...]) -> Wanted:
    may_be_right = not places or kind == "enormous features"
    return Wanted(draft.meaning() if may_be_right else None, places)


def _mangle(draw: random.Random, body: bytes, kept: int) -> bytes:
    """Change bytes behind the first `kept` ones."""
    head, rest = body[:kept], body[kept:]
    match draw.randrange(5):
        case 0:
            return head + rest[: draw.randrange(len(rest))]
        case 1:
            changed = bytearray(rest)  # in place, so that lengths still fit
            for _ in range(draw.choice((1, 3))):
                changed[draw.randrange(len(changed))] = draw.randrange(256)
            return head + changed
        case 2:
            return head + splice(draw, rest, draw.choice(_LITERALS))
        case 3:
            return head + rest + draw.choice((b"\0", b"}", rest, b" " * 3000 + b"x"))
        case _:
            return head + flip(draw, rest)


# Arrays


def _make_arrays(draw: random.Random, form: Form, _features: np.ndarray) -> Hostile:
    draft = drafted(draw, form)
    kinds = {
        MANGLED: 12, "count below 0": 5, "enormous count": 5, "wrong count": 6, "too short": 8, "too long": 5,
        "features as float64": 4, "ids as int32": 4, "features as big-endian": 4, "features of a wrong length": 4,
    }  # fmt: skip
    kinds |= {name: weight for name, (weight, _) in _EVERYWHERE.items()}
    kind = draw.choices(list(kinds), list(kinds.values()))[0]
    places = _EVERYWHERE[kind][1](draw, draft) if kind in _EVERYWHERE else ("body",)
    counts = [len(draft.asked), len(draft.new), len(draft.edges), len(draft.overridden)]
    ids = [*draft.asked, *(end for edge in draft.edges for end in edge), *draft.overridden]
    values = [value for row in (*draft.rows, *draft.other_rows) for value in row]
    which, id_code, value_code = draw.randrange(4), "<q", "<f"
    match kind:
        case "count below 0":
            counts[which] = draw.choice((-1, -(2**63), -(2**40)))
        case "enormous count":
            counts[which] = draw.choice((2**20, 2**40, 2**62, 2**63 - 1))
        case "wrong count":
            counts[which] += draw.choice((1, 2, 7))
        case "features as float64":
            _bring_one(draw, draft)
            counts[1] = len(draft.new)
            values = [value for row in (*draft.rows, *draft.other_rows) for value in row]
            value_code = "<d"
        case "ids as int32":
            ids = [max(-(2**31), min(id_, 2**31 - 1)) for id_ in ids]
            id_code = "<i"
        case "features as big-endian":
            value_code = ">f"
        case "features of a wrong length":
            values += [1.0] * draw.choice((1, FEATURES - 1, FEATURES))
    body = struct.pack("<4q", *counts)
    body += b"".join(struct.pack(id_code, id_) for id_ in ids)
    body += b"".join(struct.pack(value_code, value) for value in values)
    match kind:
        case "too short":
            body = body[: draw.randrange(len(body))]
        case "too long":
            body += bytes(draw.choice((1, 4, 8, 3000)))
        case "mangled":
            body = _mangle(draw, body, 0)
    if kind in _EVERYWHERE:
        return Hostile(form, kind, draft.variant, body, None, _wanted(draft, kind, places))
    # Sizes are looked at before the length: a count may be refused for itself.
    places = _ANYWHERE if kind in {MANGLED, "features as big-endian"} else ("body", "nodes", "overlay.")
    return Hostile(form, kind, draft.variant, body, None, Wanted(read_arrays(body, draft.variant), places))


# Tensors of the Open Inference Protocol


@dataclass(slots=True)
class Tensor:
    name: str
    datatype: str
    shape: list[int]
    values: list[Any]

    def as_bytes(self) -> bytes:
        # By the element's own type, whatever the datatype says.
        return b"".join(struct.pack("<f" if isinstance(value, float) else "<q", value) for value in self.values)


def _tensors_of(draft: Draft) -> list[Tensor]:
    given = [Tensor("nodes", "INT64", [len(draft.asked)], [*draft.asked])]
    for name, ids, rows in (
        ("overlay.nodes", draft.new, draft.rows),
        ("overlay.overrides", draft.overridden, draft.other_rows),
    ):
        if ids:
            values = [float(value) for row in rows for value in row]
            given.append(Tensor(name, "INT64", [len(ids)], [*ids]))
            given.append(Tensor(f"{name}.features", "FP32", [len(ids), FEATURES], values))
    if draft.edges:
        ends = [end for edge in draft.edges for end in edge]
        given.append(Tensor("overlay.edges", "INT64", [len(draft.edges), 2], ends))
    return given


TensorChange = Callable[[random.Random, list[Tensor]], tuple[str, ...]]


def _mistype_tensor(draw: random.Random, given: list[Tensor]) -> tuple[str, ...]:
    tensor = draw.choice(given)
    tensor.datatype = draw.choice(("FP64", "INT32", "BYTES", "BOOL", "", "int64", "x" * 3000))
    return (tensor.name,)


def _misshape(draw: random.Random, given: list[Tensor]) -> tuple[str, ...]:
    tensor = draw.choice(given)
    tensor.shape = draw.choice((
        [], [-1], [2**62, 2**62], [*tensor.shape, 2], [tensor.shape[0] + 1, *tensor.shape[1:]], [0] * 40,
        [-1, FEATURES],
    ))  # fmt: skip
    return (tensor.name, "overlay.", "nodes", "body")


def _drop_a_row(_draw: random.Random, given: list[Tensor]) -> tuple[str, ...]:
    tensor = next(one for one in given if one.name.endswith(".features"))
    tensor.shape[0] -= 1
    tensor.values = tensor.values[: tensor.shape[0] * FEATURES]
    return (tensor.name,)


def _repeat_tensor(draw: random.Random, given: list[Tensor]) -> tuple[str, ...]:
    given.append(draw.choice(given))
    return (f"inputs[{len(given) - 1}].name",)


def _misname_tensor(draw: random.Random, given: list[Tensor]) -> tuple[str, ...]:
    place = draw.randrange(len(given))
    given[place].name = draw.choice(("overlay", "overlay.node", "Nodes", "", "edges", "\0", "x" * 3000))
    return (f"inputs[{place}].name",)


def _lose_nodes(_draw: random.Random, given: list[Tensor]) -> tuple[str, ...]:
    del given[0]
    return ("nodes",)


def _lose_features(_draw: random.Random, given: list[Tensor]) -> tuple[str, ...]:
    place = next(place for place, one in enumerate(given) if one.name.endswith(".features"))
    return (given.pop(place).name,)


def _lose_an_element(draw: random.Random, given: list[Tensor]) -> tuple[str, ...]:
    tensor = draw.choice(given)
    if draw.random() < 0.5:
        del tensor.values[-1:]
    else:
        tensor.values.append(tensor.values[0])
    return (tensor.name,)


_TENSORS: Mapping[str, tuple[int, TensorChange]] = {
    "wrong datatype": (6, _mistype_tensor),
    "wrong shape": (8, _misshape),
    "fewer rows than nodes": (4, _drop_a_row),
    "tensor twice": (4, _repeat_tensor),
    "tensor that there is not": (5, _misname_tensor),
    "no tensor of nodes": (2, _lose_nodes),
    "no features": (3, _lose_features),
    "elements unlike the shape": (7, _lose_an_element),
}
_NEED_FEATURES = frozenset(("fewer rows than nodes", "no features"))


def _make_tensors(draw: random.Random, form: Form, _features: np.ndarray) -> Hostile:
    draft = drafted(draw, form)
    kinds = {MANGLED: 15} | {name: weight for name, (weight, _) in {**_OF_DRAFTS, **_TENSORS}.items()}
    kind = draw.choices(list(kinds), list(kinds.values()))[0]
    places: tuple[str, ...] = ()
    if kind in _OF_DRAFTS:
        places = _OF_DRAFTS[kind][1](draw, draft)
    if kind in _NEED_FEATURES:
        _bring_one(draw, draft)
    given = _tensors_of(draft)
    if kind in _TENSORS:
        places = _TENSORS[kind][1](draw, given)
    body, json_bytes, kept = _WRITERS[form](draw, draft, given)
    if kind == MANGLED:
        body = _mangle(draw, body, kept)
        meaning = _READERS[form](body, json_bytes, draft.variant)
        return Hostile(form, kind, draft.variant, body, json_bytes, Wanted(meaning, _ANYWHERE))
    return Hostile(form, kind, draft.variant, body, json_bytes, _wanted(draft, kind, places))


_Written = tuple[bytes, int | None, int]
"""A body, the length of its JSON, and how much of it stays whole where the rest is mangled."""


def _write_in_json(_draw: random.Random, _draft: Draft, given: Sequence[Tensor]) -> _Written:
    inputs = [
        {"name": one.name, "datatype": one.datatype, "shape": one.shape, "data": one.values} for one in given
    ]  # fmt: skip
    body = json.dumps({"outputs": [{"name": "scores"}], "inputs": inputs}, separators=(",", ":")).encode()
    return body, None, body.index(b'"inputs"')


def _write_behind_json(_draw: random.Random, _draft: Draft, given: Sequence[Tensor]) -> _Written:
    behind = [one.as_bytes() for one in given]
    inputs = [
        {
            "name": one.name, "datatype": one.datatype, "shape": one.shape,
            "parameters": {"binary_data_size": len(data)},
        }
        for one, data in zip(given, behind, strict=True)
    ]  # fmt: skip
    text = json.dumps({"outputs": [{"name": "scores"}], "inputs": inputs}, separators=(",", ":")).encode()
    return b"".join((text, *behind)), len(text), text.index(b'"inputs"')


def _write_message(draw: random.Random, draft: Draft, given: Sequence[Tensor]) -> _Written:
    """A message whose fields that stay whole come first: messages that are joined are merged."""
    begin = ModelInferRequest(model_name=SERVICE, model_version=draft.variant)
    begin.outputs.add(name="scores")
    message, are_raw = ModelInferRequest(), draw.random() < 0.6
    for one in given:
        tensor = message.inputs.add(name=one.name, datatype=one.datatype, shape=one.shape)
        if are_raw:
            message.raw_input_contents.append(one.as_bytes())
        elif one.values and isinstance(one.values[0], float):
            tensor.contents.fp32_contents.extend(one.values)
        else:
            tensor.contents.int64_contents.extend(one.values)
    kept: bytes = begin.SerializeToString()
    return kept + message.SerializeToString(), None, len(kept)


_WRITERS = {Form.TENSORS: _write_in_json, Form.BEHIND: _write_behind_json, Form.GRPC: _write_message}


_READERS = {Form.TENSORS: read_tensors_of_json, Form.BEHIND: read_tensors_of_json, Form.GRPC: read_message}


_MAKERS: Mapping[Form, Callable[[random.Random, Form, np.ndarray], Hostile]] = {
    Form.JSON: _make_json,
    Form.ARRAYS: _make_arrays,
    Form.TENSORS: _make_tensors,
    Form.BEHIND: _make_tensors,
    Form.GRPC: _make_tensors,
}


# What came back


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    status: int
    """Of HTTP; that of gRPC as HTTP has it."""
    sentence: str
    """Of a refusal."""
    scores: np.ndarray | None
    """[nodes asked for, classes]; None: there are none in it."""


def why_wrong(hostile: Hostile, answer: Answer, is_right: Callable[[Meaning, np.ndarray], bool]) -> str:
    """Why this answer is wrong; empty: it is right. `is_right`: whether scores are those of what was asked."""
    wanted, sentence = hostile.wanted, answer.sentence
    if answer.status == 200:
        if wanted.meaning is None:
            return "it was accepted"
        is_answered = answer.scores is not None and is_right(wanted.meaning, answer.scores)
        return "" if is_answered else "other scores than the oracle's"
    if not 400 <= answer.status < 500:
        return f"status {answer.status}: {sentence}"
    if not wanted.places:
        return f"it is right, and was refused: {sentence}"
    is_told = sentence.startswith(wanted.places) and ": " in sentence
    return "" if is_told else f"the sentence does not begin with {' or '.join(wanted.places[:3])}: {sentence}"
