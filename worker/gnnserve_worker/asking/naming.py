"""How requests and answers call the nodes of a served graph: by positions, integers or texts, with or without a type.

Which of them a graph has is decided when it is opened: the object that is chosen then (`NodeNaming`) decodes and finds
ids, and writes them. Nothing else asks by which kind of ids or by how many types a graph calls its nodes. Ids that name
their type are read in `type_ids.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Protocol

import numpy as np

from gnnserve_api.files.repository import NodeIdKind
from gnnserve_api.http.live_accuracy import TypedNodeId
from gnnserve_worker.asking.id_schemas import POSSIBLE_IDS, IdSchemas, IdsOfTarget, PlainIds, TextsWithTypes
from gnnserve_worker.asking.question import ErrorCode, RequestError, shown_value
from gnnserve_worker.asking.type_ids import LivingNames, QualifiedIds, as_text, listed_ids
from gnnserve_worker.graph.ids import NodeIds
from gnnserve_worker.graph.living_ids import LivingIds
from gnnserve_worker.graph.overlay import number_overlay

AnyId = int | str | TypedNodeId
"""An id as JSON may have it."""
_POSITIONS = np.dtype(np.int64)
_FEW_NODES = 32
"""Up to here Python looks at each node before numpy has begun."""
FEW_IDS = 256
"""Most ids that are found one by one, as a list."""
_LISTED = "GET /v1/nodes lists its node ids"


class IdForm(StrEnum):
    """The forms that ids have in JSON, by which decoders of requests are chosen."""

    INTEGERS = "Integers"
    TEXTS = "Texts"
    WITH_TYPES = "WithTypes"
    """Integers, texts, or objects of type and id; checked where they are found."""


class NodeNaming(Protocol):
    """Positions are those that a `Question` has. Methods that find ids raise RequestError, which names the place."""

    @property
    def kind(self) -> NodeIdKind:
        """The kind of the ids of the nodes that are answered for."""

    @property
    def are_texts(self) -> bool:
        """Whether these are texts, so that a list of them is no array."""

    @property
    def takes_texts(self) -> bool:
        """Whether a request may name nodes by texts, whatever ids are."""

    @property
    def form(self) -> IdForm: ...

    @property
    def members(self) -> int:
        """Values and objects that an id may be written with in JSON beside itself: 1 where it may be an object of type
        and id."""

    nodes: int
    """Positions are below it. Where the graph changes, room for new nodes is counted."""

    def find(self, ids: Sequence[Any], otherwise: str = "") -> np.ndarray:
        """Positions (int64) of ids as JSON has them, at least one, which the request names as `nodes`. `otherwise`:
        what else may be meant by an id that the graph lacks."""

    def find_integers(self, ids: np.ndarray, otherwise: str = "") -> np.ndarray:
        """Positions of ids without a type, int64 both."""

    def find_one(self, given: Any, where: str, otherwise: str = "") -> int:
        """The position of a node that stands at `where`, as JSON has it."""

    def find_any(self, given: Any, where: str) -> int:
        """The number of a node of whichever type, behind the positions of those that are answered for."""

    def place(self, ids: Sequence[Any]) -> list[int]:
        """Positions of ids without a type, of the graph's kind; -1 for those that the graph lacks."""

    def place_array(self, numbers: np.ndarray, new: int) -> np.ndarray:
        """Positions of integers (int64) of a request in the binary form, where -1 - k is the k-th new node: nodes + k;
        -1 for what is neither, as every other integer is where ids are texts."""

    def number_array(self, numbers: np.ndarray, features: np.ndarray, new: int, ends: int) -> bool:
        """Turn such integers into positions in place, and check all with their features at once, if ids are positions
        and all is right. False: look at each."""

    def check_new(self, ids: Sequence[Any]) -> None:
        """Refuse ids of a request's new nodes, at least one, that no node of a source may have."""

    def unknown(self, where: str, shown: str, otherwise: str = "") -> RequestError:
        """The graph lacks the node. `shown`: its id as JSON."""

    def look_up(self, ids: Sequence[AnyId]) -> np.ndarray:
        """Positions (int64) of ids as JSON has them; -1 for those that the graph lacks, and for nodes of types that are
        not answered for."""

    def plain(self, given: AnyId) -> AnyId:
        """The id of a node in the one form that tells it from others."""

    @property
    def schemas(self) -> IdSchemas:
        """Ids in OpenAPI."""

    def listed(self, start: int, end: int) -> list[int | str | None]:
        """Ids of the nodes that are answered for at positions start to end - 1, as far as these are taken; None where a
        node has left."""

    def shown(self, start: int, end: int) -> list[int | str]:
        """Those that are there."""

    def shown_any(self, number: int) -> int | str | None:
        """The id of a node of whichever type, with its type where the graph has several; None: it has left."""


