"""The page beside an exported program: how to run it, in as many lines as that takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import UNSET

from gnnserve_api.files.export import ExportedArray, ExportFormat, ExportManifest

_PROGRAMS: Mapping[ExportFormat, str] = {
    ExportFormat.TORCH: """\
import torch
from safetensors.torch import load_file

program = torch.export.load("model.pt2").module()
example = load_file("example.safetensors")
inputs = {name: example[name] for name in [INPUTS]}
outputs = program(**inputs)
print("largest difference:", (outputs["scores"] - example["scores"]).abs().max().item())
""",
    ExportFormat.ONNX: """\
import onnxruntime
from safetensors.numpy import load_file

session = onnxruntime.InferenceSession("model.onnx")
example = load_file("example.safetensors")
inputs = {each.name: example[each.name] for each in session.get_inputs()}
(scores,) = session.run(["scores"], inputs)
print("largest difference:", abs(scores - example["scores"]).max())
""",
}
_NEEDS: Mapping[ExportFormat, str] = {
    ExportFormat.TORCH: "`torch` and `safetensors`",
    ExportFormat.ONNX: "`onnxruntime`, `numpy` and `safetensors`",
}


def readme(manifest: ExportManifest, advice: Sequence[str]) -> str:
    """`advice`: sentences about how answers are made of scores."""
    parts = [
        f"# {manifest.variant} of {manifest.service}\n",
        f"A {manifest.architecture} ({manifest.family}), revision {manifest.revision}, written by "
        f"{manifest.written_by}. `export.json` has for programs what this page says.\n",
        "## Run it\n",
        *(_how_to_run(chosen, manifest) for chosen in manifest.programs),
        "`example.safetensors` has inputs for a few nodes (`nodes`: their positions in the graph), and what gnnserve "
        "itself answers to these (`scores`). The difference is some 1e-6 where scores are about 1.\n",
        "## Inputs and outputs\n",
        "Sizes in words may differ from call to call; equal words are equal sizes.\n",
        _table("input", manifest.inputs),
        _table("output", manifest.outputs),
        *_layout(manifest),
        "## Rows\n",
        *_rows(manifest),
        "## What else to know\n",
        *_more(manifest, advice),
    ]
    return "\n".join(parts)


def _how_to_run(chosen: ExportFormat, manifest: ExportManifest) -> str:
    names = ", ".join(f'"{each.name}"' for each in manifest.inputs)
    program = _PROGRAMS[chosen].replace("[INPUTS]", f"[{names}]")
    return f"`{manifest.programs[chosen]}` needs {_NEEDS[chosen]}:\n\n```python\n{program}```\n"


def _table(title: str, arrays: tuple[ExportedArray, ...]) -> str:
    lines = [f"| {title} | type | shape | meaning |", "|---|---|---|---|"]
    for each in arrays:
        shape = ", ".join(map(str, each.shape))
        lines.append(f"| `{each.name}` | {each.dtype} | [{shape}] | {each.meaning} |")
    return "\n".join(lines) + "\n"


def _layout(manifest: ExportManifest) -> list[str]:
    if manifest.rows is None:
        counts = manifest.contract is not UNSET and manifest.contract.reads_degrees
        whole = "The program counts edges: give it all neighbours of each node.\n" if counts else ""
        return [
            f"Put the nodes that are asked about first among those of their type, each node once, then the nodes that "
            f"they read, hop by hop up to {len(manifest.fanouts)}, and all edges by which those before the last hop "
            "read. Rows of scores behind the nodes that are asked about mean nothing.\n",
            *([whole] if whole else []),
        ]
    layers = sum(each.name.startswith("targets_") for each in manifest.inputs)
    if not layers:
        return ["An answer takes one row of a node and no neighbours.\n"]
    drawn = ", ".join("all" if fanout < 0 else str(fanout) for fanout in manifest.fanouts)
    return [
        f"Layer 1 reads the rows and layer {layers} writes the scores, for the nodes that are asked about. Put these "
        "first in `rows`, then the neighbours that are drawn of them, then those that are drawn of these, and so on: "
        "each layer's targets are then the first ones of what it reads, and `targets_1` is 0, 1, 2, … gnnserve draws "
        f"{drawn} neighbours of a node, hop by hop from the nodes that are asked about, uniformly and without "
        "replacement; all layers use the same draw of a node.\n",
        "**Padding.** Any input may be longer than needed. Rows and targets behind the last one may be anything, and "
        "what is written for them means nothing. An edge that is padding has 0 as its source, and as its target the "
        "number of targets, padding included.\n",
    ]


_NORMALIZATIONS: Mapping[str, str] = {
    "Disabled": "as in the source",
    "Standardize": "minus `mean`, divided by `deviation`",
    "RowNormalize": "each node's divided by the sum of their absolute values",
    "L2RowNormalize": "each node's divided by the root of the sum of their squares",
}


def _rows(manifest: ExportManifest) -> list[str]:
    rows = manifest.rows
    if rows is None:
        return ["They are features as the graph's source has them; the program scales them as before training.\n"]
    place = f"`{rows.values}` in the revision's folder" + ("" if rows.scales is None else f", times `{rows.scales}`")
    if rows.own_values is not None:
        place += f"; rows of nodes themselves are in `{rows.own_values}`"
        place += "" if rows.own_scales is None else f", times `{rows.own_scales}`"
    told = [
        f"They are those of the table `{rows.table}` ({rows.storage}): {place}. The program takes them as float32.\n"
    ]
    if rows.normalization is None:
        of_layer = "" if rows.stored_layer is None else f" of layer {rows.stored_layer}'s output over all neighbours"
        told.append(
            f"They were made{of_layer} for the graph as it was generated, and this export does not tell how to make "
            "rows of other nodes.\n"
        )
        return told
    made = f"Features of a node become a row as `rows.safetensors` has it: {_NORMALIZATIONS[rows.normalization]}, then "
    made += "the columns `columns` of them" if rows.kind == "features" else "multiplied by `product`"
    if rows.own_values is not None:
        made += ", or by `own_product` for the node itself"
    told.append(f"{made}.\n")
    return told


def _served_again(manifest: ExportManifest) -> str:
    """How a manifest names the folder."""
    expected = f"FOLDER/{manifest.expected}" if manifest.expected else "SCORES"
    parts = [f"model: {{program: {{uri: FOLDER}}, expected: {{uri: {expected}}}}}"]
    if manifest.rows is not None and manifest.rows.normalization not in {None, "Disabled"}:
        parts.append(f"graph: {{normalization: {manifest.rows.normalization}, …}}")
    if manifest.decoder is not UNSET:
        columns = manifest.outputs[0].shape[1]
        parts.append(f"task: {{links: {{decoder: {manifest.decoder.kind}, dimensions: {columns}, …}}}}")
    told = f"gnnserve serves the folder again: {' and '.join(f'`{part}`' for part in parts)} in a manifest. "
    if not manifest.expected:
        return told + (
            "The scores are yours to give, over all neighbours: the revision keeps features in fewer bits than the "
            "source. With `float32` among `variants.storage`, an export has them."
        )
    held_out = "" if manifest.decoder is UNSET else ", which lacks the links that were held out"
    return told + (
        f"`{manifest.expected}` has scores over all neighbours in the revision's graph{held_out}; another graph needs "
        "others."
    )


def _more(manifest: ExportManifest, advice: Sequence[str]) -> list[str]:
    sentences = [*advice, *([_served_again(manifest)] if manifest.can_be_served else [])]
    told = [f"- {sentence}" for sentence in sentences]
    if manifest.served_compute != manifest.compute:
        told.append(
            f"- The program computes in {manifest.compute}. gnnserve multiplies this variant's matrices in "
            f"{manifest.served_compute} on processors that are fast at it: answers of such a server differ by that "
            "rounding."
        )
    told.append("- Only networks are exported: sampling, the tables and updates of the graph are yours.\n")
    return told
