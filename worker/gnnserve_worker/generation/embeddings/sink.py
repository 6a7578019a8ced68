"""A sink of embeddings: a database of the user's that has the embeddings of one revision at a time.

A sink gets all rows of a revision and makes them visible at once; until then, and whatever fails meanwhile, its readers
see the revision before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from gnnserve_api.errors import ResourceError

Ids = Sequence[int] | Sequence[str]
Block = tuple[Ids, np.ndarray]
"""Ids of nodes, and their embeddings: float32 [nodes, columns]."""
OnRows = Callable[[int], None]
"""Called with the number of rows that were sent so far."""


class SinkError(ResourceError):
    """The sink did not take the embeddings; what it had before it still has. A later attempt may succeed."""


@dataclass(frozen=True, slots=True)
class RevisionEmbeddings:
    """The embeddings of a revision, and where they come from."""

    service: str
    """Namespace and name, with a slash between them."""
    revision: str
    variant: str
    offset: int | None
    """Offset of the log of changes that the graph was made at; None: it is the graph of its source."""
    rows: int
    columns: int
    has_text_ids: bool


@dataclass(frozen=True, slots=True)
class SinkResult:
    """The state of a sink after an attempt."""

    where: str
    """The name that readers ask by."""
    rows: int
    was_there: bool
    """An earlier attempt had written all of it."""
    note: str = ""
    """A remark for a person, such as a missing index; empty: nothing."""


class EmbeddingsSink(Protocol):
    def write(self, embedded: RevisionEmbeddings, blocks: Callable[[], Iterator[Block]], on_rows: OnRows) -> SinkResult:
        """Write all rows and make them visible in the place of those before. `blocks`: begins anew at each call. Raises
        SinkError."""
