"""Requests about nodes that the graph has not seen: what they cost, whether answers are right, and how good they are.

Cost: p50 and requests per second of requests with new nodes, each with its features and ten edges, over the same
requests for as many stored nodes of that degree, of one server, in turns. Right: answers to random overlays beside
those of the graph built anew (`unseen_answers.py`). Good: the test nodes of public graphs are hidden, then asked for
as new nodes, each alone (`unseen_accuracy.py`).
"""

from __future__ import annotations

import http.client
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import yaml
from rich.console import Console
from rich.table import Table

from benchmarks.answers.serving import running_server
from benchmarks.pairs import Allowed, compute_ratio, read_ratio, recorded, verdict_of
from benchmarks.peers.protocols import BINARY, JSON
from benchmarks.peers.servers import service_manifest
from benchmarks.results import Benchmark, Part, Run, main
from benchmarks.shapes import CACHE, SHAPES, ShapeFiles, prepare, prepare_sources
from benchmarks.unseen.unseen_accuracy import measure_accuracy
from benchmarks.unseen.unseen_answers import largest_errors, smallest_p_value
from benchmarks.verdicts import Verdict, Worded, above, at_most
from benchmarks.wrk import encode_post, generate_load, write_requests

COST = Allowed(loss=0.3)
"""What is allowed of a request about new nodes over the same about stored ones; noise excuses nothing."""
WANTED_ERROR, WANTED_POINTS = 1e-5, 0.3
"""Largest difference of a score from that of the graph built anew; most points of accuracy that a new node may lose, of
which the mean over five draws of neighbours is taken."""
_PATH, _OVERLAY = "/v1/predict?return=scores", "application/vnd.gnnserve.overlay"
_DEGREE = 10
_COUNTS = (1, 32, 256)
_BODIES = {1: 4096, 32: 256, 256: 32}
_LEAST_P = 1e-4
Requests = Callable[[int, int], list[bytes]]
"""So many requests of so many nodes each, as bodies."""


@dataclass(frozen=True, slots=True)
class Effort:
    rounds: int
    seconds: int
    counts: tuple[int, ...]
    overlays: int
    graphs: int


QUICK = Effort(rounds=1, seconds=1, counts=(1,), overlays=8, graphs=0)
FULL = Effort(rounds=10, seconds=2, counts=_COUNTS, overlays=1000, graphs=5)


def effort_of(run: Run) -> Effort:
    return QUICK if run.quick else FULL


# --- what they cost


class Bodies:
    """Requests for a shape's nodes, and for new ones like them."""

    def __init__(self, files: ShapeFiles) -> None:
        self._indptr, self._indices = np.asarray(files.array("indptr")), files.array("indices")
        self._features = files.array("features")
        degrees = np.diff(self._indptr)[: files.shape.seeds_end]
        # Reddit's shape has no node of so few neighbours: there both kinds have the fewest that enough nodes have.
        counts = np.bincount(degrees)
        self._degree = _DEGREE + int(np.flatnonzero(counts[_DEGREE:] >= max(_COUNTS))[0])
        self._like = np.flatnonzero(degrees == self._degree)
        self._draw = np.random.default_rng(18)

    def stored_binary(self, count: int, nodes: int) -> list[bytes]:
        return [ids.astype("<i8").tobytes() for ids in self._draw_like(count, nodes)]

    def stored_json(self, count: int, nodes: int) -> list[bytes]:
        drawn = self._draw_like(count, nodes)
        return [msgspec.json.encode({"nodes": ids.tolist(), "return": ["scores"]}) for ids in drawn]

    def new_binary(self, count: int, nodes: int) -> list[bytes]:
        bodies = []
        for like in self._draw_like(count, nodes):
            new = -1 - np.arange(nodes)
            counts = np.array([nodes, nodes, self._degree * nodes, 0])
            edges = np.stack([self._neighbours(like).ravel(), np.repeat(new, self._degree)], axis=1)
            ints = b"".join(part.astype("<i8").tobytes() for part in (counts, new, edges))
            bodies.append(ints + self._features_like(like).astype("<f4").tobytes())
        return bodies

    def new_json(self, count: int, nodes: int) -> list[bytes]:
        bodies = []
        for like in self._draw_like(count, nodes):
            new, features = (-1 - np.arange(nodes)).tolist(), self._features_like(like).tolist()
            edges = [
                [neighbour, id_] for id_, listed in zip(new, self._neighbours(like).tolist(), strict=True)
                for neighbour in listed
            ]  # fmt: skip
            brought = [{"id": id_, "features": row} for id_, row in zip(new, features, strict=True)]
            overlay = {"nodes": brought, "edges": edges}
            bodies.append(msgspec.json.encode({"nodes": new, "return": ["scores"], "overlay": overlay}))
        return bodies

    def _draw_like(self, count: int, nodes: int) -> Iterator[np.ndarray]:
        for _ in range(count):
            yield self._draw.choice(self._like, nodes, replace=False)

    def _neighbours(self, like: np.ndarray) -> np.ndarray:
        """[nodes, degree]: new nodes read what stored ones read."""
        return np.asarray(self._indices[self._indptr[like][:, None] + np.arange(self._degree)])

    def _features_like(self, like: np.ndarray) -> np.ndarray:
        """With four digits after the point, as clients write numbers that were measured."""
        return np.asarray(self._features[np.sort(like)]).round(4)


