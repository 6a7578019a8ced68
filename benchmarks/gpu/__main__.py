"""`python -m benchmarks.gpu`: runs the parts, prints as it goes, and writes what is there after each.

In less than nine minutes on 16 cores, because a lent machine ends what runs longer; what there was no time for is said.
A run with `--only` adds its parts to a result of the same GPU. Without a GPU it says so and ends with 2.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from datetime import UTC, datetime
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.gpu.figures import TABLES, Budget, Row, merge_parts, verdicts
from benchmarks.paper_shapes import shape_of
from benchmarks.paper_tables import GRAPHS, MODELS
from benchmarks.results import FOLDER, write_result
from benchmarks.shapes import FANOUTS, prepare

PARTS = tuple(TABLES)
NO_GPU = 2
"""Exit code."""
_TOTAL_S = 510.0
_SHARES = {
    "bandwidth": 0.12,
    "latency": 0.40,
    "throughput": 0.13,
    "stages": 0.12,
    "updates": 0.06,
    "distinct": 0.05,
    "unseen": 0.05,
    "baseline": 0.07,
}
"""Shares of the time by part; time that a part leaves goes to the next."""
_OF_RATES = ("reddit", "products")
"""The paper's shape of the widest rows, and that of the most nodes."""
_OF_CACHES = ("reddit", "yelp")
"""Whose tables are large beside everything else."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one small graph, a moment for each figure")
    parser.add_argument("--only", type=_parts, default=PARTS, metavar="PART,…", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--graphs", nargs="+", choices=list(GRAPHS), help="default: all")
    parser.add_argument("--seconds", type=float, default=_TOTAL_S, help="for everything (default: %(default)g)")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of gpu.json (default: benchmarks/results)")
    options = parser.parse_args(arguments)
    if (reason := why_no_gpu()) is not None:
        print(f"no GPU: {reason}; this benchmark measures one, and there is nothing to say without", file=sys.stderr)
        return NO_GPU
    graphs = options.graphs or (["flickr"] if options.quick else list(GRAPHS))
    _Run(options.only, graphs, options.out, Budget(options.seconds, time.monotonic), options.quick).run()
    return 0


def why_no_gpu() -> str | None:
    import torch

    return None if torch.cuda.is_available() else "torch sees none that CUDA can use"


def _parts(text: str) -> tuple[str, ...]:
    wanted = text.split(",")
    if unknown := [part for part in wanted if part not in PARTS]:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: choose from {', '.join(PARTS)}")
    return tuple(part for part in PARTS if part in wanted)


class _Run:
    def __init__(self, only: Sequence[str], graphs: Sequence[str], out: Path, budget: Budget, quick: bool) -> None:
        self._only, self._graphs, self._out, self._budget, self._quick = only, list(graphs), out, budget, quick
        self._gpu = self._describe()
        self._new: dict[str, Row] = {}
        self._old = _read(out / "gpu.json")
        self._part_began_s = 0.0

    @staticmethod
    def _describe() -> dict[str, Any]:
        from benchmarks.gpu.link import describe_gpu

        return {**describe_gpu(), **_driver(), **_libraries()}

    def run(self) -> None:
        print(
            f"{self._gpu['name']}, driver {self._gpu.get('driver', 'unknown')}, {len(self._graphs)} graphs", flush=True
        )
        self._make_graphs()
        for part in PARTS:
            self._measure(part)
        merged = merge_parts(self._old, self._new, self._gpu)
        for name, found in verdicts(merged).items():
            print(f"{name}: {found['figure']:,} ({'met' if found['met'] else 'not met'}, goal {found['goal']:,})")

    def _make_graphs(self) -> None:
        """The largest takes a minute of one core, in which the link's kernels are compiled, but nothing is measured."""
        from benchmarks.gpu import link

        with ProcessPoolExecutor(len(self._graphs), mp_context=get_context("spawn")) as pool:
            needed = set(self._only) - {"bandwidth"}
            made: list[Future[Any]] = [pool.submit(_prepare, name) for name in self._graphs if needed]
            if "bandwidth" in self._only:
                link.compile_kernels(quick=self._quick)
            for future in made:
                future.result()

    def _measure(self, part: str) -> None:
        if part not in self._only:
            return
        later = [other for other in PARTS[PARTS.index(part) :] if other in self._only]
        share = _SHARES[part] / sum(_SHARES[other] for other in later)
        budget = Budget(self._budget.left_s * share, time.monotonic)
        print(f"{part}: at most about {budget.total_s:.0f} s", flush=True)
        self._part_began_s = time.monotonic()
        self._run_part(part, budget, partial(self._save, part))
        if part in self._new:
            Console(width=140).print(TABLES[part](self._new[part]))

    def _run_part(self, part: str, budget: Budget, save: Any) -> None:
        # Imported here: they bring Triton's kernels, which are defined for a GPU or for the interpreter, for good.
        from benchmarks.gpu import distinct, link, parts, unseen
        from gnnserve_worker.gpu.cuda import use_first_gpu

        quick = self._quick
        models = MODELS[:1] if quick else MODELS
        of_rates, of_caches = (
            [name for name in wanted if name in self._graphs] or self._graphs[:1] for wanted in (_OF_RATES, _OF_CACHES)
        )
        match part:
            case "bandwidth":
                save(link.measure_bandwidth(quick=quick))
            case "latency":
                parts.measure_latency(use_first_gpu(), self._graphs, models, budget, save, quick=quick)
            case "throughput":
                parts.measure_throughput(use_first_gpu(), of_rates, self._link_limit(), budget, save, quick=quick)
            case "stages":
                parts.measure_stages(use_first_gpu(), of_caches, budget, save, quick=quick)
            case "updates":
                parts.measure_updates(use_first_gpu(), of_caches[:1], budget, save, quick=quick)
            case "distinct":
                distinct.measure_distinct(use_first_gpu(), of_rates, budget, save, quick=quick)
            case "unseen":
                unseen.measure_unseen(use_first_gpu(), of_rates, budget, save, quick=quick)
            case "baseline":
                ours = self._known("latency").get("rows", [])
                parts.measure_baseline(self._graphs, models, ours, budget, save, quick=quick)

    def _known(self, part: str) -> Row:
        return merge_parts(self._old, self._new, self._gpu).get(part, {})

    def _link_limit(self) -> float:
        """The link's limit from the part `bandwidth`, which is measured now where it was not."""
        from benchmarks.gpu import link

        known = self._known("bandwidth").get("limit_gigabytes_per_s")
        return float(known if known is not None else link.measure_limit(quick=self._quick)["limit_gigabytes_per_s"])

    def _save(self, part: str, found: Row) -> None:
        seconds = round(time.monotonic() - self._part_began_s, 1)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self._new[part] = {"date": now, "seconds": seconds, **found}
        merged = merge_parts(self._old, self._new, self._gpu)
        body = {"gpu": self._gpu, "fanouts": FANOUTS, "verdicts": verdicts(merged), "parts": merged}
        write_result("gpu", self._quick, body, self._out)


def _prepare(name: str) -> None:
    prepare(shape_of(name))


def _read(file: Path) -> Mapping[str, Any]:
    try:
        found: Mapping[str, Any] = json.loads(file.read_text())["parts"]["all"]["found"]
    except (FileNotFoundError, ValueError):
        return {}
    return found


def _driver() -> dict[str, str]:
    """The driver's version and how the card is connected, as far as its own program says."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return {}
    wanted = {"driver": "driver_version", "pcieGeneration": "pcie.link.gen.max", "pcieLanes": "pcie.link.width.max"}
    command = [program, f"--query-gpu={','.join(wanted.values())}", "--format=csv,noheader", "--id=0"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    values = [value.strip() for value in done.stdout.strip().split(",")]
    return dict(zip(wanted, values, strict=False)) if done.returncode == 0 else {}


def _libraries() -> dict[str, str]:
    import torch
    import triton

    return {"cuda": str(torch.version.cuda), "torch": torch.__version__, "triton": triton.__version__}


if __name__ == "__main__":
    sys.exit(main())
