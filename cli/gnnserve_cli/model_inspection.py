"""Findings of `gnnserve model inspect` in a file of weights, and the manifest that would serve it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import yaml

from gnnserve_api.errors import InputError
from gnnserve_api.files.layer_fields import layer_fields
from gnnserve_api.spec.hub import SCHEME, TENSORS, HubAddress
from gnnserve_api.spec.model import Architecture
from gnnserve_api.spec.task import Decoder
from gnnserve_cli.progress import showing_progress
from gnnserve_cli.render import count, facts_table, output, print_json, put
from gnnserve_worker.generation.checkpoint_architecture import architecture_fields
from gnnserve_worker.generation.hub.weights import fetched_file
from gnnserve_worker.kernel_folder import user_root
from gnnserve_worker.models.registry import ARCHITECTURES, DECODER, without_decoder
from gnnserve_worker.readers.decoder import decoder_of
from gnnserve_worker.readers.files import read_weights_file
from gnnserve_worker.readers.misfit import AS_PROGRAM
from gnnserve_worker.readers.reading import NO_LAYERS, ReadLayers, read_layers

_SAFETENSORS = ".safetensors"
_SHOWN = 12


def print_inspection(named: str, out: Path | None, *, as_json: bool) -> None:
    """Read the file that is named, print what it looks like, and write its tensors to `out` where that is given."""
    is_on_hub = named.startswith(SCHEME)
    file = _fetched(named) if is_on_hub else Path(named)
    weights = read_weights_file(file)
    tensors = weights.tensors
    if not tensors:
        raise InputError("FILE", f"{named} has no tensors", "save the whole state dict of the model")
    links = _links(tensors)
    network = tensors if links is None else without_decoder(tensors)[0]
    read = read_layers(network, facts=weights.facts)
    # An architecture has the options that are assumed of tensors alone.
    is_as_assumed = not weights.facts or read.layers == read_layers(network).layers
    fields = architecture_fields(network) if is_as_assumed else None
    if out is not None:
        _write(out, tensors)
    uri = str(out or (named if is_on_hub else file.with_suffix(_SAFETENSORS)))
    model = _model(read, fields, uri)
    types, assumed = read.names.types, list(read.assumed)
    if fields is not None:
        registered = ARCHITECTURES[Architecture(fields["architecture"])]
        is_typed = bool(types[0]) or registered.one_type is None
        types = types if types[0] or not is_typed else ("TYPE",)  # which a RGCNConv does not name
        spec = registered.relational if is_typed else registered.one_type
        assumed = [] if spec is None else [f"{name}: {value}" for name, value in spec.assumptions.items()]
        assumed += [f"layers: none ({NO_LAYERS})"] * read.description.is_perceptron
    looks_like = f"{read.description.says()}{'' if links is None else f', and {links.says()}'}"
    task = None if links is None else links.task(is_typed=bool(types[0]))
    if as_json:
        print_json(
            {
                "file": named, "tensors": len(tensors), "looksLike": looks_like, "model": model, "task": task,
                "places": dict(_places(read)), "assumed": assumed if model else [], "unread": list(read.unread),
                "unplaced": list(read.unplaced), "problem": read.problem,
            }
        )  # fmt: skip
        return
    console = output()
    facts = [("file", f"{named}, {count(len(tensors), 'tensor')}"), ("looks like", looks_like)]
    put(console, facts_table(facts))
    if model is None:
        put(console, "", *_not_read(read))
        return
    if fields is None or read.is_whole:
        put(console, "", facts_table(list(_places(read))))
    if fields is None and read.unplaced:
        put(console, "", _without_place(read))
    put(console, "", "This manifest would serve it:", "")
    console.file.write(_manifest(model, types, task))
    notes = [f"- {uri} is written by --out {uri}, or safetensors.torch.save_file."] * (out is None and uri != named)
    put(console, "", "The file does not tell, and it is assumed (correct what your model has otherwise):")
    put(console, *(f"- {one}" for one in assumed), *notes)
    put(console, "- expected: scores of your model tell whether all of this is right; without them nothing does.")


@dataclass(frozen=True, slots=True)
class _FoundLinks:
    """Decoder of links beside a network."""

    decoder: Decoder
    dimensions: int
    keys: Sequence[str]

    def says(self) -> str:
        return f"the weights of a decoder of links, {self.decoder} ({', '.join(self.keys)})"

    def task(self, *, is_typed: bool) -> dict[str, Any]:
        """Fields of `spec.task`."""
        relation = {"relation": "RELATION"} if is_typed else {}
        return {"links": {**relation, "dimensions": self.dimensions, "decoder": str(self.decoder)}}


def _links(tensors: Mapping[str, np.ndarray]) -> _FoundLinks | None:
    """The decoder whose weights a file has; None: it has none, or other layers are called so."""
    network, weights = without_decoder(tensors)
    if not network or not weights:
        return None
    layers = read_layers(network).layers
    widths = [one.width for one in layers.head[-1:]] or [one.width for each in layers.layers[-1:] for one in each.convs]
    decoder = decoder_of(weights, widths[0]) if widths else None
    keys = sorted(f"{DECODER}{key}" for key in weights)
    return None if decoder is None else _FoundLinks(decoder, widths[0], keys)


def _fetched(address: str) -> Path:
    """The file of an address of the Hugging Face Hub, kept for this user. InputError, ResourceError: it is none, or
    cannot be fetched."""
    found = HubAddress.parse(address, TENSORS.default)
    if (problem := TENSORS.problem(address)) is not None or found is None:
        raise InputError("FILE", problem or f"{address} is no address of a file")
    with showing_progress() as listener:
        return fetched_file(found, "FILE", user_root().parent, listener)


def _model(read: ReadLayers, fields: Mapping[str, Any] | None, uri: str) -> dict[str, Any] | None:
    """Fields of `spec.model`; None: the file is not read as a whole."""
    checkpoint = {"checkpoint": {"uri": uri}}
    if fields is not None:
        return {**checkpoint, **fields}
    if not read.is_known:
        return None
    fanouts = [-1] * sum(layer.hops for layer in read.layers.layers) or [0]
    listed = layer_fields(read.layers, read.names.types, read.names.relations)
    return {**checkpoint, **listed, "fanouts": fanouts}


def _not_read(read: ReadLayers) -> Sequence[str]:
    lines = []
    if read.unread:
        shown = ", ".join(read.unread[:_SHOWN])
        many = f", … ({len(read.unread)} in all)" if len(read.unread) > _SHOWN else ""
        lines.append(f"Not read: {shown}{many}. No layers that can be listed have these tensors.")
    if read.problem:
        lines.append(f"Its layers do not follow each other: {read.problem}.")
    return [*lines, f"A way out: {AS_PROGRAM}."]


def _without_place(read: ReadLayers) -> str:
    modules = ", ".join(dict.fromkeys(_module_of(read, key) for key in read.unplaced))
    return f"Nothing tells where {modules} stand: add them to layers, before or head, or the file is refused."


def _places(read: ReadLayers) -> Sequence[tuple[str, str]]:
    """What stands at each place of the network, and the modules of the file that it is made of."""
    modules: dict[str, dict[str, None]] = {}
    for key, one in read.taken.items():
        first, number, *_others = key.split(".")
        place = first if first in ("before", "jumping") else f"{first}[{number}]"
        for file_key in one.keys:
            modules.setdefault(place, {})[_module_of(read, file_key)] = None
    said = {"before": "products", "jumping": "jumping knowledge"}
    for at, product in enumerate(read.layers.head):
        said[f"head[{at}]"] = f"product of {product.width} columns"
    for at, layer in enumerate(read.layers.layers):
        kinds = dict.fromkeys(f"{one.conv} of {one.width} columns" for one in layer.convs)
        said[f"layers[{at}]"] = " and ".join(kinds)
    return [(place, f"{said[place]}: {', '.join(names)}") for place, names in sorted(modules.items(), key=_in_order)]


def _in_order(place: tuple[str, object]) -> tuple[int, int]:
    """Sorts places as the network applies them."""
    first, _, number = place[0].partition("[")
    return ("before", "layers", "jumping", "head").index(first), int(number.rstrip("]") or 0)


def _module_of(read: ReadLayers, key: str) -> str:
    return next((one.name or key for one in read.description.layers if key in one.tensors), key)


def _manifest(model: Mapping[str, Any], types: Sequence[str], task: Mapping[str, Any] | None) -> str:
    """A manifest to copy, each layer in a line of its own. `types`: of nodes, the first of which is scored. `task`:
    fields of links; None: nodes are classified."""
    source: dict[str, Any] = {"npz": {"uri": "graph.npz"}}
    if types[0]:
        target = {"target": types[0]} if task is None else {}
        source = {"typed": {"heteroData": {"uri": "graph.safetensors"}, **target, "reverse": "Disabled"}}
    lines = [
        "apiVersion: gnnserve.dev/v1alpha1", "kind: GNNService", "metadata:", "  name: model", "spec:", "  graph:",
        f"    source: {_in_line(source)}  # the graph that it was trained on",
        *([] if task is None else [f"  task: {_in_line(task)}"]), "  model:",
    ]  # fmt: skip
    for name, value in model.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            lines += [f"    {name}:", *(f"      - {_in_line(one)}" for one in value)]
        else:
            lines.append(f"    {name}: {_in_line(value)}")
    scores = "scores that your model gave" if task is None else "rows of nodes, and scores of pairs, of your model"
    lines.append(f"    expected: {{uri: expected.npz}}  # {scores}")
    return "".join(f"{line}\n" for line in lines)


def _in_line(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10_000)
    return text.removesuffix("\n").removesuffix("\n...")


def _write(out: Path, tensors: Mapping[str, np.ndarray]) -> None:
    if out.suffix != _SAFETENSORS:
        raise InputError("--out", f"{out} does not end in {_SAFETENSORS}", f"name it {out.with_suffix(_SAFETENSORS)}")
    if out.exists():
        raise InputError("--out", f"{out} exists", "name a file that does not")
    safetensors.numpy.save_file({key: np.ascontiguousarray(one) for key, one in tensors.items()}, out)
