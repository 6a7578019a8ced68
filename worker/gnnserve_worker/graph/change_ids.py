"""Ids by which a batch of changes names nodes and relations, in the order of its binary form (`change_batch.py`).

Which form a batch has is known where it is made or read. From there on its ids are an object of that form, which says
how many ids an edge has, and writes, joins and shows them; nothing else asks which one it is. A graph that names its
nodes in yet another way is one more object in `FORMS`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Protocol, Self

import msgspec
import numpy as np

from gnnserve_api.files.repository import NodeIdKind
from gnnserve_worker.graph.ids import lay_out, texts_of

_UNIT = 8
_ID_BYTES = 8
_SHOWN_BYTES = 64

RelationName = tuple[str, str, str]
"""Type of the sources, name, type of the targets; all are empty where the graph has one type."""


class BatchFormError(ValueError):
    """These bytes are no batch of changes; the message says where they are wrong."""


class BatchForm(Protocol):
    """A form of batches: what is known of ids before there are any."""

    @property
    def number(self) -> int:
        """The number of the form in the binary form of a batch."""
        ...  # pragma: no cover

    @property
    def width(self) -> int:
        """Ids of an edge: its ends, and between them its relation where edges name one."""
        ...  # pragma: no cover

    @property
    def called(self) -> str:
        """What ids are, for people."""
        ...  # pragma: no cover

    def lay_out(self, values: Sequence[int | str]) -> ChangeIds:
        """These ids as an object of the form."""
        ...  # pragma: no cover

    def count_bytes(self, ids: int) -> int:
        """Bytes of so many ids in the binary form, the texts themselves aside."""
        ...  # pragma: no cover

    def read(self, body: bytes, ids: int, starts: Sequence[int], text_bytes: int) -> ChangeIds:
        """Ids of a batch, as views of its binary form. `starts`: where the ids and their texts begin. Raises
        BatchFormError."""
        ...  # pragma: no cover

    def relation_of(self, edge: Sequence[Any]) -> RelationName:
        """The relation of an edge that is named by these ids."""
        ...  # pragma: no cover


class KeptIds(Protocol):
    """Ids of the nodes of a type, among which those of a batch are found, or to which they are added."""

    def find_integers(self, wanted: np.ndarray) -> np.ndarray: ...  # pragma: no cover

    def find_strings(self, text: np.ndarray, offsets: np.ndarray) -> np.ndarray: ...  # pragma: no cover

    def add_integers(self, came: np.ndarray) -> None: ...  # pragma: no cover

    def add_texts(self, came: Sequence[str]) -> None: ...  # pragma: no cover


class ChangeIds(Protocol):
    """Ids as the graph's source has them."""

    @property
    def form(self) -> BatchForm:
        """The form of a batch that has these ids."""
        ...  # pragma: no cover

    @property
    def kind(self) -> NodeIdKind:
        """Integers or texts."""
        ...  # pragma: no cover

    @property
    def text_bytes(self) -> int:
        """UTF-8 bytes of all texts."""
        ...  # pragma: no cover

    def __len__(self) -> int: ...  # pragma: no cover

    def write(self) -> list[bytes]:
        """Parts of the binary form, a multiple of 8 bytes in all."""
        ...  # pragma: no cover

    def joined(self, parts: Sequence[Self], order: np.ndarray) -> Self:
        """Ids of all parts, which are of this form, in this order (int64)."""
        ...  # pragma: no cover

    def listed(self) -> list[int] | list[str]:
        """Ids as JSON has them."""
        ...  # pragma: no cover

    def as_texts(self) -> list[str]: ...  # pragma: no cover

    def comparable(self) -> np.ndarray:
        """Ids as an array whose entries can be compared."""
        ...  # pragma: no cover

    def codes(self) -> np.ndarray:
        """Numbers that are equal for equal ids: int64 [ids]."""
        ...  # pragma: no cover

    def shown(self, index: int) -> str:
        """One of the ids, for messages."""
        ...  # pragma: no cover

    def find_in(self, kept: KeptIds) -> np.ndarray:
        """Positions int64 of the nodes with these ids; -1 where there is no such node."""
        ...  # pragma: no cover

    def add_to(self, kept: KeptIds, count: int) -> None:
        """Add the first `count` of these ids."""
        ...  # pragma: no cover


class _Integers:
    number, width, called = 1, 2, "integers"

    def lay_out(self, values: Sequence[int | str]) -> IntegerIds:
        return IntegerIds(np.array(values, np.int64))

    def count_bytes(self, ids: int) -> int:
        return _ID_BYTES * ids

    def read(self, body: bytes, ids: int, starts: Sequence[int], text_bytes: int) -> IntegerIds:
        if text_bytes:
            raise BatchFormError(f"{text_bytes:,} bytes of texts, and ids of form {self.number} are {self.called}")
        return IntegerIds(np.frombuffer(body, "<i8", ids, starts[0]))

    def relation_of(self, edge: Sequence[Any]) -> RelationName:
        return "", "", ""


