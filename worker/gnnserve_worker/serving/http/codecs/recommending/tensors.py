"""Recommendations as tensors of the Open Inference Protocol: a model of their own beside a service's predictions, since
the protocol has one list of inputs and outputs for each model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, get_args

import msgspec
import numpy as np

from gnnserve_api.files.embeddings import IndexState
from gnnserve_api.http.protocol import TypedOverlay
from gnnserve_api.http.recommend import Exclude, RecommendedNode
from gnnserve_api.limits import OverlayLimits
from gnnserve_worker.asking.question import IN_PARAMETERS, ErrorCode, RequestError, shown_value
from gnnserve_worker.asking.tensors import ANY_LENGTH, Datatype, Elements, GivenTensor, TensorKind
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.serving.http.codecs.recommending.asked import NodeSearch, ask_of, check_count
from gnnserve_worker.serving.http.codecs.recommending.filters import (
    NodeFilter,
    body_of,
    read_filter,
    read_filter_text,
    telling_columns,
)
from gnnserve_worker.serving.http.tensors.asking import EDGE_FIELDS, arrange_of, as_list, joining
from gnnserve_worker.serving.http.tensors.request import AnswerForm, InferBody
from gnnserve_worker.serving.http.tensors.served import JOINING, OVERLAY
from gnnserve_worker.serving.requests import Arrange, Ask
from gnnserve_worker.tasks.served import AskedItems, OwnInputs, ScoredNodes

RECOMMENDS = ".recommend"
"""End of the model's name, behind the service's: names of services have no dot."""
NODE, NODES = "node", "nodes"
FILTER, FILTER_LABELS, FILTER_NODES = "filter", "filter.labels", "filter.nodes"
_PARAMETERS = MappingProxyType(
    {
        "count": (int, "an integer"),
        "type": (str, "a text"),
        "exclude": (str, "a text"),
        FILTER: (str, "a text with JSON"),
    }
)
_MEMBERS = {NODES: "id", "cosines": "cosine", "scores": "score", "probabilities": "probability"}
"""Where `RecommendedNode` has what each output is made of."""


class RecommendForm(AnswerForm, frozen=True):
    outputs: tuple[str, ...]


class RecommendTensors:
    """An `AskedTensors`."""

    items, item_ids, missing = NODE, 1, "name the node to recommend others for in it"
    shape = (1,)

    def __init__(self, revision: ServedRevision) -> None:
        ids = Datatype.BYTES if revision.graph.naming.are_texts else Datatype.INT64
        kinds, classes = [TensorKind(FILTER_NODES, ids, (ANY_LENGTH,), is_optional=True)], revision.task.classes
        if revision.task.recommending.folder is not None:
            kinds += JOINING
        if classes:
            labels = Datatype.BYTES if isinstance(classes[0], str) else Datatype.INT64
            kinds.append(TensorKind(FILTER_LABELS, labels, (ANY_LENGTH,), is_optional=True))
        self.own = OwnInputs(tuple(kinds), frozenset({FILTER_NODES}), _PARAMETERS)
        self.names = self.default_outputs = (NODES, *revision.task.recommending.measures)
        self._ids = ids

    def check_count(self, items: int, max_nodes: int) -> None:
        """Its shape says how many there are."""

    def outputs(self, version: str | None = None) -> tuple[TensorKind, ...]:
        return tuple(
            TensorKind(name, self._ids if name == NODES else Datatype.FP32, (ANY_LENGTH,)) for name in self.names
        )


class RecommendModel:
    """An `AskedModel`."""

    outputs: tuple[str, ...]

    fields_of_others: frozenset[str] = frozenset()

    def __init__(self, revision: ServedRevision) -> None:
        self.tensors = RecommendTensors(revision)
        self.outputs = self.tensors.names
        self._revision = revision

    def check_outputs(self, outputs: Sequence[str], fields: Sequence[str]) -> None:
        """All outputs can be given."""

    def items_for(self, outputs: Sequence[str]) -> RecommendModel:
        return self

    def wrong_task(self, where: str) -> RequestError:
        return self._revision.task.wrong_task(where)

    def first_request(self) -> dict[str, Any]:
        first = self._revision.task.recommending.example
        return {NODE: self._revision.graph.naming.shown(first, first + 1)}


def recommend_ask(
    read: InferBody,
    read_elements: Callable[[GivenTensor], Elements],
    revision: ServedRevision,
    max_nodes: int,
    limits: OverlayLimits,
) -> Ask:
    """What the request asks, with its elements. Raises RequestError."""
    tensors, own = read.tensors, {name: value for name, value in read.own.items() if value is not None}
    (node,) = as_list(read_elements(tensors[NODE]))
    filters = {
        name.removeprefix("filter."): tuple(as_list(read_elements(tensors[name])))
        for name in (FILTER_LABELS, FILTER_NODES)
        if name in tensors
    }
    filter_ = read_filter(filters or None, revision.graph.naming)
    if (text := own.pop(FILTER, None)) is not None:
        of_text = _read_parameter(text, revision)
        labels, nodes = filters.get("labels", of_text.labels), filters.get("nodes", of_text.nodes)
        filter_ = replace(of_text, labels=labels, nodes=nodes)
    count, exclude = own.setdefault("count", 10), own.setdefault("exclude", "known")
    check_count(count, "parameters.count")
    if exclude not in get_args(Exclude):
        problem = f"{shown_value(exclude)} is not possible here"
        raise RequestError(ErrorCode.INVALID_VALUE, "parameters.exclude", problem, "give known or nothing")
    overlay: TypedOverlay | None = None
    arrange: Arrange | None = None
    brought = {name: given for name, given in tensors.items() if name.startswith(OVERLAY)}
    if revision.task.recommending.folder is not None:
        overlay = joining(brought, read_elements)
    else:
        arrange = arrange_of({NODE: tensors[NODE], **brought}, NODE, read_elements, revision, limits)
    search = NodeSearch(
        node,
        read.wishes,
        **own,
        filter=filter_,
        overlay=overlay,
        edge_fields=EDGE_FIELDS,
        arrange=arrange,
        places=IN_PARAMETERS,
        answer_form=RecommendForm(read.form.id, read.form.are_binary, read.outputs),
    )
    try:
        return ask_of(search, revision, max_nodes, limits)
    except RequestError as error:
        if error.where not in _PARAMETERS:
            raise
        raise RequestError(error.code, f"parameters.{error.where}", error.problem, error.remedy) from None


def _read_parameter(text: str, revision: ServedRevision) -> NodeFilter:
    try:
        with telling_columns(body_of(text), revision):
            return read_filter(read_filter_text(text, revision), revision.graph.naming) or NodeFilter()
    except RequestError as error:
        raise RequestError(error.code, f"parameters.{error.where}", error.problem, error.remedy) from None


def told_of_index(index: IndexState) -> dict[str, str | int | float]:
    """What the nodes were found in, as parameters of the answer."""
    found = {f"index_{name}": getattr(index, name) for name in index.__struct_fields__}
    return {name: msgspec.to_builtins(value) for name, value in found.items() if value not in {msgspec.UNSET, None}}


class FoundTensors:
    """An `AnswerTensors` of nodes that were found."""

    def __init__(self, items: Sequence[RecommendedNode], revision: ServedRevision) -> None:
        self._items = items
        self._has_texts = revision.graph.naming.are_texts

    def form_of(self, name: str, answer: ScoredNodes, question: AskedItems) -> tuple[Datatype, list[int]]:
        ids = Datatype.BYTES if self._has_texts else Datatype.INT64
        return ids if name == NODES else Datatype.FP32, [len(self._items)]

    def are_texts(self, name: str) -> bool:
        return name == NODES and self._has_texts

    def numbers_of(self, name: str, answer: ScoredNodes, question: AskedItems) -> np.ndarray:
        return np.array(self._column(name), "<i8" if name == NODES else "<f4")

    def texts_of(self, name: str, answer: ScoredNodes) -> list[bytes]:
        return [text.encode() for text in self._column(name)]

    def json_texts(self, name: str, answer: ScoredNodes) -> bytes:
        return b",".join(map(msgspec.json.encode, self._column(name)))

    def _column(self, name: str) -> list[Any]:
        return [getattr(one, _MEMBERS[name]) for one in self._items]
