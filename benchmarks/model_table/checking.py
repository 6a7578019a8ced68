"""One model: trained for some steps, described, and scored as a server does it, beside itself over the whole graph."""

from __future__ import annotations

import copy
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnxruntime
import torch
from torch.nn import functional

from benchmarks.model_table.entries import Entry, Made, Task
from benchmarks.model_table.graphs import CLASSES
from benchmarks.model_table.outcomes import TOLERANCE, Outcome
from gnnserve_api.errors import InputError
from gnnserve_api.files.graph_schema import (
    AS_LISTED,
    GraphSchema,
    TypeManifest,
    relation_manifest,
)
from gnnserve_api.files.programs import InputRole, ProgramManifest, RelationKey, contract_problems
from gnnserve_api.files.repository import program_network
from gnnserve_api.spec.task import Decoder, Links
from gnnserve_describe import Description, Wishes, describe, links_of, nodes_of
from gnnserve_describe.decoder import decoder_of
from gnnserve_describe.layout import layout_of
from gnnserve_describe.write import DECODER
from gnnserve_worker.generation.given_program import decoder_tensors
from gnnserve_worker.graph.payload import EdgePayload
from gnnserve_worker.graph.store import Graph
from gnnserve_worker.programs.allowed import facts_of
from gnnserve_worker.programs.contract import lay_out
from gnnserve_worker.programs.facts import check_contract
from gnnserve_worker.sampling.neighbours import NeighbourSample, Scratch, sample_neighbours
from gnnserve_worker.sampling.payload import gather_payload
from gnnserve_worker.sampling.relations import sample_relations
from gnnserve_worker.tasks.score_links.given_decoder import read_decoder

_STEPS = 3
_ALONE, _TOGETHER = 16, 48
"""Nodes that are asked about one by one, hubs and nodes without neighbours among them, and in one request."""


class Checked(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    outcome: Outcome
    words: str
    """Reason of a refusal or a failure; of a right one what it reads."""
    seconds: float
    difference: float | None = None
    """Largest, of the largest score; None: nothing was compared."""


def check(entry: Entry) -> Checked:
    begun = time.perf_counter()
    try:
        outcome, words, difference = _checked(entry)
    except Exception as error:  # noqa: BLE001 - a model that breaks what checks it has failed, and the table goes on
        outcome, words, difference = Outcome.FAILED, f"{type(error).__name__}: {_line(error)}", None
    return Checked(outcome, words, round(time.perf_counter() - begun, 1), difference)


def _line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0][:300]


def _checked(entry: Entry) -> tuple[Outcome, str, float | None]:
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
            return *refusal(entry, str(error)), None
        return _compared_links(made, described) if scores_links else _compared(made, described)


def refusal(entry: Entry, sentence: str) -> tuple[Outcome, str]:
    """A failure, unless the sentence is that of one of the reasons that the entry names."""
    for reason in entry.reasons:
        if re.search(reason.pattern, sentence):
            return reason.outcome, reason.value
    return Outcome.FAILED, f"refused: {sentence}"


def _compared(made: Made, described: Description) -> tuple[Outcome, str, float | None]:
    wanted = scores_of(made)
    served = Served.of(described)
    is_single = served.program.scores.columns == wanted.shape[1]
    if not is_single:
        return Outcome.FAILED, f"{served.program.scores.columns} columns for {wanted.shape[1]}", None
    end = _END_OF[_ended(described)]
    scale = float(np.abs(wanted).max()) or 1.0
    largest = 0.0
    for nodes in _groups(served):
        found = end(torch.from_numpy(served.scores(nodes))).numpy()
        largest = max(largest, float(np.nan_to_num(np.abs(found - wanted[nodes]), nan=np.inf).max()) / scale)
    return _judged(largest, _told_hops(served))


