"""One model: trained for some steps, described, and scored as a server does it, beside itself over the whole graph."""

from __future__ import annotations

import copy
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from safetensors.numpy import load_file
from torch.nn import functional

from benchmarks.model_table.entries import Entry, Made, Task
from benchmarks.model_table.graphs import CLASSES
from benchmarks.model_table.outcomes import TOLERANCE, Outcome
from benchmarks.model_table.served import Served, ServedGraph
from gnnserve_api.errors import InputError
from gnnserve_api.spec.task import Decoder, Links
from gnnserve_describe import Description, Wishes, describe, links_of, nodes_of
from gnnserve_describe.decoder import decoder_of
from gnnserve_describe.write import DECODER, LAYERS, WEIGHTS
from gnnserve_worker.generation.given_program import decoder_tensors
from gnnserve_worker.readers.reading import read_layers
from gnnserve_worker.tasks.score_links.given_decoder import read_decoder

_STEPS = 3
_ALONE, _TOGETHER = 16, 48
"""Nodes that are asked about one by one, hubs and nodes without neighbours among them, and in one request."""


class Way(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Another way than its program on which a model may be served."""

    words: str = ""
    """Why it is none; empty: its scores are those of the model."""
    difference: float | None = None
    """Largest, of the largest score; None: nothing was compared."""

    @property
    def is_right(self) -> bool:
        return not self.words


class Checked(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    outcome: Outcome
    words: str
    """Reason of a refusal or a failure; of a right one what it reads."""
    seconds: float
    difference: float | None = None
    """Largest, of the largest score; None: nothing was compared."""
    layers: Way | None = None
    """Its layers, as its description lists them; None: it is not served."""
    reader: Way | None = None
    """Layers that are read from its weights alone."""


@dataclass(frozen=True, slots=True)
class _Ways:
    """Outcome of the program, and the other ways."""

    outcome: Outcome
    words: str
    difference: float | None = None
    layers: Way | None = None
    reader: Way | None = None


def check(entry: Entry) -> Checked:
    begun = time.perf_counter()
    try:
        found = _checked(entry)
    except Exception as error:  # noqa: BLE001 - a model that breaks what checks it has failed, and the table goes on
        found = _Ways(Outcome.FAILED, f"{type(error).__name__}: {_line(error)}")
    seconds = round(time.perf_counter() - begun, 1)
    return Checked(found.outcome, found.words, seconds, found.difference, found.layers, found.reader)


def _line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0][:300]


def _checked(entry: Entry) -> _Ways:
    torch.manual_seed(0)
    made = entry.make()
    train(made)
    scores_links = entry.task is Task.LINKS
    wishes = Wishes(
        target=None if scores_links else made.target or None,
        scored=links_of(made.relation) if scores_links else nodes_of, decoder=made.decoder,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        try:
            described = describe(made.module, copy_of(made.arguments), Path(folder, "described"), wishes)
        except InputError as error:
            return _Ways(*refusal(entry, str(error)))
        return _compared_ways(made, described, scores_links=scores_links)


def _compared_ways(made: Made, described: Description, *, scores_links: bool) -> _Ways:
    graph = ServedGraph.of(described)
    compare = partial(_difference_of_links if scores_links else _difference, made, described)
    served = Served.program_of(described, graph)
    difference = compare(served)
    words = _told_hops(served) + (f"; pairs by {_decoder(made, described, served).kind}" if scores_links else "")
    outcome = Outcome.RIGHT
    if difference > TOLERANCE:
        outcome, words = Outcome.FAILED, f"scores differ by {difference:.2g} of the largest"
    kinds = described.example.scored.types
    return _Ways(
        outcome, words, difference, _way(lambda: compare(_by_layers(described, graph, kinds))),
        _way(lambda: compare(_by_file(described, graph, kinds))),
    )  # fmt: skip


class _NoWayError(Exception):
    """A model is not served so. Its message: why."""


def _way(difference: Callable[[], float]) -> Way:
    try:
        found = difference()
    except _NoWayError as error:
        return Way(str(error))
    except Exception as error:  # noqa: BLE001 - told in the table
        return Way(f"{type(error).__name__}: {_line(error)}")
    return Way("" if found <= TOLERANCE else f"scores differ by {found:.2g} of the largest", found)


def _by_layers(described: Description, graph: ServedGraph, kinds: tuple[str, ...]) -> Served:
    if described.layers is None:
        found = (re.search(r"could not be listed: (.*)", sentence) for sentence in described.findings)
        raise _NoWayError(next((match[1] for match in found if match), "it is not listed"))
    return Served.layers_of(described.layers, load_file(described.folder / LAYERS), graph, kinds)


def _by_file(described: Description, graph: ServedGraph, kinds: tuple[str, ...]) -> Served:
    tensors = load_file(described.folder / WEIGHTS)
    found = read_layers(tensors, graph.schema)
    if not found.is_whole:
        some = f"not read: {', '.join(found.unread[:2])} and {len(found.unread)} tensors in all"
        raise _NoWayError(some if found.unread else found.problem or "its tensors are no layers")
    return Served.layers_of(found.layers, found.tensors(tensors), graph, kinds)


def refusal(entry: Entry, sentence: str) -> tuple[Outcome, str]:
    """A failure, unless the sentence is that of one of the reasons that the entry names."""
    for reason in entry.reasons:
        if re.search(reason.pattern, sentence):
            return reason.outcome, reason.value
    return Outcome.FAILED, f"refused: {sentence}"


def _difference(made: Made, described: Description, served: Served) -> float:
    """Largest difference of a score, of the largest."""
    wanted = scores_of(made)
    if served.program.scores.columns != wanted.shape[1]:
        raise ValueError(f"{served.program.scores.columns} columns for {wanted.shape[1]}")
    end = _END_OF[_ended(described)]
    largest = 0.0
    for nodes in _groups(served.graph):
        found = end(torch.from_numpy(served.scores(nodes))).numpy()
        largest = max(largest, float(np.nan_to_num(np.abs(found - wanted[nodes]), nan=np.inf).max()))
    return largest / (float(np.abs(wanted).max()) or 1.0)


def _difference_of_links(made: Made, described: Description, served: Served) -> float:
    """The same of pairs, by rows that a server computes and its decoder, and by the user's own modules."""
    types = described.example.scored.types
    ends, own = (types[0], types[-1]), _decoder(made, described, served)
    weights = described.folder / DECODER
    task = Links(decoder=Decoder(own.kind), dimensions=served.program.scores.columns)
    decoder = read_decoder(task, decoder_tensors(weights if weights.exists() else None)).decoder
    whole = [torch.from_numpy(scores_of(made, kind)) for kind in ends]
    random = np.random.default_rng(5)
    differences, scales = list[float](), [float(np.finfo(np.float32).tiny)]
    for first in _groups(served.graph):
        second = random.choice(len(whole[1]), len(first), replace=False)
        with torch.no_grad():
            wanted = own.score(whole[0][first], whole[1][second]).numpy()
        found = decoder.score(served.scores(first), served.scores(second, ends[1]))
        differences.append(float(np.nan_to_num(np.abs(found - wanted), nan=np.inf).max()))
        scales.append(float(np.abs(wanted).max()))
    return max(differences) / max(scales)


def _decoder(made: Made, described: Description, served: Served) -> Any:
    types = described.example.scored.types
    return decoder_of(made.decoder, served.program.scores.columns, (types[0], types[-1]))


def _told_hops(served: Served) -> str:
    return f"{served.program.hops} hops{' and one more, as it counts edges' if served.program.reads_degrees else ''}"


_END_OF: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "": lambda found: found,
    "softmax": lambda found: found.softmax(-1),
    "log_softmax": lambda found: found.log_softmax(-1),
    "sigmoid": torch.sigmoid,
}
"""Functions that the description leaves to whom reads the logits."""


