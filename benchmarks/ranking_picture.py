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


def draw_picture(rows: Sequence[Row], path: Path) -> None:
    """Percent by factor and ranking; bars reach from the least to the most accurate seed."""
    graphs, models = (list(dict.fromkeys(row[field] for row in rows)) for field in ("graph", "model"))
    with rc_context(_STYLE):
        figure = Figure(figsize=(1.5 * len(graphs) + 0.6, 1.9 * len(models)), layout="constrained")
        panels = figure.subplots(len(models), len(graphs), squeeze=False)
        for across, graph in enumerate(graphs):
            for down, model in enumerate(models):
                measured = [row for row in rows if (row["graph"], row["model"]) == (graph, model)]
                if measured:
                    _draw_panel(panels[down][across], measured, f"{graph}\n{model}")
                else:
                    panels[down][across].set_visible(False)
        first = next(axes for row in panels for axes in row if axes.get_visible())
        figure.legend(*first.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
        figure.savefig(path, dpi=100, metadata={"Date": None})


def _draw_panel(axes: Axes, rows: Sequence[Row], title: str) -> None:
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
    axes.set_title(f"{title}, {figures[rows[0]['judged_by']]}, %")
