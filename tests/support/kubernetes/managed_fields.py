"""Server-side apply, as sigs.k8s.io/structured-merge-diff v6 has it: who owns which fields, and what an apply changes.

Pure: values in, values out. A set of fields is a tree of path elements as `fieldsV1` writes them (`f:spec`,
`k:{"name":"a"}`, `v:"x"`), with "." where the path itself is a member. What is not there: versions (each kind has one
here), lists with duplicates, and the cap of ten updaters.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, TypeAlias

import msgspec

Fields: TypeAlias = dict[str, Any]
MEMBER = "."


@dataclass(frozen=True, slots=True, eq=False)
class Type:
    """How values at a place are merged. Without a rule: mappings by field, lists and scalars as a whole."""

    rule: Literal["field", "map", "atomic", "list-map", "set"] = "field"
    keys: tuple[tuple[str, object], ...] = ()
    """Keys of a list-map: names, each with its default (None: it is required)."""
    children: Mapping[str, Type] = field(default_factory=dict)
    """Types by field name; "*" for values of a map, "[]" for entries of a list."""

    def of_field(self, name: str) -> Type:
        return self.children.get("*" if self.rule == "map" else name, PLAIN)

    @property
    def of_entry(self) -> Type:
        return self.children.get("[]", PLAIN)


PLAIN = Type()


class UntypedError(ValueError):
    """A value that cannot be merged: an entry without its key, or two of the same."""


# --- sets of fields


def union(left: Fields, right: Fields) -> Fields:
    both = {name: union(child, right[name]) if name in right else child for name, child in left.items()}
    return {**both, **{name: child for name, child in right.items() if name not in left}}


def difference(left: Fields, right: Fields) -> Fields:
    """The members of `left` that are not members of `right`."""
    kept: Fields = {}
    for name, child in left.items():
        if name == MEMBER:
            if MEMBER not in right:
                kept[name] = child
        elif rest := difference(child, right[name]) if name in right else child:
            kept[name] = rest
    return kept


def intersection(left: Fields, right: Fields) -> Fields:
    kept: Fields = {}
    for name, child in left.items():
        if name in right and (name == MEMBER or (rest := intersection(child, right[name]))):
            kept[name] = child if name == MEMBER else rest
    return kept


def encode(fields: Fields) -> Fields:
    """The set as `fieldsV1`, where a member without children is an empty mapping."""
    return {
        name: {} if name == MEMBER or child.keys() == {MEMBER} else encode(child)
        for name, child in sorted(fields.items())
    }


def decode(encoded: Fields) -> Fields:
    return {name: {} if name == MEMBER else decode(child) if child else {MEMBER: {}} for name, child in encoded.items()}


def paths(fields: Fields, above: str = "") -> Iterator[str]:
    """Paths as conflicts name them: `.spec.containers[name="a"].image`; members of a level before what is below it."""
    below = sorted((name, child) for name, child in fields.items() if name != MEMBER)
    for name, child in below:
        if MEMBER in child:
            yield above + _shown(name)
    for name, child in below:
        yield from paths(child, above + _shown(name))


def _shown(element: str) -> str:
    what, _, rest = element.partition(":")
    if what == "f":
        return f".{rest}"
    if what == "v":
        return f"[={rest}]"
    return "[" + ",".join(f"{name}={json.dumps(value)}" for name, value in json.loads(rest).items()) + "]"


# --- values


def fields_of(value: Any, type_: Type) -> Fields:
    """The fields that an applier of this value owns."""
    if type_.rule == "atomic" or not isinstance(value, dict | list):
        return {MEMBER: {}}
    if isinstance(value, list):
        if type_.rule not in {"list-map", "set"}:
            return {MEMBER: {}}
        entries = _entries(value, type_)
        return {name: {**fields_of(entry, type_.of_entry), MEMBER: {}} for name, entry in entries.items()}
    found: Fields = {}
    for name, item in value.items():
        below = fields_of(item, type_.of_field(name))
        if item is None or item == {} or type_.rule == "map":
            below = {**below, MEMBER: {}}
        if below:
            found[f"f:{name}"] = below
    return found


def merge(live: Any, declared: Any, type_: Type) -> Any:
    """What is declared over what there is."""
    if type_.rule == "atomic" or live == declared:
        return declared
    if isinstance(live, dict) and isinstance(declared, dict):
        merged = dict(live)
        for name, value in declared.items():
            merged[name] = merge(live[name], value, type_.of_field(name)) if name in live else value
        return merged
    if isinstance(live, list) and isinstance(declared, list) and type_.rule in {"list-map", "set"}:
        return _merge_entries(_entries(live, type_), _entries(declared, type_), type_)
    return declared


def _merge_entries(live: dict[str, Any], declared: dict[str, Any], type_: Type) -> list[Any]:
    """Merges in the declared order; an entry of others' keeps its place between those that both have."""
    shared = [name for name in declared if name in live]
    old, new = list(live), list(declared)
    merged: dict[str, Any] = {}

    def take(name: str) -> None:
        both = name in live and name in declared
        merged[name] = merge(live[name], declared[name], type_.of_entry) if both else {**live, **declared}[name]
        if shared and shared[0] == name:
            shared.pop(0)

    while old or new:
        if old and new:
            if old[0] == new[0]:
                take(old.pop(0))
                new.pop(0)
                continue
            if old[0] in declared and shared and shared[0] != old[0]:
                old.pop(0)  # its turn comes with the declared order
                continue
        if old:
            if old[0] not in declared:
                take(old.pop(0))
                continue
            if old[0] in merged:
                old.pop(0)
        if new:
            take(new.pop(0))
    return list(merged.values())


