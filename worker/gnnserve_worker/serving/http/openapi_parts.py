"""Parts that descriptions of endpoints are made of, for `openapi.py` and the endpoints that describe themselves."""

from __future__ import annotations

from typing import Any

import msgspec

from gnnserve_api.http.protocol import ErrorAnswer

REFERENCE = "#/components/schemas/{name}"
RETRY_AFTER = {"Retry-After": {"description": "Seconds to wait before another attempt.", "schema": {"type": "integer"}}}


def json_content(type_: type[msgspec.Struct], example: Any = None) -> dict[str, Any]:
    media: dict[str, Any] = {"schema": {"$ref": REFERENCE.format(name=type_.__name__)}}
    return {"application/json": media if example is None else {**media, "example": example}}


def either_json(*types: type[msgspec.Struct]) -> dict[str, Any]:
    """A body of one of these types, which the service says."""
    return {"application/json": {"schema": {"oneOf": [{"$ref": REFERENCE.format(name=one.__name__)} for one in types]}}}


def header(name: str, description: str, type_: str, bounds: dict[str, Any] | None = None) -> dict[str, Any]:
    schema = {"type": type_, **(bounds or {})}
    return {"name": name, "in": "header", "description": description, "schema": schema}


def query_number(name: str, description: str, **schema: int) -> dict[str, Any]:
    """A parameter of the query: a whole number."""
    return {"name": name, "in": "query", "description": description, "schema": {"type": "integer", **schema}}


def told(description: str, example: str) -> dict[str, Any]:
    return {"description": description, "schema": {"type": "string"}, "example": example}


def error_response(description: str, headers: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "description": description,
        "content": json_content(ErrorAnswer),
        **({"headers": headers} if headers else {}),
    }


def to_openapi_30(schema: Any) -> Any:
    """3.0 has no null type: an alternative to null becomes `nullable`. Nor has it tuples."""
    if isinstance(schema, list):
        return [to_openapi_30(entry) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    converted = {key: to_openapi_30(value) for key, value in schema.items()}
    if converted.get("required") == []:
        del converted["required"]
    if "prefixItems" in converted:  # a pair, whose ends are alike
        converted["items"] = converted.pop("prefixItems")[0]
    alternatives = converted.get("anyOf", [])
    if {"type": "null"} in alternatives:
        rest = [alternative for alternative in alternatives if alternative != {"type": "null"}]
        del converted["anyOf"]
        if len(rest) == 1 and "$ref" not in rest[0]:
            # `nullable` counts only beside the type that it belongs to.
            return {**converted, **rest[0], "nullable": True}
        return {**converted, "allOf" if len(rest) == 1 else "anyOf": rest, "nullable": True}
    return converted
