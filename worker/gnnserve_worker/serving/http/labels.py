"""`POST /v1/labels` and `GET /v1/accuracy`: truths that come later, and how right the variants were by them.

A request is taken label by label: those that are wrong are named in the answer and counted, the others are kept.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from gnnserve_api import decoding
from gnnserve_api.confidence_sequence import WINDOW_VALUES
from gnnserve_api.live_accuracy import (
    MOST_LABELS,
    MOST_TOLD,
    AccuracyAnswer,
    LabelProblem,
    LabelsAnswer,
    LabelsRequest,
    RefusedLabel,
)
from gnnserve_worker.asking.body_form import BodyForm, decode_body
from gnnserve_worker.asking.naming import AnyId
from gnnserve_worker.asking.question import ErrorCode, RequestError, check_node_count, counted, shown_value
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.scheduling.refusal import Refusal, RefusalReason
from gnnserve_worker.serving.accuracy.watch import AccuracyWatch, TimedNode
from gnnserve_worker.serving.requests import Lane
from gnnserve_worker.tasks.served_labels import GivenLabel

LABELS_PATH = "/v1/labels"
_CLOCKS_DIFFER = timedelta(minutes=1)
"""How far clocks of two machines may differ."""
_RETRY_S = 10
_decoder = decoding.decoder(LabelsRequest)


_FORM = BodyForm(
    {"": ("nodes", "labels", "times"), "nodes[]": ("type", "id")},
    frozenset({"nodes[]"}),
    {
        "nodes": "give a list of node ids",
        "nodes[].type": "give the name of a type",
        "nodes[].id": "give an id within the type",
        "labels": "give a list with a label for each node, as predictions answer them",
        "labels[]": "give a label as predictions answer it",
        "labels[][]": "give the labels of a node as predictions answer them",
        "times": "give a list with a time for each node, or leave it out",
        "times[]": "write it as RFC 3339 has it, with a zone: 2026-11-23T05:00:00Z",
    },
    lambda revision: revision.task.labels.example(),
)


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
    naming, labelled = revision.graph.naming, revision.task.labels
    labelled.check_taken()
    request = _read(body, revision)
    if len(request.nodes) > watch.room:
        message = f"{counted(watch.waiting, 'label')} wait for an idle moment of the worker; send these again later"
        return Refusal(RefusalReason.QUEUE_FULL, message, _RETRY_S)
    latest = (datetime.now(UTC) if now is None else now) + _CLOCKS_DIFFER
    nodes = [naming.plain(node) for node in request.nodes]
    positions = naming.look_up(nodes).tolist()
    known = labelled.truths(request.labels)[1].tolist()
    kept: list[tuple[AnyId, GivenLabel]] = []
    seen: dict[TimedNode, None] = {}
    problems: list[RefusedLabel] = []
    for i, (node, label) in enumerate(zip(nodes, request.labels, strict=True)):
        time = None if request.times is None else request.times[i]
        if positions[i] < 0:
            problems.append(_refused(i, LabelProblem.UNKNOWN_NODE, f"node {shown_value(node)} is not in the graph"))
        elif not known[i]:
            problems.append(_refused(i, LabelProblem.UNKNOWN_LABEL, labelled.say_unknown(label)))
        elif time is not None and time > latest:
            problems.append(_refused(i, LabelProblem.FUTURE_TIME, f"{time.isoformat()} is still to come"))
        elif time is not None and ((node, time) in seen or watch.was_seen(node, time)):
            message = f"a label of node {shown_value(node)} at {time.isoformat()} was taken before"
            problems.append(_refused(i, LabelProblem.REPEATED, message))
        else:
            kept.append((node, label))
            if time is not None:
                seen[node, time] = None
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


def _read(body: bytes, revision: ServedRevision) -> LabelsRequest:
    request: LabelsRequest = decode_body(_decoder, body, revision, _FORM)
    count = len(request.nodes)
    check_node_count(count, MOST_LABELS, otherwise="")
    for field, entries in (("labels", request.labels), ("times", request.times)):
        if entries is not None and len(entries) != count:
            problem = f"{len(entries):,} entries for {counted(count, 'node')}"
            raise RequestError(ErrorCode.INVALID_VALUE, field, problem, "give one for each node")
    return request


def _refused(index: int, reason: LabelProblem, message: str) -> RefusedLabel:
    return RefusedLabel(index, reason, message)