def without(value: Any, fields: Fields, type_: Type) -> Any:
    """The value less those members; None where nothing is left of it."""
    if type_.rule == "atomic" or not value:
        return None if isinstance(value, dict | list) else value
    if isinstance(value, list):
        if type_.rule not in {"list-map", "set"}:
            return None
        kept = [
            without(entry, below, type_.of_entry) if (below := fields.get(name)) else entry
            for name, entry in _entries(value, type_).items()
            if MEMBER not in fields.get(name, {})
        ]
        return kept or None
    if isinstance(value, dict):
        left = {}
        for name, item in value.items():
            below = fields.get(f"f:{name}", {})
            if MEMBER not in below:
                rest = without(item, below, type_.of_field(name)) if below else item
                if rest is not None or not below:
                    left[name] = rest
        return left or None
    return value


@dataclass(slots=True)
class Comparison:
    added: Fields = field(default_factory=dict)
    removed: Fields = field(default_factory=dict)
    modified: Fields = field(default_factory=dict)


_ABSENT: Any = object()


def compare(old: Any, new: Any, type_: Type) -> Comparison:
    found = Comparison()
    if old != new:
        _compare(old, new, type_, (), found)
    return found


def _compare(old: Any, new: Any, type_: Type, path: tuple[str, ...], found: Comparison) -> None:
    present = old if new is _ABSENT else new
    is_same_shape = old is _ABSENT or new is _ABSENT or isinstance(old, type(new))
    is_list = isinstance(present, list) and type_.rule in {"list-map", "set"}
    is_leaf = type_.rule == "atomic" or not (isinstance(present, dict) or is_list) or not is_same_shape
    before, after = ({} if side is _ABSENT else side for side in (old, new))
    if is_leaf or not (before or after):
        if old is _ABSENT:
            _insert(found.added, path)
        elif new is _ABSENT:
            _insert(found.removed, path)
        elif old != new:
            _insert(found.modified, path)
        return
    if is_list:
        left, right = (_entries(side or [], type_) for side in (before, after))
        for name in {**left, **right}:
            sides = left.get(name, _ABSENT), right.get(name, _ABSENT)
            if sides[0] != sides[1]:
                _compare(*sides, type_.of_entry, (*path, name), found)
    else:
        for name in {**before, **after}:
            sides = before.get(name, _ABSENT), after.get(name, _ABSENT)
            if sides[0] != sides[1]:
                _compare(*sides, type_.of_field(name), (*path, f"f:{name}"), found)
    if old is _ABSENT:
        _insert(found.added, path)
    elif new is _ABSENT:
        _insert(found.removed, path)


def _insert(fields: Fields, path: tuple[str, ...]) -> None:
    for element in path:
        fields = fields.setdefault(element, {})
    fields[MEMBER] = {}


def _entries(entries: list[Any], type_: Type) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for entry in entries:
        name = _element(entry, type_)
        if name in found:
            raise UntypedError(f"duplicate entries for key {_shown(name)}")
        found[name] = entry
    return found


def _element(entry: Any, type_: Type) -> str:
    if type_.rule == "set":
        return f"v:{_json(entry)}"
    values = tuple(entry.get(name, default) for name, default in type_.keys)
    if None in values:
        wanted = ", ".join(name for name, _ in type_.keys)
        raise UntypedError(f"associative list with keys has an element that omits one of its key fields: {wanted}")
    return _key(type_.keys, values)


@lru_cache(maxsize=10_000)
def _key(keys: tuple[tuple[str, object], ...], values: tuple[object, ...]) -> str:
    return f"k:{_json(dict(zip((name for name, _ in keys), values, strict=True)))}"


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True)


@lru_cache(maxsize=10_000)
def _declared_fields(encoded: bytes, type_: Type) -> tuple[Fields, Fields]:
    """All fields, and those that can be owned. The same is applied again and again; sets are never changed in place."""
    fields = fields_of(msgspec.json.decode(encoded), type_)
    return fields, difference(fields, _UNOWNED)


@lru_cache(maxsize=10_000)
def _decoded(encoded: bytes) -> Fields:
    return decode(msgspec.json.decode(encoded))


# --- managers


@dataclass(frozen=True, slots=True)
class Manager:
    name: str
    operation: Literal["Apply", "Update"]
    api_version: str
    subresource: str = ""


@dataclass(frozen=True, slots=True)
class Owned:
    fields: Fields
    time: str


Managers: TypeAlias = dict[Manager, Owned]


