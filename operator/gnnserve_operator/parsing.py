"""Reading a live GNNService or GNNWorkerPool, or why it cannot be read.

The API server may accept a spec that this version of the operator does not understand.
"""

from __future__ import annotations

import json
from functools import lru_cache

from pydantic import ValidationError

from gnnserve_api import manifest
from gnnserve_api.errors import InputError
from gnnserve_api.spec.pool import GNNWorkerPool
from gnnserve_api.spec.service import GNNService
from gnnserve_operator.kinds import Manifest


def parse_service(raw: Manifest) -> GNNService | str:
    """The service, or all its problems."""
    return _parse_service(_document(raw))


def parse_pool(raw: Manifest) -> GNNWorkerPool | str:
    """The pool, or why it cannot be read."""
    return _parse_pool(_document(raw))


def _document(raw: Manifest) -> str:
    metadata = {name: raw["metadata"][name] for name in ("name", "namespace")}
    told = {name: raw[name] for name in ("apiVersion", "kind", "spec") if name in raw}
    return json.dumps(told | {"metadata": metadata})


@lru_cache(maxsize=64)
def _parse_service(document: str) -> GNNService | str:
    """Parse a document; cached, since a service is reconciled several times in a row with the same spec."""
    try:
        return GNNService.model_validate_json(document, strict=True, by_alias=True, by_name=False)
    except ValidationError as invalid:
        try:
            manifest.parse_manifest(document, json.loads(document)["metadata"]["name"])  # for its sentences
        except InputError as error:
            return error.problem
        return str(invalid)


@lru_cache(maxsize=64)
def _parse_pool(document: str) -> GNNWorkerPool | str:
    try:
        return manifest.parse_pool(manifest.Document("spec", json.loads(document)))
    except InputError as error:
        return error.problem
