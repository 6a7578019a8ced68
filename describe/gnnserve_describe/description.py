"""From a live module and its graph to a folder that is served: the whole story, step by step."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import repeat
from pathlib import Path
from typing import Any

import torch

from gnnserve_api.errors import InputError
from gnnserve_api.files.layers import LayersManifest
from gnnserve_api.files.programs import ProgramManifest, ProgramOutput, RelationKey
from gnnserve_describe.attributes import forget_kept_tensors
from gnnserve_describe.blame import blame_of, told_by_line
from gnnserve_describe.calling import ArgumentKind, Dictionaries
from gnnserve_describe.check import Check, check_program, runs_small_graphs
from gnnserve_describe.example import Example, example_of
from gnnserve_describe.expected import ExpectedNodeScores, expected_scores
from gnnserve_describe.export import EMBEDDINGS, export_program
from gnnserve_describe.findings import Findings
from gnnserve_describe.given_checks import check_edges, check_finite, check_numbers, check_values
from gnnserve_describe.given_graph import MATRIX_NAMES, listed
from gnnserve_describe.graph import GraphTensors, NeighbourLists
from gnnserve_describe.graph_file import class_count, write_graph
from gnnserve_describe.layers.module import GraphPlaces, layers_of
from gnnserve_describe.layers.reading import LayersRead
from gnnserve_describe.layers.values import NotLayersError
from gnnserve_describe.layout import InputLayout, layout_of, name_of_type
from gnnserve_describe.node_rows import with_rows_as_features
from gnnserve_describe.probe import PROBED_HOPS, Probe, make_probe, shape_of
from gnnserve_describe.reach import NotSampledError, Reach, ReadsFurtherError, SizesOfAnotherError, measure_reach
from gnnserve_describe.reverses import with_reverses
from gnnserve_describe.scored import Choose, nodes_of
from gnnserve_describe.scoring import Outputs, Scorer, outputs_of, tensors_of
from gnnserve_describe.steadiness import check_steady, in_evaluation
from gnnserve_describe.write import (
    DECODER,
    EXPECTED,
    LAYERS,
    LAYERS_MANIFEST,
    MANIFEST,
    PROGRAM,
    WEIGHTS,
    ids_of,
    layers_model,
    new_folder,
    program_model,
    sha256_of,
    write_expected,
    write_manifest,
    write_tensors,
    write_weights,
)

Step = Callable[[str], None]
"""Told what is done next."""


@dataclass(frozen=True, slots=True)
class Description:
    folder: Path
    program: ProgramManifest
    check: Check
    findings: tuple[str, ...]
    """Sentences about what was chosen or changed."""
    has_graph: bool
    """Whether the graph is in the folder, so that the manifest can be served as it is."""
    example: Example
    """The user's graph, as inputs are made of it."""
    layers: LayersManifest | None = None
    """The network layer by layer; None: it could not be read so."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """Wishes of the user beside the module and the graph."""

    hops: int | None = None
    """Layers that read neighbours; None: measured."""
    target: str | None = None
    """Type of the nodes that are scored; None: the one that has labels."""
    inputs: Sequence[str] = ()
    """What `forward` is given, `parameter=name` or in its order; empty: by the names of its parameters."""
    ids: Any = None
    """What the source calls the nodes that are scored, in their order: integers or texts; None: positions from 0."""
    nodes: int = 256
    """Expected scores."""
    seed: int = 0
    name: str = ""
    """Name of the service in the manifest; empty: the folder's."""
    output: str = ""
    """Output of `forward` that scores are, by its name or place; empty: the likely one."""
    scored: Callable[[str | None], Choose] = nodes_of
    """What is scored, given `target`: nodes, or links of a relation (`links_of`)."""
    decoder: torch.nn.Module | None = None
    """Module that scores two rows; None: their dot product."""


_EQUAL_TYPES = (
    "the number of one type's nodes is taken from another's: the program gives each type as many nodes as all have "
    "together, those that it adds without edges"
)


@dataclass(frozen=True, slots=True, eq=False)
class _ProgramExport:
    """The program, and what it was made of."""

    example: Example
    scorers: tuple[Scorer, ...]
    """One for each type whose nodes are scored."""
    probe: Probe
    reach: Reach
    layout: InputLayout
    expected: Sequence[ExpectedNodeScores]
    """By scorer."""
    check: Check


