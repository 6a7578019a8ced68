"""The CustomResourceDefinition, generated from the types, so that the API server and `gnnserve` agree.

`python -m gnnserve_api.schema` writes it, `--check` says whether it is up to date, `--json` prints the schema of
`spec`. Pydantic gives JSON Schema; Kubernetes wants a *structural* OpenAPI v3.0 one (no references, no unions,
booleans for exclusive bounds), and fills in defaults only inside objects that exist or have a default themselves.
"""

from __future__ import annotations

import argparse
import inspect
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel

from gnnserve_api.docstrings import attribute_docstrings
from gnnserve_api.generated_file import write_or_compare
from gnnserve_api.spec.rules import rules_of
from gnnserve_api.spec.service import GROUP, KIND, VERSION, GNNService, GNNServiceSpec
from gnnserve_api.status import ConditionType, GNNServiceStatus

_ROOT = Path(__file__).resolve().parents[2]
CRD_PATHS = (
    _ROOT / "crds/gnnserve.dev_gnnservices.yaml",
    # Helm reads nothing outside of its chart.
    _ROOT / "charts/gnnserve/files/gnnserve.dev_gnnservices.yaml",
)
_HEADER = (
    "# Generated from crds/gnnserve_api/spec/ by `python -m gnnserve_api.schema`; do not edit.\n"
    "# `make generate` writes it, `make check` compares it.\n"
)
_KEPT = (
    "type", "format", "enum", "pattern", "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems",
    "maxProperties", "required", "x-kubernetes-validations", "x-kubernetes-list-type", "x-kubernetes-list-map-keys",
    "x-kubernetes-int-or-string",
)  # fmt: skip

Schema = dict[str, Any]


def spec_schema() -> Schema:
    """Structural schema of `spec`."""
    source = GNNServiceSpec.model_json_schema(by_alias=True)
    return _structural(source, source.get("$defs", {}))


def status_schema() -> Schema:
    """Structural schema of `status`."""
    source = GNNServiceStatus.model_json_schema(by_alias=True)
    # Only its writer fills in a status: a default would state something that was never reported.
    return _without_defaults(_structural(source, source.get("$defs", {})))


def crd() -> Schema:
    spec, status_ = spec_schema(), status_schema()
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"gnnservices.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": "gnnservices",
                "singular": "gnnservice",
                "shortNames": ["gnns"],
                "categories": ["gnn"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {
                        "status": {},
                        "scale": {
                            "specReplicasPath": ".spec.worker.replicas",
                            "statusReplicasPath": ".status.workers.replicas",
                            "labelSelectorPath": ".status.workers.selector",
                        },
                    },
                    "additionalPrinterColumns": [
                        _column("Ready", "string", _condition(ConditionType.READY, "status")),
                        _column("Reason", "string", _condition(ConditionType.READY, "reason")),
                        _column("Variants", "string", ".status.variantNames"),
                        _column("Base", "string", ".status.baseVariant"),
                        _column("Load", "string", _condition(ConditionType.CAPACITY_SUFFICIENT, "reason")),
                        _column("Workers", "string", ".status.workers.ready"),
                        _column("Age", "date", ".metadata.creationTimestamp"),
                        _column("Architecture", "string", ".spec.model.architecture", wide=True),
                        _column("Revision", "string", ".status.revision", wide=True),
                        _column("Message", "string", _condition(ConditionType.READY, "message"), wide=True),
                    ],
                    "schema": {"openAPIV3Schema": _root(spec, status_)},
                }
            ],
        },
    }


def crd_yaml() -> str:
    return _HEADER + yaml.dump(crd(), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)


