"""The parts of a GNNService that a Job is handed, as the manifest in its environment: the fields that are for it."""

from __future__ import annotations

import json
from typing import Any

from gnnserve_api.spec.audience import Audience, selection, without_empty_parts
from gnnserve_api.spec.service import API_VERSION, KIND, GNNServiceSpec
from gnnserve_operator.desired.metadata import Parent


def handed(spec: GNNServiceSpec, audience: Audience) -> dict[str, Any]:
    """The spec's fields for that audience. Defaults are left out, so that an operator which knows a new field asks for
    the same Job as its predecessor."""
    selected = selection(GNNServiceSpec, audience)
    parts = spec.model_dump(mode="json", by_alias=True, exclude_defaults=True, include=selected)
    return without_empty_parts(parts, selected)


def as_manifest(parent: Parent, parts: dict[str, Any]) -> str:
    document = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": parent.name, "namespace": parent.namespace},
        "spec": parts,
    }
    return json.dumps(document, sort_keys=True, separators=(",", ":"))