def describe(
    module: torch.nn.Module,
    graph: Any,
    folder: str | Path,
    wishes: Wishes = Wishes(),
    step: Step = lambda _: None,
) -> Description:
    """Write the folder. `graph`: a graph, or the arguments of `forward`. InputError: the module cannot be served, and
    nothing is written."""
    folder = Path(folder)
    check_numbers(wishes.hops, wishes.nodes, wishes.seed)
    findings = Findings()
    with new_folder(folder) as made, told_by_line():
        step("call the module")
        module = in_evaluation(module, findings)
        example = example_of(module, graph, wishes.scored(wishes.target), wishes.inputs)
        example.scored.check(wishes.target, wishes.ids)
        check_edges(example.graph, example.scored.types)
        ids = None if wishes.ids is None else ids_of(wishes.ids, example.graph.nodes(example.target))
        exported = _exported(module, example, wishes, findings, step, made / PROGRAM)
        example, layout, expected = exported.example, exported.layout, exported.expected

        step("write")
        program = _manifest(exported, sha256_of(made / PROGRAM))
        _tell_inputs(layout, findings)
        classes = None if example.labels is None else class_count(example.labels)
        judged = example.scored.judge(wishes.decoder, program.scores.columns, expected, wishes.seed, classes, findings)
        if judged.weights:
            write_tensors(judged.weights, made / DECODER)
        write_expected(expected, ids, judged.pairs, example.scored, made / EXPECTED)
        write_weights(module, made / WEIGHTS)
        source = write_graph(example, layout, made, wishes.seed, ids)
        name = wishes.name or folder.name
        layers = _layers(exported, findings)
        if layers is not None and source is None and len(example.graph.edges) > 1:
            findings.tell(
                f"{LAYERS} calls types and relations by their places, so that spec.graph.source must have them in this "
                f"order: {GraphPlaces.of(example)}"
            )
        if layers is not None:
            write_tensors(layers.tensors, made / LAYERS)
            model = layers_model(layers.layers, GraphPlaces.of(example), judged)
            write_manifest(model, judged, name, source, list(findings), made / LAYERS_MANIFEST)
        write_manifest(program_model(program, judged), judged, name, source, list(findings), made / MANIFEST)
    found = None if layers is None else layers.layers
    return Description(folder, program, exported.check, tuple(findings), source is not None, example, found)


def _layers(exported: _ProgramExport, findings: Findings) -> LayersRead | None:
    """The network layer by layer. None: it cannot be read so, which a finding tells."""
    try:
        found = layers_of(exported.scorers, exported.probe.graph, exported.example, exported.layout)
    except Exception as error:  # noqa: BLE001 - the program is there, whatever cannot be read of the module
        why = str(error) if isinstance(error, NotLayersError) else f"{type(error).__name__}: {error}"
        findings.tell(f"{LAYERS_MANIFEST} is not written, since its layers could not be listed: {why}")
        return None
    if found.has_other_embeddings:
        findings.tell(
            f"{LAYERS_MANIFEST} has other embeddings than the program: rows that its last product or layer reads, and "
            "not those that the module returns beside its scores"
        )
    return found


def _exported(
    module: torch.nn.Module, example: Example, wishes: Wishes, findings: Findings, step: Step, path: Path
) -> _ProgramExport:
    """Write the program. InputError: the module cannot be called or exported, or reads what no sample has."""
    scorers, example, probe = _called(module, example, wishes, findings)
    check_values(example.graph)
    for each in scorers:
        check_finite(each, probe.graph)
    try:
        step("measure how far it reads")
        try:
            probe, reach = _reach(scorers, example, probe, wishes, findings)
        except SizesOfAnotherError:
            if len(example.graph.types) == 1:
                raise
            scorers = tuple(replace(each, call=replace(each.call, has_equal_types=True)) for each in scorers)
            probe, reach = _reach(scorers, example, probe, wishes, findings)
            findings.tell(_EQUAL_TYPES)

        step("score nodes of the whole graph")
        lists = NeighbourLists(example.graph)
        expected = [expected_scores(each, example.graph, lists, wishes.nodes, wishes.seed) for each in scorers]

        step("export")
        layout = layout_of(example.graph)
        other = make_probe(example.graph, shape_of(example.graph), wishes.seed + 1, levels=reach.sampled_hops + 5)
        _export(scorers, layout, probe, other.graph, reach, path, findings)

        step("compare the program with the module")
        check = Check.of(
            check_program(path, layout, scorer, lists, reach, wanted)
            for scorer, wanted in zip(scorers, expected, strict=True)
        )
        return _ProgramExport(example, scorers, probe, reach, layout, expected, check)
    except NotSampledError:
        wider = with_reverses(example, findings)
        if wider is None:
            raise
    return _exported(scorers[0].module, wider, wishes, findings, step, path)


