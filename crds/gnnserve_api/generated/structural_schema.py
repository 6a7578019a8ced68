"""JSON Schema, as pydantic writes it, to the structural OpenAPI v3.0 that a CRD has.

Kubernetes wants no references, no unions, booleans for exclusive bounds, and fills in defaults only inside objects that
exist or have a default themselves.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any, get_args

from pydantic import BaseModel

from gnnserve_api.docstrings import attribute_docstrings

Schema = dict[str, Any]
Enums = Mapping[str, type[StrEnum]]

_KEPT = (
    "type", "format", "enum", "pattern", "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems",
    "maxProperties", "required", "x-kubernetes-validations", "x-kubernetes-list-type", "x-kubernetes-list-map-keys",
    "x-kubernetes-int-or-string",
)  # fmt: skip


def structural(node: Mapping[str, Any], definitions: Mapping[str, Any], enums: Enums) -> Schema:
    """The node as Kubernetes wants it. `definitions`: what it refers to; `enums`: by name, for their members' lines."""
    node, enum_name = _without_indirection(node, definitions)
    result: Schema = {}
    description = " ".join(str(node.get("description", "")).split())
    if enum_name is not None:
        description = "\n".join([description, *_member_lines(enums[enum_name])]).strip()
    if description:
        result["description"] = description
    result |= {key: node[key] for key in _KEPT if key in node}
    for exclusive, inclusive in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if exclusive in node:
            result |= {inclusive: node[exclusive], exclusive: True}
    if any("self.matches" in rule["rule"] for rule in result.get("x-kubernetes-validations", ())):
        # Both would fail together, and the pattern's message is the incomprehensible one.
        result.pop("pattern", None)
    if "items" in node:
        result["items"] = structural(node["items"], definitions, enums)
    if isinstance(node.get("additionalProperties"), dict):
        result["additionalProperties"] = structural(node["additionalProperties"], definitions, enums)
    if "properties" in node:
        result["properties"] = {name: structural(p, definitions, enums) for name, p in node["properties"].items()}
    if result.get("type") == "object" and "properties" in result:
        if "required" not in node and node.get("default") is not None:
            # Members bring their own defaults, which complete a partly written object; said once more here, because
            # the API server holds a default against the rules before it completes it.
            members = result["properties"].items()
            result["default"] = {name: member["default"] for name, member in members if "default" in member}
    elif node.get("default") not in (None, [], {}):
        result["default"] = node["default"]
    return result


def without_defaults(node: Schema) -> Schema:
    """The schema with no default in it, at any depth."""
    return {
        key: without_defaults(value) if isinstance(value, dict) else value
        for key, value in node.items()
        if key != "default"
    }


def told_default(node: Mapping[str, Any]) -> str:
    """The default of a field as descriptions and the reference tell it."""
    return f"`{json.dumps(node['default'], ensure_ascii=False)}`".replace('"', "")


def with_told_defaults(node: Schema) -> Schema:
    """The schema with every default told in the description too: `kubectl explain` prints descriptions alone."""
    told = dict(node)
    for inner in ("items", "additionalProperties"):
        if isinstance(node.get(inner), dict):
            told[inner] = with_told_defaults(node[inner])
    if "properties" in node:
        told["properties"] = {name: with_told_defaults(child) for name, child in node["properties"].items()}
    if "default" in node:
        default = "the defaults of its fields" if node.get("type") == "object" else told_default(node)
        # Before the lines of an enumeration's members.
        text, *members = str(node.get("description", "")).split("\n")
        told["description"] = "\n".join([f"{text} Default: {default}.".lstrip(), *members])
    return told


def _without_indirection(node: Mapping[str, Any], definitions: Mapping[str, Any]) -> tuple[Schema, str | None]:
    """Follow `$ref` and drop the null of an optional field; the outer description and default win.

    The second value is the enum's name, where the schema was one.
    """
    result, enum_name = dict(node), None
    while "$ref" in result or "anyOf" in result:
        if "$ref" in result:
            name = str(result.pop("$ref")).rpartition("/")[2]
            inner = definitions[name]
            enum_name = name if "enum" in inner else enum_name
        else:
            members = [m for m in result.pop("anyOf") if m.get("type") != "null"]
            if len(members) != 1:
                raise ValueError(f"a structural schema holds no unions, found {members}")
            (inner,) = members
        result = {**inner, **result}
    return result, enum_name


def _member_lines(enum: type[StrEnum]) -> list[str]:
    """`- Value: docstring` of each member."""
    docstrings = attribute_docstrings(enum)
    lines = []
    for member in enum:
        text = " ".join(docstrings.get(member.name, "").split())
        lines.append(f"- {member.value}: {text}" if text else f"- {member.value}")
    return lines


def enums_of(*models: type[BaseModel]) -> Enums:
    """Every enum of the models, by name."""
    return {enum.__name__: enum for model in models for enum in _enums_in(model)}


def _enums_in(annotation: object) -> Iterator[type[StrEnum]]:
    if not isinstance(annotation, type):
        for part in get_args(annotation):
            yield from _enums_in(part)
    elif issubclass(annotation, StrEnum):
        yield annotation
    elif issubclass(annotation, BaseModel):
        for field in annotation.model_fields.values():
            yield from _enums_in(field.annotation)
