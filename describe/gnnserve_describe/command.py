"""One call of `gnnserve-describe`, or of `gnnserve model describe`: what it was given, and what it prints."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from gnnserve_api.errors import InputError
from gnnserve_describe.description import Description, Wishes, describe
from gnnserve_describe.load import load_decoder, load_graph, load_model, load_object
from gnnserve_describe.scored import links_of, nodes_of
from gnnserve_describe.write import LAYERS_MANIFEST, MANIFEST, check_new


@dataclass(frozen=True, slots=True)
class DescribeCommand:
    module: str
    out: Path
    graph: str | None = None
    inputs: str = ""
    target: str | None = None
    hops: int | None = None
    ids: str | None = None
    nodes: int = 256
    seed: int = 0
    name: str = ""
    is_trusted: bool = False
    output: str = ""
    links: bool = False
    decoder: str | None = None
    relation: str = ""


def run(command: DescribeCommand) -> None:
    check_new(command.out)
    module, example = load_model(command.module)
    graph = example if command.graph is None else load_graph(command.graph, is_trusted=command.is_trusted)
    if graph is None:
        raise InputError(
            "--graph", "no graph is given, and MODULE returns no example inputs",
            "give --graph, or let the function return (module, (x, edge_index))",
        )  # fmt: skip
    inputs = tuple(filter(None, command.inputs.split(",")))
    ids = None if command.ids is None else load_object("--ids", command.ids)
    decoder = None if command.decoder is None else load_decoder(command.decoder)
    scores_links = command.links or bool(command.relation) or decoder is not None
    wishes = Wishes(
        command.hops, command.target, inputs, ids, command.nodes, command.seed, command.name, command.output,
        links_of(command.relation) if scores_links else nodes_of, decoder,
    )  # fmt: skip
    _print(describe(module, graph, command.out, wishes, lambda step: print(f"{step} …", file=sys.stderr)))


def _print(made: Description) -> None:
    program, manifest = made.program, made.folder / (MANIFEST if made.layers is None else LAYERS_MANIFEST)
    deeper = "; it counts edges, so that samples are one hop deeper" if program.reads_degrees else ""
    print(f"{made.folder}: reads {program.hops} hops{deeper}; {program.scores.columns} columns")
    for each in made.findings:
        print(f"- {each}")
    print(
        f"scores of {made.check.nodes} nodes in {made.check.samples} samples equal those of the module over the whole "
        f"graph to {made.check.difference:.1g} of the largest"
    )
    if made.layers is not None:
        print(
            f"{manifest} serves its layers by kernels in place of the program, which {made.folder / MANIFEST} serves; "
            "both are compared with the expected scores before anything is published"
        )
    print(f"next: {'' if made.has_graph else f'add the graph to {manifest}, and '}gnnserve run {manifest}")
