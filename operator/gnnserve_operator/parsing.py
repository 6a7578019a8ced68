"""Reading a live GNNService, or why it cannot be read."""

from __future__ import annotations

import json
from functools import lru_cache

from pydantic import ValidationError

from gnnserve_api.errors import InputError
from gnnserve_api.manifest import parse_manifest
from gnnserve_api.spec.service import GNNService
from gnnserve_operator.kinds import Manifest


def parse_service(raw: Manifest) -> GNNService | str:
    """The service, or all its problems: the API server accepted a spec that this version does not understand."""
    metadata = {name: raw["metadata"][name] for name in ("name", "namespace")}
    told = {name: raw[name] for name in ("apiVersion", "kind", "spec") if name in raw}
    return _parse_document(json.dumps(told | {"metadata": metadata}))


@lru_cache(maxsize=64)
def _parse_document(document: str) -> GNNService | str:
    """Parse a document; cached, since a service is reconciled several times in a row with the same spec."""
    try:
        return GNNService.model_validate_json(document, strict=True, by_alias=True, by_name=False)
    except ValidationError as invalid:
        try:
            parse_manifest(document, json.loads(document)["metadata"]["name"])  # for its sentences
        except InputError as error:
            return error.problem
        return str(invalid)
