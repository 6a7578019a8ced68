"""The API server's rules for a structural schema, and its defaulting, as far as our schema uses them.

https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#specifying-a-structural-schema
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any

import jsonschema

SELF = re.compile(r"\b(?:self|oldSelf)\.(\w+)")
SCALARS = {"string", "integer", "number", "boolean"}
ALLOWED = {
    "type", "description", "default", "enum", "pattern", "format", "minimum", "maximum", "exclusiveMinimum",
    "exclusiveMaximum", "minLength", "maxLength", "minItems", "maxItems", "required", "properties", "items",
    "x-kubernetes-validations", "x-kubernetes-list-type", "x-kubernetes-list-map-keys", "additionalProperties",
    "maxProperties", "x-kubernetes-int-or-string"
}  # fmt: skip


def violations(node: dict[str, Any], path: str = "") -> Iterator[str]:
    yield from (f"{path}: {problem}" for problem in _own_violations(node))
    for name, child in node.get("properties", {}).items():
        yield from violations(child, f"{path}.{name}")
    for inner in ("items", "additionalProperties"):
        if inner in node:
            yield from violations(node[inner], f"{path}[]")


def _own_violations(node: dict[str, Any]) -> Iterator[str]:
    kind, members = node.get("type"), node.get("properties", {})
    if unknown := set(node) - ALLOWED:
        yield f"keys {sorted(unknown)} are not part of a structural schema"
    if node.get("x-kubernetes-int-or-string"):
        if kind is not None:
            yield f"type {kind!r} beside int-or-string"
    elif kind not in SCALARS | {"object", "array"}:
        yield f"type {kind!r}"
    if "properties" in node and "additionalProperties" in node:
        yield "properties beside additionalProperties"
    if kind == "array" and "items" not in node:
        yield "an array without items"
    for bound in {"exclusiveMinimum", "exclusiveMaximum"} & set(node):
        if node[bound] is not True or bound.removeprefix("exclusive").lower() not in node:
            yield f"{bound} must be true beside its bound"
    if node.get("x-kubernetes-list-type") == "set" and node["items"]["type"] not in SCALARS:
        yield "a set of what is not scalar"
    if missing := set(node.get("required", ())) - set(members):
        yield f"requires {sorted(missing)}, which it does not have"
    read = {name for rule in node.get("x-kubernetes-validations", ()) for name in SELF.findall(rule["rule"])}
    if kind == "object" and (missing := read - set(members) - {"metadata"}):
        yield f"a rule reads {sorted(missing)}, which it does not have"
    if "default" in node:
        yield from (f"default: {error.message}" for error in validator(node).iter_errors(node["default"]))


def validator(schema: dict[str, Any]) -> jsonschema.Draft4Validator:
    """Draft 4 is the last with boolean exclusive bounds, as in OpenAPI v3.0."""
    return jsonschema.Draft4Validator(schema)


def with_defaults(value: Any, schema: dict[str, Any]) -> Any:
    if isinstance(value, dict):
        filled = dict(value)
        for name, child in schema.get("properties", {}).items():
            if name not in filled and "default" in child:
                filled[name] = copy.deepcopy(child["default"])
            if name in filled:
                filled[name] = with_defaults(filled[name], child)
        return filled
    return value


def rules(node: dict[str, Any]) -> Iterator[dict[str, str]]:
    yield from node.get("x-kubernetes-validations", ())
    for child in [*node.get("properties", {}).values(), *([node["items"]] if "items" in node else [])]:
        yield from rules(child)