def run_costs(shape: str, run: Run) -> dict[str, Any]:
    files, effort = prepare(SHAPES[shape]), effort_of(run)
    costs: dict[str, list[tuple[float, float]]] = {}
    bodies = Bodies(files)
    forms = {
        "binary": (bodies.stored_binary, BINARY, bodies.new_binary, _OVERLAY),
        "JSON": (bodies.stored_json, JSON, bodies.new_json, JSON),
    }
    with serving(files) as port, tempfile.TemporaryDirectory(prefix="gnnserve-unseen-") as folder:
        for form, (stored, stored_type, new, new_type) in forms.items():
            for nodes in effort.counts:
                path = _PATH if form == "binary" else "/v1/predict"
                pair = []
                for name, make, media_type in (("stored", stored, stored_type), ("new", new, new_type)):
                    made = make(_BODIES[nodes], nodes)
                    _check(port, path, media_type, made[0])
                    file = Path(folder) / f"{form}-{nodes}-{name}"
                    write_requests(file, [encode_post(port, path, media_type, body) for body in made])
                    pair.append(file)
                for number in range(effort.rounds):
                    order = (0, 1) if number % 2 else (1, 0)
                    found = {each: _measure(port, pair[each], nodes, effort.seconds) for each in order}
                    for figure in found[0]:
                        name = f"{files.shape.name}, {form}, {nodes} new: {figure}"
                        costs.setdefault(name, []).append((found[0][figure], found[1][figure]))
    ratios = {name: compute_ratio(pairs) for name, pairs in costs.items()}
    return recorded(ratios, costs, lambda _: COST)


def _check(port: int, path: str, media_type: str, body: bytes) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", path, body, {"Content-Type": media_type})
    response = connection.getresponse()
    content = response.read()
    if response.status != 200:
        raise SystemExit(f"{media_type} is answered {response.status}: {content[:300].decode()}")


def _measure(port: int, requests: Path, nodes: int, seconds: int) -> dict[str, float]:
    alone = generate_load(port, requests, 1, seconds)
    figures = {"p50 ms": alone.p50_ms}
    errors = alone.errors
    if nodes == 1:
        many = generate_load(port, requests, 32, seconds)
        figures["32 connections, ms per request"] = 1e3 / many.requests_per_s
        errors = {**errors, **many.errors}
    if errors:
        raise SystemExit(f"errors {errors}: no figure to report")
    return figures


