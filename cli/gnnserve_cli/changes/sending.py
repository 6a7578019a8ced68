"""Sending batches of changes to a server, in order, each until it is answered."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace

from gnnserve_api.changes import ChangesAnswer
from gnnserve_api.errors import InputError
from gnnserve_cli.changes.batches import Batch, TextKinds, may_be_integers, request_of
from gnnserve_cli.client import Endpoint, UnansweredError, send_changes
from gnnserve_cli.exits import ServerRefusedError
from gnnserve_cli.http_client import Connected

PATIENCE_S = 60.0
"""How long a batch is sent again to a server that does not answer, or asks for later."""
_LONGEST_PAUSE_S = 5.0
_LATER = frozenset({429, 503})
_IDS_ARE_TEXTS = "InvalidType"
_UNKNOWN_LABEL = "UnknownLabel"
_PASSED = "SequencePassed"


@dataclass(frozen=True, slots=True)
class Sent:
    """What became of the batches so far."""

    batches: int = 0
    changes: int = 0
    unchanged: int = 0
    repeated: int = 0
    """Batches that the server had from an earlier run."""
    last_offset: int = 0

    def with_answer(self, answer: ChangesAnswer) -> Sent:
        return Sent(
            self.batches + 1,
            self.changes + answer.changes,
            self.unchanged + answer.unchanged,
            self.repeated + answer.repeated,
            max(self.last_offset, answer.offset),
        )


class Sender:
    """Sends the batches of one file. Their numbers, from 1, are their sequences."""

    def __init__(self, endpoint: Endpoint, server: Connected, client: str) -> None:
        self._endpoint = endpoint
        self._server = server
        self._client = client
        self._kinds: TextKinds | None = None
        """None: no batch was answered yet."""
        self._knows_labels = False
        """A batch with labels was answered."""

    def send_all(self, batches: Iterable[Batch], tell: Callable[[Sent], None]) -> Sent:
        """`tell` is called after each batch. Raises what ended it; a later run with the same file goes on."""
        sent = Sent()
        for batch in batches:
            sent = sent.with_answer(self._send(batch, sent.batches + 1))
            tell(sent)
        return sent

    def _send(self, batch: Batch, number: int) -> ChangesAnswer:
        """Send a batch by what its texts may be; where the server says that they are texts after all, as texts."""
        digits = may_be_integers(batch)
        kinds = TextKinds() if self._kinds is None else self._kinds
        if self._kinds is None and not digits.are_ids_integers:
            kinds = replace(kinds, are_ids_integers=False)
        if not self._knows_labels and not digits.are_labels_integers:
            kinds = replace(kinds, are_labels_integers=False)
        while True:
            try:
                answer = self._send_until_answered(batch, kinds, number)
            except ServerRefusedError as refused:
                if refused.code == _IDS_ARE_TEXTS and self._kinds is None and kinds.are_ids_integers:
                    kinds = replace(kinds, are_ids_integers=False)
                elif refused.code == _UNKNOWN_LABEL and not self._knows_labels and kinds.are_labels_integers:
                    kinds = replace(kinds, are_labels_integers=False)
                elif refused.code == _PASSED:
                    # An earlier run sent this batch or one behind it, each after the one before was answered. So it was
                    # there, and is part of the graph by now.
                    return ChangesAnswer(0, len(batch.changes), 0, repeated=True)
                else:
                    raise _in_file(refused, batch, number) from refused
            else:
                self._kinds = kinds
                self._knows_labels |= any(change.label is not None for change in batch.changes)
                return answer

    def _send_until_answered(self, batch: Batch, kinds: TextKinds, number: int) -> ChangesAnswer:
        request = request_of(batch, kinds)
        begun_s, pause_s = time.monotonic(), 0.1
        while True:
            try:
                return send_changes(self._endpoint, self._server, request, self._client, number)
            except (UnansweredError, ServerRefusedError) as error:
                is_temporary = isinstance(error, UnansweredError) or error.status in _LATER
                # A server that has not answered once is more likely the wrong one than one that restarts.
                if not is_temporary or (number == 1 and isinstance(error, UnansweredError)):
                    raise
                if time.monotonic() - begun_s + pause_s > PATIENCE_S:
                    raise
                if isinstance(error, ServerRefusedError) and error.retry_after is not None:
                    with suppress(ValueError):
                        pause_s = max(pause_s, float(error.retry_after))
            time.sleep(min(pause_s, _LONGEST_PAUSE_S))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _in_file(refused: ServerRefusedError, batch: Batch, number: int) -> ServerRefusedError | InputError:
    """The refusal with the row that it is about, where it names one."""
    change = batch.at(refused.field)
    if change is None:
        return refused
    return InputError(f"row {change.number:,}, in batch {number:,}", str(refused), "correct it, and run it again")
