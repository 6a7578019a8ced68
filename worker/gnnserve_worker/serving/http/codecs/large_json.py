"""JSON bodies before they are decoded: which fields they may have, and what large ones need, since decoding one holds
up every other client: a bound on their values, and no garbage collection while.

Limits of what a request may bring are checked on its lists, when these exist. A body of millions of values is refused
before.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from gnnserve_api.limits import OverlayLimits
from gnnserve_worker.asking.overlay_checks import MOST_FEATURE_BYTES, NUMBER_BYTES
from gnnserve_worker.asking.question import ErrorCode, RequestError
from gnnserve_worker.inference.served import ServedRevision

LARGE_BYTES = 32 * 1024
"""Smaller bodies are decoded as they are: they have few values, whatever these are."""
_ALWAYS_VALUES = 262_144
"""Values that a body may have whatever the limits are, so that requests that exceed these by little are told by how
much."""
_ALWAYS_CONTAINERS = 65_536
"""Lists and objects that a body may have whatever the limits are."""
_OTHER = 64
"""Values of a request besides ids and features, counted generously."""
_BLOCK_BYTES = 128 * 1024
"""Characters counted at a time: what is made of them stays in a core's cache."""
_COMMA, _QUOTE, _BRACE = (np.uint8(ord(character)) for character in ',"{')
_BRACES = np.uint8(ord("{") ^ ord("["))
_ESCAPED_LETTERS = (b"\\u006", b"\\u007")
"""A letter of a field's name may also be an escape, `\\u006f`; other escapes, `\\u00eb`, occur in ids."""


def may_have_field(body: bytes, name: bytes) -> bool:
    """Whether a body may have the field of that name, which is of small letters. False: it has none."""
    return b'"%b"' % name in body or any(letter in body for letter in _ESCAPED_LETTERS)


@contextmanager
def without_collection() -> Iterator[None]:
    """Pause garbage collection: it would look through the objects that decoding makes again and again, and nothing
    that JSON becomes is garbage of its kind."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def check_values(
    body: bytes, revision: ServedRevision, max_nodes: int, limits: OverlayLimits, *, may_bring: bool
) -> None:
    """Refuse a body with more values than any request within the limits has, without decoding it. `may_bring`: it may
    have an overlay.

    What no request can mean counts too: the values of a field that is given twice, and what is not JSON.
    """
    overlays, features = revision.compute.overlays, revision.compute.overlays.features
    numbers = min(limits.max_nodes * features, MOST_FEATURE_BYTES // NUMBER_BYTES)
    most_commas = max(_ALWAYS_VALUES, max_nodes + numbers + 4 * limits.max_nodes + 2 * limits.max_edges + _OTHER)
    of_edges = limits.max_edges * (overlays.edge_features + overlays.edge_times)
    most_commas += min(of_edges, MOST_FEATURE_BYTES // NUMBER_BYTES + limits.max_edges)
    # Of a node: itself, its features, and each column of lists, of which there are no more than features.
    lists = min(limits.max_nodes * overlays.lists, numbers)
    items = revision.task.most_lists(max_nodes)
    most_containers = max(_ALWAYS_CONTAINERS, items + 2 * limits.max_nodes + lists + limits.max_edges + _OTHER)
    if overlays.edge_features:
        most_containers += limits.max_edges  # a list of features for each edge
    # An id may be an object of two values, and an edge then has its relation beside its two ids.
    members = revision.graph.naming.members
    ids = max_nodes + limits.max_nodes + 2 * limits.max_edges
    most_commas += members * (ids + limits.max_edges)
    most_containers += members * ids
    # Those in texts are counted as well, which is quick, and nearly always enough to know.
    characters = np.frombuffer(body, np.uint8)
    if (
        np.count_nonzero(characters == _COMMA) <= most_commas
        and np.count_nonzero(_are_beginnings(characters)) <= most_containers
    ):
        return
    commas, containers = _count_outside_texts(body)
    if commas <= most_commas and containers <= most_containers:
        return
    if not may_bring:
        if commas <= most_commas:
            return  # nothing of it may be a list in a list, so that decoding ends at the first
        raise RequestError(
            ErrorCode.TOO_MANY_NODES,
            "nodes",
            f"the body has {commas + 1:,} values, more than the {max_nodes:,} nodes that one request may have",
            "split the list over several requests, or raise spec.worker.batching.maxQueuedSeeds",
        )
    overlays.check(limits)
    values = max(commas + 1, containers)
    raise RequestError(
        ErrorCode.OVERLAY_TOO_LARGE,
        "overlay",
        f"the body has {values:,} values, more than any request within the limits: {limits.max_nodes:,} new nodes and "
        f"overrides of {features:,} features each, and {limits.max_edges:,} edges",
        "split the request",
    )


def has_more_values(body: bytes, most: int) -> bool:
    """Whether a body has more values than that: commas, and beginnings of lists and objects."""
    characters = np.frombuffer(body, np.uint8)
    if np.count_nonzero(characters == _COMMA) + np.count_nonzero(_are_beginnings(characters)) <= most:
        return False
    return sum(_count_outside_texts(body)) > most


def _count_outside_texts(body: bytes) -> tuple[int, int]:
    """Commas, and beginnings of lists and objects, that are no part of a text."""
    if b"\\" in body:
        body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    characters = np.frombuffer(body, np.uint8)
    commas = containers = 0
    quotes = np.uint8(0)  # only whether they are odd matters, so that they may overflow
    for start in range(0, len(characters), _BLOCK_BYTES):
        block = characters[start : start + _BLOCK_BYTES]
        before = np.cumsum(block == _QUOTE, dtype=np.uint8)
        before += quotes
        quotes = before[-1]
        are_outside = before & 1 == 0
        commas += int(np.count_nonzero((block == _COMMA) & are_outside))
        containers += int(np.count_nonzero(_are_beginnings(block) & are_outside))
    return commas, containers


def _are_beginnings(characters: np.ndarray) -> np.ndarray:
    """A mask of the characters that begin a list or an object: `[` and `{` differ in one bit."""
    are_beginnings: np.ndarray = characters | _BRACES == _BRACE
    return are_beginnings
