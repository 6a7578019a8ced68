"""The graph's own labels, which score columns stand for, in the forms that answers have them."""

from __future__ import annotations

import msgspec
import numpy as np

from gnnserve_api.classes import Classes


def class_columns(classes: Classes) -> tuple[np.ndarray, tuple[bytes, ...]]:
    """Labels as int64, or as JSON where they are texts; the other is empty."""
    are_texts = bool(classes) and isinstance(classes[0], str)
    ids = np.array([] if are_texts else classes, np.int64)
    return ids, tuple(map(msgspec.json.encode, classes)) if are_texts else ()
