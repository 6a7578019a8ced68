"""The CustomResourceDefinition, generated from the types, so that the API server and `gnnserve` agree.

`python -m gnnserve_api.schema` writes it, `--check` says whether it is up to date, `--json` prints the schema of
`spec`. Pydantic gives JSON Schema; Kubernetes wants a *structural* OpenAPI v3.0 one (no references, no unions,
booleans for exclusive bounds), and fills in defaults only inside objects that exist or have a default themselves.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import sys
import textwrap
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

import yaml

from gnnserve_api import gnnservice
from gnnserve_api.generated_file import write_or_compare
from gnnserve_api.gnnservice import GROUP, KIND, VERSION, GNNService, GNNServiceSpec

CRD_PATH = Path(__file__).resolve().parent.parent / "gnnserve.dev_gnnservices.yaml"
_HEADER = (
    "# Generated from crds/gnnserve_api/gnnservice.py by `python -m gnnserve_api.schema`; do not edit.\n"
    "# `make generate` writes it, `make check` compares it.\n"
)
_KEPT = (
    "type", "format", "enum", "pattern", "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems",
    "required", "x-kubernetes-validations", "x-kubernetes-list-type",
)  # fmt: skip

Schema = dict[str, Any]


def spec_schema() -> Schema:
    """Structural schema of `spec`."""
    source = GNNServiceSpec.model_json_schema(by_alias=True)
    return _structural(source, source.get("$defs", {}))


def crd() -> Schema:
    spec = spec_schema()
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
                    "additionalPrinterColumns": [
                        _column("Architecture", "string", ".spec.model.architecture"),
                        _column("Method", "string", ".spec.variants.pruning.method"),
                        _column("Factors", "string", ".spec.variants.pruning.factors"),
                        _column("Age", "date", ".metadata.creationTimestamp"),
                    ],
                    "schema": {"openAPIV3Schema": _root(spec)},
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


def _column(name: str, kind: str, path: str) -> Schema:
    return {"name": name, "type": kind, "jsonPath": path}


def _root(spec: Schema) -> Schema:
    # Kubernetes owns what is inside metadata; a schema may not describe it beyond its name.
    return {
        "type": "object",
        "description": inspect.getdoc(GNNService),
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string", "description": f"{GROUP}/{VERSION}"},
            "kind": {"type": "string", "description": KIND},
            "metadata": {"type": "object"},
            "spec": {"description": "What is served, and how.", **spec},
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
    if "items" in node:
        result["items"] = _structural(node["items"], definitions)
    if "properties" in node:
        result["properties"] = {name: _structural(p, definitions) for name, p in node["properties"].items()}
    if result.get("type") == "object":
        # Members bring their own defaults, so that a partly written object is completed too.
        if "required" not in node and "default" in node:
            result["default"] = {}
    elif node.get("default") is not None:
        result["default"] = node["default"]
    return result


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
    """`- Value: docstring` of each member; the docstrings exist only in the source."""
    enum = getattr(gnnservice, enum_name)
    (class_body,) = ast.parse(textwrap.dedent(inspect.getsource(enum))).body
    statements = class_body.body if isinstance(class_body, ast.ClassDef) else []
    lines = []
    for statement, following in zip(statements, [*statements[1:], None], strict=True):
        if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
            continue
        member: StrEnum = enum[statement.targets[0].id]
        doc = following.value if isinstance(following, ast.Expr) else None
        text = " ".join(doc.value.split()) if isinstance(doc, ast.Constant) and isinstance(doc.value, str) else ""
        lines.append(f"- {member.value}: {text}" if text else f"- {member.value}")
    return lines


# --- command


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m gnnserve_api.schema", description="Write the CRD.")
    parser.add_argument("--check", action="store_true", help="exit with 1 when the file differs from the types")
    parser.add_argument("--json", action="store_true", help="print the structural schema of spec as JSON")
    parser.add_argument("--path", type=Path, default=CRD_PATH, help="the file (default: the one in crds/)")
    options = parser.parse_args(arguments)
    if options.json:
        print(json.dumps(spec_schema(), indent=2, ensure_ascii=False))
        return 0
    return write_or_compare(options.path, crd_yaml(), check=options.check)


if __name__ == "__main__":
    sys.exit(main())
