"""Sentences about wrong fields of a manifest: from pydantic's errors to words for the author."""

from __future__ import annotations

import difflib
import re
from types import NoneType
from typing import get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from gnnserve_api.docstrings import attribute_docstrings
from gnnserve_api.spec.service import GNNService
from gnnserve_api.wording import short, shown, whole

Location = tuple[int | str, ...]


def is_said_elsewhere(detail: ErrorDetails) -> bool:
    """Whether another message covers this error."""
    if detail["loc"][0] in {"apiVersion", "kind"}:
        return True
    # Pydantic counts a list's valid entries only; each invalid one has its own line.
    return detail["type"] == "too_short" and len(detail["input"]) >= detail["ctx"]["min_length"]


def describe(detail: ErrorDetails) -> str:
    """One sentence: the field, what was found, what was expected, what to do."""
    owner, location = _resolve(detail["loc"])
    path = _path(location)
    found, context, field = detail["input"], detail.get("ctx", {}), str(detail["loc"][-1])
    kind = detail["type"]
    if kind == "extra_forbidden":
        return f"{path}: unknown field (value {shown(found)}); {_nearest(field, owner)}"
    if kind == "missing":
        return f"{path}: missing; add it{_purpose(owner, field)}"
    if kind == "value_error":
        return f"{path}: {context['error']}{_value(found)}"
    if found is None:
        return f"{path}: is empty (null), expected {_expected(detail)}; give it a value or remove the line"
    return f"{path}: found {shown(found)}, expected {_expected(detail)}; {_remedy(detail, found)}"


def _value(found: object) -> str:
    """The value of a field that a sentence is about. A section too long to be shown whole is not shown by its first
    fields: those that the sentence is about are named in it."""
    text = shown(found)
    return "" if isinstance(found, dict) and text != whole(found) else f" (value {text})"


_TYPES = {
    "bool_type": "true or false",
    "int_type": "an integer",
    "int_from_float": "an integer",
    "int_parsing_size": "an integer",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "a string",
    "tuple_type": "a list",
    "model_type": "a mapping",
}

_BOUNDS = {
    "greater_than_equal": ("ge", "at least"),
    "greater_than": ("gt", "more than"),
    "less_than_equal": ("le", "at most"),
    "less_than": ("lt", "less than"),
    "too_short": ("min_length", "a list of at least"),
    "too_long": ("max_length", "a list of at most"),
    "string_too_short": ("min_length", "a string of a length of at least"),
    "string_too_long": ("max_length", "a string of a length of at most"),
    "string_pattern_mismatch": ("pattern", "a string that matches"),
    "enum": ("expected", ""),
    "literal_error": ("expected", ""),
}


def _expected(detail: ErrorDetails) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    if kind in _BOUNDS:
        key, words = _BOUNDS[kind]
        entries = " entries" if kind in {"too_short", "too_long"} else ""
        limit = context[key]
        shown = f"{limit:.10g}" if isinstance(limit, float) else str(limit)
        return f"{words} {shown}{entries}".strip()
    if kind in _TYPES:
        return _TYPES[kind]
    return detail["msg"].removeprefix("Input should be ")


def _remedy(detail: ErrorDetails, found: object) -> str:
    kind, location = detail["type"], detail["loc"]
    if kind == "enum":
        return _nearest_choice(str(found), re.findall(r"'([^']*)'", str(detail.get("ctx", {})["expected"])))
    if kind in {"int_type", "float_type"} and isinstance(found, str):
        kind = "number_in_quotes"
    if kind == "string_type" and isinstance(found, list | dict):
        kind = "string_from_collection"
    if kind == "tuple_type" and location[-1] == "storage":
        kind = "storages"
    if kind == "string_pattern_mismatch":
        kind = "name" if location[0] == "metadata" else str(location[-1])
    return _REMEDIES.get(kind, "correct it")


_REMEDIES = {
    "number_in_quotes": "write a plain number, without quotes or leading zeros",
    "string_type": "put it in quotes",
    "string_from_collection": "write a single value",
    "tuple_type": "write it as [1, 2, 4]",
    "storages": "write it as [float32, int8]",
    "model_type": "write its fields, indented, on the lines below",
    "claimName": "give the name of an object in the service's namespace",
    "storageClassName": "give the name of a StorageClass",
    "mountPath": "write an absolute path without ':', as in /data",
    "storage": "write a size, as in 10Gi",
    "gpuMemory": "write a size, as in 40Gi",
    "resourceName": "give the name that the node advertises, as in nvidia.com/gpu",
    "name": "use lower-case letters, digits and '-', a letter first, as in digits-2",
}


def _nearest_choice(found: str, choices: list[str]) -> str:
    by_lowercase = {choice.lower(): choice for choice in choices}
    near = difflib.get_close_matches(found.lower(), by_lowercase, n=1)
    return f"did you mean {by_lowercase[near[0]]}?" if near else "choose one of these"


def _nearest(field: str, owner: type[BaseModel] | None) -> str:
    known = _aliases(owner) if owner is not None else {}
    if not known:
        return "remove it"
    by_lowercase = {name.lower(): name for name in known}
    # Without underscores: snake_case is the likeliest slip of who knows the Python names.
    near = difflib.get_close_matches(field.lower().replace("_", ""), by_lowercase, n=1)
    return f"did you mean `{by_lowercase[near[0]]}`?" if near else f"known fields here: {', '.join(known)}"


def _purpose(owner: type[BaseModel] | None, field: str) -> str:
    if owner is None:
        return ""
    names = {info.alias or name: name for name, info in owner.model_fields.items()}
    purpose = attribute_docstrings(owner).get(names.get(field, ""))
    return f": {' '.join(purpose.split())}" if purpose else ""


# --- pydantic's locations


def _resolve(raw: Location) -> tuple[type[BaseModel] | None, Location]:
    """The model that owns the last step of a location, and the location without pydantic's own steps.

    Pydantic adds steps that no user wrote, such as the member of a union it tried; those name no field.
    """
    model: type[BaseModel] | None = GNNService
    kept: list[int | str] = []
    owner: type[BaseModel] | None = None
    for position, step in enumerate(raw):
        known = _aliases(model) if model is not None else {}
        is_last = position == len(raw) - 1
        if isinstance(step, str) and step not in known and not is_last:
            continue
        kept.append(step)
        owner = model
        if isinstance(step, str) and step in known:
            model = _model_of(known[step])
    return owner, tuple(kept)


def _aliases(model: type[BaseModel]) -> dict[str, FieldInfo]:
    return {info.alias or name: info for name, info in model.model_fields.items()}


def _model_of(info: FieldInfo) -> type[BaseModel] | None:
    candidates = [a for a in (get_args(info.annotation) or (info.annotation,)) if a is not NoneType]
    return next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), None)


def _path(location: Location) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{short(step)}" for step in location).removeprefix(".")
