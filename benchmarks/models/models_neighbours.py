"""Effect of a program that crashes, hangs or wants too much memory on the other services of its server.

Two services of described networks answer at an even load beside one whose program is asked a few times a second: for
something harmless; for a loop that does not end in its time; for more memory than it may have; and for something
harmless while its process is killed again and again. In turns, so that the load of the machine is even.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import yaml
from rich.console import Console
from rich.table import Table
from tests.support.programs.programs import write_mischief

from benchmarks.load.shared_worker import Bench, Report, Served, generate, report_of, serving
from benchmarks.models.models_files import QUICK_SHAPE
from benchmarks.peers.processes import descendants
from benchmarks.peers.servers import service_manifest
from benchmarks.results import Run
from benchmarks.shapes import SHAPES, ShapeFiles, prepare, prepare_sources
from benchmarks.verdicts import Verdict, at_most, exactly
from gnnserve_worker.programs.messages import NAME

LATENCY_MS = 100
SEEDS = 64
"""Nodes of a request to either of the other services."""
OFFERED = 0.2
"""Load of each of them, over what one alone can answer."""
PER_S = 20.0
"""Requests a second to the program, whatever becomes of them."""
SECONDS, MEMORY = 1.0, "256Mi"
"""Limits of the program."""
WANTED_P99, WANTED_RECOVERY_S = 1.3, 5.0
WANTED_REFUSED_PERMILLE = 1.0
"""Requests of others that their own objective refuses (429), beyond those beside a healthy program: a pause of the
machine does so too."""
PROGRAM, OTHERS = "program", ("first", "second")
_NODES = 200
_KILL_EVERY_S = 0.5
_STEPS_WITHOUT_END, _TOO_MANY_NUMBERS = 1e15, 1e10
_AT_ONCE, _PATIENCE_S, _GIVE_UP_S = 64, 15.0, 60.0


@dataclass(frozen=True, slots=True)
class Mode:
    words: str
    features: tuple[float, float]
    """Features of the node that the program is asked about: steps of a loop, and numbers that it fills."""
    is_killed: bool = False


MODES: Mapping[str, Mode] = {
    "healthy": Mode("a healthy program", (100.0, 100.0)),
    "crashes": Mode("a program whose process is killed", (100.0, 100.0), is_killed=True),
    "hangs": Mode("a program that hangs", (_STEPS_WITHOUT_END, 0.0)),
    "memory": Mode("a program that wants too much memory", (0.0, _TOO_MANY_NUMBERS)),
}


def run_neighbours(run: Run) -> dict[str, Any]:
    os.environ.setdefault("GNNSERVE_PROFILE_SECONDS", "0")
    duration_s, rounds, others = (0.5, 1, OTHERS[:1]) if run.quick else (8.0, 5, OTHERS)
    with _prepared(prepare(QUICK_SHAPE if run.quick else SHAPES["arxiv"]), others) as bench:
        generate(bench, anew=False)
        with serving(bench, bench.all_cores, (*others, PROGRAM)) as served:
            return {"neighbours": measure(bench, served, duration_s, rounds)}


@contextmanager
def _prepared(files: ShapeFiles, others: Sequence[str]) -> Iterator[Bench]:
    cores = sorted(os.sched_getaffinity(0))
    with TemporaryDirectory(prefix="gnnserve-neighbours-") as folder:
        scratch = Path(folder)
        manifests = {name: described_manifest(files, name) for name in others}
        manifests[PROGRAM] = program_manifest(scratch)
        written = {name: scratch / f"{name}.yaml" for name in manifests}
        for name, manifest in manifests.items():
            written[name].write_text(yaml.safe_dump(manifest))
        every = ",".join(map(str, cores))
        yield Bench(written, scratch / "repository", scratch, str(cores[-1]), every, every)


def described_manifest(files: ShapeFiles, name: str) -> dict[str, Any]:
    manifest: dict[str, Any] = service_manifest(files, prepare_sources(files), "float32", "x1")
    manifest["metadata"]["name"] = name
    manifest["spec"]["objective"] = {"latencyMs": LATENCY_MS}
    manifest["spec"]["variants"]["projection"] = "Disabled"
    return manifest


def program_manifest(folder: Path) -> dict[str, Any]:
    """Over a small graph whose features do no harm; requests bring others."""
    features = (np.arange(2 * _NODES).reshape(_NODES, 2) % 3).astype(np.float32)
    number = np.arange(_NODES)
    masks = {f"{name}_mask": number % 3 == place for place, name in enumerate(("train", "val", "test"))}
    ring = {"indptr": np.arange(_NODES + 1), "indices": ((number + 1) % _NODES).astype(np.int32)}
    np.savez(folder / "graph.npz", features=features, labels=number % 2, **ring, **masks)
    np.savez(folder / "expected.npz", nodes=number[:32], scores=features[:32])
    program = {
        "uri": write_mischief(folder / "mischief.onnx").as_uri(),
        "hops": 0,
        "inputs": [{"name": "x", "is": "Features"}],
        "scores": {"name": "scores", "columns": 2},
        "limits": {"memory": MEMORY, "seconds": SECONDS},
    }
    return {
        "apiVersion": "gnnserve.dev/v1alpha1",
        "kind": "GNNService",
        "metadata": {"name": PROGRAM},
        "spec": {
            "graph": {"source": {"npz": {"uri": (folder / "graph.npz").as_uri()}}, "normalization": "Disabled"},
            "model": {"program": program, "expected": {"uri": (folder / "expected.npz").as_uri()}},
            "variants": {"storage": ["float32"]},
        },
    }


def measure(bench: Bench, served: Served, duration_s: float, rounds: int) -> dict[str, Any]:
    rate_per_s = OFFERED * _capacity_per_s(bench, served, duration_s)
    reports: dict[str, list[Report]] = {name: [] for name in MODES}
    answers = {name: Answers() for name in MODES}
    recovered_s: dict[str, list[float]] = {name: [] for name in MODES}
    for _ in range(rounds):
        for name, mode in MODES.items():
            with _asked(served, mode, answers[name]):
                time.sleep(min(1.0, duration_s / 2))  # until the first one has failed
                reports[name] += _loads(bench, served, rate_per_s, duration_s)
            recovered_s[name].append(_seconds_until_healthy(served))
    return {
        "rate_per_s": round(rate_per_s, 1),
        "modes": {
            name: {
                "words": MODES[name].words,
                **_others_of(reports[name]),
                "programStatuses": dict(answers[name].statuses),
                "programSentences": answers[name].sentences,
                "recovered_s": round(max(recovered_s[name]), 4),
            }
            for name in MODES
        },
    }


def _capacity_per_s(bench: Bench, served: Served, duration_s: float) -> float:
    """Requests a second that one of the others answers alone."""
    options = ("--seeds-per-request", str(SEEDS), "--objective-ms", "60000", "--concurrency", "4")
    for seconds in (1.0, duration_s / 2):
        report = report_of(bench.load(bench.generator_core, served.urls[OTHERS[0]], seconds, *options), seconds)
    return float(report["answersPerSecond"])


def _loads(bench: Bench, served: Served, rate_per_s: float, duration_s: float) -> list[Report]:
    options = ("--seeds-per-request", str(SEEDS), "--rate", f"{rate_per_s:.2f}")
    others = [url for name, url in served.urls.items() if name != PROGRAM]
    loads = [bench.load(bench.generator_core, url, duration_s, *options) for url in others]
    return [report_of(load, duration_s) for load in loads]


def _others_of(reports: Sequence[Report]) -> dict[str, Any]:
    """Medians over services and rounds; failures of all of them, and what the first of each kind was told."""
    errors, sentences = Counter[str](), dict[str, str]()
    for one in reports:
        errors.update(one["errors"])
        sentences = one["sentences"] | sentences
    refused = [one["statuses"].get("429", 0) for one in reports]
    return {
        "p50_ms": round(statistics.median(one["latencyMs"]["p50"] for one in reports), 3),
        "p99_ms": round(statistics.median(one["latencyMs"]["p99"] for one in reports), 3),
        "failed": sum(one["requests"] - one["answers"] for one in reports) - sum(refused),
        "refused": sum(refused),
        "refusedByRun": refused,
        "requests": sum(one["requests"] for one in reports),
        "errors": dict(errors),
        "sentences": sentences,
    }


# --- the program's clients


@dataclass(frozen=True, slots=True)
class Answers:
    statuses: Counter[str] = field(default_factory=Counter)
    sentences: dict[str, str] = field(default_factory=dict)
    """Messages of answers other than 200: the first of each status."""

    def add(self, status: str, sentence: str) -> None:
        self.statuses[status] += 1
        if sentence:
            self.sentences.setdefault(status, sentence)


@contextmanager
def _asked(served: Served, mode: Mode, answers: Answers) -> Iterator[None]:
    """The program is asked evenly; what becomes of it is added to `answers`."""
    over = threading.Event()
    ask = partial(_ask, served.urls[PROGRAM], mode)
    # Looking for its process takes time of others, too, so it is done beside every program.
    looking = _every(_KILL_EVERY_S, over, lambda: _look_at_program(served, is_killed=mode.is_killed))
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        asked = []
        with looking, _every(1 / PER_S, over, lambda: asked.append(pool.submit(ask))):
            try:
                yield
            finally:
                over.set()
        for one in asked:
            answers.add(*one.result())


@contextmanager
def _every(seconds: float, over: threading.Event, act: Callable[[], object]) -> Iterator[None]:
    def go_on() -> None:
        while not over.wait(seconds):
            act()

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _ask(url: str, mode: Mode) -> tuple[str, str]:
    """The answer's status, and what it says where that is not 200."""
    override = {"id": 7, "features": [*mode.features]}
    body = json.dumps({"nodes": [7], "return": ["scores"], "overlay": {"overrides": [override]}})
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=_PATIENCE_S)
    try:
        connection.request("POST", "/v1/predict", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        said = response.read()
        return str(response.status), "" if response.status == 200 else json.loads(said)["error"]["message"]
    except TimeoutError:
        return "no answer", ""
    except OSError as error:
        return type(error).__name__, str(error)
    finally:
        connection.close()


def _look_at_program(served: Served, *, is_killed: bool) -> None:
    for pid in descendants(served.process.pid):
        with suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_bytes().strip() == NAME.encode() and is_killed:
                os.kill(pid, signal.SIGKILL)


def _seconds_until_healthy(served: Served) -> float:
    began_s = time.monotonic()
    while (answer := _ask(served.urls[PROGRAM], MODES["healthy"]))[0] != "200":
        if time.monotonic() - began_s > _GIVE_UP_S:
            raise SystemExit(f"the program does not answer again: {' '.join(answer)}")
        time.sleep(0.1)
    return time.monotonic() - began_s


# --- what comes of it


def show_neighbours(found: Mapping[str, Any]) -> None:
    table = Table(title=f"two services, {found['neighbours']['rate_per_s']} requests/s of {SEEDS} seeds each, beside")
    for header in ("", "p50 ms", "p99 ms", "failed", "refused", "of", "the program's answers", "healthy after s"):
        table.add_column(header)
    for mode in found["neighbours"]["modes"].values():
        table.add_row(
            mode["words"], f"{mode['p50_ms']:.2f}", f"{mode['p99_ms']:.2f}", f"{mode['failed']:,}",
            str(mode.get("refused", "")), f"{mode['requests']:,}", str(mode["programStatuses"]),
            f"{mode['recovered_s']:.2f}",
        )  # fmt: skip
    console = Console(width=140)
    console.print(table)
    for line in sentences_of(found["neighbours"]):
        console.print(line, markup=False)


def sentences_of(neighbours: Mapping[str, Any]) -> Iterator[str]:
    """Messages that failed requests got, a line each."""
    for mode in neighbours["modes"].values():
        for reason, count in mode.get("errors", {}).items():
            told = mode["sentences"].get(reason, "nothing")
            yield f"beside {mode['words']}, {count:,} requests of others: {reason}: {told}"
        for status, told in mode.get("programSentences", {}).items():
            yield f"{mode['words']}, {mode['programStatuses'][status]:,} requests: {status}: {told}"


def _p99_over_healthy(mode: str, found: Any) -> float:
    modes = found["neighbours"]["modes"]
    return round(float(modes[mode]["p99_ms"] / modes["healthy"]["p99_ms"]), 2)


def _failed(mode: str, found: Any) -> int:
    return int(found["neighbours"]["modes"][mode]["failed"])


def _refused_permille_over_healthy(mode: str, found: Any) -> float:
    modes = found["neighbours"]["modes"]
    shares = [modes[name]["refused"] / modes[name]["requests"] for name in (mode, "healthy")]
    return round(1000 * (shares[0] - shares[1]), 2)


def _recovered_s(mode: str, found: Any) -> float:
    return float(found["neighbours"]["modes"][mode]["recovered_s"])


_FAILING = {name: mode.words for name, mode in MODES.items() if name != "healthy"}
NEIGHBOURS_VERDICTS = (
    *(
        Verdict(f"failed requests of other services beside {words}", exactly(0), partial(_failed, name))
        for name, words in _FAILING.items()
    ),
    *(
        Verdict(
            f"p99 of other services beside {words}, over beside a healthy one",
            at_most(WANTED_P99, "times"),
            partial(_p99_over_healthy, name),
        )
        for name, words in _FAILING.items()
    ),
    *(
        Verdict(
            f"requests of other services refused for their own objective beside {words}, beyond those beside a healthy "
            "one",
            at_most(WANTED_REFUSED_PERMILLE, "permille"),
            partial(_refused_permille_over_healthy, name),
        )
        for name, words in _FAILING.items()
    ),
    *(
        Verdict(
            f"seconds until {words} answers harmless requests again",
            at_most(WANTED_RECOVERY_S, "s"),
            partial(_recovered_s, name),
        )
        for name, words in _FAILING.items()
    ),
)