def _ended(described: Description) -> str:
    found = (re.search(r"the module ends in a (\w+)", sentence) for sentence in described.findings)
    return next((match[1] for match in found if match), "")


# The module itself


def train(made: Made) -> None:
    """A few steps towards drawn classes, so that norms have seen rows and weights are not those of a new module."""
    module = made.module
    with torch.no_grad():
        output_of(module(*copy_of(made.arguments)), made.target)  # gives lazy layers their sizes
    if not any(each.requires_grad for each in module.parameters()):
        return
    module.train()
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
    for _ in range(_STEPS):
        scores = output_of(module(*copy_of(made.arguments)), made.target)
        if not scores.requires_grad:
            break
        optimizer.zero_grad()
        scores = scores.unsqueeze(1) if scores.dim() == 1 else scores
        classes = torch.arange(len(scores)) % min(CLASSES, scores.shape[1])
        loss = functional.cross_entropy(scores, classes) if scores.shape[1] > 1 else (scores - 0.5).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    module.eval()


def scores_of(made: Made, kind: str | None = None) -> np.ndarray:
    """Scores of all nodes of a type by the module over the whole graph; None: of the target type."""
    module = made.module.eval()
    with torch.no_grad():
        found = output_of(module(*copy_of(made.arguments)), made.target if kind is None else kind)
    return (found.unsqueeze(1) if found.dim() == 1 else found).detach().numpy()


def copy_of(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Modules write into dictionaries and tensors that they are given."""
    return tuple(
        {key: tensor.clone() for key, tensor in each.items()} if isinstance(each, Mapping) else copy.deepcopy(each)
        for each in arguments
    )


def output_of(found: Any, kind: str) -> torch.Tensor:
    """The first output that the type has."""
    while not torch.is_tensor(found):
        found = found[kind] if isinstance(found, Mapping) else found[0]
    return found


def _groups(graph: ServedGraph) -> Iterator[np.ndarray]:
    """Nodes to compare: the exported program has seen none of them, since it was exported over rows of a graph that
    the description made up."""
    nodes = graph.schema.types[0].nodes
    slots = graph.schema.slots[0]
    degrees = np.diff(graph.lists.indptr[: nodes * slots + 1 : max(slots, 1)])[:nodes] if slots else np.zeros(nodes)
    by_degree = np.argsort(-degrees, kind="stable")
    for node in by_degree[np.linspace(0, nodes - 1, _ALONE).astype(int)]:
        yield np.array([node], np.int64)
    yield np.random.default_rng(3).choice(nodes, _TOGETHER, replace=False).astype(np.int64)
