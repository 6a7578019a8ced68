"""OpenAPI schemas of what requests may bring along: how each kind of overlays (`overlay.py`) is described."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_PLAIN, _OF_RELATIONS = "RequestOverlay", "TypedOverlay"
_PARTS = {_PLAIN: (_PLAIN,), _OF_RELATIONS: (_OF_RELATIONS, "TypedNodeFeatures")}
"""Schemas that only what is brought refers to, by that of the whole."""
_RECOMMENDS = "RecommendRequest"


@dataclass(frozen=True, slots=True)
class OverlaySchemas:
    asked: str
    """Schema of what a request of the task brings; empty: nothing."""
    recommended: str
    """The same of a request for recommendations."""

    def describe(self, schemas: dict[str, Any], request: str) -> None:
        """Change schemas (by name) in place. `request`: that of the task's requests."""
        for name, brought in ((request, self.asked), (_RECOMMENDS, self.recommended)):
            properties = schemas[name]["properties"]
            if brought != _PLAIN:  # which the structs of requests have
                del properties["overlay"]
            if brought and brought != _PLAIN:
                properties["overlay"] = {"$ref": f"#/components/schemas/{brought}"}
        for brought, parts in _PARTS.items():
            if brought not in {self.asked, self.recommended}:
                for part in parts:
                    del schemas[part]


PLAIN = OverlaySchemas(_PLAIN, _PLAIN)
OF_RELATIONS = OverlaySchemas(_OF_RELATIONS, _OF_RELATIONS)
FOLDED = OverlaySchemas("", _OF_RELATIONS)
"""Answers are about stored nodes alone, but what a request for recommendations joins a node to is folded in."""
NONE = OverlaySchemas("", "")