@contextmanager
def serving(files: ShapeFiles) -> Iterator[int]:
    with tempfile.TemporaryDirectory(prefix="gnnserve-unseen-") as folder:
        manifest = Path(folder) / f"{files.shape.name}.yaml"
        body = service_manifest(files, prepare_sources(files), "float32")
        manifest.write_text(yaml.safe_dump(body, sort_keys=False))
        with running_server(manifest, CACHE / "unseen") as endpoint:
            yield endpoint.port


# --- whether they are right, and how good they are


def run_answers(run: Run) -> dict[str, Any]:
    overlays = effort_of(run).overlays
    errors = largest_errors(overlays)
    return {
        "overlays": overlays, "errors": errors, "largest_error": max(errors.values()), "smallest_p": smallest_p_value()
    }  # fmt: skip


def run_accuracy(run: Run) -> dict[str, Any]:
    return {"accuracy": [msgspec.to_builtins(found) for found in measure_accuracy(effort_of(run).graphs)]}


# --- what is said


def verdicts(found: Any) -> Iterator[Verdict]:
    for name in found.get("ratios", ()):
        if _is_wanted(name):
            yield verdict_of(name, COST, partial(read_ratio, figure=name), _COST_REASON)
    yield Verdict(
        "largest difference from a graph built anew", at_most(WANTED_ERROR), lambda all_: all_["largest_error"]
    )
    yield Verdict(
        "draws over stored and new neighbours, smallest p of a chi-square", above(_LEAST_P),
        lambda all_: all_["smallest_p"],
    )  # fmt: skip
    for graph in dict.fromkeys(one["graph"] for one in found.get("accuracy", ())):
        yield Verdict(
            f"{graph}: accuracy of hidden nodes, each asked for alone",
            at_most(WANTED_POINTS, "points below the stored graph's, of every variant"),
            partial(_most_lost, graph=graph), _ACCURACY_REASON,
        )  # fmt: skip


_COST_REASON = (
    "a stored node's first-layer product lies in the table, a new one's is computed, and its features are to be read"
)
_ACCURACY_REASON = (
    "a node that is brought alone has no edges to the other hidden ones, which the stored graph's answer reads; asked "
    "for together they have them"
)


def _most_lost(found: Any, graph: str) -> Worded:
    """Points that nodes lose where each is asked for alone, of the variant that loses most."""
    of_graph = [one for one in found["accuracy"] if one["graph"] == graph]
    lost = {one["variant"]: round(100 * (one["stored"] - one["alone"]), 2) for one in of_graph}
    variant = max(lost, key=lambda name: lost[name])
    return Worded(lost[variant], f"{lost[variant]:g} ({variant}; the least is {min(lost.values()):g})")


def _is_wanted(figure: str) -> bool:
    """A target is set for the binary form; JSON is measured beside it."""
    return ", binary, " in figure


def show(found: Any) -> None:
    table = Table("Requests about new nodes over those about stored ones", "Ratio", "95 %")
    for name in found.get("ratios", ()):
        ratio = read_ratio(found, name)
        table.add_row(name, f"{ratio.ratio:.3f}", f"{ratio.low:.3f} to {ratio.high:.3f}")
    console = Console(width=120)
    console.print(table)
    right = Table("Variant", "Largest difference from a graph built anew")
    for name, error in found.get("errors", {}).items():
        right.add_row(name, f"{error:.2e}")
    console.print(right)
    good = Table("Graph", "Variant", "Stored", "Each alone", "All together")
    for one in found.get("accuracy", ()):
        good.add_row(one["graph"], one["variant"], *(f"{one[how]:.4f}" for how in ("stored", "alone", "unseen")))
    console.print(good)


BENCHMARK = Benchmark(
    "unseen",
    (
        *(
            Part(f"costs-{shape}", partial(run_costs, shape), ("gnnserve_cli.__main__",))
            for shape in ("arxiv", "reddit")
        ),
        Part("answers", run_answers),
        Part("accuracy", run_accuracy),
    ),
    verdicts,
    about=__doc__,
    quick=("costs-arxiv", "answers"),
    show=show,
)

if __name__ == "__main__":
    main(BENCHMARK)
