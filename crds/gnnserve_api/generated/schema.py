"""The CustomResourceDefinitions, generated from the types, so that the API server and `gnnserve` agree.

`python -m gnnserve_api.generated.schema` writes them, `--check` says whether they are up to date, `--json` prints the
schema of a GNNService's `spec`. From pydantic's JSON Schema to one that Kubernetes takes: `structural_schema.py`.
"""

from __future__ import annotations

import argparse
import inspect
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import yaml
from pydantic import BaseModel

from gnnserve_api.generated.generated_file import write_or_compare
from gnnserve_api.generated.structural_schema import (
    Enums,
    Schema,
    enums_of,
    structural,
    with_told_defaults,
    without_defaults,
)
from gnnserve_api.spec.pool import POOL_KIND, GNNWorkerPool, GNNWorkerPoolSpec
from gnnserve_api.spec.rules import rules_of
from gnnserve_api.spec.service import GROUP, KIND, VERSION, GNNService, GNNServiceSpec
from gnnserve_api.status.pool_status import GNNWorkerPoolStatus, PoolConditionType
from gnnserve_api.status.service_status import ConditionType, GNNServiceStatus

_ROOT = Path(__file__).resolve().parents[3]
_FOLDERS = (
    _ROOT / "crds",
    # Helm reads nothing outside of its chart.
    _ROOT / "charts/gnnserve/files",
)
_HEADER = (
    "# Generated from crds/gnnserve_api/spec/ by `python -m gnnserve_api.generated.schema`; do not edit.\n"
    "# `make generate` writes it, `make check` compares it.\n"
)


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of object that the API server is taught."""

    kind: str
    short_name: str
    model: type[BaseModel]
    """The whole object; its docstring describes the kind."""
    spec: type[BaseModel]
    status: type[BaseModel]
    replicas: str
    """Path of the number of replicas in `spec`, for `kubectl scale`."""
    columns: tuple[Schema, ...]
    """What `kubectl get` shows."""
    requires_spec: bool = True

    @property
    def singular(self) -> str:
        return self.kind.lower()

    @property
    def plural(self) -> str:
        return f"{self.singular}s"

    @property
    def file_name(self) -> str:
        return f"{GROUP}_{self.plural}.yaml"


def _column(name: str, kind: str, path: str, *, wide: bool = False) -> Schema:
    """A wide one shows in `kubectl get -o wide` only."""
    return {"name": name, "type": kind, "jsonPath": path, **({"priority": 1} if wide else {})}


def _condition(condition: ConditionType | PoolConditionType, field: str) -> str:
    return f'.status.conditions[?(@.type=="{condition}")].{field}'


SERVICE = Resource(
    KIND,
    "gnns",
    GNNService,
    GNNServiceSpec,
    GNNServiceStatus,
    ".spec.worker.replicas",
    (
        _column("Ready", "string", _condition(ConditionType.READY, "status")),
        _column("Available", "string", _condition(ConditionType.AVAILABLE, "status")),
        _column("Reason", "string", _condition(ConditionType.READY, "reason")),
        _column("Variants", "string", ".status.variantNames"),
        _column("Base", "string", ".status.baseVariant"),
        _column("Load", "string", _condition(ConditionType.CAPACITY_SUFFICIENT, "reason")),
        _column("Workers", "string", ".status.workers.ready"),
        _column("Age", "date", ".metadata.creationTimestamp"),
        _column("Architecture", "string", ".spec.model.architecture", wide=True),
        _column("URL", "string", ".status.endpoint", wide=True),
        _column("Revision", "string", ".status.revision", wide=True),
        _column("Message", "string", _condition(ConditionType.READY, "message"), wide=True),
    ),
)
POOL = Resource(
    POOL_KIND,
    "gnnp",
    GNNWorkerPool,
    GNNWorkerPoolSpec,
    GNNWorkerPoolStatus,
    ".spec.replicas",
    (
        _column("Ready", "string", _condition(PoolConditionType.READY, "status")),
        _column("Available", "string", _condition(PoolConditionType.AVAILABLE, "status")),
        _column("Reason", "string", _condition(PoolConditionType.READY, "reason")),
        _column("Services", "string", ".status.serviceNames"),
        _column("Fit", "string", _condition(PoolConditionType.SERVICES_FIT, "status")),
        _column("Memory", "string", ".status.memory"),
        _column("Workers", "string", ".status.workers.ready"),
        _column("Age", "date", ".metadata.creationTimestamp"),
        _column("Message", "string", _condition(PoolConditionType.READY, "message"), wide=True),
    ),
    requires_spec=False,
)
RESOURCES = (SERVICE, POOL)


def spec_schema(resource: Resource = SERVICE) -> Schema:
    """Structural schema of `spec`."""
    source = resource.spec.model_json_schema(by_alias=True)
    return structural(source, source.get("$defs", {}), _enums())


def status_schema(resource: Resource = SERVICE) -> Schema:
    """Structural schema of `status`."""
    source = resource.status.model_json_schema(by_alias=True)
    # Only its writer fills in a status: a default would state something that was never reported.
    return without_defaults(structural(source, source.get("$defs", {}), _enums()))


@lru_cache(maxsize=1)
def _enums() -> Enums:
    return enums_of(*(model for resource in RESOURCES for model in (resource.spec, resource.status)))


def crd(resource: Resource = SERVICE) -> Schema:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{resource.plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": resource.kind,
                "listKind": f"{resource.kind}List",
                "plural": resource.plural,
                "singular": resource.singular,
                "shortNames": [resource.short_name],
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
                            "specReplicasPath": resource.replicas,
                            "statusReplicasPath": ".status.workers.replicas",
                            "labelSelectorPath": ".status.workers.selector",
                        },
                    },
                    "additionalPrinterColumns": list(resource.columns),
                    "schema": {"openAPIV3Schema": _root(resource)},
                }
            ],
        },
    }


def crd_yaml(resource: Resource = SERVICE) -> str:
    return _HEADER + yaml.dump(crd(resource), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)


class _Dumper(yaml.SafeDumper):
    """No anchors: two equal parts of the schema stay two."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _represent_text)


