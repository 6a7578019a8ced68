"""JSON as objects of our own types: the only place that makes msgspec's decoders.

msgspec notes at a class how it is decoded, as it first needs it, and lets other threads use the note before it is
complete (0.22): two that decode the same class for the first time end the process with SIGSEGV. So a lock is held
while a decoder is made. Decoding itself takes no lock.
"""

from __future__ import annotations

import threading
from typing import Any, TypeVar, overload

import msgspec

T = TypeVar("T")

_making = threading.Lock()
_made: dict[Any, msgspec.json.Decoder[Any]] = {}


@overload
def decoder(kind: type[T]) -> msgspec.json.Decoder[T]: ...


@overload
def decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """The same for a union of types."""


def decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """The decoder of this type. Modules keep one for what they decode often."""
    found = _made.get(kind)
    if found is None:
        with _making:
            found = _made[kind] = msgspec.json.Decoder(kind)
    return found


def decode(data: bytes | str, kind: type[T]) -> T:
    """Raises msgspec.DecodeError, and UnicodeDecodeError."""
    return decoder(kind).decode(data)
