"""Figures of README.md and docs/benchmarks.md, written into the pages from the committed results.

Each block of figures has one renderer here, so that no figure on a page is typed by hand: `make figures` writes them, a
test compares. How blocks are marked and filled is in `figure_blocks.py`.
"""

# ruff: noqa: E501 - a row of words reads best on one line

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks import frontier_figures, updates_figures, verdict_figures  # noqa: F401 - they register their blocks
from benchmarks.cache import verdicts_of
from benchmarks.figure_blocks import SHAPE_WORDS, Results, figures, fill, number, table
from benchmarks.peers_figures import ratios_by_shape

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "docs/benchmarks.md")
_BINARY = 2.0**20


@figures("summary")
def summary(results: Results) -> str:
    peers, routing, generation = results["peers"], results["routing"], results["generation"]
    startup, cluster, chaos, faults = results["startup"], results["cluster"], results["chaos"], results["faults"]

    def by_shape(measure: str) -> str:
        return ratios_by_shape(peers, measure, ("arxiv", "reddit"), " times")

    bursts = routing["scenarios"]["bursts"]
    masters = [master for master in generation["masters"] if master["baseline"] is not None]
    behind = max(master["baseline"] - master["accuracy_mean"] for master in masters)
    shipped = next(case for case in startup["cases"] if case["kernels"] == "shipped")
    lost = cluster["switch"]["failed"] + cluster["rollout"]["failed"]
    asked = cluster["switch"]["requests"] + cluster["rollout"]["requests"]
    rows = [
        ("Latency of one seed, best other server over gnnserve, on two graphs", by_shape("one_seed_p50")),
        ("Requests per second at 32 connections, gnnserve over the best other server",
         by_shape("throughput_32")),
        ("Latency of 1024 seeds, best other server over gnnserve", by_shape("seeds_1024")),
        ("Bursts of load: answered within the objective / accuracy of those answers",
         f"{bursts['ours']['attained']:.2f} % / {bursts['ours']['accuracy']:.1f} %; the most accurate variant alone "
         f"{bursts['static']['x1']['attained']:.1f} % / {bursts['static']['x1']['accuracy']:.1f} %"),
        (f"Test accuracy below full-batch torch_geometric, worst of {len(masters)} graphs", f"{behind * 100:.1f} points"),
        ("Second start over a graph of 1 GB, checksums verified / memory beside the mapped files",
         f"{shipped['readyS']:.1f} s / {shipped['whenReady']['anonymousBytes'] / _BINARY:.0f} MiB"),
        ("Requests lost in live switches and rolling updates", f"{lost} of {asked:,}"),
        ("Requests lost while everything is killed and paused at random",
         f"{chaos['failed']} of {chaos['requests']:,}, in flight at a worker that was killed"),
        (f"Moments of operator trouble simulated, {_share_played(faults)} / violations found",
         f"{sum(scene['points'] for scene in faults['scenes']):,} / "
         f"{sum(len(scene['violations']) for scene in faults['scenes']) + len(faults['sequencesViolated'])}"),
    ]  # fmt: skip
    machines = [record["machine"] for _, _, record in results.parts_read() if record["machine"] is not None]
    processors = sorted({re.sub(r"\(R\)| Processor", "", machine["cpu"]) for machine in machines})
    return table((f"two cores of an {' or an '.join(processors)}, load generator included", "measured"), rows)


def _share_played(faults: Mapping[str, Any]) -> str:
    scenes = faults["scenes"]
    in_full = sum(scene.get("stride") == 1 for scene in scenes)
    if in_full == len(scenes):
        return f"every one of {len(scenes)} scenes"
    return f"every fifth one of {len(scenes) - in_full} scenes" + (f" and every one of {in_full}" if in_full else "")


