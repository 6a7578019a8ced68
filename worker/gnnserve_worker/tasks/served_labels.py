"""Labels in service, as a task has them: what the graph says of nodes (`SourceLabels`), what clients may say later of
what was answered (`LiveLabels`), and how right variants are by it, and how like each other (`Measure`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
import numpy as np

from gnnserve_api.files.profile import Metric, Profile, VariantProfile
from gnnserve_api.http.live_accuracy import LabelProblem
from gnnserve_worker.asking.body_form import BodyForm
from gnnserve_worker.asking.naming import AnyId

GivenLabel = int | str | tuple[int | str, ...]
"""The label of an item as a client gives it: of a node its class, where nodes have several all of them; of a pair
whether it came to be (a bool)."""
Item = tuple[AnyId, ...]
"""What a label is of, by ids in the one form that tells each from others: a node, or the two nodes of a pair."""
MEAN_OVER_NODES: Metric = "accuracy"
"""The metric of a profile that is a mean over nodes, so that a stream of labelled nodes can be compared with it."""


@dataclass(frozen=True, slots=True)
class HeldOutNodes:
    """Nodes that took no part in training, with their labels."""

    nodes: np.ndarray
    """int64, positions in the graph."""
    truths: np.ndarray
    """int64 [nodes], classes; or uint8 [nodes, classes] where nodes may have several."""


NOTHING_HELD_OUT = HeldOutNodes(np.zeros(0, np.int64), np.zeros(0, np.int64))
NO_VALUES = np.zeros(0)


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    """A part of an answer, to be compared with what the most accurate variant answers."""

    variant: str
    """The variant that answered."""
    nodes: np.ndarray
    """Nodes to compute again, int64, positions in the graph."""
    answered: Any
    """What the task compares: its own."""


class SourceLabels(Protocol):
    def of_node(self, node: int) -> Any:
        """The label of a node, by its number, as the graph's source has it; None: it has none, or came later."""

    def wearing(self, labels: Sequence[Any]) -> np.ndarray:
        """Whether the source gives each node one of these labels, bool [nodes as they were published]. Raises
        RequestError, which names the place under `filter.labels`."""


class Measure(Protocol):
    """How right the variants of one revision are, from when it is followed on. Values are from 0 to 1, and their mean
    over items is what a profile can be compared with."""

    @property
    def metric(self) -> Metric:
        """The metric of a profile whose differences between variants these values have."""

    @property
    def nodes(self) -> np.ndarray:
        """Nodes (int64, positions) that every variant computes before the first label is evaluated."""

    @property
    def compares_by_nodes(self) -> bool:
        """Whether answers are compared by what was computed of `nodes`, too."""

    def promise(self, profile: Profile, variant: VariantProfile) -> tuple[float, int] | None:
        """What the profile promises of the mean of these values, and how many items it was found on; None: nothing."""

    def note(self, variant: str, start: int, scores: np.ndarray) -> np.ndarray:
        """Take scores (float32 [some, columns]) of `nodes` from `start` on. Returns values, float64 [some], where they
        are of held-out items, by which service is judged if the profile promises nothing; else none."""

    def values(self, variant: str, scores: np.ndarray, form: Any, truths: np.ndarray) -> np.ndarray:
        """How right the scores of a variant are by these truths, float64 [items]; NaN: nothing can be said. `scores`
        and `form`: of what `LiveLabels.asked` made of the items."""

    def promised(self, truths: np.ndarray) -> np.ndarray:
        """By which items the promise is judged, bool [items]; the others tell variants apart alone."""

    def keep(self, variant: str, nodes: np.ndarray, scores: np.ndarray, form: Any, most: int) -> KeptAnswer | None:
        """What is kept of an answer about stored nodes, of which at most so many are computed again; None: nothing.
        By copies. `form`: of its question."""

    def agreement(self, kept: KeptAnswer, variant: str, scores: np.ndarray) -> np.ndarray:
        """How far the answer is that of another variant, whose scores of its nodes these are: float64, none where
        nothing can be said."""


class LiveLabels(Protocol):
    @property
    def decoder(self) -> msgspec.json.Decoder[Any]:
        """Decodes a request, which has `labels`, and `times` or None, for each of its items."""

    @property
    def form(self) -> BodyForm:
        """Fields of such a request, and what to do where one is wrong."""

    @property
    def item(self) -> str:
        """What a label is of, in a word."""

    @property
    def ids_per_item(self) -> int: ...

    def example(self) -> str:
        """A body in JSON that the graph permits."""

    def items(self, request: Any) -> Sequence[Sequence[Any]]:
        """Ids of each item, at least one item. Raises RequestError where there are none, or too many."""

    def refused(self, items: np.ndarray, labels: Sequence[GivenLabel]) -> Mapping[int, tuple[LabelProblem, str]]:
        """Why labels are none, by their place, in a sentence. `items`: positions, int64 [items, ids of an item]."""

    def are_known(self, items: np.ndarray, labels: Sequence[GivenLabel]) -> np.ndarray:
        """Whether the graph has what each label says already, so that an answer would know it: bool [items]."""

    def truths(self, labels: Sequence[GivenLabel]) -> np.ndarray:
        """Labels that are some, as scores have them."""

    def asked(self, items: np.ndarray) -> tuple[np.ndarray, Any]:
        """The nodes to compute (int64), and how items are made of them, as a `Question` keeps it."""

    def measure(self) -> Measure: ...
