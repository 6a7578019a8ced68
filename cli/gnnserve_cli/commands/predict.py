"""`gnnserve predict`: one request to a running server, and what it cost."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from msgspec import UNSET

from gnnserve_api import decoding
from gnnserve_api.errors import InputError, remedy_of
from gnnserve_api.files.repository import NodeIdKind
from gnnserve_api.http.live_accuracy import TypedNodeId
from gnnserve_api.http.pairs import PairOutput, PairsAnswer, PairsRequest
from gnnserve_api.http.protocol import (
    MAX_OFFSET,
    MAX_SEED,
    Label,
    Output,
    PredictAnswer,
    PredictRequest,
    RequestOverlay,
    TypedOverlay,
)
from gnnserve_cli.client import fetch_nodes, fetch_pairs, fetch_prediction, open_url, read_access, stated_objective
from gnnserve_cli.commands.options import (
    CaFile,
    Json,
    LatencyMs,
    OverlayFile,
    Priority,
    Strict,
    TokenFile,
    TolerancePermille,
    Url,
    between,
)
from gnnserve_cli.parts import format_parts, parts_to_builtins
from gnnserve_cli.printable import printable_line
from gnnserve_cli.render import facts_table, format_ms, format_name, nodes_table, output, pairs_table, print_json, put
from gnnserve_client.address import Endpoint
from gnnserve_client.timing import ClientTimes, Parts, parse_server_timing, parts_of

if TYPE_CHECKING:
    from rich.table import Table

    from gnnserve_client.exchange import ServerReply

AnyId = int | str | TypedNodeId
Overlay = RequestOverlay[Any] | TypedOverlay
OUTPUTS: dict[str, Output] = {"labels": "labels", "scores": "scores", "embeddings": "embeddings"}
PAIR_OUTPUTS: dict[str, PairOutput] = {"scores": "scores", "probabilities": "probabilities"}
SHOWN_VALUES = 4
"""Values of a vector shown in the table; `--json` has all."""
_NUMBER = re.compile(r"-?[0-9]+")
"""Texts that may be integer ids. `int()` would also accept blanks and underscores."""
_INTEGERS = range(-(2**63), 2**63)
"""Integer ids that a graph may have."""
_WITH_TYPE = re.compile(r"[^\s:/]+/")


def predict(
    url: Url,
    *,
    nodes: Annotated[
        str | None,
        typer.Option(
            metavar="IDS",
            help='Node ids: 1,2,3 or ann,bob. Ids with commas or blanks around them as a JSON list: ["Doe, J."]. '
            "Unset: those of --overlay.",
            show_default=False,
        ),
    ] = None,
    pairs: Annotated[
        str | None,
        typer.Option(
            metavar="PAIRS",
            help="Pairs to score, in place of nodes: 1:2,3:4 or user/3:item/7, or with a blank between the two. Ids "
            'with commas, colons or blanks as a JSON list: [["a,1", "b"]].',
            show_default=False,
        ),
    ] = None,
    overlay: OverlayFile = None,
    seed: Annotated[
        int | None,
        typer.Option(
            callback=between(0, MAX_SEED),
            help="Draw neighbours by this number alone, so that the same request draws the same neighbours again.",
            show_default=False,
        ),
    ] = None,
    variant: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Have this variant answer, whatever routing calls for: one of `gnnserve variants`.",
            show_default=False,
        ),
    ] = None,
    priority: Priority = None,
    min_offset: Annotated[
        int | None,
        typer.Option(
            callback=between(0, MAX_OFFSET),
            help="Wait until the server has applied this offset of the log of changes.",
            show_default=False,
        ),
    ] = None,
    latency_ms: LatencyMs = None,
    tolerance_permille: TolerancePermille = None,
    strict: Strict = False,
    outputs: Annotated[
        str | None,
        typer.Option(
            "--return",
            metavar="WHAT",
            help="Any of labels, scores, embeddings, with commas; of pairs scores, probabilities.",
            show_default="labels; scores,probabilities",
        ),
    ] = None,
    token_file: TokenFile = None,
    ca_file: CaFile = None,
    as_json: Json = False,
) -> None:
    """Ask a running server for nodes of its graph."""
    # The server says which of the two forms of an overlay its graph takes.
    brought: Any = None if overlay is None else read_any_overlay(overlay)
    if pairs is not None:
        if nodes is not None:
            raise InputError("--pairs", "--nodes is given too", "give one of them")
        endpoint = open_url(url, read_access(token_file, ca_file))
        named = _pairs_of(parse_pairs(pairs), endpoint)
        asked: PairsRequest[Any] = PairsRequest(
            named,
            stated_objective(latency_ms, tolerance_permille),
            strict or UNSET,
            _parse_pair_outputs(outputs),
            brought,
            seed,
            variant,
            min_offset,
            priority=priority,
        )
        scored, reply = fetch_pairs(endpoint, asked)
        table = pairs_table(named, _pair_columns(scored))
        _show({"pairs": named}, table, scored, reply, as_json=as_json)
        return
    listed = _nodes_of(brought) if nodes is None else parse_nodes(nodes)
    wanted = parse_outputs(outputs or "labels")
    endpoint = open_url(url, read_access(token_file, ca_file))
    ids = listed if isinstance(listed, tuple) else ids_of(listed, endpoint, "--nodes")
    request: PredictRequest[Any] = PredictRequest(
        ids,
        stated_objective(latency_ms, tolerance_permille),
        strict or UNSET,
        wanted,
        brought,
        seed,
        variant,
        min_offset,
        priority=priority,
    )
    answer, reply = fetch_prediction(endpoint, request)
    _show({"nodes": request.nodes}, nodes_table(request.nodes, _columns(answer)), answer, reply, as_json=as_json)


def _show(
    asked: dict[str, Any], table: Table, answer: PredictAnswer | PairsAnswer, reply: ServerReply, *, as_json: bool
) -> None:
    """The answer to what was asked, and what it cost."""
    timing = parse_server_timing(reply.headers.get("server-timing", ""))
    assert reply.times is not None  # noqa: S101  (a connection of the client's own measures them)
    parts = parts_of(reply.times, timing)
    if as_json:
        costs = {
            "roundTripMs": round(reply.elapsed_ms, 3),
            "connectMs": round(reply.times.connect_ms, 3),
            "serverTimingMs": timing,
            "partsMs": parts_to_builtins(parts),
        }
        print_json({**asked, **msgspec.to_builtins(answer), **costs})
    else:
        put(output(), table, "", facts_table(_facts(answer, reply.times, parts)))


def read_any_overlay(file: Path) -> Overlay:
    """Read the file of `--overlay`, of nodes of one type or of several. What its ids and features have to be is for the
    server to say."""
    try:
        content = file.read_bytes()
        with suppress(msgspec.ValidationError):
            return decoding.decode(content, RequestOverlay[Any])
        return decoding.decode(content, TypedOverlay)
    except OSError as error:
        raise InputError(
            "--overlay", f"{str(file)!r} cannot be read: {error.strerror}", remedy_of(error, "check the path")
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(
            "--overlay",
            f"{str(file)!r} is not an overlay: {printable_line(str(error))}",
            'write {"nodes": [{"id": …, "features": …}], "edges": [[source, target]]}; of a graph of several types '
            "edges are [source, relation, target]",
        ) from None


def _nodes_of(overlay: Overlay | None) -> tuple[int | str, ...]:
    """The new nodes, or else those with new features."""
    if overlay is None:
        raise InputError("--nodes", "it is missing", "write 1,2,3 or ann,bob, or a JSON list, or give --overlay")
    brought = overlay.nodes or overlay.overrides
    if not brought:
        raise InputError("--nodes", "it is missing, and the overlay has no nodes to ask for", "write 1,2,3 or ann,bob")
    return tuple(node.id for node in brought)


def parse_nodes(text: str, option: str = "--nodes") -> tuple[int | str, ...] | list[str]:
    """Parse ids of nodes, as `parse_listed`; `ids_of` decides whether texts between commas are integers."""
    return parse_listed(text, option, "node ids", "write 1,2,3 or ann,bob, or a JSON list")


def parse_listed(text: str, option: str, what: str, remedy: str) -> tuple[int | str, ...] | list[str]:
    """Parse a list. JSON gives a tuple. Parts between commas give a list of texts, stripped. `option`, `what` and
    `remedy`: what messages name."""
    try:
        text.encode()
        if text.lstrip().startswith("["):
            return decoding.decode(text, tuple[int | str, ...])
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise _not_listed(text, str(error), option, what, remedy) from None
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise _not_listed(text, "one is empty", option, what, remedy)
    return parts


def parse_pairs(text: str) -> tuple[tuple[int | str, int | str], ...] | list[str]:
    """Parse `--pairs`. A JSON list gives pairs of ids. Else the ids of all pairs as texts, first, second, first, …"""
    remedy = "write 1:2,3:4 or user/3:item/7, or a JSON list of pairs"
    shown = text if len(text) <= 80 else text[:77] + "..."
    try:
        text.encode()
        if text.lstrip().startswith("["):
            listed = decoding.decode(text, tuple[tuple[AnyId, AnyId], ...])
            return tuple((_plain(first), _plain(second)) for first, second in listed)
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise InputError("--pairs", f"{shown!r} is not a list of pairs: {error}", remedy) from None
    found: list[str] = []
    for pair in text.split(","):
        readings = _readings_of(pair)
        if not readings:
            raise InputError("--pairs", f"{pair.strip()!r} is no pair of node ids", remedy)
        if len(readings) > 1:
            either = " or ".join(f"{first!r} with {second!r}" for first, second in readings)
            written = msgspec.json.encode([readings[0]]).decode()
            raise InputError("--pairs", f"{pair.strip()!r} may be {either}", f"write a JSON list of pairs: {written}")
        found += readings[0]
    return found


def _readings_of(pair: str) -> list[tuple[str, str]]:
    """The pairs of ids that a text may be, between which a colon or a blank stands.

    A colon parts ids with blanks in them (`New York:Paris`), a blank those with colons (`a:1 b:2`). Where either could,
    one that leaves two ids with types does (names of types have neither), or else the colon."""
    by_colon = tuple(end.strip() for end in pair.split(":"))
    by_blank = tuple(pair.split())
    readings = [(ends[0], ends[1]) for ends in (by_colon, by_blank) if len(ends) == 2 and all(ends)]
    readings = [(first, second) for first, second in readings if first[-1] != ":" != second[0]]
    typed = [ends for ends in readings if all(map(_WITH_TYPE.match, ends))]
    return typed or readings[:1]


def _plain(id_: AnyId) -> int | str:
    return id_ if isinstance(id_, (int, str)) else id_.text


def _pairs_of(
    parsed: tuple[tuple[int | str, int | str], ...] | list[str], endpoint: Endpoint
) -> tuple[tuple[int | str, int | str], ...]:
    if isinstance(parsed, tuple):
        return parsed
    ids = ids_of(parsed, endpoint, "--pairs")
    return tuple(zip(ids[0::2], ids[1::2], strict=True))


def _parse_pair_outputs(text: str | None) -> tuple[PairOutput, ...]:
    wanted = tuple(PAIR_OUTPUTS) if text is None else tuple(part.strip() for part in text.split(","))
    for name in wanted:
        if name not in PAIR_OUTPUTS:
            raise InputError("--return", f"{name!r} is unknown", f"choose from {', '.join(PAIR_OUTPUTS)}")
    return tuple(PAIR_OUTPUTS[name] for name in wanted)


def _pair_columns(answer: PairsAnswer) -> list[tuple[str, list[str]]]:
    columns = (("Score", answer.scores), ("Probability", answer.probabilities))
    return [
        (header, [f"{value:.4g}" for value in values])
        for header, values in columns
        if not isinstance(values, msgspec.UnsetType)
    ]


def _not_listed(text: str, why: str, option: str, what: str, remedy: str) -> InputError:
    shown = text if len(text) <= 80 else text[:77] + "..."
    return InputError(option, f"{shown!r} is not a list of {what}: {why}", remedy)


def ids_of(parts: list[str], endpoint: Endpoint, option: str) -> tuple[int | str, ...]:
    """Convert the parts of an option to ids. Digits may be an integer or a text, so the server is asked which kind its
    ids are."""
    if not any(map(_NUMBER.fullmatch, parts)) or fetch_nodes(endpoint).node_ids is NodeIdKind.STRINGS:
        return tuple(parts)
    return as_integers(parts, option)


def as_integers(parts: Sequence[str], option: str) -> tuple[int | str, ...]:
    """Ids of a graph whose ids are integers. Those with a type before them, `user/17`, stay texts, as the graph of
    several types that they are of takes them. Raises InputError that names the first part that is neither."""
    return tuple(part if _WITH_TYPE.match(part) else _as_integer(part, option) for part in parts)


def _as_integer(part: str, option: str) -> int:
    # Python converts no text of thousands of digits.
    if _NUMBER.fullmatch(part) and len(part) <= 20 and (number := int(part)) in _INTEGERS:
        return number
    shown = part if len(part) <= 80 else part[:77] + "..."
    why = "is beyond 64 bits" if _NUMBER.fullmatch(part) else "is no integer"
    raise InputError(option, f"{shown!r} {why}, and the graph's node ids are integers", "correct it, or leave it out")


def parse_outputs(text: str) -> tuple[Output, ...]:
    wanted = tuple(part.strip() for part in text.split(","))
    for name in wanted:
        if name not in OUTPUTS:
            raise InputError("--return", f"{name!r} is unknown", f"choose from {', '.join(OUTPUTS)}")
    return tuple(OUTPUTS[name] for name in wanted)


def _columns(answer: PredictAnswer) -> list[tuple[str, list[str]]]:
    columns: list[tuple[str, list[str]]] = []
    if not isinstance(answer.labels, msgspec.UnsetType):
        columns.append(("Label", [_format_label(label) for label in answer.labels]))
    if not isinstance(answer.scores, msgspec.UnsetType):
        columns.append(("Scores", [_format_vector(row) for row in answer.scores]))
    if not isinstance(answer.embeddings, msgspec.UnsetType):
        columns.append(("Embedding", [_format_vector(row) for row in answer.embeddings]))
    return columns


def _format_label(label: Label | list[Label]) -> str:
    if isinstance(label, list):
        return ", ".join(map(format_name, label)) or "none"
    return format_name(label)


def _format_vector(values: list[float]) -> str:
    shown = " ".join(f"{value:.3g}" for value in values[:SHOWN_VALUES])
    return shown if len(values) <= SHOWN_VALUES else f"{shown} … {len(values)} values"


def _facts(answer: PredictAnswer | PairsAnswer, times: ClientTimes, parts: Parts) -> list[tuple[str, str]]:
    offset = [] if isinstance(answer.offset, msgspec.UnsetType) else [("offset", f"{answer.offset:,}")]
    return [
        ("variant", f"{answer.variant} of revision {answer.revision}"),
        *offset,
        ("objective", "met" if answer.objective_met else "not met: the answer came late"),
        ("round trip", f"{format_ms(times.total_ms)} ms, behind {format_ms(times.connect_ms)} ms of connecting"),
        ("its parts", format_parts(parts)),
    ]
