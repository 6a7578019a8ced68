"""Checks that every imported graph must pass. They say what is wrong; the source says where."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gnnserve_api.errors import InputError
from gnnserve_worker.graph.store import Finding, Splits

MAX_CLASSES = 65_536
_FEWEST_OWN_CLASSES = 32
"""Fewest classes that are taken for something else where more than half as many nodes are labelled."""
_LABELLED_SHARE = 10
"""One labelled node of so many, or more, are taken for all that shall be learnt from."""
_INDEX_COLUMN = "__index_level_"
"""Begin of the names of columns that pandas writes beside a table's own."""
_SHOWN_NAMES = 20
MAX_NODES = np.iinfo(np.int32).max
MAX_COLUMNS = 10_000_000
"""Most columns of sparse features, whose number is stated by a single value of the file."""


def check_node_count(where: str, nodes: int) -> None:
    if nodes > MAX_NODES:
        raise InputError(where, f"has {nodes:,} nodes; the limit is {MAX_NODES:,}", "use a smaller graph")


REGRESSION = "regression, which predicts numbers, is not supported yet"
RANGES = "put the numbers into a few ranges, such as low, middle and high, and give these as classes"
"""What to do about it."""


def check_classes(
    where: str, classes: int, labelled: int, nodes: int, *, are_learnt: bool = True
) -> tuple[Finding, ...]:  # fmt: skip
    """Refuse labels that are no classes. `classes`: different labels; `labelled`: nodes that have one, of `nodes`.
    `are_learnt`: not where links are scored, whose labels are read by nothing."""
    findings: tuple[Finding, ...] = ()
    if are_learnt and classes >= _FEWEST_OWN_CLASSES and 2 * classes > labelled:
        found = f"{classes:,} different values on {labelled:,} labelled nodes"
        if _LABELLED_SHARE * labelled >= nodes:
            raise InputError(
                where, f"{found}: nearly every node would be a class of its own, as with numbers that are to be "
                f"predicted, or with ids; {REGRESSION}", f"name a column of classes, or {RANGES}",
            )  # fmt: skip
        # A few nodes of each of many classes may be labelled for a given model.
        what = f"classes that hardly any two labelled nodes share: none of them can be learnt; {REGRESSION}"
        findings = (Finding(what, classes, f"{where}: {found}"),)
    if not 2 <= classes <= MAX_CLASSES:
        raise InputError(
            where, f"expected 2 to {MAX_CLASSES} distinct classes, found {classes}", "check that they are classes"
        )
    return findings


UNREAD_EDGE_DATA = "columns of edges not read"
"""Begins the finding about data of edges; its example names the columns."""


def unread_edge_data(names: Sequence[str], relation: str = "") -> tuple[Finding, ...]:
    """A finding about what the source has of each edge beside its ends. `relation`: where there are several."""
    told = [name for name in names if not name.startswith(_INDEX_COLUMN)]
    of = f" ({relation})" if relation else ""
    what = f"{UNREAD_EDGE_DATA}{of}"
    return (Finding(what, len(told), listed(told)),) if told else ()


def unread_node_data(names: Sequence[str], kind: str = "") -> tuple[Finding, ...]:
    """A finding about what the source has of each node beside features, label and split. `kind`: its type, where there
    are several."""
    of = f" ({kind})" if kind else ""
    return (Finding(f"columns of nodes not read{of}", len(names), listed(names)),) if names else ()


def listed(names: Sequence[str]) -> str:
    """The first twenty of them."""
    return ", ".join(names[:_SHOWN_NAMES]) + " …" * (len(names) > _SHOWN_NAMES)


def as_float32(values: np.ndarray) -> np.ndarray:
    """The values as float32 in C order; a value beyond float32 becomes infinite, for a later check to find."""
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(values, dtype=np.float32)


def check_splits(splits: Splits, train: str, validation: str, remedy: str = "mark at least one") -> None:
    """Refuse splits without training or validation nodes. `train` and `validation` name where the source states
    them."""
    for where, nodes in ((train, splits.train), (validation, splits.validation)):
        if len(nodes) == 0:
            raise InputError(where, "has no labelled node", remedy)
