"""Interface of a task to serving: how its requests read, what its answers are, how both are described.

A task is a folder beside this file. Its object (`ServedTask`) is made when a revision is opened, and bound then to all
that it needs: its part of the manifest, the graph and what it learnt. It takes no revision, and no protocol asks which
task it has before it: what differs by task is a method or a plain attribute here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np

from gnnserve_api.files.graph_schema import Classes
from gnnserve_api.files.provenance import Provenance
from gnnserve_worker.asking.body_form import BodyForm
from gnnserve_worker.asking.id_list import IdList
from gnnserve_worker.asking.question import RequestError
from gnnserve_worker.asking.tensors import Datatype, TensorKind
from gnnserve_worker.graph.overlay import Overlay
from gnnserve_worker.tasks.deciding import Decides
from gnnserve_worker.tasks.description import TaskDescription
from gnnserve_worker.tasks.recommending import Recommender
from gnnserve_worker.tasks.served_labels import LiveLabels, SourceLabels


class ScoredNodes(Protocol):
    """Nodes of a question, as the engine has computed them (`serving/requests.py: Answer`)."""

    @property
    def variant(self) -> str: ...

    @property
    def scores(self) -> np.ndarray:
        """float32 [nodes, columns]"""

    @property
    def embeddings(self) -> np.ndarray | None:
        """float32 [nodes, width]; None: they were not asked for."""


class AskedItems(Protocol):
    """Items that a question asks about, as its answer is made of them (`serving/requests.py: Question`)."""

    @property
    def nodes(self) -> np.ndarray:
        """int64, positions of the nodes that are computed."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """Requested outputs, without repetition."""

    @property
    def form(self) -> Any:
        """What `Items.joined` kept; None: items are the nodes."""


class Items(Protocol):
    """Items that a request asks about, one entry of the answer each: nodes, pairs of nodes. Ids of all their nodes are
    looked up as one list."""

    def placed(self, error: RequestError) -> RequestError:
        """An error about an id of that one list, told by the place of its item."""

    @property
    def joined(self) -> Callable[[np.ndarray, Overlay | None], tuple[np.ndarray, Any]] | None:
        """Makes of the nodes that were found (positions of the list, int64; those of new nodes are of the overlay) the
        nodes to compute (int64), and what a `Question` keeps as its form so that items are made of their scores. None:
        items are the nodes."""


_ROUNDING_STEPS = 8
"""Steps of float32 that sums over other lists, in another order, are off by."""


def rounding_of(scores: np.ndarray) -> float:
    """How far a probability moves at most where its scores, float32, are sums in another order. A score moves by steps
    of the largest one, or of 1, and a probability by no more than its scores."""
    largest = float(np.abs(scores).max(initial=1.0))
    return _ROUNDING_STEPS * float(np.finfo(np.float32).eps) * largest


class ExplainedScores(Protocol):
    """An answer about one node, or about a pair of them, of which it is told what it rests on. `answers`: of each of
    these nodes, computed by itself."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """Outputs that not every variant gives, and which it is made of."""

    def column_of(self, answers: Sequence[ScoredNodes]) -> int:
        """The column of the scores that is explained, such as that of the class with the highest one."""

    def probability(self, answers: Sequence[ScoredNodes], column: int) -> float: ...

    def rounding(self, answers: Sequence[ScoredNodes]) -> float:
        """How far the probability moves at most where scores are rounded otherwise (`rounding_of`)."""

    def told(self, answers: Sequence[ScoredNodes], column: int) -> Mapping[str, Any]:
        """Members of `ExplainAnswer` about it, beside its probability."""


class OwnInputs(NamedTuple):
    """Inputs and parameters of the Open Inference Protocol that one model has beside those that all have."""

    kinds: tuple[TensorKind, ...] = ()
    ids: frozenset[str] = frozenset()
    """Names of those that have ids of nodes."""
    parameters: Mapping[str, tuple[type, str]] = MappingProxyType({})
    """Type of each parameter, and how messages call it."""


NOTHING_OWN = OwnInputs()


class AskedTensors(Protocol):
    """Tensors of the Open Inference Protocol that a model takes, and those that it gives."""

    @property
    def items(self) -> str:
        """Name of the input that has ids of the items."""

    @property
    def item_ids(self) -> int:
        """Ids of each item: where there are several, they are a row of the input."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of that input, as metadata describes it."""

    @property
    def own(self) -> OwnInputs:
        """What a request may bring that requests of other models may not."""

    @property
    def missing(self) -> str:
        """What to do where that input is missing."""

    @property
    def default_outputs(self) -> tuple[str, ...]:
        """What is answered where a request names no output."""

    def check_count(self, items: int, max_nodes: int) -> None:
        """Raises RequestError where there are none, or too many."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tensors that can be asked for."""

    def outputs(self, version: str | None = None) -> tuple[TensorKind, ...]:
        """Tensors that can be asked for; of a version, if one is named."""