def decode_managers(metadata: Mapping[str, Any]) -> Managers:
    return {
        Manager(e["manager"], e["operation"], e["apiVersion"], e.get("subresource", "")):
            Owned(_decoded(msgspec.json.encode(e["fieldsV1"])), e["time"])
        for e in metadata.get("managedFields") or ()
    }  # fmt: skip


def encode_managers(managers: Managers) -> list[dict[str, Any]]:
    ordered = sorted(managers.items(), key=lambda found: (found[0].operation, found[1].time, found[0].name))
    return [
        {
            "manager": manager.name, "operation": manager.operation, "apiVersion": manager.api_version,
            "time": owned.time, "fieldsType": "FieldsV1", "fieldsV1": encode(owned.fields),
            **({"subresource": manager.subresource} if manager.subresource else {}),
        }
        for manager, owned in ordered
    ]  # fmt: skip


def _unowned() -> Fields:
    unowned: Fields = {f"f:{name}": {MEMBER: {}} for name in ("apiVersion", "kind", "metadata")}
    names = ("name", "namespace", "creationTimestamp", "selfLink", "uid", "generation", "managedFields",
             "resourceVersion")  # fmt: skip
    unowned["f:metadata"].update({f"f:{name}": {MEMBER: {}} for name in names})
    return unowned


_UNOWNED = _unowned()
"""Fields of any object that are never owned."""


@dataclass(frozen=True, slots=True)
class Conflict:
    manager: Manager
    path: str


class ConflictsError(Exception):
    def __init__(self, conflicts: list[Conflict]) -> None:
        super().__init__(f"{len(conflicts)} conflicts")
        self.conflicts = conflicts


def apply_declared(
    live: dict[str, Any], declared: dict[str, Any], type_: Type, managers: Managers, applier: Manager, now: str,
    *, force: bool,
) -> tuple[dict[str, Any], Managers]:  # fmt: skip
    """The object after the apply, and who owns what of it then. Raises ConflictsError unless forced."""
    last = managers[applier].fields if applier in managers else {}
    all_declared, declared_fields = _declared_fields(msgspec.json.encode(declared), type_)
    becomes = merge(live, declared, type_)
    if last != declared_fields and difference(last, declared_fields):
        becomes = _prune(becomes, type_, {**managers, applier: Owned(all_declared, now)}, last)
    owned = {**managers, applier: Owned(declared_fields, now)}
    others, _ = _take(live, becomes, type_, owned, applier, force=force)
    if applier in others and applier in managers and becomes == live:
        others[applier] = Owned(others[applier].fields, managers[applier].time)
    return becomes, others


def update(
    live: dict[str, Any], becomes: dict[str, Any], type_: Type, managers: Managers, updater: Manager, now: str
) -> Managers:
    """The owners of each field after a PUT, POST or merge patch has made `becomes` of `live`."""
    others, found = _take(live, becomes, type_, managers, None, force=True)
    took = difference(union(found.added, found.modified), _UNOWNED)
    if took:
        before = others[updater].fields if updater in others else {}
        others[updater] = Owned(union(before, took), now)
    return others


def _take(
    live: dict[str, Any],
    becomes: dict[str, Any],
    type_: Type,
    managers: Managers,
    taker: Manager | None,
    *,
    force: bool,
) -> tuple[Managers, Comparison]:
    found = compare(live, becomes, type_)
    changed = union(found.added, found.modified)
    lost = {manager: intersection(owned.fields, changed) for manager, owned in managers.items() if manager != taker}
    conflicts = [Conflict(manager, path) for manager, fields in lost.items() for path in paths(fields)]
    if conflicts and not force:
        raise ConflictsError(conflicts)
    left = {}
    for manager, owned in managers.items():
        fields = owned.fields
        if manager != taker:
            fields = difference(difference(fields, lost[manager]), found.removed)
        if fields:
            left[manager] = Owned(fields, owned.time)
    return left, found


def _prune(merged: dict[str, Any], type_: Type, managers: Managers, last: Fields) -> dict[str, Any]:
    """Remove what the applier applied last and no manager owns any more."""
    last = _with_named(last, type_)
    every = _with_named(fields_of(merged, type_), type_)
    owned: Fields = {}
    for manager in managers.values():
        owned = union(owned, manager.fields)
    pruned = without(merged, last, type_) or {}
    kept = union(_with_named(fields_of(pruned, type_), type_), _with_named(owned, type_))
    pruned = without(merged, difference(every, kept), type_) or {}
    kept = _with_named(fields_of(pruned, type_), type_)
    found: dict[str, Any] = without(merged, intersection(difference(every, kept), last), type_) or {}
    return found


def _with_named(fields: Fields, type_: Type) -> Fields:
    """The fields, and also the parents that are fields by name, and not keys of a map or entries of a list."""
    found: Fields = {}
    for name, child in fields.items():
        if name == MEMBER:
            found[name] = child
            continue
        below = type_.of_field(name[2:]) if name.startswith("f:") else type_.of_entry
        found[name] = _with_named(child, below)
        if name.startswith("f:") and type_.rule != "map":
            found[name][MEMBER] = {}
    return found
