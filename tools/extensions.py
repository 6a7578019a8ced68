"""Kinds of parts that are added again and again, with what exists of each: docs/extending.md has a section for each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gnnserve_api.pods.routing import RoutingMode
from gnnserve_api.spec.graph import GraphSource
from gnnserve_api.spec.pruning import RankingMethod
from gnnserve_api.status.service_status import ConditionType
from gnnserve_cli.render import METRIC_NAMES
from gnnserve_operator.desired.children import CHILDREN
from gnnserve_worker.asking.question import WISHES
from gnnserve_worker.generation.families.registry import PLANNERS
from gnnserve_worker.layers.convolutions.registry import KINDS
from gnnserve_worker.models.registry import ARCHITECTURES
from gnnserve_worker.serving.http.codecs.registry import CODECS
from gnnserve_worker.tables.formats import FORMATS
from gnnserve_worker.tasks.generation import TASKS

EXTENSIONS: Mapping[str, Iterable[object]] = {
    "A ranking method": RankingMethod,
    "An architecture": ARCHITECTURES,
    "A convolution of layers": KINDS,
    "A table format": FORMATS,
    "A graph source": GraphSource.model_fields,
    "A variant": [planner.__name__ for planner in PLANNERS],
    "A codec": dict.fromkeys(codec.content_type for codec in CODECS),
    "A wish": [wish.member for wish in WISHES],
    "A kind of child": [child.kind.name for child in CHILDREN],
    "A routing mode": RoutingMode,
    "A metric of accuracy": METRIC_NAMES,
    "A task": [asked.__name__ for asked in TASKS],
    "A condition": ConditionType,
}
"""Names of what there is, by the heading of the section."""


def today(heading: str) -> str:
    return f"Today: {', '.join(f'`{name}`' for name in EXTENSIONS[heading])}."