def _compared_links(made: Made, described: Description) -> tuple[Outcome, str, float | None]:
    """Scores of pairs, by rows that a server computes and its decoder, and by the user's own modules."""
    served, types = Served.of(described), described.example.scored.types
    columns, ends = served.program.scores.columns, (types[0], types[-1])
    own = decoder_of(made.decoder, columns, ends)
    weights = described.folder / DECODER
    task = Links(decoder=Decoder(own.kind), dimensions=columns)
    decoder = read_decoder(task, decoder_tensors(weights if weights.exists() else None)).decoder
    whole = [torch.from_numpy(scores_of(made, kind)) for kind in ends]
    random = np.random.default_rng(5)
    differences, scales = [], [np.finfo(np.float32).tiny]
    for first in _groups(served):
        second = random.choice(len(whole[1]), len(first), replace=False)
        with torch.no_grad():
            wanted = own.score(whole[0][first], whole[1][second]).numpy()
        found = decoder.score(served.scores(first), served.scores(second, ends[1]))
        differences.append(float(np.nan_to_num(np.abs(found - wanted), nan=np.inf).max()))
        scales.append(float(np.abs(wanted).max()))
    return _judged(max(differences) / max(scales), f"{_told_hops(served)}; pairs by {own.kind}")


def _judged(difference: float, words: str) -> tuple[Outcome, str, float | None]:
    """`difference`: of the largest score."""
    if difference > TOLERANCE:
        return Outcome.FAILED, f"scores differ by {difference:.2g} of the largest", difference
    return Outcome.RIGHT, words, difference


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


# The server


@dataclass(frozen=True, slots=True)
class Served:
    """The graph as a worker holds it, and the program in ONNX Runtime."""

    program: ProgramManifest
    graph: Graph
    features: Mapping[int, np.ndarray]
    """Rows by the place of their type."""
    payload: tuple[EdgePayload | None, ...]
    session: onnxruntime.InferenceSession

    @classmethod
    def of(cls, described: Description) -> Served:
        program = described.program
        file = described.folder / program.file
        check_contract(facts_of(file), program)
        example = described.example
        layout = layout_of(example.graph)
        tensors = dict(zip(layout.inputs, (each.numpy() for each in layout.tensors_of(example.graph)), strict=True))
        types = sorted(example.graph.types, key=lambda kind: kind != example.target)
        counts = {kind: example.graph.nodes(kind) for kind in types}
        graph, payload = _graph_of(tensors, types, counts)
        if problems := contract_problems(program, graph.schema):
            raise ValueError("; ".join(problems))
        features = {types.index(each.type): rows for each, rows in tensors.items() if each.role is InputRole.FEATURES}
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        return cls(program, graph, features, payload, session)

    def scores(self, nodes: np.ndarray, kind: str | None = None) -> np.ndarray:
        """Scores [nodes, columns] of nodes of a type, by their positions among them; None: of the first type."""
        schema = self.graph.schema
        place = 0 if kind is None else schema.place_of(kind)
        output = self.program.scores_of(schema.types[place].name, schema)
        if output is None:
            raise ValueError(f"the program has no output for nodes of {kind}")
        sample = self._sample(nodes + schema.first_nodes[place])
        if self.program.reads_payload:
            sample = msgspec.structs.replace(sample, payload=gather_payload(self.graph, self.payload, sample))
        first = schema.first_nodes

        def read(names: np.ndarray, kind: int, *, own: bool = False) -> np.ndarray:
            del own
            rows: np.ndarray = self.features[kind][names - first[kind]]
            return rows

        laid = lay_out(self.program, schema, sample, read)
        there = {each.name for each in self.session.get_inputs()}
        given = {name: array for name, array in laid.arrays.items() if name in there}
        found = np.asarray(self.session.run([output.name], given)[0])
        scores: np.ndarray = found[laid.seeds]
        return scores

    def _sample(self, seeds: np.ndarray) -> NeighbourSample:
        graph, fanouts = self.graph, program_network(self.program).fanouts
        named = self.program.reads_payload
        if len(graph.schema.relations) > 1 or len(graph.schema.types) > 1:
            return sample_relations(
                graph.indptr, graph.indices, seeds, fanouts, 0, Scratch(), layout=graph.layout, share=True,
                names_positions=named,
            )  # fmt: skip
        return sample_neighbours(
            graph.indptr, graph.indices, seeds, fanouts, 0, Scratch(), share=True, names_leaves=True,
            names_positions=named,
        )  # fmt: skip