def _called(
    module: torch.nn.Module, example: Example, wishes: Wishes, findings: Findings
) -> tuple[tuple[Scorer, ...], Example, Probe]:
    """How the module is called over graphs of any size. InputError: it is not."""

    def outputs() -> list[torch.Tensor]:
        with torch.no_grad():
            return [tensor for _, tensor in tensors_of(example.call(module, example.graph))]

    forget_kept_tensors(module, outputs, findings)
    try:
        return _probed(module, example, wishes, findings)
    except InputError:
        other = make_probe(example.graph, shape_of(example.graph), wishes.seed).graph
        for moved in with_rows_as_features(module, example, other):
            told = Findings()
            with suppress(InputError):
                found = _probed(moved.module, moved.example, wishes, told)
                for sentence in (moved.finding, *told):
                    findings.tell(sentence)
                return found
        raise


def _probed(
    module: torch.nn.Module, example: Example, wishes: Wishes, findings: Findings
) -> tuple[tuple[Scorer, ...], Example, Probe]:
    example.check_features()
    probe = make_probe(example.graph, shape_of(example.graph), wishes.seed)
    scorer = _scorer(module, example, probe, wishes, findings)
    others = [_scorer_of_type(scorer, kind, probe, wishes) for kind in example.scored.types[1:]]
    scorers = (scorer, *others)
    return scorers, *_without_unread(scorers, example, probe)


def _scorer_of_type(scorer: Scorer, kind: str, probe: Probe, wishes: Wishes) -> Scorer:
    """Scorer of another type, whose rows the same call gives."""
    outputs = outputs_of(scorer.module, scorer.call, probe.graph, kind, None, wishes.output, gives_rows=True)
    return replace(scorer, outputs=outputs, target=kind, name=name_of_type(scorer.name, kind))


def _reach(
    scorers: Sequence[Scorer], example: Example, probe: Probe, wishes: Wishes, findings: Findings
) -> tuple[Probe, Reach]:
    """How far the module reads, over a larger probe where it reads further than the first one tells."""
    for most in PROBED_HOPS[1:]:
        try:
            return probe, _furthest(scorers, probe, wishes, findings)
        except ReadsFurtherError:
            probe = make_probe(example.graph, shape_of(example.graph), wishes.seed, levels=most + 4)
    return probe, _furthest(scorers, probe, wishes, findings)


def _furthest(scorers: Sequence[Scorer], probe: Probe, wishes: Wishes, findings: Findings) -> Reach:
    found = [measure_reach(each, probe, wishes.hops, findings) for each in scorers]
    hops = max(each.hops for each in found)
    return Reach(hops, max(each.sampled_hops for each in found) > hops)


def _scorer(module: torch.nn.Module, example: Example, probe: Probe, wishes: Wishes, findings: Findings) -> Scorer:
    """InputError: the module cannot be called, or not twice alike."""
    words = ", ".join(each.words for each in example.call.arguments)
    try:
        with torch.no_grad():
            example.call(module, probe.graph)
    except InputError:
        raise
    except Exception as error:
        raise _not_called(error, module, example, words) from error
    check_steady(module, example.call, probe.graph)
    outputs = outputs_of(
        module, example.call, probe.graph, example.target, example.labels, wishes.output,
        gives_rows=example.scored.gives_rows,
    )  # fmt: skip
    findings.tell(f"forward is called with {words}")
    _tell_outputs(outputs, findings)
    return Scorer(module, example.call, outputs, example.target)


_OTHER_FORMATS = (
    "weights and features are float32 here: convert to the format of weights (x.to(self.lin.weight.dtype)) in place of "
    "one that is named (.half(), .double())"
)


def _not_called(error: Exception, module: torch.nn.Module, example: Example, words: str) -> InputError:
    """Whether it fails over any graph, or over another one than the user's alone."""
    try:
        with torch.no_grad():
            example.call(module, example.graph)
    except Exception:  # noqa: BLE001 - told below
        return InputError(
            str(blame_of(error)) or "forward",
            f"the module cannot be called with {words}: {type(error).__name__}: {error}",
            _OTHER_FORMATS if re.search("dtype|scalar type", str(error)) else _how_to_call(module, example),
        )
    return InputError(
        str(blame_of(error)) or "forward",
        f"the module runs over its own graph alone: {type(error).__name__}: {error}",
        "give what it keeps of each node as features, a row for each; take sizes from the tensors",
    )


