"""Rules over graph, model and workers of a spec: what a GPU computes, where it is a GPU or nothing."""

from __future__ import annotations

from typing import Any

from gnnserve_api.device import Device
from gnnserve_api.files.device_layers import CONVOLUTIONS, NO_AGGREGATIONS, NO_JUMPS
from gnnserve_api.files.layers import READ_BY
from gnnserve_api.spec.rules import all_empty, rule


def _listed(names: Any) -> str:
    return "[" + ", ".join(f"'{one}'" for one in names) + "]"


_COUNTING = [one for one in CONVOLUTIONS if one in READ_BY["self_loops"] and one not in (*READ_BY["heads"],)]
"""Convolutions that count whole lists without self-loops."""
_COMPUTED = (
    f"has(one.conv) && one.conv in {_listed(CONVOLUTIONS)} && {all_empty('one.relations', 'one.edgeColumns')} && "
    f"!has(one.edgeWeight) && (!has(one.selfLoops) || one.selfLoops || (has(one.normalize) && !one.normalize) || "
    f"!(one.conv in {_listed(_COUNTING)})) && "
    f"(!has(one.aggregations) || one.aggregations.all(each, !(each in {_listed(NO_AGGREGATIONS)})))"
)

LISTED_ON_GPU = (
    f"a GPU computes {', '.join(CONVOLUTIONS)}, without relations, edgeColumns, edgeWeight, aggregations "
    f"{', '.join(NO_AGGREGATIONS)}, jumpingKnowledge {', '.join(NO_JUMPS)}, and selfLoops false of "
    f"{', '.join(_COUNTING)}"
)
"""Listed layers that a GPU computes, as a clause."""


gpu_samples_one_type = rule(
    "self.worker.device != 'GPU' || has(self.model.program) || "
    "(!has(self.graph.source.typed) && self.model.fanouts.all(one, one > -1))",
    "worker.device must be Auto or CPU with graph.source.typed and with model.fanouts of -1: a GPU samples graphs of "
    "one type, and not whole neighbourhoods",
)


gpu_computes_layers = rule(
    f"self.worker.device != 'GPU' || !has(self.model.layers) || (!(self.model.jumpingKnowledge in {_listed(NO_JUMPS)}) "
    f"&& self.model.layers.all(one, {_COMPUTED}))",
    f"worker.device must be Auto or CPU with these model.layers: {LISTED_ON_GPU}",
)


def why_not_on_gpu(spec: Any) -> str | None:
    """Why a service cannot be computed on a GPU alone; None: it can. `spec`: whose own device may be another one, where
    an option takes its place."""
    on_gpu = spec.model_copy(update={"worker": spec.worker.model_copy(update={"device": Device.GPU})})
    return next(filter(None, (each.problem(on_gpu) for each in (gpu_samples_one_type, gpu_computes_layers))), None)