class _Naming(NodeNaming, Protocol):
    """The part that namings of ids without a type share. A class that leaves a method out cannot be made, says mypy."""

    form: IdForm = IdForm.INTEGERS
    are_texts: bool = False
    takes_texts: bool = False
    members: int = 0
    kind: NodeIdKind = NodeIdKind.INTEGERS
    type: str

    def __init__(self, nodes: int, type_: str = "") -> None:
        """`type_`: that all nodes are of, which messages name; empty: nodes have none."""
        self.nodes = nodes
        self.type = type_

    def named(self, id_: AnyId) -> str:
        """An id in messages, with the type of its node."""
        return shown_value(f"{self.type}/{id_}" if self.type else id_)

    def find_one(self, given: Any, where: str, otherwise: str = "") -> int:
        try:
            return int(self.find((given,), otherwise)[0])
        except RequestError as error:
            raise RequestError(error.code, where, error.problem, error.remedy) from None

    def find_any(self, given: Any, where: str) -> int:
        return self.find_one(given, where)

    def number_array(self, numbers: np.ndarray, features: np.ndarray, new: int, ends: int) -> bool:
        return False

    def shown(self, start: int, end: int) -> list[int | str]:
        return [one for one in self.listed(start, end) if one is not None]

    def shown_any(self, number: int) -> int | str | None:
        return next(iter(self.shown(number, number + 1)), None)

    def look_up(self, ids: Sequence[AnyId]) -> np.ndarray:
        kind = str if self.are_texts else int
        positions = np.full(len(ids), -1, np.int64)
        places = [i for i, id_ in enumerate(ids) if isinstance(id_, kind)]
        if places:
            positions[places] = self.place([ids[i] for i in places])
        return positions

    def plain(self, given: AnyId) -> AnyId:
        return given

    @property
    def schemas(self) -> IdSchemas:
        return PlainIds(str if self.are_texts else int)

    def unknown(self, where: str, shown: str, otherwise: str = "") -> RequestError:
        return _unknown(where, shown, _LISTED, otherwise)


class _IntegerForm(_Naming, Protocol):
    """Ids that are integers, by whatever they are found."""

    def find(self, ids: Sequence[int], otherwise: str = "") -> np.ndarray:
        try:
            wanted = np.array(ids, dtype=np.int64)
        except OverflowError:
            raise self._beyond(ids, otherwise) from None
        return self.find_integers(wanted, otherwise)

    def _beyond(self, ids: Sequence[int], otherwise: str) -> RequestError:
        # Beyond 64 bits, and so no node's; unless one before it is unknown too.
        first = next(i for i, node in enumerate(ids) if node not in POSSIBLE_IDS)
        if first > 0:
            self.find(ids[:first], otherwise)
        return self.unknown(f"nodes[{first}]", self.named(ids[first]), otherwise)

    def place(self, ids: Sequence[int]) -> list[int]:
        try:
            numbers = np.array(ids, np.int64)
        except OverflowError:  # an integer beyond 64 bits is no stored node's
            possible = [id_ for id_ in ids if id_ in POSSIBLE_IDS]
            places = dict(zip(possible, self.place(possible), strict=True))
            return [places.get(id_, -1) for id_ in ids]
        return _listed(self._place(numbers))

    def _place(self, numbers: np.ndarray) -> np.ndarray:
        """Positions of integers of 64 bits, int64; -1 for those that the graph lacks."""

    def check_new(self, ids: Sequence[int]) -> None:
        if max(ids) not in POSSIBLE_IDS or min(ids) not in POSSIBLE_IDS:
            first = next(i for i, id_ in enumerate(ids) if id_ not in POSSIBLE_IDS)
            raise RequestError(
                ErrorCode.INVALID_VALUE,
                f"overlay.nodes[{first}].id",
                f"{shown_value(ids[first])} is beyond 64 bits with a sign, as no id is",
                f"give an integer from {POSSIBLE_IDS[0]} to {POSSIBLE_IDS[-1]}",
            )


