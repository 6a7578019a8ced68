"""Asks a running server about an account that the graph does not have: alone, then with its transfers.

Then it counts how many test accounts are told right when each comes as a new account without transfers, and how many
with the transfers that the graph has. Needs the standard library alone.
"""

from __future__ import annotations

import csv
import json
import math
import sys
import urllib.request
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
FEATURES = ("ageDays", "transfersPerDay", "meanAmount", "chargebacks", "nightShare")


def predict(server: str, nodes: list[str], overlay: dict[str, Any] | None = None) -> dict[str, Any]:
    request: dict[str, Any] = {"nodes": nodes, "return": ["labels", "scores"], "seed": 7}
    if overlay is not None:
        request["overlay"] = overlay
    with urllib.request.urlopen(f"{server}/v1/predict", json.dumps(request).encode()) as response:  # noqa: S310
        answer: dict[str, Any] = json.load(response)
    return answer


def show(answer: dict[str, Any], classes: list[str]) -> str:
    """The label of the first node, the score of each class, and the probability that softmax makes of the label's."""
    label, scores = answer["labels"][0], answer["scores"][0]
    probability = math.exp(scores[classes.index(label)]) / sum(map(math.exp, scores))
    told = ", ".join(f"{name} {score:.2f}" for name, score in zip(classes, scores, strict=True))
    return f"{label:10}  {probability:.0%}  (scores: {told})"


def share_right(labels: list[str], tested: list[dict[str, str]]) -> str:
    right = sum(label == row["label"] for label, row in zip(labels, tested, strict=True))
    frauds = [label == "fraud" for label, row in zip(labels, tested, strict=True) if row["label"] == "fraud"]
    return f"{right} of {len(tested)} right ({right / len(tested):.1%}), {sum(frauds)} of {len(frauds)} frauds found"


def main(server: str) -> None:
    with urllib.request.urlopen(f"{server}/v1/variants") as response:  # noqa: S310
        classes = json.load(response)["classes"]
    new = json.loads((FOLDER / "new-account.json").read_text(encoding="utf-8"))
    asked = [node["id"] for node in new["nodes"]]
    print("without transfers  ", show(predict(server, asked, {"nodes": new["nodes"]}), classes))
    print("with its transfers ", show(predict(server, asked, new), classes))

    with (FOLDER / "nodes.csv").open(newline="", encoding="utf-8") as file:
        tested = [row for row in csv.DictReader(file) if row["split"] == "test"]
    copies = [
        {"id": f"new-{row['account']}", "features": {name: float(row[name]) for name in FEATURES}} for row in tested
    ]
    stored = predict(server, [row["account"] for row in tested])
    alone = predict(server, [copy["id"] for copy in copies], {"nodes": copies})
    print("test accounts without transfers  ", share_right(alone["labels"], tested))
    print("test accounts with their transfers", share_right(stored["labels"], tested))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080")
