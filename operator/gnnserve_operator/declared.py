"""Comparing a live object with its manifest, field by field. Pure.

The API server fills in defaults, rewrites quantities and leaves out empty values, so a live object never equals its
manifest: every declared field must be in the live object, which may have more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gnnserve_api.quantity import parse_quantity
from gnnserve_operator.kinds import Manifest, Raw

Path = tuple[str | int, ...]
"""Names of fields and positions in lists, from the object down to a field."""

_QUANTITIES = {"requests", "limits", "sizeLimit", "divisor"}
"""Fields that hold quantities; elsewhere "1" and "1000m" are two texts."""
_WHOLE = {"selector", "nodeSelector", "podSelector", "namespaceSelector", "labelSelector", "matchLabels"}
"""Fields that one manager owns as a whole (atomic in server-side apply): with one more label they select other
objects."""

_NOT_CONTENT = {"resourceVersion", "generation", "managedFields", "creationTimestamp"}


@dataclass(frozen=True, slots=True)
class FieldDifference:
    path: Path
    declared: Any
    found: Any
    """Value in the live object; None: it has no such field."""


def is_declared(desired: object, live: object) -> bool:
    """Whether everything in `desired` is in `live`."""
    return next(differences(desired, live), None) is None


def differences(
    desired: object, live: object, path: Path = (), *, holds_quantities: bool = False
) -> Iterator[FieldDifference]:
    """The declared fields that the live object does not have as declared, in the order of the manifest. Lists are
    compared by position; one of another length differs as a whole. `path`: of what is compared."""
    field = path[-1] if path else ""
    holds_quantities = holds_quantities or field in _QUANTITIES
    if isinstance(desired, dict):
        found = live if isinstance(live, dict) else {}
        if (desired and live is not found) or (field in _WHOLE and not found.keys() <= desired.keys()):
            yield FieldDifference(path, desired, live)
            return
        for key, value in desired.items():
            yield from differences(value, found.get(key), (*path, key), holds_quantities=holds_quantities)
    elif isinstance(desired, list | tuple):
        entries = live if isinstance(live, list | tuple) else ()
        if len(entries) != len(desired):
            yield FieldDifference(path, desired, live)
            return
        for position, (ours, theirs) in enumerate(zip(desired, entries, strict=True)):
            yield from differences(ours, theirs, (*path, position), holds_quantities=holds_quantities)
    elif desired is None or desired == "":  # the API server leaves these out
        if not (live is None or live == ""):
            yield FieldDifference(path, desired, live)
    elif not _is_equal(desired, live, holds_quantities=holds_quantities):
        yield FieldDifference(path, desired, live)


def _is_equal(desired: object, live: object, *, holds_quantities: bool) -> bool:
    if holds_quantities and live is not None:
        ours, theirs = parse_quantity(desired), parse_quantity(live)
        if ours is not None and theirs is not None:
            return ours == theirs
    return desired == live and isinstance(desired, bool) == isinstance(live, bool)


def content_of(live: Raw) -> Manifest:
    """The fields of a live object that a person could have edited: no status, and no metadata of the API server's."""
    metadata = {name: value for name, value in live["metadata"].items() if name not in _NOT_CONTENT}
    return {**{name: value for name, value in live.items() if name != "status"}, "metadata": metadata}


def without_empty(value: Any) -> Any:
    """The value as the API server would keep it: no nulls and no empty texts, lists or mappings in mappings."""
    if isinstance(value, dict):
        kept = {key: without_empty(item) for key, item in value.items()}
        return {key: item for key, item in kept.items() if item not in (None, "", [], {})}
    if isinstance(value, list | tuple):
        return [without_empty(item) for item in value]
    return value
