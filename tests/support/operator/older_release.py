"""What was installed before: the CRD, and what the operator made of some specs under it.

`operator/older/crd.json` is the CRD of commit 99f4a40 less its descriptions; `operator/older/templates.json` says what
that commit's operator built. A release that changes a worker's template restarts every pod at the upgrade of the
operator: whoever means to do that writes the file anew and says so in CHANGELOG.md.

`operator/older/recipes.json` says what commit 32d8c2e made of many more specs, each with the defaults that its API
server had filled in: the recipe, the Job's name, which follows from the Job's pod template, and the SHA-256 of the
worker's pod template. Entries never change; a release adds the fields that it introduced.

`operator/older/pools.json` says what commit ad6965a made of some pools and their services: the SHA-256 of each child.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Manifest = dict[str, Any]
_HERE = Path(__file__).parent / "older"


@dataclass(frozen=True, slots=True)
class Built:
    """What the older operator built for a service of that name with the image worker:1."""

    spec: Manifest
    worker: Manifest
    job: str
    generation: Manifest


@dataclass(frozen=True, slots=True)
class Released:
    """What became of a stored spec, for a service of that name in the namespace default with the image worker:1."""

    spec: Manifest
    recipe: str
    job: str
    worker: str


@dataclass(frozen=True, slots=True)
class BuiltPool:
    """What an operator built for a GNNWorkerPool `shared` in the namespace default with the image worker:1."""

    spec: Manifest
    services: dict[str, Manifest]
    """Specs of its services, which answer from port 20,000 on."""
    children: dict[str, str]
    """Digest of each child, by its kind."""


def older_pools() -> dict[str, BuiltPool]:
    return {name: BuiltPool(**built) for name, built in json.loads((_HERE / "pools.json").read_text()).items()}


def released_specs() -> dict[str, Released]:
    return {name: Released(**built) for name, built in json.loads((_HERE / "recipes.json").read_text()).items()}


def older_crd() -> Manifest:
    return dict(json.loads((_HERE / "crd.json").read_text()))


def older_services() -> dict[str, Built]:
    return {name: Built(**built) for name, built in json.loads((_HERE / "templates.json").read_text()).items()}