@figures("accuracy")
def accuracy(results: Results) -> str:
    generation = results["generation"]
    masters = table(
        ("graph", "split", "scope", "test accuracy of 1x", "full-batch torch_geometric"),
        (
            (
                master["graph"], master["split"], master["scope"],
                f"{master['accuracy_mean']:.3f} ± {master['accuracy_deviation']:.3f}",
                "" if master["baseline"] is None else f"{master['baseline']:.3f}",
            )
            for master in generation["masters"]
        ),
    )  # fmt: skip
    by_ranking: dict[tuple[str, str], dict[int, float]] = {}
    for row in generation["rankings"]:
        by_ranking.setdefault((row["graph"], row["method"]), {})[row["factor"]] = row["accuracy_mean"]
    factors = sorted({row["factor"] for row in generation["rankings"]})
    rankings = table(
        ("graph", "ranking", *(f"{factor}x" for factor in factors)),
        ((*key, *(f"{means[factor]:.3f}" for factor in factors)) for key, means in by_ranking.items()),
    )
    times = ", ".join(
        f"{row['seconds']:.0f} s for {row['graph']} ({row['variants']} variants)" for row in generation["generation"]
    )
    return f"{masters}\n\n{rankings}\n\nGeneration, from the file to the published revision: {times}."


_POLICIES = {"metrics": "by load metrics every 2 s alone (mode Metrics)", "fast": "the fast loop alone"}


@figures("routing")
def routing(results: Results) -> str:
    found = results["routing"]
    scenarios = found["scenarios"]

    def cells(pick: Callable[[Any], Any]) -> list[str]:
        return [f"{run['attained']:.2f} / {run['accuracy']:.2f}" for run in map(pick, scenarios.values())]

    first = next(iter(scenarios.values()))
    rows = [["**gnnserve**", *(f"**{cell}**" for cell in cells(lambda scene: scene["ours"]))]]
    rows += [[f"{name} alone", *cells(lambda scene, name=name: scene["static"][name])] for name in first["static"]]  # type: ignore[misc]
    rows += [
        [words, *cells(lambda scene, policy=policy: scene[policy])]  # type: ignore[misc]
        for policy, words in _POLICIES.items()
    ]
    return table((f"answered within {found['objectiveMs']:.0f} ms, % / accuracy, %", *scenarios), rows)


@figures("overload")
def overload(results: Results) -> str:
    runs = results["routing"]["overload"]["runs"]
    return table(
        (
            "offered, times the capacity of the fastest variant",
            "tries of a refused request",
            "goodput, share of its peak",
        ),
        ((f"{run['timesCapacity']:g}", str(1 + run["retries"]), f"{run['shareOfPeak'] * 100:.0f} %") for run in runs),
    )


_FACTORS = ("x1", "x2", "x4", "x8", "projected")


@figures("roofline")
def roofline(results: Results) -> str:
    rows = []
    for name, shape in results["roofline"]["shapes"].items():
        variants = shape["variants"]
        storages = dict.fromkeys(variant["storage"] for variant in variants.values())
        for storage in storages:
            cells = []
            for factor in _FACTORS:
                label = factor if storage == "float32" else f"{factor}-{storage}"
                run = variants[label]["seeds"]["1024"] if label in variants else None
                cells.append("" if run is None else f"{number(run['p50_ms'])} ({run['over_bound']:.1f})")
            rows.append([f"{SHAPE_WORDS[name]}, {storage}", *cells])
    return table(("1024 seeds, ms (over the bound)", *_FACTORS), rows)


@figures("shapes")
def shapes(results: Results) -> str:
    by_graph: dict[str, dict[str, list[Mapping[str, Any]]]] = {}
    for row in results["shapes"]["rows"]:
        by_graph.setdefault(row["graph"], {}).setdefault(row["model"], []).append(row)

    def cell(rows: list[Mapping[str, Any]]) -> str:
        first, *pruned = sorted(rows, key=lambda row: row["factor"])
        ratios = ", ".join(f"{row['ratio']:.2f} ({row['paper_ratio']:.2f})" for row in pruned)
        return f"{first['window_p50_ms']:.0f}; {ratios}"

    models = ("GraphSAGE", "GIN")
    return table(
        ("1x, ms; 1x over 2x, 4x, 8x (the paper's)", *models),
        ([graph, *(cell(by_model[model]) for model in models)] for graph, by_model in by_graph.items()),
    )


