"""Sending batches of changes: each with a client and a sequence, so that it is applied once however often it is sent.

The command line sends the rows of files this way, without numpy.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from gnnserve_api.errors import GnnserveError
from gnnserve_api.http.changes import CLIENT_HEADER, SEQUENCE_HEADER, ChangesAnswer
from gnnserve_client.asking import ClientState
from gnnserve_client.errors import RefusedError
from gnnserve_client.exchange import Call, Steps

PATH = "/v1/changes"
_PASSED = "SequencePassed"


@dataclass(frozen=True, slots=True)
class BatchBody:
    """A batch in one of its forms."""

    body: bytes
    content_type: str
    changes: int
    """How many items it has."""


@dataclass(frozen=True, slots=True)
class Applied:
    """Outcome of the batches so far."""

    batches: int = 0
    changes: int = 0
    unchanged: int = 0
    """Edges that changed nothing: they were there, or were not."""
    repeated: int = 0
    """Batches that the server had from an earlier run."""
    both_ways: int = 0
    """New edges that a batch had the other way too, each of which counts twice."""
    last_offset: int = 0
    """Offset of the last batch; 0 where all of them are compacted away. `min_offset` of a prediction takes it."""

    def with_answer(self, answer: ChangesAnswer) -> Applied:
        return Applied(
            self.batches + 1,
            self.changes + answer.changes,
            self.unchanged + answer.unchanged,
            self.repeated + answer.repeated,
            self.both_ways + (answer.both_ways or 0),
            max(self.last_offset, answer.offset),
        )


@dataclass(slots=True)
class Author:
    """A name in the log that no other client has, for batches whose sender gives none, and their numbers."""

    name: str = field(default_factory=lambda: f"python-{os.urandom(16).hex()}")
    last_sequence: int = 0

    def numbered(self, batches: Iterable[BatchBody]) -> Iterator[BatchBody]:
        """The same batches, counted as they are taken: a number is never used for two of them."""
        for batch in batches:
            self.last_sequence += 1
            yield batch


def send_batch(
    asking: ClientState, batch: BatchBody, client: str, sequence: int, timeout_s: float | None = None
) -> Steps[ChangesAnswer]:
    """Send a batch until it is answered. Batches of a client have to be sent in order, each after the one before was
    answered: then one whose sequence is compacted away was applied."""
    headers = {"Content-Type": batch.content_type, CLIENT_HEADER: client, SEQUENCE_HEADER: str(sequence)}
    try:
        reply = yield from asking.answered(Call("POST", PATH, headers, batch.body, is_writing=True), timeout_s)
    except RefusedError as error:
        if error.code != _PASSED:
            raise
        return ChangesAnswer(0, batch.changes, 0, repeated=True)
    return asking.decode(reply.body, ChangesAnswer)


def send_batches(
    asking: ClientState,
    batches: Iterable[BatchBody],
    client: str,
    first_sequence: int,
    tell: Callable[[Applied], None],
    timeout_s: float | None = None,
) -> Steps[Applied]:
    """`tell` is called after each batch; `timeout_s` is that of each batch."""
    applied = Applied()
    for sequence, batch in enumerate(batches, first_sequence):
        try:
            answer = yield from send_batch(asking, batch, client, sequence, timeout_s)
        except GnnserveError as error:
            error.add_note(
                f"batch {sequence:,} of client {client} is not known to be applied; {applied.batches:,} before it are. "
                "The same batches, sent again under the same client, go on from there."
            )
            raise
        applied = applied.with_answer(answer)
        tell(applied)
    return applied
