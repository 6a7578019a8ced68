"""gnnserve over several types beside torch_geometric: same graph, weights, requests and machine, in turns.

torch_geometric samples by its own `NeighborSampler`, as the environment of `bench-peers` builds it, behind FastAPI. It
is there as its documentation has it (`trim_to_layer`), cut further by hand, and over products: gnnserve has no variant
over several types that computes the whole first layer, so what it multiplies ahead of time is granted to the other
side instead. Every server is verified first, by exact scores over full neighbourhoods.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from benchmarks.engine.bandwidth import last_cache_bytes
from benchmarks.peers.contestants import Contestant, Effort, measure, start
from benchmarks.peers.environments import PYG, build, versions
from benchmarks.peers.ratios import Figures, compute_ratios, median_of
from benchmarks.peers.servers import Server, fastapi_server, gnnserve_run
from benchmarks.relations.relations_graph import HIDDEN, QUICK_SHARE, SHARE, TypedFiles, write_typed
from benchmarks.results import Run
from benchmarks.shapes import FANOUTS
from benchmarks.wrk import Load

WHOLE_FIRST_LAYER = (
    fastapi_server("pyg", "PyG, `trim_to_layer`, 2 processes", PYG, "hetero_model", workers=2),
    fastapi_server("pyg_cut", "PyG, layers cut by hand, 2 processes", PYG, "hetero_cut_model", workers=2),
    fastapi_server("pyg_cut_2_threads", "the same, 1 process of 2 threads", PYG, "hetero_cut_model", threads=2),
)
"""Peers that compute the whole first layer in each request."""
PRODUCTS = (
    fastapi_server("pyg_products", "PyG over products, 2 processes", PYG, "hetero_products_model", workers=2),
    fastapi_server(
        "pyg_products_2_threads", "the same, 1 process of 2 threads", PYG, "hetero_products_model", threads=2
    ),
)
"""Peers whose first layer is multiplied when they start, as gnnserve's."""
_GENERATION_LIMIT_S = 1800.0


def run_peers(run: Run) -> dict[str, Any] | None:
    """None: torch_geometric's environment cannot be built, which is said."""
    os.environ.setdefault("GNNSERVE_PROFILE_SECONDS", "0")
    try:
        build(PYG)
    except RuntimeError as error:
        print(f"torch_geometric does not take part: {error}", flush=True)
        return None
    return {"peers": measure_peers(quick=run.quick)}


def measure_peers(*, quick: bool) -> dict[str, Any]:
    effort = Effort(repetitions=1, seconds=1) if quick else Effort(repetitions=3, seconds=4)
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(TemporaryDirectory(prefix="gnnserve-typed-peers-")))
        files = write_typed(scratch, QUICK_SHARE if quick else SHARE)
        # Generation takes the whole machine, so nothing else runs yet.
        ours = start(stack, _gnnserve(files, scratch), files, scratch, _GENERATION_LIMIT_S)
        peers = [start(stack, server, files, scratch) for server in (*WHOLE_FIRST_LAYER, *PRODUCTS)]
        loads = measure([ours, *peers], files, effort, scratch)
        servers = {one.name: _described(one, loads[one.name]) for one in (ours, *peers)}
    medians = {name: {load: median_of(runs) for load, runs in found.items()} for name, found in loads.items()}
    return {
        "graph": {**files.described, "lastCacheBytes": last_cache_bytes()},
        "ratios": {
            "wholeFirstLayer": _ratios(medians, ours, WHOLE_FIRST_LAYER),
            "products": _ratios(medians, ours, PRODUCTS),
        },
        "servers": servers,
        "repetitions": effort.repetitions,
        "secondsPerRun": effort.seconds,
        "peerVersions": versions(PYG),
    }


def _gnnserve(files: TypedFiles, scratch: Path) -> Server:
    manifest = scratch / "typed.yaml"
    manifest.write_text(yaml.safe_dump(service_manifest(files), sort_keys=False))
    return gnnserve_run("gnnserve", "gnnserve, JSON, projected", manifest, scratch / "repository")


def service_manifest(files: TypedFiles) -> dict[str, Any]:
    """One variant: projected, exact but for rounding."""
    return {
        "apiVersion": "gnnserve.dev/v1alpha1",
        "kind": "GNNService",
        "metadata": {"name": "typed"},
        "spec": {
            "graph": {"source": {"typed": dict(files.source)}, "normalization": "Disabled"},
            "model": {
                "architecture": "GraphSAGE",
                "hidden": HIDDEN,
                "fanouts": list(FANOUTS),
                "checkpoint": {"uri": files.checkpoint.as_uri()},
            },
            "variants": {"storage": ["float32"]},
            "routing": {"mode": "Static", "variant": "projected"},
        },
    }


def _described(contestant: Contestant, loads: Mapping[str, Sequence[Load]]) -> dict[str, Any]:
    return {
        "label": contestant.label,
        "bootS": contestant.server.boot_s,
        "pssMiB": contestant.server.pss_mib(),
        "largestError": contestant.largest_error,
        "workloads": {
            name: {"median": asdict(median_of(runs)), "runs": [asdict(load) for load in runs]}
            for name, runs in loads.items()
        },
    }


def _ratios(medians: Mapping[str, Mapping[str, Figures]], ours: Contestant, peers: Sequence[Server]) -> dict[str, Any]:
    """More than 1: better than the best of these peers."""
    return asdict(compute_ratios(medians[ours.name], {peer.name: medians[peer.name] for peer in peers}))
