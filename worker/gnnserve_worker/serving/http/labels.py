"""`POST /v1/labels` and `GET /v1/accuracy`: truths that come later, and how right the variants were by them.

A request is taken label by label: those that are wrong are named in the answer and counted, the others are kept.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from gnnserve_api.confidence_sequence import WINDOW_VALUES
from gnnserve_api.http.live_accuracy import (
    MOST_TOLD,
    AccuracyAnswer,
    LabelProblem,
    LabelsAnswer,
    RefusedLabel,
)
from gnnserve_worker.asking.body_form import decode_body
from gnnserve_worker.asking.naming import AnyId, NodeNaming
from gnnserve_worker.asking.question import ErrorCode, RequestError, counted, shown_value
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.scheduling.refusal import Refusal, RefusalReason
from gnnserve_worker.serving.accuracy.watch import AccuracyWatch, TimedItem
from gnnserve_worker.serving.requests import Lane
from gnnserve_worker.tasks.served_labels import GivenLabel, Item

LABELS_PATH = "/v1/labels"
_CLOCKS_DIFFER = timedelta(minutes=1)
"""How far clocks of two machines may differ."""
_RETRY_S = 10


def take_labels(
    body: bytes,
    revision: ServedRevision,
    watch: AccuracyWatch,
    second: AccuracyWatch | None = None,
    now: datetime | None = None,
) -> LabelsAnswer | Refusal:
    """Take the labels of a request. Raises RequestError where it is malformed as a whole, and takes nothing then.
    `second`: of the revision that answers beside this one, which gets what this one takes as far as it has room; None:
    none does."""
    naming, labelled = revision.graph.naming, revision.task.live_labels
    request = _read(body, revision)
    given = labelled.items(request)
    _check_lengths(request, len(given), labelled.item)
    if len(given) > watch.room:
        message = f"{counted(watch.waiting, 'label')} wait for an idle moment of the worker; send these again later"
        return Refusal(RefusalReason.QUEUE_FULL, message, _RETRY_S)
    latest = (datetime.now(UTC) if now is None else now) + _CLOCKS_DIFFER
    items: list[Item] = [tuple(naming.plain(id_) for id_ in item) for item in given]
    positions = naming.look_up([id_ for item in items for id_ in item]).reshape(len(items), -1)
    there = np.flatnonzero((positions >= 0).all(axis=1))
    wrong = labelled.refused(positions[there], [request.labels[i] for i in there.tolist()])
    refused = {int(there[place]): why for place, why in wrong.items()}
    kept: list[tuple[Item, GivenLabel]] = []
    seen: dict[TimedItem, None] = {}
    problems: list[RefusedLabel] = []
    for i, (item, label) in enumerate(zip(items, request.labels, strict=True)):
        time = None if request.times is None else request.times[i]
        if (positions[i] < 0).any():
            lacking = item[int(positions[i].argmin())]
            problems.append(_refused(i, LabelProblem.UNKNOWN_NODE, _why_not_found(lacking, naming)))
        elif i in refused:
            problems.append(_refused(i, *refused[i]))
        elif time is not None and time > latest:
            problems.append(_refused(i, LabelProblem.FUTURE_TIME, f"{time.isoformat()} is still to come"))
        elif time is not None and ((item, time) in seen or watch.was_seen(item, time)):
            what = f"{labelled.item} {', '.join(map(shown_value, item))}"
            message = f"a label of {what} at {time.isoformat()} was taken before"
            problems.append(_refused(i, LabelProblem.REPEATED, message))
        else:
            kept.append((item, label))
            if time is not None:
                seen[item, time] = None
    watch.take(kept, seen)
    if second is not None:
        second.take(kept[: second.room], ())
    for problem in problems:
        watch.outcomes[problem.reason] += 1
    return LabelsAnswer(len(kept), len(problems), tuple(problems[:MOST_TOLD]), revision.manifest.revision)


def describe_accuracy(service: str, lane: Lane, watch: AccuracyWatch) -> AccuracyAnswer:
    revision = lane.revision.manifest.revision
    return AccuracyAnswer(
        service,
        revision,
        watch.waiting,
        WINDOW_VALUES,
        watch.reference,
        watch.figures(),
        watch.drifted_inputs(),
    )


def _read(body: bytes, revision: ServedRevision) -> Any:
    task, labelled = revision.task, revision.task.live_labels
    try:
        return decode_body(labelled.decoder, body, revision, labelled.form)
    except RequestError as error:
        if error.code is ErrorCode.UNKNOWN_FIELD and error.where in task.fields_of_others:
            raise task.wrong_task(error.where) from None
        raise


def _check_lengths(request: Any, count: int, item: str) -> None:
    for field, entries in (("labels", request.labels), ("times", request.times)):
        if entries is not None and len(entries) != count:
            problem = f"{len(entries):,} entries for {counted(count, item)}"
            raise RequestError(ErrorCode.INVALID_VALUE, field, problem, f"give one for each {item}")


def _why_not_found(id_: AnyId, naming: NodeNaming) -> str:
    """Why no label of the node is taken: the graph lacks it, or nodes of its type are not answered for."""
    try:
        naming.find_one(id_, "")
    except RequestError as error:
        return f"{error.problem}; {error.remedy}"
    return f"node {shown_value(id_)} has come since"  # a change was applied meanwhile


def _refused(index: int, reason: LabelProblem, message: str) -> RefusedLabel:
    return RefusedLabel(index, reason, message)