class PositionNaming(_IntegerForm):
    """The graph numbers its nodes from 0."""

    kind = NodeIdKind.POSITIONS

    def find(self, ids: Sequence[int], otherwise: str = "") -> np.ndarray:
        try:
            wanted = np.array(ids, _POSITIONS)
        except OverflowError:
            raise self._beyond(ids, otherwise) from None
        if len(ids) == 1 and 0 <= ids[0] < self.nodes:  # starting two loops over one id takes longer than all else
            return wanted
        if len(ids) <= _FEW_NODES and min(ids) >= 0 and max(ids) < self.nodes:
            return wanted
        return self.find_integers(wanted, otherwise)

    def find_integers(self, ids: np.ndarray, otherwise: str = "") -> np.ndarray:
        """Check few positions one by one, where starting NumPy's loop takes longest, and others by one comparison: as
        unsigned, a negative id is beyond any graph."""
        nodes = self.nodes
        if len(ids) <= _FEW_NODES:
            listed = ids.tolist()
            if min(listed) >= 0 and max(listed) < nodes:
                return ids
        unsigned = ids.view(np.uint64)
        if unsigned.max() >= nodes:
            first = int((unsigned >= nodes).argmax())
            raise self.unknown(f"nodes[{first}]", self.named(int(ids[first])), otherwise)
        return ids

    def place(self, ids: Sequence[int]) -> list[int]:
        if len(ids) <= FEW_IDS:  # a list is several times as quick as an array
            return [id_ if 0 <= id_ < self.nodes else -1 for id_ in ids]
        return super().place(ids)

    def _place(self, numbers: np.ndarray) -> np.ndarray:
        return np.where((numbers >= 0) & (numbers < self.nodes), numbers, -1)

    def place_array(self, numbers: np.ndarray, new: int) -> np.ndarray:
        stored = self.nodes
        lowest, highest = int(np.minimum.reduce(numbers)), int(np.maximum.reduce(numbers))
        if lowest >= 0 and highest < stored:
            return numbers
        positions = np.where(numbers < 0, stored - 1 - numbers, numbers)
        if lowest < -new or highest >= stored:
            positions[(numbers < -new) | (numbers >= stored)] = -1
        return positions

    def number_array(self, numbers: np.ndarray, features: np.ndarray, new: int, ends: int) -> bool:
        return bool(number_overlay(numbers, features, new, ends, self.nodes))

    def unknown(self, where: str, shown: str, otherwise: str = "") -> RequestError:
        called = f"ids of type {self.type}" if self.type else "node ids"
        return _unknown(where, shown, f"{called} are 0 to {self.nodes - 1}", otherwise)

    def listed(self, start: int, end: int) -> list[int | str | None]:
        return [*range(start, min(end, self.nodes))]

    @property
    def schemas(self) -> IdSchemas:
        return PlainIds(int, {"minimum": 0, "maximum": self.nodes - 1})


class IntegerNaming(_IntegerForm):
    """The source's own integers."""

    def __init__(self, ids: NodeIds | LivingIds, nodes: int, type_: str = "") -> None:
        super().__init__(nodes, type_)
        self._ids = ids

    def find_integers(self, ids: np.ndarray, otherwise: str = "") -> np.ndarray:
        positions = self._ids.find_integers(ids)
        if positions.min() < 0:
            first = int(positions.argmin())  # all that are missing are -1
            raise self.unknown(f"nodes[{first}]", self.named(int(ids[first])), otherwise)
        return positions

    def _place(self, numbers: np.ndarray) -> np.ndarray:
        return self._ids.find_integers(numbers)

    def place_array(self, numbers: np.ndarray, new: int) -> np.ndarray:
        positions = self._ids.find_integers(numbers)
        if new:
            are_new = (numbers < 0) & (numbers >= -new)
            if (positions[are_new] >= 0).any():
                taken = int(numbers[are_new & (positions >= 0)][0])
                raise RequestError(
                    ErrorCode.STORED_NODE,
                    f"overlay.nodes[{-1 - taken}]",
                    f"{taken} is a node of the graph, and stands for a new one here",
                    "send JSON, where new nodes have ids of their own",
                )
            positions = np.where(are_new, self.nodes - 1 - numbers, positions)
        return positions

    def listed(self, start: int, end: int) -> list[int | str | None]:
        return _listed_of(self._ids, self.nodes, start, end)


class TextNaming(_Naming):
    """The source's own texts, byte for byte: texts that look alike but are written by other code points are other
    nodes."""

    form = IdForm.TEXTS
    are_texts = True
    takes_texts = True
    kind = NodeIdKind.STRINGS

    def __init__(self, ids: NodeIds | LivingIds | LivingNames, nodes: int, type_: str = "") -> None:
        super().__init__(nodes, type_)
        self._ids = ids

    def find(self, ids: Sequence[str], otherwise: str = "") -> np.ndarray:
        positions = self._ids.find_texts(ids)
        if positions.min() < 0:
            first = int(positions.argmin())
            raise self.unknown(f"nodes[{first}]", self.named(ids[first]), otherwise)
        return positions

    def find_integers(self, ids: np.ndarray, otherwise: str = "") -> np.ndarray:
        raise ValueError("ids are texts")

    def place_array(self, numbers: np.ndarray, new: int) -> np.ndarray:
        return np.where((numbers < 0) & (numbers >= -new), self.nodes - 1 - numbers, -1)

    def place(self, ids: Sequence[str]) -> list[int]:
        return _listed(self._ids.find_texts(ids))

    def check_new(self, ids: Sequence[str]) -> None:
        if "" in ids:
            raise RequestError(
                ErrorCode.INVALID_VALUE,
                f"overlay.nodes[{ids.index('')}].id",
                "it is empty, and no id is the empty text",
                "give the node an id of one character or more",
            )

    def listed(self, start: int, end: int) -> list[int | str | None]:
        return _listed_of(self._ids, self.nodes, start, end)