class AnswerTensors(Protocol):
    """Tensors of the Open Inference Protocol that an answer has."""

    def form_of(self, name: str, answer: ScoredNodes, question: AskedItems) -> tuple[Datatype, list[int]]:
        """Datatype and shape of an output."""

    def are_texts(self, name: str) -> bool:
        """Whether an output's elements have no fixed size."""

    def numbers_of(self, name: str, answer: ScoredNodes, question: AskedItems) -> np.ndarray:
        """An output whose elements have a fixed size, C-contiguous, little-endian."""

    def texts_of(self, name: str, answer: ScoredNodes) -> list[bytes]:
        """An output whose elements are texts."""

    def json_texts(self, name: str, answer: ScoredNodes) -> bytes:
        """The elements of such an output in JSON, with commas between them."""


class TaskTensors(AskedTensors, AnswerTensors, Protocol):
    """Tensors of predictions."""


class AskedModel(Protocol):
    """A model of the Open Inference Protocol, as far as its requests are read: predictions of a task, or what else a
    service is asked for."""

    @property
    def tensors(self) -> AskedTensors: ...

    @property
    def outputs(self) -> tuple[str, ...]:
        """All that may be asked for, by name. A binary request that names none asks for scores."""

    @property
    def fields_of_others(self) -> frozenset[str]:
        """Fields that ask another task."""

    def wrong_task(self, where: str) -> RequestError:
        """The request is of another task. `where`: its field."""

    def check_outputs(self, outputs: Sequence[str], fields: Sequence[str]) -> None:
        """Raises RequestError where one of them cannot be given. `fields`: where each of them stands."""

    def items_for(self, outputs: Sequence[str]) -> AskedModel:
        """Items that a request for these outputs names, as a model of their own: pairs have scores, nodes embeddings.
        The model itself, unless they differ from what most requests name."""

    def first_request(self) -> dict[str, Any]:
        """A body in JSON for people to begin with."""


class TaskItems(Items, AskedModel, Protocol):
    """Items that a task is asked about, and their form in each protocol."""

    def ids_of(self, request: Any, max_nodes: int) -> Sequence[Any]:
        """Ids of all nodes of a request in JSON, at least one. Raises RequestError where there are none or too many, or
        its outputs are not possible."""

    def check_count(self, ids: int, max_nodes: int) -> None:
        """Raises RequestError where so many ids in an array are no items, or too many."""

    @property
    def tensors(self) -> TaskTensors: ...


class ServedTask(TaskItems, Protocol):
    # Asking (`serving/http/codecs`, `serving/http/tensors`)

    def items_for(self, outputs: Sequence[str]) -> TaskItems: ...

    @property
    def id_list(self) -> IdList:
        """Where a request in JSON lists its items."""

    @property
    def decoder(self) -> msgspec.json.Decoder[Any]:
        """Decodes a request in JSON. Whatever the task is, it has `objective`, `strict`, `outputs`, `overlay`, `seed`,
        `variant`, `min_offset`, `timeout_ms` and `priority`."""

    @property
    def form(self) -> BodyForm:
        """Fields of such a request, and what to do where one is wrong."""

    def example(self) -> str:
        """A body in JSON that the graph permits, of one item."""

    def most_lists(self, max_nodes: int) -> int:
        """Lists in JSON that the items of a request may take."""

    def check_array(self, output: str) -> None:
        """Raises RequestError where an output is no array of numbers, so that the binary form cannot have it."""

    # Answering

    @property
    def numbers_per_node(self) -> int:
        """Most numbers that an answer has for each node of its question, roughly; 0: no answer is large."""

    def is_large(self, question: AskedItems, most_numbers: int) -> bool:
        """Whether the answer has more numbers than that, roughly."""

    def as_json(self, answer: ScoredNodes, question: AskedItems) -> bytes:
        """The outputs that are asked for as members of an object, each followed by a comma."""

    def json_blocks(self, answer: ScoredNodes, question: AskedItems) -> Iterator[bytes]:
        """The same in pieces, each short work."""

    def array(self, answer: ScoredNodes, question: AskedItems) -> np.ndarray:
        """The first output that is asked for, C-contiguous, little-endian."""

    # Describing (OpenAPI, `GET /v1/variants`)

    @property
    def provenance(self) -> Provenance: ...

    @property
    def description(self) -> TaskDescription:
        """What OpenAPI says of its requests and answers."""

    @property
    def request_schema(self) -> str:
        """Name of a request's schema in OpenAPI."""

    @property
    def answer_schema(self) -> str: ...

    @property
    def types(self) -> tuple[str, ...]:
        """Names of the types that nodes may be of which are asked about; empty: they are called without."""

    def told(self) -> dict[str, Any]:
        """Members of `VariantsAnswer` about the task."""

    # Recommending and explaining

    @property
    def recommending(self) -> Recommender: ...

    def explained(self, nodes: Sequence[int]) -> ExplainedScores | str:
        """The answer about a node, or about a pair of them (their numbers), as it is explained; a text: why there is
        none. Raises RequestError where they are no items of the task."""

    # Labels and accuracy, cascades, canary

    @property
    def labels(self) -> SourceLabels: ...

    @property
    def live_labels(self) -> LiveLabels: ...

    @property
    def classes(self) -> Classes:
        """The graph's own label of each class; empty where none is answered."""

    @property
    def multi_label(self) -> bool:
        """Whether a node may have several of them."""

    @property
    def decides(self) -> Decides:
        """What decides in cascades."""

    def is_like(self, other: Any) -> bool:
        """Whether the same requests can be asked of another revision's task."""