@figures("cluster")
def cluster(results: Results) -> str:
    found, fleet = results["cluster"], results["fleet"]
    worst = max(found["objective_to_worker_samples_s"])
    return table(
        ("in a cluster of one such machine", "measured"),
        (
            ("`kubectl apply` of the digits example to its first answer, images present",
             f"{found['apply_to_first_answer_s']:.0f} s"),
            ("a changed objective to the worker that uses it, worst of "
             f"{len(found['objective_to_worker_samples_s'])}", f"{worst:.2f} s"),
            *((words, f"{found[key]['failed']} of {found[key]['requests']:,} requests failed")
              for key, words in (("switch", "live switches of the revision"), ("rollout", "rolling updates of the workers"))),
            (f"writes of an idle operator in {found['idle']['seconds'] / 60:.0f} minutes", str(found["idle"]["writes"])),
            (f"{fleet['services']} services: a restarted operator is ready", f"{fleet['restart']['ready_s']:.0f} s"),
            (f"{fleet['services']} services: memory of the operator, at most", f"{fleet['memory_peak_mb']} MB"),
        ),
    )  # fmt: skip


@figures("more")
def more(results: Results) -> str:
    """Results that are one or two numbers each."""
    scaling, serving, startup = results["scaling"], results["serving"], results["startup"]
    soak, imported, malformed = results["soak"], results["import"], results["malformed"]
    cache, decision = verdicts_of(results["cache"]["traces"]), results["decision"]
    sizes = [(size["nodes"], size["points"][-1]["us_per_seed"]) for size in scaling["graphSize"]]
    skew = [point["p99_ratio"] for point in scaling["degreeSkew"]["points"]]
    one, many, large = (case["prediction"] for case in serving["cases"])
    echo = serving["cases"][0]["echo"]["latencyMs"]["p50"]
    shipped = next(case for case in startup["cases"] if case["kernels"] == "shipped")
    import_rows = [
        (f"import of {imported['edges'] / 1e6:.0f} million edges, {case['format']}, {case['ids']} as ids; by {case['importer']}",
         f"{case['seconds']:.0f} s, {case['peakBytes'] / 2**30:.1f} GiB")
        for case in imported["cases"]
    ]  # fmt: skip
    slowest = max(decision["cases"], key=lambda case: case["decision_p99_us"])
    return table(
        ("what", "measured"),
        (
            ("a seed in batches of 1024, in process, by nodes of the graph",
             ", ".join(f"{cost:.1f} µs at {nodes:,}" for nodes, cost in sizes)),
            ("p99 of requests that meet a hub of a million neighbours, over those that do not (1 and 64 seeds)",
             " and ".join(f"{ratio:.2f}" for ratio in skew)),
            ("digits over HTTP: one node, p50 (an echo)", f"{one['latencyMs']['p50']:.3f} ms ({echo:.3f})"),
            ("digits over HTTP: 32 connections", f"{many['answersPerSecond']:,.0f} answers/s"),
            ("digits over HTTP: 1024 nodes in a request", f"{large['seedsPerSecond']:,.0f} nodes/s"),
            ("start over a graph of 1 GB: ready (imports alone)", f"{shipped['readyS']:.1f} s ({shipped['importsS']:.1f})"),
            ("memory beside the mapped files: when ready, under 32 connections of up to 1024 nodes",
             f"{shipped['whenReady']['anonymousBytes'] / _BINARY:.0f} and "
             f"{shipped['duringBurst']['anonymousBytes'] / _BINARY:.0f} MiB"),
            (f"soak of {len(soak['minutes'])} minutes at 70 % of capacity: errors, growth of memory, last p99 over first",
             f"{soak['verdict']['errors']}, {soak['verdict']['memory_growth_mib']} MiB, {soak['verdict']['p99_ratio']}"),
            (f"{sum(malformed['requests'].values()):,} requests, most of them malformed: wrong answers, tracebacks, growth",
             f"{malformed['wrong']}, {malformed['tracebacks']}, {malformed['memoryGrowthMiB']} MiB"),
            (f"one decision about a batch, worst p99 ({slowest['name']})", f"{slowest['decision_p99_us']:.0f} µs"),
            ("default cache policy behind the best of five others, loads that do not move",
             f"at most {cache['stationary_most_behind_points']} points of hit rate"),
            ("default cache policy ahead of the best of five others, loads that move",
             f"at least {cache['moving_least_ahead_points']} points"),
            *import_rows,
        ),
    )  # fmt: skip


