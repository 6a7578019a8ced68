"""`gnnserve model describe`, which is `gnnserve-describe` where both are installed in one environment, and
`gnnserve model inspect` of a file of weights."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gnnserve_api.extras import DESCRIBE, GENERATE
from gnnserve_cli.commands.options import Json


def describe(
    module: Annotated[
        str,
        typer.Argument(
            metavar="MODULE",
            help="Module, or function without arguments that returns it: file.py:object or package.module:object.",
            show_default=False,
        ),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Write to this folder, which must not exist.")],
    graph: Annotated[
        str | None,
        typer.Option(
            "--graph",
            metavar="GRAPH",
            help="Graph that the model runs over: file.py:object, or a .pt or .npz file. Unset: MODULE returns example "
            "inputs beside the module.",
            show_default=False,
        ),
    ] = None,
    inputs: Annotated[
        str,
        typer.Option(
            "--inputs",
            metavar="NAMES",
            help="What forward is given, in its order: x,edge_index,edge_weight=edge_attr. Unset: by the names of its "
            "parameters.",
            show_default=False,
        ),
    ] = "",
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            metavar="TYPE",
            help="Type of the nodes that are scored. Unset: the one with labels.",
            show_default=False,
        ),
    ] = None,
    hops: Annotated[
        int | None,
        typer.Option(
            "--hops", metavar="N", help="Layers that read neighbours. Unset: measured.", show_default=False, min=0
        ),
    ] = None,
    ids: Annotated[
        str | None,
        typer.Option(
            "--ids",
            metavar="IDS",
            help="Ids of the nodes that are scored, in order: file.py:object. Unset: positions.",
            show_default=False,
        ),
    ] = None,
    nodes: Annotated[int, typer.Option("--nodes", metavar="N", help="Expected scores to write.", min=1)] = 256,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="For the nodes that are drawn.")] = 0,
    name: Annotated[
        str,
        typer.Option("--name", help="Name of the service in the manifest. Unset: the folder's.", show_default=False),
    ] = "",
    trust: Annotated[
        bool, typer.Option("--trust", help="Read Python objects in a .pt file, which may run code.", metavar="")
    ] = False,
    output: Annotated[
        str,
        typer.Option(
            "--output",
            metavar="NAME",
            help="Output of forward to serve, by its name or its place from 0. Unset: the likely one.",
            show_default=False,
        ),
    ] = "",
    links: Annotated[
        bool, typer.Option("--links", help="forward gives rows of nodes, whose pairs are scored.", metavar="")
    ] = False,
    decoder: Annotated[
        str | None,
        typer.Option(
            "--decoder",
            metavar="DECODER",
            help="Module that scores two rows, for links: file.py:object. Unset: their dot product.",
            show_default=False,
        ),
    ] = None,
    relation: Annotated[
        str,
        typer.Option(
            "--relation",
            metavar="RELATION",
            help="Relation whose links are scored, over several types: its name, or 'user buys item'.",
            show_default=False,
        ),
    ] = "",
) -> None:
    """Write a model of yours as a program that is served, with expected scores and a manifest."""
    DESCRIBE.require("model describe")
    GENERATE.require("model describe", "torch")
    # Imported here: it brings torch.
    from gnnserve_describe.command import DescribeCommand, run  # noqa: PLC0415

    run(
        DescribeCommand(
            module, out, graph, inputs, target, hops, ids, nodes, seed, name, trust, output, links, decoder, relation
        )
    )


def inspect(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="Weights: a safetensors file, one of torch.save, which is read as data and never unpickled, or an "
            "address of the Hugging Face Hub, hf://ORG/NAME@COMMIT.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="PATH",
            help="Write the tensors to this safetensors file, which spec.model.checkpoint reads.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Print what a file of weights looks like, the manifest that would serve it, and what the file does not tell."""
    # Imported here: it brings numpy and numba.
    from gnnserve_cli.model_inspection import print_inspection  # noqa: PLC0415

    print_inspection(file, out, as_json=as_json)