class _Texts:
    number, width, called = 2, 2, "texts"

    def lay_out(self, values: Sequence[int | str]) -> TextIds:
        return TextIds(*lay_out([str(value) for value in values]), self)

    def own(self, ids: ChangeIds) -> TextIds | None:
        """These ids; None: they are of another form."""
        return ids if isinstance(ids, TextIds) and ids.form is self else None

    def count_bytes(self, ids: int) -> int:
        return _ID_BYTES * (ids + 1)

    def read(self, body: bytes, ids: int, starts: Sequence[int], text_bytes: int) -> TextIds:
        offsets = np.frombuffer(body, "<i8", ids + 1, starts[0])
        if offsets[0] != 0 or offsets[-1] != text_bytes or (offsets[1:] < offsets[:-1]).any():
            raise BatchFormError(f"offsets of texts do not ascend from 0 to {text_bytes:,}")
        return TextIds(np.frombuffer(body, np.uint8, text_bytes, starts[1]), offsets, self)

    def relation_of(self, edge: Sequence[Any]) -> RelationName:
        return "", "", ""


class _TextsWithTypes(_Texts):
    number, width, called = 3, 3, "texts with types"

    def relation_of(self, edge: Sequence[Any]) -> RelationName:
        source, name, target = map(str, edge)
        return source.partition("/")[0], name, target.partition("/")[0]


INTEGERS = _Integers()
TEXTS = _Texts()
TEXTS_WITH_TYPES = _TextsWithTypes()
"""A text is an id with its type, `user/17`; an edge is source, name of the relation, target."""
FORMS: Mapping[int, BatchForm] = {form.number: form for form in (INTEGERS, TEXTS, TEXTS_WITH_TYPES)}
"""Forms by their numbers."""
FORM_OF_KIND: Mapping[NodeIdKind, BatchForm] = {
    NodeIdKind.POSITIONS: INTEGERS,
    NodeIdKind.INTEGERS: INTEGERS,
    NodeIdKind.STRINGS: TEXTS,
}
"""The form of ids without a type."""


class IntegerIds(msgspec.Struct, frozen=True):
    integers: np.ndarray
    """int64 [ids]."""

    form = INTEGERS
    kind = NodeIdKind.INTEGERS
    text_bytes = 0

    def __len__(self) -> int:
        return len(self.integers)

    def write(self) -> list[bytes]:
        return [np.ascontiguousarray(self.integers, "<i8").tobytes()]

    def joined(self, parts: Sequence[Self], order: np.ndarray) -> IntegerIds:
        return IntegerIds(np.concatenate([part.integers for part in parts])[order])

    def listed(self) -> list[int]:
        integers: list[int] = self.integers.tolist()
        return integers

    def as_texts(self) -> list[str]:
        return [str(id_) for id_ in self.listed()]

    def comparable(self) -> np.ndarray:
        return self.integers

    def codes(self) -> np.ndarray:
        return np.unique(self.integers, return_inverse=True)[1]

    def shown(self, index: int) -> str:
        return str(int(self.integers[index]))

    def find_in(self, kept: KeptIds) -> np.ndarray:
        return kept.find_integers(self.integers)

    def add_to(self, kept: KeptIds, count: int) -> None:
        kept.add_integers(np.array(self.integers[:count], np.int64))


class TextIds(msgspec.Struct, frozen=True):
    texts: np.ndarray
    """UTF-8, uint8 [bytes]."""
    offsets: np.ndarray
    """Where each text begins and ends, int64 [ids + 1]."""
    form: BatchForm = TEXTS

    kind = NodeIdKind.STRINGS

    @property
    def text_bytes(self) -> int:
        return len(self.texts)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def write(self) -> list[bytes]:
        offsets = np.ascontiguousarray(self.offsets, "<i8").tobytes()
        return [offsets, self.texts.tobytes(), padding(len(self.texts))]

    def joined(self, parts: Sequence[Self], order: np.ndarray) -> TextIds:
        lengths = np.concatenate([np.diff(part.offsets) for part in parts])
        offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
        return TextIds(*texts_of(np.concatenate([part.texts for part in parts]), offsets, order), self.form)

    def listed(self) -> list[str]:
        whole = self.texts.tobytes()
        return [whole[start:end].decode(errors="replace") for start, end in pairwise(self.offsets.tolist())]

    def as_texts(self) -> list[str]:
        return self.listed()

    def comparable(self) -> np.ndarray:
        whole, texts = self.texts.tobytes(), np.empty(len(self), object)
        texts[:] = [whole[start:end] for start, end in pairwise(self.offsets.tolist())]
        return texts

    def codes(self) -> np.ndarray:
        known: dict[bytes, int] = {}
        return np.fromiter((known.setdefault(one, len(known)) for one in self.comparable()), np.int64, len(self))

    def shown(self, index: int) -> str:
        start, end = int(self.offsets[index]), int(self.offsets[index + 1])
        return repr(self.texts[start : min(end, start + _SHOWN_BYTES)].tobytes().decode(errors="replace"))

    def find_in(self, kept: KeptIds) -> np.ndarray:
        # As those of requests are: for texts that can be written to, kernels would be compiled once more.
        texts = self.texts.view()
        texts.flags.writeable = False
        return kept.find_strings(texts, np.array(self.offsets, np.int64))

    def add_to(self, kept: KeptIds, count: int) -> None:
        whole = self.texts.tobytes()
        kept.add_texts([whole[start:end].decode() for start, end in pairwise(self.offsets[: count + 1].tolist())])


def padding(length: int) -> bytes:
    """Zeros up to a multiple of 8 bytes."""
    return bytes(-length % _UNIT)
