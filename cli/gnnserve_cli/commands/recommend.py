"""`gnnserve recommend`: the nodes that a running server recommends for one, and what it cost."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import typer
from msgspec import UNSET

from gnnserve_api.errors import InputError
from gnnserve_api.files.embeddings import IndexMetric, IndexState
from gnnserve_api.http.recommend import (
    MOST_RECOMMENDED,
    ColumnCondition,
    Exclude,
    RecommendAnswer,
    RecommendRequest,
)
from gnnserve_cli.client import fetch_recommendation, open_url, read_access, stated_objective
from gnnserve_cli.commands.options import CaFile, Json, LatencyMs, OverlayFile, Strict, TokenFile, Url, between
from gnnserve_cli.commands.predict import ids_of, parse_listed, parse_nodes, read_any_overlay
from gnnserve_cli.render import facts_table, format_ms, nodes_table, output, print_json, put
from gnnserve_client.timing import ClientTimes, parse_server_timing

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_CONDITION = re.compile(rf"(?P<column>.+?)(?P<operator><=|>=|<|>|=)(?P<numbers>{_NUMBER}(?:,{_NUMBER})*)")
_OPERATORS = {"<": "below", ">": "above", ">=": "at_least", "<=": "at_most", "=": "equals"}
_INTEGER = re.compile(r"-?[0-9]{1,18}")
"""Texts that are integer labels. `int()` would also accept blanks and underscores."""


def recommend(
    url: Url,
    node: Annotated[
        str, typer.Argument(metavar="NODE", help="Id of the node, of the graph or of --overlay.", show_default=False)
    ],
    *,
    count: Annotated[
        int, typer.Option(callback=between(1, MOST_RECOMMENDED), help="Largest number of nodes that are recommended.")
    ] = 10,
    type_: Annotated[
        str | None,
        typer.Option("--type", metavar="TYPE", help="Type of the nodes, in a graph of several.", show_default=False),
    ] = None,
    include_known: Annotated[
        bool, typer.Option("--include-known", metavar="", help="Recommend neighbours of the node too.")
    ] = False,
    among: Annotated[
        str | None,
        typer.Option(metavar="IDS", help="Recommend these nodes only, written as for `predict`.", show_default=False),
    ] = None,
    labels: Annotated[
        str | None,
        typer.Option(
            metavar="LABELS",
            help="Recommend nodes with one of these labels only: 3,5, or a JSON list.",
            show_default=False,
        ),
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CONDITION",
            help="Recommend nodes only whose column meets it: 'price<20', 'stock>=1' or 'brand=3,5'. May be repeated.",
            show_default=False,
        ),
    ] = None,
    overlay: OverlayFile = None,
    latency_ms: LatencyMs = None,
    strict: Strict = False,
    token_file: TokenFile = None,
    ca_file: CaFile = None,
    as_json: Json = False,
) -> None:
    """Ask a running server for nodes like one, or where it scores links, for the best ones to join it to."""
    brought: Any = None if overlay is None else read_any_overlay(overlay)
    endpoint = open_url(url, read_access(token_file, ca_file))

    def read(text: str, option: str) -> tuple[int | str, ...]:
        listed = parse_nodes(text, option)
        return listed if isinstance(listed, tuple) else ids_of(listed, endpoint, option)

    asked = read(node, "NODE")
    if len(asked) != 1:
        raise InputError("NODE", f"{node!r} are {len(asked)} nodes", "name one, ids with commas as a JSON list")
    exclude: Exclude = "nothing" if include_known else "known"
    filter_: dict[str, Any] = _conditions(where or ())
    filter_ |= {} if labels is None else {"labels": _labels(labels)}
    filter_ |= {} if among is None else {"nodes": read(among, "--among")}
    request: RecommendRequest[Any] = RecommendRequest(
        node=asked[0],
        count=count,
        type=type_,
        exclude=exclude,
        filter=filter_ or None,
        objective=stated_objective(latency_ms, None),
        strict=strict or UNSET,
        overlay=brought,
    )
    answer, reply = fetch_recommendation(endpoint, request)
    assert reply.times is not None  # noqa: S101  (a connection of the client's own measures them)
    if as_json:
        timing = parse_server_timing(reply.headers.get("server-timing", ""))
        costs = {"roundTripMs": round(reply.elapsed_ms, 3), "serverTimingMs": timing}
        print_json({"node": asked[0], **msgspec.to_builtins(answer), **costs})
        return
    ids = [item.id for item in answer.items]
    shown = [nodes_table(ids, _columns(answer))] if ids else [_nothing(include_known, is_filtered=bool(filter_))]
    put(output(), *shown, "", facts_table(_facts(answer, reply.times)))


def _nothing(include_known: bool, *, is_filtered: bool) -> str:
    """Why no node is recommended."""
    left_out = [
        words
        for words, holds in (
            ("neighbours of the node are left out without --include-known", not include_known),
            ("--labels, --among and --where leave out all others", is_filtered),
        )
        if holds
    ]
    return "No node is recommended" + (f": {'; '.join(left_out)}." if left_out else ".")


def _columns(answer: RecommendAnswer) -> list[tuple[str, list[str]]]:
    """What there is of each item."""
    named = {"Cosine": [item.cosine for item in answer.items]}
    if answer.index.metric is IndexMetric.SCORE:
        named = {
            "Score": [item.score for item in answer.items],
            "Probability": [item.probability for item in answer.items],
        }
    return [(name, [f"{one:.4f}" for one in given]) for name, given in named.items()]


def _conditions(texts: Sequence[str]) -> dict[str, ColumnCondition]:
    """By the name of the column; several on one column have to hold together."""
    found: dict[str, dict[str, Any]] = {}
    for text in texts:
        parts = _CONDITION.fullmatch(text)
        if parts is None or ("," in parts["numbers"] and parts["operator"] != "="):
            raise InputError(
                "--where", f"{text!r} is no condition on a column", "write price<20, stock>=1 or brand=3,5"
            )
        numbers, name = [float(number) for number in parts["numbers"].split(",")], _OPERATORS[parts["operator"]]
        of_column = found.setdefault(parts["column"], {})
        of_column |= {name: numbers[0]} if len(numbers) == 1 else {"one_of": tuple(numbers)}
    return {column: ColumnCondition(**given) for column, given in found.items()}


def _labels(text: str) -> tuple[int | str, ...]:
    """Labels between commas, of which digits are integers; a JSON list is taken to the letter."""
    listed = parse_listed(text, "--labels", "labels", "write 3,5 or sea,land, or a JSON list")
    if isinstance(listed, tuple):
        return listed
    return tuple(int(part) if _INTEGER.fullmatch(part) else part for part in listed)


def _facts(answer: RecommendAnswer, times: ClientTimes) -> list[tuple[str, str]]:
    index = answer.index
    return [
        ("variant", f"{answer.variant} of revision {answer.revision}"),
        (
            "index",
            f"{index.nodes:,} nodes{_of_type(index)}, {index.kind.lower()}, recall {index.recall:.3f}, "
            f"{index.built_at}",
        ),
        *_followed(answer),
        ("objective", "met" if answer.objective_met else "not met: the answer came late"),
        ("round trip", f"{format_ms(times.total_ms)} ms, behind {format_ms(times.connect_ms)} ms of connecting"),
    ]


def _followed(answer: RecommendAnswer) -> list[tuple[str, str]]:
    """How far what was searched has followed changes; nothing where the graph does not change."""
    index = answer.index
    if answer.offset is UNSET or index.followed_offset is UNSET:
        return []
    told = f"made at offset {index.offset:,}, follows to {index.followed_offset:,} of {answer.offset:,}"
    return [("changes", f"{told}; {index.renewed:,} nodes computed since, {index.pending:,} pending")]


def _of_type(index: IndexState) -> str:
    return "" if index.type is UNSET else f" of type {index.type}"
