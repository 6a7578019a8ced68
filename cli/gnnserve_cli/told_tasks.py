"""A task as a server tells of it: what its answers are, and what can be asked of it from the command line.

A task has a reader here, which finds it in `GET /v1/variants`; nothing else on the command line asks which one it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from msgspec import UnsetType

from gnnserve_api.errors import InputError
from gnnserve_api.files.links import LinksManifest
from gnnserve_api.http.protocol import VariantsAnswer
from gnnserve_cli.printable import printable_line

SHOWN_CLASSES = 12


class ToldTask(Protocol):
    @property
    def least_classes(self) -> int:
        """Fewest classes that such a service can have."""

    @property
    def least_features(self) -> int:
        """Fewest features of a node. Where embeddings of nodes are learned, all may be without any."""

    def describe_answers(self) -> str:
        """Line about what is answered."""

    def check_load(self, service: str) -> None:
        """Raises InputError where requests about nodes, as `gnnserve load` sends, are not answered."""


@dataclass(frozen=True, slots=True)
class ToldLinks:
    links: LinksManifest
    least_classes: int = 0
    least_features: int = 0

    def describe_answers(self) -> str:
        from gnnserve_cli.render import count  # noqa: PLC0415 - it brings rich, which a client does without

        scored, columns = printable_line(f"links {self.links.relation}".rstrip()), self.links.dimensions
        return f"{scored}: {self.links.decoder} of embeddings with {count(columns, 'column')}"

    def check_load(self, service: str) -> None:
        raise InputError(
            "URL",
            f"{service} scores pairs of nodes, and requests of this command are about nodes",
            "name a service that classifies nodes; `gnnserve predict URL --pairs …` asks this one",
        )


@dataclass(frozen=True, slots=True)
class ToldClasses:
    served: VariantsAnswer
    least_classes: int = 1

    @property
    def least_features(self) -> int:
        return 1 if isinstance(self.served.types, UnsetType) else 0

    def describe_answers(self) -> str:
        from gnnserve_cli.render import format_name  # noqa: PLC0415 - as there

        classes = self.served.classes
        names = ", ".join(map(format_name, classes[:SHOWN_CLASSES]))
        more = f", … {len(classes):,} altogether" if len(classes) > SHOWN_CLASSES else ""
        return f"{'labels' if self.served.multi_label else 'label'}: {names}{more}"

    def check_load(self, service: str) -> None:
        """Nodes are what it answers about."""


def _links(served: VariantsAnswer) -> ToldTask | None:
    return None if isinstance(served.links, UnsetType) else ToldLinks(served.links)


_READERS: tuple[Callable[[VariantsAnswer], ToldTask | None], ...] = (_links, ToldClasses)
"""The first that finds its task reads it."""


def told_task(served: VariantsAnswer) -> ToldTask:
    return next(found for read in _READERS if (found := read(served)) is not None)