def _root(resource: Resource) -> Schema:
    spec: Schema = {"description": _SPEC_WORDS[resource.kind], **with_told_defaults(spec_schema(resource))}
    # Kubernetes owns what is inside metadata; a schema may not describe it beyond its name.
    return {
        "type": "object",
        "description": inspect.getdoc(resource.model),
        **({"required": ["spec"]} if resource.requires_spec else {}),
        "x-kubernetes-validations": [rule.as_validation() for rule in rules_of(resource.model)],
        "properties": {
            "apiVersion": {"type": "string", "description": f"Version of this format: {GROUP}/{VERSION}."},
            "kind": {"type": "string", "description": f"Kind of the object: {resource.kind}."},
            "metadata": {"type": "object"},
            "spec": spec if resource.requires_spec else {**spec, "default": _defaults(spec)},
            "status": {"description": "Status of the object, as the operator last told.", **status_schema(resource)},
        },
    }


def _defaults(node: Schema) -> Schema:
    return {name: member["default"] for name, member in node["properties"].items() if "default" in member}


_SPEC_WORDS = {
    KIND: "Desired state of the service: graph, model and variants, and the pods that serve.",
    POOL_KIND: "Desired state of the pool: worker pods, and the repository of the revisions of services.",
}


# --- command


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m gnnserve_api.generated.schema", description="Write the CRD.")
    parser.add_argument("--check", action="store_true", help="exit with 1 when the file differs from the types")
    parser.add_argument("--json", action="store_true", help="print the structural schema of spec as JSON")
    parser.add_argument("--folder", type=Path, help="where the files go (default: crds/, and the chart's copies)")
    options = parser.parse_args(arguments)
    if options.json:
        print(json.dumps(spec_schema(), indent=2, ensure_ascii=False))
        return 0
    folders = _FOLDERS if options.folder is None else (options.folder,)
    return max(
        write_or_compare(folder / resource.file_name, crd_yaml(resource), check=options.check)
        for folder in folders
        for resource in RESOURCES
    )


if __name__ == "__main__":
    sys.exit(main())