class TextsWithTypesNaming(TextNaming):
    """Texts that name the type of each node, `user/17`, in one numbering of all: links join nodes of several types."""

    form = IdForm.WITH_TYPES
    members = 1

    def find(self, ids: Sequence[Any], otherwise: str = "") -> np.ndarray:
        texts = ids
        if not all(isinstance(one, str) for one in ids):  # most requests: nothing to look at
            texts = [as_text(one, f"nodes[{place}]", self.shown(0, 1)) for place, one in enumerate(ids)]
        return super().find(texts, otherwise)

    def unknown(self, where: str, shown: str, otherwise: str = "") -> RequestError:
        remedy = _LISTED
        if "/" not in shown:
            example = next(iter(self.shown(0, FEW_IDS)), "type/id")
            remedy = f"nodes are named with their type, as in {shown_value(example)}; {remedy}"
        return _unknown(where, shown, remedy, otherwise)

    @property
    def schemas(self) -> IdSchemas:
        return TextsWithTypes()


class TargetNaming:
    """Ids of a graph of several types, of which the nodes of one are answered for: ids without a type are of that."""

    form = IdForm.WITH_TYPES
    takes_texts = True
    members = 1

    def __init__(self, target: NodeNaming, ids: QualifiedIds) -> None:
        """`target`: ids within the type that is answered for. `ids`: of all types."""
        self._target = target
        self._ids = ids
        self.kind = target.kind
        self.are_texts = target.are_texts
        self.nodes = target.nodes
        # Ids within the type are found as those of a graph of that type alone.
        self.find_integers = target.find_integers
        self.place = target.place
        self.place_array = target.place_array
        self.number_array = target.number_array
        self.check_new = target.check_new
        self.unknown = target.unknown
        self.listed = target.listed
        self.shown = target.shown

    def find(self, ids: Sequence[Any], otherwise: str = "") -> np.ndarray:
        if self.are_texts or not all(type(one) is int for one in ids):  # most requests: nothing to look at
            ids = [self._ids.within_target(one, f"nodes[{place}]") for place, one in enumerate(ids)]
        return self._target.find(ids, otherwise)

    def find_one(self, given: Any, where: str, otherwise: str = "") -> int:
        return self._target.find_one(self._ids.within_target(given, where), where, otherwise)

    def find_any(self, given: Any, where: str) -> int:
        number = self._ids.number(self._ids.read(given, where))
        if number < 0:
            raise _unknown(where, shown_value(given), "GET /v1/nodes?type=… lists the node ids of a type", "")
        return number

    def shown_any(self, number: int) -> int | str | None:
        return self._ids.shown_number(number)

    def look_up(self, ids: Sequence[AnyId]) -> np.ndarray:
        return self._target.look_up([self._ids.alone(one) for one in ids])

    def plain(self, given: AnyId) -> AnyId:
        return given if isinstance(given, (int, str)) else given.text

    @property
    def schemas(self) -> IdSchemas:
        return IdsOfTarget(str if self.are_texts else int)


def naming_of(ids: NodeIds | LivingIds | None, nodes: int, type_: str = "") -> NodeNaming:
    """Names of nodes within one type. `ids`: None: nodes are called by position. `type_`: empty: nodes have none."""
    if ids is None:
        return PositionNaming(nodes, type_)
    if ids.kind is NodeIdKind.STRINGS:
        return TextNaming(ids, nodes, type_)
    return IntegerNaming(ids, nodes, type_)


def _unknown(where: str, shown: str, remedy: str, otherwise: str) -> RequestError:
    if otherwise:
        remedy += f"; {otherwise}"
    return RequestError(ErrorCode.UNKNOWN_NODE, where, f"node {shown} is not in the graph", remedy)


def _listed_of(ids: NodeIds | LivingIds | LivingNames, nodes: int, start: int, end: int) -> list[int | str | None]:
    if isinstance(ids, LivingNames):
        return [*ids.listed(start, min(end, nodes))]
    end = min(end, ids.count if isinstance(ids, LivingIds) else nodes)
    return [] if start >= end else listed_ids(ids, start, end)


def _listed(positions: np.ndarray) -> list[int]:
    listed: list[int] = positions.tolist()
    return listed
