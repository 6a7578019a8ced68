"""Tables about the frontier of accuracy and latency."""

from __future__ import annotations

from typing import Any

from benchmarks.page.figure_blocks import figures, paragraphs, table


@figures("frontier")
def frontier(found: Any) -> str:
    return paragraphs(_variants(found), _of_types(found), _shapes(found), _beside_glnn(found))


def _variants(found: Any) -> str:
    """Variants of each graph that are on its frontier."""
    rows = []
    for graph in found["graphs"]:
        x1 = _base(graph)
        if x1["name"] != "x1":
            continue
        for point in graph["points"]:
            if point["name"] not in _SHOWN:
                continue
            accuracy = sum(point["accuracies"]) / len(point["accuracies"])
            times = x1["p50_ms"]["1024"] / point["p50_ms"]["1024"]
            p50s = (f"{point['p50_ms'][seeds]:.3g}" for seeds in ("1", "32", "1024"))
            told = (*_told(point["unseen"]), *_told(point.get("reading")))
            rows.append((graph["graph"], point["name"], f"{accuracy:.4f}", *p50s, f"{times:.1f}", *told))
    headings = ("graph", "variant", "accuracy", "p50 ms, 1 seed", "32", "1024", "times x1")
    return table((*headings, "as new nodes", "p50 ms, 1024", "as readers", "p50 ms, 1024"), rows)


def _of_types(found: Any) -> str:
    """Variants of graphs of several types, in float32."""
    rows = []
    for graph in found["graphs"]:
        base = _base(graph)
        for point in graph["points"] if base["name"] == "projected" else ():
            if point["name"].endswith("-int8"):
                continue
            p50s = (f"{point['p50_ms'][seeds]:.3g}" for seeds in ("1", "32", "1024"))
            gained = 100 * (_mean(point["accuracies"]) - _mean(base["accuracies"]))
            times = base["p50_ms"]["1024"] / point["p50_ms"]["1024"]
            accuracy = f"{_mean(point['accuracies']):.4f}"
            rows.append((graph["graph"], point["name"], accuracy, f"{gained:+.2f}", *p50s, f"{times:.1f}"))
    headings = ("graph", "variant", "macro F1", "points", "p50 ms, 1 seed", "32", "1024", "times projected")
    return table(headings, rows) if rows else ""


def _base(graph: Any) -> Any:
    """What the graph's other variants are compared with."""
    return next(point for point in graph["points"] if point["name"] == graph.get("base", "x1"))


def _shapes(found: Any) -> str:
    return table(
        ("shape", *(f"{name}, ms" for name in _SHOWN_OF_SHAPES), "x1 over stored1-int8", "making the stored tables, s"),
        (
            (
                shape["shape"],
                *(f"{shape['p50_ms'][name]:.3g}" if name in shape["p50_ms"] else "" for name in _SHOWN_OF_SHAPES),
                f"{shape['p50_ms']['x1'] / shape['p50_ms']['stored1-int8']:.0f}",
                f"{shape['stored_tables_s']:g}",
            )
            for shape in found["shapes"]
        ),
    )


def _told(unseen: dict[str, float] | None) -> tuple[str, str]:
    return ("", "") if unseen is None else (f"{unseen['accuracy']:.4f}", f"{unseen['p50_ms']:.3g}")


def _beside_glnn(found: Any) -> str:
    """GLNN's figures on the graphs that its authors measured too, and ours at 1024 seeds."""
    rows = []
    for graph in found["graphs"]:
        theirs = _GLNN_POINTS.get(graph["graph"])
        if theirs is None:
            continue
        points = {point["name"]: point for point in graph["points"]}
        x1 = points["x1"]
        for name in _BESIDE_GLNN:
            gained = 100 * (_mean(points[name]["accuracies"]) - _mean(x1["accuracies"]))
            times = x1["p50_ms"]["1024"] / points[name]["p50_ms"]["1024"]
            rows.append((graph["graph"], name, f"{gained:+.2f}", f"{times:.0f}"))
        rows.append((graph["graph"], "GLNN, as published", f"{theirs:+.2f}", _GLNN_TIMES))
    return table(("graph", "variant", "points over the whole network", "times as fast"), rows)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


_GLNN_POINTS = {"amazon_computers": 82.29 - 82.14, "amazon_photo": 92.38 - 91.08}
"""*Graph-less neural networks*, the production setting: GLNN's accuracy less that of its GraphSAGE, in points."""
_GLNN_TIMES = "146 to 273"
_BESIDE_GLNN = ("stored1-int8", "mlp0-int8", "mlp2-int8")
_SHOWN = ("x1", "x8", "projected-int8", "stored1", "stored1-int8", "mlp0-int8", "mlp2-int8", "stored2-int8")
_SHOWN_OF_SHAPES = ("x1", "x8", "projected-int8", "stored1", "stored1-int8")