class _Dumper(yaml.SafeDumper):
    """No anchors: two equal parts of the schema stay two."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _represent_text)


def _column(name: str, kind: str, path: str, *, wide: bool = False) -> Schema:
    """A wide one shows in `kubectl get -o wide` only."""
    return {"name": name, "type": kind, "jsonPath": path, **({"priority": 1} if wide else {})}


def _condition(condition: ConditionType, field: str) -> str:
    return f'.status.conditions[?(@.type=="{condition}")].{field}'


def _root(spec: Schema, status_: Schema) -> Schema:
    # Kubernetes owns what is inside metadata; a schema may not describe it beyond its name.
    return {
        "type": "object",
        "description": inspect.getdoc(GNNService),
        "required": ["spec"],
        "x-kubernetes-validations": [rule.as_validation() for rule in rules_of(GNNService)],
        "properties": {
            "apiVersion": {"type": "string", "description": f"{GROUP}/{VERSION}"},
            "kind": {"type": "string", "description": KIND},
            "metadata": {"type": "object"},
            "spec": {"description": "What is served, and how.", **spec},
            "status": {"description": "What the operator says about it.", **status_},
        },
    }


# --- JSON Schema to structural OpenAPI v3.0


def _structural(node: Mapping[str, Any], definitions: Mapping[str, Any]) -> Schema:
    node, enum_name = _without_indirection(node, definitions)
    result: Schema = {}
    description = " ".join(str(node.get("description", "")).split())
    if enum_name is not None:
        description = "\n".join([description, *_member_lines(enum_name)]).strip()
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
        result["items"] = _structural(node["items"], definitions)
    if isinstance(node.get("additionalProperties"), dict):
        result["additionalProperties"] = _structural(node["additionalProperties"], definitions)
    if "properties" in node:
        result["properties"] = {name: _structural(p, definitions) for name, p in node["properties"].items()}
    if result.get("type") == "object" and "properties" in result:
        if "required" not in node and node.get("default") is not None:
            # Members bring their own defaults, which complete a partly written object; said once more here, because
            # the API server holds a default against the rules before it completes it.
            members = result["properties"].items()
            result["default"] = {name: member["default"] for name, member in members if "default" in member}
    elif node.get("default") not in (None, [], {}):
        result["default"] = node["default"]
    return result


def _without_defaults(node: Schema) -> Schema:
    return {
        key: _without_defaults(value) if isinstance(value, dict) else value
        for key, value in node.items()
        if key != "default"
    }


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


def _member_lines(enum_name: str) -> list[str]:
    """`- Value: docstring` of each member."""
    enum = _enums()[enum_name]
    docstrings = attribute_docstrings(enum)
    lines = []
    for member in enum:
        text = " ".join(docstrings.get(member.name, "").split())
        lines.append(f"- {member.value}: {text}" if text else f"- {member.value}")
    return lines


@lru_cache(maxsize=1)
def _enums() -> dict[str, type[StrEnum]]:
    """Every enum of the resource, by name."""
    return {enum.__name__: enum for root in (GNNServiceSpec, GNNServiceStatus) for enum in _enums_in(root)}


def _enums_in(annotation: object) -> Iterator[type[StrEnum]]:
    if not isinstance(annotation, type):
        for part in get_args(annotation):
            yield from _enums_in(part)
    elif issubclass(annotation, StrEnum):
        yield annotation
    elif issubclass(annotation, BaseModel):
        for field in annotation.model_fields.values():
            yield from _enums_in(field.annotation)


# --- command


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m gnnserve_api.schema", description="Write the CRD.")
    parser.add_argument("--check", action="store_true", help="exit with 1 when the file differs from the types")
    parser.add_argument("--json", action="store_true", help="print the structural schema of spec as JSON")
    parser.add_argument("--path", type=Path, help="the file (default: the one in crds/ and the chart's copy)")
    options = parser.parse_args(arguments)
    if options.json:
        print(json.dumps(spec_schema(), indent=2, ensure_ascii=False))
        return 0
    paths = CRD_PATHS if options.path is None else (options.path,)
    return max(write_or_compare(path, crd_yaml(), check=options.check) for path in paths)


if __name__ == "__main__":
    sys.exit(main())
