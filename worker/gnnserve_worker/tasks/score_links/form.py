"""Fields of a request in JSON that scores pairs of nodes, and what to do where one is wrong."""

from __future__ import annotations

from gnnserve_worker.asking.body_form import FIELDS, IDS, MEMBERS, REMEDIES, BodyForm

FORM = BodyForm(
    MEMBERS | {"": ("pairs", *FIELDS)},
    IDS | {"pairs[][]"},
    REMEDIES
    | {
        "pairs": "give a list of pairs of node ids: [[first, second], …]",
        "pairs[]": "give a pair of node ids: [first, second]",
        "return": "give a list of scores and probabilities",
        "return[]": "give scores or probabilities",
    },
    lambda revision: revision.task.example(),
)
