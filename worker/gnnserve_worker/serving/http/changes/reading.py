"""A batch of changes as a client sends it, in JSON or in its binary form, checked against the served revision.

How a graph calls its nodes decides which form its batches have (`FORMS`). What depends on the state of the graph
(whether a node is there) is for the replica to say, whose refusals become errors of HTTP here. A message names the
place in the JSON form, the value, what was expected and what to do.
"""

from __future__ import annotations

from collections.abc import Mapping

from gnnserve_api.http.changes import CHANGES_TYPE
from gnnserve_worker.asking.naming import IdForm
from gnnserve_worker.asking.question import ErrorCode, RequestError
from gnnserve_worker.graph.change_batch import ChangeBatch, ChangeProblem, ChangeRefusal, encode_batch
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.serving.http.changes.batch_ids import IntegersAlone, TextsAlone, TypedTexts
from gnnserve_worker.serving.http.changes.batches import ChangeBatchReader
from gnnserve_worker.serving.http.changes.checks import SPLIT, too_many
from gnnserve_worker.serving.http.codecs.large_json import LARGE_BYTES, has_more_values, without_collection

MOST_JSON_VALUES = 1 << 20
"""Values of a batch in JSON, whose decoding holds up every other client: about 50 ms."""


FORMS: Mapping[IdForm, ChangeBatchReader] = {
    IdForm.INTEGERS: ChangeBatchReader(IntegersAlone()),
    IdForm.TEXTS: ChangeBatchReader(TextsAlone()),
    IdForm.WITH_TYPES: ChangeBatchReader(TypedTexts()),
}
_CODES = {
    ChangeProblem.UNKNOWN_NODE: ErrorCode.UNKNOWN_NODE,
    ChangeProblem.STORED_NODE: ErrorCode.STORED_NODE,
    ChangeProblem.REPEATED_NODE: ErrorCode.REPEATED_NODE,
    ChangeProblem.INVALID_VALUE: ErrorCode.INVALID_VALUE,
    ChangeProblem.WRONG_LENGTH: ErrorCode.WRONG_FEATURES,
    ChangeProblem.MISSING_COLUMN: ErrorCode.MISSING_COLUMN,
    ChangeProblem.UNKNOWN_LABEL: ErrorCode.UNKNOWN_LABEL,
    ChangeProblem.NO_ROOM: ErrorCode.NO_ROOM,
}


def read_changes(body: bytes, media_type: bytes, revision: ServedRevision) -> tuple[bytes, ChangeBatch]:
    """The batch and its binary form. `media_type`: without parameters, in lower case. Raises RequestError."""
    form = FORMS[revision.graph.naming.form]
    if media_type == CHANGES_TYPE.encode():
        return body, form.read_binary(body, revision)
    if len(body) <= LARGE_BYTES:
        batch = form.read_json(body, revision)
    else:
        if has_more_values(body, MOST_JSON_VALUES):
            problem = f"it has more than {MOST_JSON_VALUES:,} values, as many as a batch in JSON may have"
            raise too_many("body", problem, f"{SPLIT}, or send its binary form")
        with without_collection():
            batch = form.read_json(body, revision)
    return encode_batch(batch), batch


def refusal_error(refusal: ChangeRefusal, offset: int | None = None) -> RequestError:
    """`offset`: of the batch's record in the log, which stays there without effect; None: nothing is durable."""
    told = "" if offset is None else f" (record {offset:,} of the log, which stays without effect)"
    return RequestError(_CODES[refusal.problem], refusal.field, refusal.message + told, refusal.remedy)
