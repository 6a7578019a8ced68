"""The engine of one commit, in process: prints a line of costs whenever it is told to.

Started by `regression.py` with the packages of the commit that is measured; what it imports is that commit's.
"""

from __future__ import annotations

import json
import sys

from benchmarks.engine import (
    draw_batches,
    map_graph,
    measure,
    network_of,
    projected_variant,
    pruned_variants,
    revision_of,
    scratch_folder,
    write_features,
    write_projected,
)
from benchmarks.shapes import SHAPES, prepare
from gnnserve_api.variants import Storage

_SECONDS = 2.0
_SEEDS = 1024


def main() -> None:
    files = prepare(SHAPES[sys.argv[1]])
    shape, weights = files.shape, files.weights()
    with scratch_folder() as folder:
        graph = map_graph(folder, files.array("indptr"), files.array("indices"))
        network = network_of(shape.hidden, shape.classes)
        features = files.array("features")
        variants = [
            *pruned_variants(write_features(folder, features, Storage.FLOAT32), weights, network, [1]),
            projected_variant(write_projected(folder, features, weights, Storage.FLOAT32), weights, network),
        ]
        revision = revision_of(graph, variants, network)
        batches = draw_batches(shape.seeds_end, _SEEDS, 16)
        for _ in sys.stdin:
            found = measure(revision, batches, _SECONDS, least_runs=5)
            costs = {f"{_SEEDS} seeds in the engine, {name}, p50 ms": timing.p50_ms for name, timing in found.items()}
            print(json.dumps(costs), flush=True)


if __name__ == "__main__":
    main()
