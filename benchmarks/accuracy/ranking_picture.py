"""The rows of the ranking study as a picture: a panel for each graph and model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib import rc_context
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = dict[str, Any]
_COLORS = {"Random": "#8a8a8a", "Greedy": "#c0392b", "Lasso": "#1f4e80"}
_STYLE: Any = {
    "svg.hashsalt": "gnnserve",  # the same rows, the same file
    "svg.fonttype": "none",
    "font.size": 8.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 8.0,
}


_MOST_ACROSS = 5
"""Panels beside each other, so that a page need not shrink them."""


def draw_picture(rows: Sequence[Row], path: Path) -> None:
    """Percent by factor and ranking; bars reach from the least to the most accurate seed."""
    cells = sorted({(row["model"], row["graph"]): None for row in rows}, key=lambda cell: cell[0] != "GraphSAGE")
    down = -(-len(cells) // _MOST_ACROSS)
    with rc_context(_STYLE):
        figure = Figure(figsize=(1.9 * _MOST_ACROSS, 1.9 * down), layout="constrained")
        panels = [axes for line in figure.subplots(down, _MOST_ACROSS, squeeze=False) for axes in line]
        for axes in panels[len(cells) :]:
            axes.set_visible(False)
        for axes, (model, graph) in zip(panels, cells, strict=False):
            _draw_panel(axes, [row for row in rows if (row["graph"], row["model"]) == (graph, model)], graph, model)
        first = panels[0]
        figure.legend(*first.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
        figure.savefig(path, dpi=100, metadata={"Date": None})


def _draw_panel(axes: Axes, rows: Sequence[Row], graph: str, model: str) -> None:
    name = "roc_auc" if rows[0]["judged_by"] == "rocAuc" else "accuracy"
    factors = sorted({row["factor"] for row in rows})
    for method, color in _COLORS.items():
        line = sorted((row for row in rows if row["method"] == method), key=lambda row: int(row["factor"]))
        middles = [100 * row[f"{name}_mean"] for row in line]
        below = [middle - 100 * min(row[f"{name}_values"]) for middle, row in zip(middles, line, strict=True)]
        above = [100 * max(row[f"{name}_values"]) - middle for middle, row in zip(middles, line, strict=True)]
        steps = [factors.index(row["factor"]) for row in line]
        # A mean of equal numbers may be off by a rounding, and matplotlib takes no negative length.
        lengths = [[max(0.0, length) for length in side] for side in (below, above)]
        axes.errorbar(steps, middles, yerr=lengths, color=color, label=method, linewidth=1.2, capsize=2)
    axes.set_xticks(range(len(factors)), [f"{factor}x" for factor in factors])
    figures = {"rocAuc": "ROC AUC", "f1Micro": "F1-micro", "accuracy": "accuracy"}
    axes.set_title(f"{graph}\n{model}, {figures[rows[0]['judged_by']]} %")