def _how_to_call(module: torch.nn.Module, example: Example) -> str:
    takes = inspect.signature(module.forward).parameters
    matrix = next((name for name in MATRIX_NAMES if name in takes), None)
    if matrix:
        return (
            f"{matrix} is given as edges, int64 [2, edges], since ONNX has no sparse matrices: sum over them by "
            "index_add, torch_geometric.utils.scatter or its convolutions, not by a product"
        )
    named = (
        "name what forward is given in its order by --inputs, as in --inputs x,edge_index,edge_attr, or give example "
        "arguments: let the function return (module, (x, edge_index))"
    )
    if isinstance(example.call.form, Dictionaries):
        return (
            f"the graph has the types {listed(example.graph.types)}, so that forward is given dictionaries, by type "
            "and by (source, relation, target): for a module of one type give a graph of one type by --graph "
            "(data.to_homogeneous()), or make it one of these types by torch_geometric.nn.to_hetero and train that; "
            f"for a module that takes dictionaries, {named}"
        )
    return named


def _tell_outputs(outputs: Outputs, findings: Findings) -> None:
    if outputs.end is not None:
        findings.tell(f"the module ends in a {outputs.end.name}: the program gives the logits before it")
    if outputs.adds_class:
        findings.tell("one logit for two classes: the program gives 0 for the first class beside it")


def _without_unread(scorers: Sequence[Scorer], example: Example, probe: Probe) -> tuple[Example, Probe]:
    """Leave out tensors of a graph object that forward does not read."""
    if all(each.part not in (ArgumentKind.GRAPH, ArgumentKind.DGL_GRAPH) for each in example.call.arguments):
        return example, probe
    wanted = [each.scores(probe.graph) for each in scorers]
    blocks: list[tuple[str | RelationKey, str]] = []
    blocks += [(kind, name) for kind, found in probe.graph.features.items() for name in found]
    blocks += [(key, name) for key, found in probe.graph.payload.items() for name in found]
    for place, name in blocks:
        less = probe.graph.without(place, name)
        if less is not None and all(map(_scores_equal, scorers, repeat(less), wanted)):
            example = replace(example, graph=example.graph.without(place, name) or example.graph)
            probe = replace(probe, graph=less)
    return example, probe


def _scores_equal(scorer: Scorer, graph: GraphTensors, wanted: torch.Tensor) -> bool:
    try:
        # Features that are not read may be no numbers.
        return torch.allclose(scorer.scores(graph), wanted, rtol=0, atol=0, equal_nan=True)
    except Exception:  # noqa: BLE001 - whatever the module raises where it lacks something
        return False


def _export(
    scorers: Sequence[Scorer], layout: InputLayout, probe: Probe, other: GraphTensors, reach: Reach, path: Path,
    findings: Findings,
) -> None:  # fmt: skip
    def runs_small() -> bool:
        return all(runs_small_graphs(path, layout, each, probe, reach) for each in scorers)

    export_program(scorers, layout, probe.graph, other, path)
    if runs_small():
        return
    export_program(scorers, layout, probe.graph, other, path, is_padded=True)
    if not runs_small():
        raise InputError(
            "model.onnx", "it does not give the module's scores over a node without neighbours",
            "a size of the example is probably fixed in it: take sizes from the tensors where they are used",
        )  # fmt: skip
    findings.tell("the program adds two nodes to each call, since it does not run without any edge")


def _manifest(exported: _ProgramExport, sha256: str) -> ProgramManifest:
    """InputError: rows that are read in pairs have different widths."""
    example, reach = exported.example, exported.reach
    with torch.no_grad():
        found = [each(exported.probe.graph) for each in exported.scorers]
    first, *others = [
        ProgramOutput(scorer.name, scores.shape[1], example.scored.type_told(scorer.target))
        for scorer, (scores, _) in zip(exported.scorers, found, strict=True)
    ]
    for each in others:
        if each.columns != first.columns:
            raise InputError(
                "forward", f"rows of {first.type} have {first.columns} columns, and those of {each.type} "
                f"{each.columns}", "give rows of one width, which a decoder reads in pairs",
            )  # fmt: skip
    embeddings = found[0][1]
    return ProgramManifest(
        PROGRAM, sha256, reach.hops, exported.layout.inputs, first,
        None if embeddings is None else ProgramOutput(EMBEDDINGS, embeddings.shape[1]), reach.reads_degrees,
        other_scores=tuple(others),
    )  # fmt: skip


def _tell_inputs(layout: InputLayout, findings: Findings) -> None:
    for each in layout.matrices:
        if len(each.blocks) > 1:
            columns = ", ".join(f"{block.name} ({block.columns})" for block in each.blocks)
            findings.tell(f"{each.input.name} has the columns of {columns}, in this order: so must the graph's")