def _graph_of(
    tensors: Mapping[Any, np.ndarray], types: list[str], counts: Mapping[str, int]
) -> tuple[Graph, tuple[EdgePayload | None, ...]]:
    by_role = {(each.role, each.relation): found for each, found in tensors.items()}
    keys = [each.relation for each in tensors if each.role is InputRole.EDGES]
    keys.sort(key=lambda key: types.index(key.target))
    payload = tuple(_payload_of(by_role, key) for key in keys)
    columns = {each.type: found.shape[1] for each, found in tensors.items() if each.role is InputRole.FEATURES}
    schema = GraphSchema(
        tuple(TypeManifest(kind, counts[kind], columns[kind], "Positions") for kind in types),
        tuple(
            relation_manifest(
                key.source, key.name, key.target, by_role[InputRole.EDGES, key].shape[1], None, AS_LISTED,
                *(() if found is None else (found.manifest,)),
            )
            for key, found in zip(keys, payload, strict=True)
        ),
    )  # fmt: skip
    return _lists(by_role, keys, payload, schema), payload


def _payload_of(by_role: Mapping[Any, np.ndarray], key: RelationKey) -> EdgePayload | None:
    features, times = (by_role.get((role, key)) for role in (InputRole.EDGE_FEATURES, InputRole.EDGE_TIMES))
    if features is None and times is None:
        return None
    rows = by_role[InputRole.EDGES, key].shape[1]
    features = np.zeros((rows, 0), np.float32) if features is None else features
    names = tuple(f"column{place}" for place in range(features.shape[1]))
    return EdgePayload(
        names, features, "" if times is None else "time", np.zeros(0, np.int64) if times is None else times
    )


def _lists(
    by_role: Mapping[Any, np.ndarray], keys: list[RelationKey], payload: tuple[EdgePayload | None, ...],
    schema: GraphSchema,
) -> Graph:  # fmt: skip
    """Lists of neighbours: of each node one for each relation that its type reads."""
    first_nodes, slots = schema.first_nodes, schema.slots
    first_lists = np.cumsum([0, *(kind.nodes * each for kind, each in zip(schema.types, slots, strict=True))])
    places = {kind.name: place for place, kind in enumerate(schema.types)}
    taken = dict.fromkeys(places, 0)
    lists, sources, rows = [], [], []
    for key, found in zip(keys, payload, strict=True):
        source, target = by_role[InputRole.EDGES, key]
        kind = places[key.target]
        lists.append(first_lists[kind] + target * slots[kind] + taken[key.target])
        sources.append(source + first_nodes[places[key.source]])
        rows.append(np.full(len(source), -1) if found is None else np.arange(len(source)))
        taken[key.target] += 1
    of_list = np.concatenate(lists)
    order = np.argsort(of_list, kind="stable")
    indptr = np.concatenate([[0], np.cumsum(np.bincount(of_list, minlength=int(first_lists[-1])))]).astype(np.int64)
    indices = np.concatenate(sources)[order].astype(np.int32)
    has_payload = any(found is not None for found in payload)
    payload_rows = np.concatenate(rows)[order].astype(np.int32) if has_payload else np.zeros(0, np.int32)
    return Graph(indptr, indices, schema, payload_rows)


def _groups(served: Served) -> Iterator[np.ndarray]:
    """Nodes to compare: the exported program has seen none of them, since it was exported over rows of a graph that
    the description made up."""
    nodes = served.graph.schema.types[0].nodes
    slots = served.graph.schema.slots[0]
    degrees = np.diff(served.graph.indptr[: nodes * slots + 1 : max(slots, 1)])[:nodes] if slots else np.zeros(nodes)
    by_degree = np.argsort(-degrees, kind="stable")
    for node in by_degree[np.linspace(0, nodes - 1, _ALONE).astype(int)]:
        yield np.array([node], np.int64)
    yield np.random.default_rng(3).choice(nodes, _TOGETHER, replace=False).astype(np.int64)
