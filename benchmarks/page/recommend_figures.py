"""Tables of `recommend/recommend.py`: what was found and how soon, what writing cost beside it, and reviews that are
spam."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from benchmarks.page.figure_blocks import figures, paragraphs, table

_PHASES = {
    "alone": "alone", "copying": "while rows are copied", "indexing": "while their index is built",
    "alone again": "alone again",
}  # fmt: skip


@figures("recommend")
def render_recommend(found: Any) -> str:
    sections: dict[str, Callable[[Any], Iterator[str]]] = {
        "recommend": _million, "filters": _filters, "perceptron": _perceptron, "real": _real, "database": _database,
        "writing": _writing, "spam": _spam,
    }  # fmt: skip
    return paragraphs(*(text for key, section in sections.items() if key in found for text in section(found)))


def _million(found: Any) -> Iterator[str]:
    index, asked = found["index"], found["recommend"]
    recall = f"{asked['recall']:.4f} of {asked['judged']:,}" if "recall" in asked else "–"
    yield table(
        ("", "vectors", "recall@10 of new users", "told by the index", "p50 ms", "p99 ms", "built, vectors/s"),
        [(
            f"`POST /v1/recommend`, {asked['requests']:,} new users", f"{found['nodes']:,}", recall,
            f"{index['recall']:.4f}", f"{asked['p50_ms']:.2f}", f"{asked['p99_ms']:.2f}",
            f"{index['items_per_second']:,}",
        )],
    )  # fmt: skip


def _filters(found: Any) -> Iterator[str]:
    asked = found["filters"]
    yield (
        f"`POST /v1/recommend` with `filter` of one column, over {asked['nodes']:,} nodes "
        f"({asked['kind'].lower()}, {asked['probed']:,} of {asked['lists']:,} lists compared without one):"
    )
    yield table(
        ("nodes that pass", "requests", "recall@10 of new users", "fewest items", "p50 ms", "p99 ms"),
        (
            (
                f"{row['nodes']:,}", f"{row['requests']:,}", f"{row['recall']:.4f} of {row['judged']:,}",
                str(row["fewest"]), f"{row['p50_ms']:.2f}", f"{row['p99_ms']:.2f}",
            )
            for row in asked["rows"]
        ),
    )  # fmt: skip


def _perceptron(found: Any) -> Iterator[str]:
    asked = found["perceptron"]
    yield (
        f"Pairs scored by a perceptron (decoder MLP) over {asked['nodes']:,} nodes with {asked['columns']} columns, in "
        "one thread:"
    )
    yield table(
        ("lists compared", "queries", "recall@10", "told by the index", "p50 ms", "p99 ms", "built, vectors/s"),
        [(
            f"{asked['probed']:,} of {asked['lists']:,}", f"{asked['requests']:,}", f"{asked['recall']:.4f}",
            f"{asked['told_recall']:.4f}", f"{asked['p50_ms']:.2f}", f"{asked['p99_ms']:.2f}",
            f"{asked['items_per_second']:,}",
        )],
    )  # fmt: skip


def _real(found: Any) -> Iterator[str]:
    for real in found["real"]:
        first = real["indexes"][0]
        yield (
            f"{first['vectors']:,} {real['embeddings']}, {first['columns']} columns, nearest by {real['nearest']}; "
            f"asked by {first['queries']:,} {real['queries']}:"
        )
        yield table(
            ("", "set to", "recall@10", "by stored queries", "p50 ms", "p99 ms", "built, vectors/s"),
            (
                (
                    one["name"], _effort(one), f"{one['recall']:.4f}",
                    f"{one['recall_stored']:.4f}", f"{one['p50_ms']:.3f}", f"{one['p99_ms']:.3f}",
                    f"{one['items_per_second']:,}",
                )
                for one in real["indexes"]
            ),
        )  # fmt: skip


def _effort(index: Any) -> str:
    if index["effort"] is None:
        return "–"
    return f"{index['effort']:,}" + (f" of {index['most_effort']:,} lists" if index["most_effort"] else "")


def _database(found: Any) -> Iterator[str]:
    written = found["database"]
    yield (
        f"Into PostgreSQL with pgvector, {written['rows']:,} rows: {written['rows_per_second']:,} rows/s by COPY, "
        f"{written['with_index_rows_per_second']:,} with the HNSW index."
    )


def _writing(found: Any) -> Iterator[str]:
    plan, asked = found["writing"]["plan"], found["writing"]["asked"]
    yield (
        f"Predictions for new users, {plan['rate_per_s']:g} a second, {plan['seconds']:g} s at a time in "
        f"{plan['rounds']} rounds; medians of the rounds, and in brackets the least and the most:"
    )
    yield table(
        ("", "rounds", "requests", "p50 ms", "p99 ms"),
        (
            (
                words, str(len(asked[name])), f"{sum(one['requests'] for one in asked[name]):,}",
                *(_with_range([one[key] for one in asked[name]]) for key in ("p50_ms", "p99_ms")),
            )
            for name, words in _PHASES.items()
        ),
    )  # fmt: skip


def _with_range(rounds: Sequence[float]) -> str:
    return f"{statistics.median(rounds):.2f} ({min(rounds):.2f} to {max(rounds):.2f})"


def _spam(found: Any) -> Iterator[str]:
    yield f"Spam among {found['spam']['reviews']:,} test reviews:"
    yield table(
        ("variant", "ROC-AUC of stored reviews", "of new ones", "one stored, ms", "one new, ms", "1,024 stored, ms"),
        (
            (row["variant"], *map(_shown, (row["stored"], row["new"], row["one_ms"], row["new_ms"], row["batch_ms"])))
            for row in found["spam"]["variants"]
        ),
    )


def _shown(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
