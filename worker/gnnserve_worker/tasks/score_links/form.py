"""Fields of a request in JSON about pairs of nodes, or nodes at their ends, and what to do where one is wrong."""

from __future__ import annotations

from gnnserve_worker.asking.body_form import FIELDS, IDS, MEMBERS, REMEDIES, BodyForm

FORM = BodyForm(
    MEMBERS | {"": ("pairs", "nodes", *FIELDS)},
    IDS | {"pairs[][]", "nodes[]"},
    REMEDIES
    | {
        "pairs": "give a list of pairs of node ids: [[first, second], …]",
        "pairs[]": "give a pair of node ids: [first, second]",
        "nodes": "give a list of node ids",
        "return": "give a list of scores and probabilities, or of embeddings alone",
        "return[]": "give scores or probabilities of pairs, or embeddings of nodes",
    },
    lambda revision: revision.task.example(),
)