@figures("listener")
def listener(results: Results) -> str:
    """Time over that of our connections at the commit before, which were uvicorn's classes."""
    words = {"ours": "gnnserve's own listener", "uvicorn": "plain uvicorn (ASGI)", "granian": "granian (RSGI)"}
    costs = ("one seed, p50 ms", "32 connections, ms per request", "32 connections, processor µs per request")
    ratios = results["listener"]["ratios"]
    return table(
        ("time over that of the listener before", "one seed, p50", "32 connections, per request",
         "32 connections, processor time per request"),
        ((words[name], *(f"{of_one[cost][0]:.2f} ({of_one[cost][1]:.2f} to {of_one[cost][2]:.2f})" for cost in costs))
         for name, of_one in ratios.items()),
    )  # fmt: skip


@figures("unseen")
def unseen(results: Results) -> str:
    """Requests about nodes that the graph has not seen: what they cost, and how good their answers are."""
    found = results["unseen"]
    ratios, intervals, shapes = found["p50_ratio"], found["intervals"], ("arxiv", "reddit")
    costs = table(
        ("time over that of the same request about stored nodes", *(SHAPE_WORDS[shape] for shape in shapes)),
        ((f"{form}, {_new_nodes(figure)}",
          *("{:.2f} ({:.2f} to {:.2f})".format(ratios[name], *intervals[name])
            for name in (f"{shape}, {form}, {figure}" for shape in shapes)))
         for form in ("binary", "JSON")
         for figure in ("1 new: p50 ms", "1 new: 32 connections, ms per request", "32 new: p50 ms", "256 new: p50 ms")),
    )  # fmt: skip
    accuracies = table(
        ("graph", "variant", "stored", "hidden, then asked for as new", "each alone"),
        ((one["graph"], one["variant"], *(f"{one[how]:.4f}" for how in ("stored", "unseen", "alone")))
         for one in found["accuracy"]),
    )  # fmt: skip
    return f"{costs}\n\n{accuracies}"


def _new_nodes(figure: str) -> str:
    nodes, _, cost = figure.partition(" new: ")
    where = "32 connections" if "connections" in cost else "p50"
    return f"{nodes} new node{'s' * (nodes != '1')} a request, {where}"


_GROWN = {
    "start": "what services may be has grown (see *Regression*)",
    "operator": "code for claims, turns, repairs, credentials and pools",
    "request": "each request is asked for more: priorities, a variant that it names, a second revision",
}
"""What is known of costs that have grown since the wave began."""


