"""Whether a live object is as a manifest declares it; pure.

The API server fills in defaults, rewrites quantities and leaves out what is empty, so equality would never hold:
what is declared must be found, and more may be there. A field that a manifest no longer declares is not seen here;
`apply.py` sees it by the digest of what was applied last.
"""

from __future__ import annotations

from typing import Any

from gnnserve_api.quantity import parse_quantity

_QUANTITIES = {"requests", "limits", "sizeLimit", "divisor"}
"""Fields that hold quantities; elsewhere "1" and "1000m" are two texts."""
_WHOLE = {"selector", "nodeSelector", "podSelector", "namespaceSelector", "labelSelector", "matchLabels"}
"""Fields that one manager owns as a whole (atomic, to server-side apply): one label more, and others are selected."""


def is_declared(desired: object, live: object, field: str = "", *, holds_quantities: bool = False) -> bool:
    """Whether everything in `desired` is in `live`; lists are compared by position. `field` is where they are."""
    holds_quantities = holds_quantities or field in _QUANTITIES
    if isinstance(desired, dict):
        found = live if isinstance(live, dict) else {}
        if (desired and live is not found) or (field in _WHOLE and not found.keys() <= desired.keys()):
            return False
        return all(
            is_declared(value, found.get(key), key, holds_quantities=holds_quantities) for key, value in desired.items()
        )
    if isinstance(desired, list | tuple):
        entries = live if isinstance(live, list | tuple) else ()
        return len(entries) == len(desired) and all(
            is_declared(ours, theirs, holds_quantities=holds_quantities)
            for ours, theirs in zip(desired, entries, strict=True)
        )
    if desired is None or desired == "":  # which the API server leaves out
        return live is None or live == ""
    return _is_equal(desired, live, holds_quantities=holds_quantities)


def _is_equal(desired: object, live: object, *, holds_quantities: bool) -> bool:
    if holds_quantities and live is not None:
        ours, theirs = parse_quantity(desired), parse_quantity(live)
        if ours is not None and theirs is not None:
            return ours == theirs
    return desired == live and isinstance(desired, bool) == isinstance(live, bool)


def without_empty(value: Any) -> Any:
    """The value as the API server would keep it: no nulls and no empty texts, lists or mappings in mappings."""
    if isinstance(value, dict):
        kept = {key: without_empty(item) for key, item in value.items()}
        return {key: item for key, item in kept.items() if item not in (None, "", [], {})}
    if isinstance(value, list | tuple):
        return [without_empty(item) for item in value]
    return value
