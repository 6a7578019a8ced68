"""Sending the rows of a file to a server, in order, each batch until it is answered."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import msgspec

from gnnserve_api.errors import GnnserveError, InputError
from gnnserve_api.http.changes import ChangesAnswer
from gnnserve_cli.changes.batches import RowBatch, TextKinds, batches_of, may_be_integers, request_of
from gnnserve_cli.changes.files import digest_of, read_changes
from gnnserve_cli.client import opened
from gnnserve_cli.progress import showing_progress
from gnnserve_cli.render import count
from gnnserve_client.address import Endpoint
from gnnserve_client.asking import ClientState
from gnnserve_client.direct import DirectConnection
from gnnserve_client.errors import RefusedError
from gnnserve_client.exchange import Connection, Send, ServerReply
from gnnserve_client.sending import Applied, send_batch
from gnnserve_client.sending import BatchBody as EncodedBatch
from gnnserve_worker.progress import Progress

_IDS_ARE_TEXTS = "InvalidType"
_UNKNOWN_LABEL = "UnknownLabel"
_ID = re.compile(r"^((removedE|e)dges\[\d+\]\[\d+\]|removedNodes\[\d+\]|\w+\[\d+\]\.id)$")
"""Places of ids in a batch of changes."""
_DIGEST_DIGITS = 16


def send_file(file: Path, endpoint: Endpoint, size: int, client: str) -> tuple[str, Applied]:
    """Send the changes of a file, `size` to a batch, and show how far it is. Returns the name that the file has in the
    log, which begins with `client`, and what was applied."""
    digest, lines = digest_of(file)
    changes, known = read_changes(file)
    total = max(1, lines - 1) if known is None else known
    # Batches depend on their size as well, so that another size is another client.
    name = f"{client}-{digest[:_DIGEST_DIGITS]}-{size}"
    stage = f"apply {file.name}"
    sent = Applied()
    with showing_progress() as listener, closing(TellingConnection(endpoint, _note)) as connection:

        def tell(now: Applied) -> None:
            nonlocal sent
            sent = now
            listener(Progress(stage, min(now.changes, total - 1), total, f"offset {now.last_offset:,}"))

        listener(Progress(stage, 0, total))
        try:
            Sender(opened(endpoint, is_retrying=True), connection, name).send_all(batches_of(changes, size), tell)
        except (GnnserveError, KeyboardInterrupt):
            if sent.batches:
                _note(f"{count(sent.changes, 'change')} are applied; the same command goes on behind them")
            raise
        listener(Progress(stage, total, total, f"offset {sent.last_offset:,}" if sent.batches else "no changes"))
    return name, sent


def _note(words: str) -> None:
    print(f"note: {words}", file=sys.stderr)


class TellingConnection(DirectConnection):
    """Says once of each outage that a batch is sent again, since that may take a minute in which nothing is seen."""

    def __init__(self, endpoint: Endpoint, tell: Callable[[str], None]) -> None:
        super().__init__(endpoint)
        self._tell = tell
        self._is_told = False

    def exchange(self, send: Send) -> ServerReply:
        is_again = send.after_s > 0
        if is_again and not self._is_told:
            self._tell(f"{self._endpoint.url} does not take the batch now: trying again for up to a minute")
        self._is_told = is_again
        return super().exchange(send)


class Sender:
    """Sends the batches of one file. Their numbers, from 1, are their sequences."""

    def __init__(self, asking: ClientState, connection: Connection, client: str) -> None:
        self._asking = asking
        self._connection = connection
        self._client = client
        self._kinds: TextKinds | None = None
        """None: no batch was answered yet."""
        self._knows_labels = False
        """A batch with labels was answered."""

    def send_all(self, batches: Iterable[RowBatch], tell: Callable[[Applied], None]) -> Applied:
        """`tell` is called after each batch. Raises what ended it; a later run with the same file goes on."""
        sent = Applied()
        for batch in batches:
            sent = sent.with_answer(self._send(batch, sent.batches + 1))
            tell(sent)
        return sent

    def _send(self, batch: RowBatch, number: int) -> ChangesAnswer:
        """Send a batch by what its texts may be; where the server says that they are texts after all, as texts."""
        digits = may_be_integers(batch)
        kinds = TextKinds() if self._kinds is None else self._kinds
        if self._kinds is None and not digits.are_ids_integers:
            kinds = replace(kinds, are_ids_integers=False)
        if not self._knows_labels and not digits.are_labels_integers:
            kinds = replace(kinds, are_labels_integers=False)
        while True:
            try:
                answer = self._send_as(batch, kinds, number)
            except RefusedError as refused:
                if refused.code == _IDS_ARE_TEXTS and self._kinds is None and kinds.are_ids_integers:
                    kinds = replace(kinds, are_ids_integers=False)
                elif refused.code == _UNKNOWN_LABEL and not self._knows_labels and kinds.are_labels_integers:
                    kinds = replace(kinds, are_labels_integers=False)
                else:
                    if _is_of_an_id(refused) and not kinds.are_ids_integers:
                        _require_integers(batch, kinds)
                    raise _in_file(refused, batch, number) from refused
            else:
                if answer.offset:  # not one of an earlier run that is compacted away, which is not looked at
                    self._kinds = kinds
                    self._knows_labels |= any(change.label is not None for change in batch.changes)
                return answer

    def _send_as(self, batch: RowBatch, kinds: TextKinds, number: int) -> ChangesAnswer:
        body = msgspec.json.encode(request_of(batch, kinds))
        encoded = EncodedBatch(body, "application/json", len(batch.changes))
        return self._connection.run(send_batch(self._asking, encoded, self._client, number))


def _is_of_an_id(refused: RefusedError) -> bool:
    return refused.code == _IDS_ARE_TEXTS and _ID.search(refused.field or "") is not None


def _require_integers(batch: RowBatch, kinds: TextKinds) -> None:
    """Raises InputError that names the first id that is no integer: the server would name the first id of all, since
    they are sent as texts where one of them is no integer."""
    request_of(batch, replace(kinds, are_ids_integers=True))


def _in_file(refused: RefusedError, batch: RowBatch, number: int) -> RefusedError | InputError:
    """The refusal with the row that it is about, where it names one."""
    change = batch.at(refused.field)
    if change is None:
        return refused
    return InputError(f"row {change.number:,}, in batch {number:,}", str(refused), "correct it, and run it again")