@figures("misses")
def misses(results: Results) -> str:
    """Targets that are not reached, with the limit as far as it is known."""
    peers, roofline, routing = results["peers"], results["roofline"], results["routing"]
    regression = results["regression"]
    brought = results["unseen"]["p50_ratio"]
    verdicts = regression["verdicts"]
    slower = [(name, found["measured"]) for name, found in verdicts.items() if not found["passed"]]
    echoes = [shape["echoRatios"] for shape in peers["shapes"].values()]
    reddit = roofline["shapes"]["reddit"]
    unpruned = min(
        variant["seeds"]["1024"]["p50_ms"]
        for name, variant in reddit["variants"].items()
        if variant["storage"] in {"float32", "float16", "bfloat16"} and name.partition("-")[0] in {"x1", "projected"}
    )
    over = [
        (name, variant["seeds"]["1024"]["over_bound"])
        for shape in roofline["shapes"].values()
        for name, variant in shape["variants"].items()
    ]
    far = [ratio for _, ratio in over if ratio > 1.5]
    sampling = [cost for shape in roofline["shapes"].values() for seeds, cost in shape["samplingUsPerSeed"].items()
                if seeds != "1"]  # fmt: skip
    retried = next(run for run in routing["overload"]["runs"] if run["retries"])
    return table(
        ("wanted", "measured", "the limit"),
        (
            ("one seed over HTTP within 1.5 times an echo on uvicorn",
             f"{min(e['one_seed_p50_over_echo'] for e in echoes):.1f} to {max(e['one_seed_p50_over_echo'] for e in echoes):.1f} times",
             "the echo leaves 0.02 to 0.03 ms for everything else; reading 276 rows that are in no cache takes that alone"),
            ("70 % of the echo's requests/s at 32 connections",
             " and ".join(f"{e['throughput_32_of_echo'] * 100:.0f} % ({SHAPE_WORDS[name]})"
                          for name, e in zip(peers["shapes"], echoes, strict=True)),
             "one core has both: each request adds the 276 rows of its seed to the bytes and system calls of an echo"),
            ("ten times the best other server at 32 connections (a goal; five were wanted)",
             ratios_by_shape(peers, "throughput_32", tuple(peers["shapes"]), named=True),
             "as above"),
            ("Reddit's shape, 1024 seeds, unpruned, from 16 or 32 bits, in 15 ms", f"{unpruned:.1f} ms",
             "the bound alone is 7 to 15 ms, depending on how fast this shared machine's memory is in that hour"),
            ("engine within 1.5 times the bound, 1024 seeds",
             f"{len(far)} of {len(over)} variants are above, at most {max(far):.1f} times",
             "what is neither a cache line nor a product is not in the bound: random numbers and counting, 2 to 4 ms a batch; "
             "and the bfloat16 peak is one core's, which two share"),
            ("sampling in 3 µs a seed, batches of 64 and more", f"{min(sampling):.1f} to {max(sampling):.1f} µs",
             "275 draws of a random number and a cache line each"),
            ("goodput of 90 % of its peak at three times the capacity, refused clients trying again",
             f"{retried['shareOfPeak'] * 100:.0f} %", "reading and refusing 7 requests for each that is answered takes the rest"),
            *((f"{name}, at most 3 % more than at {regression['base'][:7]}", measured,
               next(why for kind, why in _GROWN.items() if kind in name or kind == "request")) for name, measured in slower),
            ("requests that bring new nodes, binary form, within 1.3 times the same about stored ones",
             " and ".join(f"{min(of_shape):.2f} to {max(of_shape):.2f} ({words})" for words, of_shape in (
                 (SHAPE_WORDS[shape], [ratio for name, ratio in brought.items() if name.startswith(f"{shape}, binary")])
                 for shape in ("arxiv", "reddit"))),
             "a stored node's first-layer product lies in the table, a new one's is computed (128 or 602 features), once "
             "for itself and once for those that list it; and its features are 0.5 or 2.4 KB to read"),
        ),
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where a page differs")
    arguments = parser.parse_args()
    stale = []
    for name in PAGES:
        page = ROOT / name
        text = page.read_text(encoding="utf-8")
        if (filled := fill(text)) != text:
            stale.append(name)
            if not arguments.check:
                page.write_text(filled, encoding="utf-8")
                print(f"wrote the figures of {name}")
    if arguments.check and stale:
        sys.exit(f"{', '.join(stale)}: figures differ from benchmarks/results; run make figures")


if __name__ == "__main__":
    main()
