"""Services with one-row variants that score links."""

from __future__ import annotations

from typing import Any

from gnnserve_api.spec.service import GNNService

BOTH = [{"hops": 0}, {"hops": 1}]
UPDATES = {"log": {"sqlite": {}}}


def links_service(source: dict[str, Any], links: dict[str, Any], **variants: Any) -> GNNService:
    document = {
        "apiVersion": "gnnserve.dev/v1alpha1",
        "kind": "GNNService",
        "metadata": {"name": "shop"},
        "spec": {
            "graph": {"source": source, "normalization": "Disabled"},
            "task": {"links": {"dimensions": 8, **links}},
            "model": {"hidden": 8, "fanouts": [4, 3], "training": {"epochs": 2}},
            "variants": {"oneRow": BOTH, **variants},
            "updates": UPDATES,
        },
    }
    return GNNService.model_validate(document)
