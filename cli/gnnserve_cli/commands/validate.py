"""`gnnserve validate`: what manifests mean, before anything is trained or applied."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import typer

from gnnserve_api.advice import says_standing
from gnnserve_api.device import Device
from gnnserve_api.errors import InputError
from gnnserve_api.manifest import (
    STANDARD_INPUT,
    folder_of,
    name_of,
    parse_document,
    parse_pool,
    read_text,
    split_documents,
)
from gnnserve_api.spec.heterogeneous_rules import reads_products
from gnnserve_api.spec.made_variants import made_variants, search_space, why_no_factors
from gnnserve_api.spec.model import FIELDS_OF_LAYERS, WITHOUT_HIDDEN, Model, says_hops
from gnnserve_api.spec.paths import DataPath, DataVolume, PathBase, hub_paths_of, paths_of, resolve
from gnnserve_api.spec.pool import GNNWorkerPool
from gnnserve_api.spec.program import Program
from gnnserve_api.spec.pruning import FactorChoice
from gnnserve_api.spec.repository import RepositoryClaim
from gnnserve_api.spec.service import GNNService, GNNServiceSpec
from gnnserve_api.spec.variants import Variants
from gnnserve_api.spec.worker import Worker
from gnnserve_api.variants import projected_name, stored_layer_name, variant_name
from gnnserve_cli.commands.options import Json, Manifests
from gnnserve_cli.exits import ExitCode
from gnnserve_cli.render import count, facts_table, output, print_json, put


@dataclass(frozen=True, slots=True)
class CheckedDocument:
    """A document, or a file that could not be split into documents."""

    where: str
    service: GNNService | None = None
    pool: GNNWorkerPool | None = None
    problem: str = ""
    """Why the document is neither a valid service nor a valid pool; empty if it is one."""

    def as_json(self) -> dict[str, Any]:
        if self.pool is not None:
            return {"valid": True, "pool": f"{self.pool.metadata.namespace}/{self.pool.metadata.name}"}
        if self.service is None:
            return {"valid": False, "problem": _printable(self.problem)}

        return {
            "valid": True,
            "service": f"{self.service.metadata.namespace}/{self.service.metadata.name}",
            "recipe": self.service.spec.recipe(),
            "files": [
                {
                    "field": one.field,
                    "written": one.value.written,
                    "path": str(one.value.path),
                    "isMissing": one.is_missing,
                }
                for one in paths_of(self.service.spec)
            ],
            "variants": _names(self.service.spec),
            "fetched": [{"field": one.field, "written": one.value.written} for one in hub_paths_of(self.service.spec)],
            "spec": self.service.spec.model_dump(mode="json", by_alias=True, exclude_none=True),
        }


def validate(manifests: Manifests, as_json: Json = False) -> None:
    """Check manifests and print what was understood, or every problem."""
    if manifests.count(STANDARD_INPUT) > 1:
        raise InputError("standard input", "is named more than once, and can be read only once", "give - once")
    checked = [document for manifest in manifests for document in checked_documents(manifest)]
    if not checked:
        raise InputError(", ".join(map(name_of, manifests)), "holds no GNNService", "give the file that has one")
    is_one = len(manifests) == len(checked) == 1
    for number, document in enumerate(checked):
        if document.service is None:
            if document.pool is not None:
                if not as_json:
                    put(output(), f"{document.where}: {document.pool.kind} {document.pool.metadata.name} is valid")
            elif not as_json:
                with suppress(OSError):  # standard error may be the full disk; the exit code still says it
                    print(f"error: {document.problem}", file=sys.stderr)
            continue
        if not as_json:
            if not is_one:
                put(output(), f"{document.where}:" if number == 0 else f"\n{document.where}:")
            put(output(), facts_table(_facts(document.service)))
        _say_what_changes_nothing(document.service.spec)
        _say_what_answers_nothing(document.service.spec)
        _say_what_may_be_missing(document.service.spec)
        _say_which_files_are_missing(document.service.spec)
    if as_json:
        named = [{"manifest": _printable(document.where), **document.as_json()} for document in checked]
        print_json(checked[0].as_json() if is_one else named)
    if any(document.problem for document in checked):
        raise typer.Exit(ExitCode.BAD_INPUT)


def checked_documents(manifest: Path) -> Iterator[CheckedDocument]:
    """Check the documents of a file, or of standard input (`-`), each by itself."""
    where = name_of(manifest)
    base = folder_of(manifest)
    try:
        documents = split_documents(read_text(manifest), where)
    except InputError as error:
        yield CheckedDocument(where, problem=str(error))
        return
    for document in documents:
        if (kind := document.other_kind) is not None:
            print(f"note: {document.where}: a {kind}, which is not checked", file=sys.stderr)
            continue
        try:
            if document.is_pool:
                yield CheckedDocument(document.where, pool=parse_pool(document))
            else:
                yield CheckedDocument(document.where, parse_document(document, base))
        except InputError as error:
            yield CheckedDocument(document.where, problem=str(error))


def _printable(text: str) -> str:
    """Escape bytes of a path that are not text, which JSON cannot hold."""
    return text.encode(errors="backslashreplace").decode()


def _model_facts(model: Model) -> list[tuple[str, str]]:
    """Rows of what the network is, and where its weights come from where they are given."""
    compared = "" if model.expected is None else f", compared with {model.expected.uri}"
    if (program := model.program) is not None:
        contract = _contract(program) if program.has_contract else "inputs and scores as its folder says"
        limits = f"at most {program.limits.memory} and {program.limits.seconds:g} s a run"
        return [("model", f"program, {contract}; {limits}"), ("program", f"{program.uri}, not trained{compared}")]
    fanouts = "every neighbour" if model.fanouts[0] < 0 else "fan-outs " + ", ".join(map(str, model.fanouts))
    layers = f"{count(len(model.fanouts), 'layer')}, hidden {model.hidden}, {fanouts}"
    weights = [] if model.checkpoint is None else [("weights", f"{model.checkpoint.uri}, not trained{compared}")]
    if model.layers is not None:
        return [("model", f"{_listed_layers(model)}, {fanouts}"), *weights]
    network = model.network(classes=1)
    if network.attention is not None:
        heads = ", ".join(count(network.heads_of(layer), "head") for layer in range(network.layers))
        layers += f", attention of {heads}"
    if network.hops is not None:
        shape = f"{count(network.layers, 'layer')}, hidden {model.hidden}, " * (network.layers > 1)
        layers = shape + says_hops(network)
    return [("model", f"{model.architecture}, {layers}"), *weights]


def _listed_layers(model: Model) -> str:
    """The convolutions of listed layers, and how many products stand around them."""
    convolutions = [
        str(layer.conv)
        if layer.conv is not None
        else " and ".join(dict.fromkeys(str(one.conv) for one in layer.relations))
        for layer in model.layers or ()
    ]
    products = f", {count(len(model.head), 'product')} behind" if model.head else ""
    return f"{', '.join(convolutions) or 'no layer'}{products}"


def _contract(program: Program) -> str:
    sampled = "every neighbour" if program.fanouts is None else f"fan-outs {', '.join(map(str, program.fanouts))}"
    reach = " and one more, since layers count edges" if program.reads_degrees else ""
    inputs = ", ".join(f"{each.name} ({each.role})" for each in program.inputs)
    return f"{count(program.hops or 0, 'hop')}{reach}, {sampled}, of {inputs}"


def _facts(service: GNNService) -> list[tuple[str, str]]:
    spec = service.spec
    model, objective = spec.model, spec.objective
    wanted = [
        *([f"latency within {objective.latency_ms:,.10g} ms"] if objective.latency_ms is not None else []),
        *(
            [f"accuracy at most {objective.accuracy_tolerance_permille} permille below the best"]
            if objective.accuracy_tolerance_permille is not None
            else []
        ),
    ]
    return [
        ("service", f"{service.metadata.namespace}/{service.metadata.name}"),
        ("source", spec.graph.source.described()),
        *_file_facts(spec),
        ("normalization", spec.graph.normalization),
        *_model_facts(model),
        *(
            []
            if model.is_given
            else [("training", "none: every variant is given")]
            if spec.variants.are_all_given
            else [("training", f"{_epochs(model.training.epochs)}, {model.training.scope}")]
        ),
        (
            "variants",
            "; ".join(_listed(spec))
            + "".join(f"; each with fan-outs {', '.join(map(str, fewer))} as well" for fewer in spec.variants.fanouts),
        ),
        *_name_facts(spec),
        ("tables", _tables(made_variants(spec))),
        ("objective", ", ".join(wanted) or "none: the most accurate variant answers"),
        ("device", _device(spec.worker)),
        ("in a cluster", ", ".join(_cluster_facts(spec))),
        ("recipe", spec.recipe()),
        *([] if spec.revision is None else [("revision", f"{spec.revision}, in place of graph, model and variants")]),
    ]


def _file_facts(spec: GNNServiceSpec) -> list[tuple[str, str]]:
    """A row for each file that is named, with where it is looked for, or that it is fetched."""
    fetched = (f"{one.value} (fetched when variants are made)" for one in hub_paths_of(spec))
    places = dict.fromkeys([*(one.place for one in paths_of(spec)), *fetched])
    return [("" if row else "files", place) for row, place in enumerate(places)]


def _listed(spec: GNNServiceSpec) -> Iterator[str]:
    """Variants of one storage and the model's fan-outs."""
    variants = made_variants(spec)
    pruning = variants.pruning
    if variants.is_searched:
        most, seconds = variants.budget.variants, variants.budget.seconds
        ranked = f"; columns ranked by {pruning.method}" if max(search_space(spec).factors, default=1) > 1 else ""
        following = "; the most accurate that follows changes is among them" if spec.updates is not None else ""
        yield f"searched for, at most {most:,}, in {seconds:,} s{ranked}{following}"
        return
    if reads_products(spec):
        yield f"{projected_name()}, of products of each relation"
    if spec.model.is_program and max(pruning.factors) == 1:
        what = "program" if spec.model.program is not None else "network"
        yield f"{variant_name(1)}, the {what} over all columns"
    elif pruning.factors:
        decided = ", those that are worth it" if variants.optional_factors else ""
        names = ", ".join(variant_name(factor) for factor in sorted(pruning.factors))
        ranked = f", ranked by {pruning.method}" if max(pruning.factors) > 1 else ""
        yield f"{names}{ranked}{decided}"
    if variants.given:
        yield f"{', '.join(variants.given_names())}, given"
    if variants.stored:
        yield f"{', '.join(map(stored_layer_name, sorted(variants.stored)))}, of layers computed ahead of time"
    if variants.channels:
        yield f"{', '.join(one.name for one in variants.channels)}, of fewer hidden channels"
    if variants.one_row:
        yield f"{', '.join(variants.one_row_names())}, of one row per node"
    if variants.cascades:
        yield f"{', '.join(f'{one.first} then {one.then}' for one in variants.cascades)}, cascades"


def _names(spec: GNNServiceSpec) -> dict[str, Sequence[str]]:
    """Names of variants: of those that every revision has, and of those that one may have."""
    listed = spec.certain_variants()
    return {"listed": listed, "optional": [name for name in spec.possible_variants() if name not in listed]}


def _name_facts(spec: GNNServiceSpec) -> Iterator[tuple[str, str]]:
    """Rows of all names in all storages; none where it is searched for which there are."""
    if not spec.variants.is_searched:
        names = _names(spec)
        if names["listed"]:
            yield "names", ", ".join(names["listed"])
        if names["optional"]:
            yield "optional", ", ".join(names["optional"])


def _tables(variants: Variants) -> str:
    if variants.is_searched:
        return "every storage is searched"
    return f"{', '.join(variants.storage)}; projection {variants.projection}"


def _epochs(stated: int | Literal["Auto"]) -> str:
    return "until validation stops improving" if stated == "Auto" else count(stated, "epoch")


def _device(worker: Worker) -> str:
    if worker.device is Device.CPU:
        return worker.device
    memory = "all free memory of the GPU" if worker.gpu_memory is None else f"at most {worker.gpu_memory} of the GPU"
    return f"{worker.device}; {memory}; cache {worker.cache.policy}"


def _say_what_changes_nothing(spec: GNNServiceSpec) -> None:
    listed = spec.variants if spec.variants.is_searched else made_variants(spec)
    of_variants = (*_unread_of_variants(listed), *_unread_factors(spec))
    for field, why in (*_unread_of_model(spec), *_unread_of_workers(spec.worker), *of_variants):
        print(f"note: spec.{field} changes nothing: spec.{why}", file=sys.stderr)


def _unread_of_model(spec: GNNServiceSpec) -> Iterator[tuple[str, str]]:
    """Defaults that are written out where something else says it, which rules cannot tell from fields that are left
    out; and how to train what is not trained."""
    model, fields = spec.model, type(spec.model).model_fields
    unread = [name for name in FIELDS_OF_LAYERS if model.is_program and name in model.model_fields_set]
    for name in unread:
        if model.program is not None:
            yield f"model.{fields[name].alias}", "model.program says it itself"
        elif name != "fanouts":
            yield f"model.{fields[name].alias}", "model.layers say it themselves"
    if model.architecture in WITHOUT_HIDDEN and "hidden" in model.model_fields_set:
        yield "model.hidden", f"model.architecture is {model.architecture}, which has no hidden layer"
    if not spec.trains_networks:
        why = "model.program" if model.program else "model.checkpoint" if model.checkpoint else "variants.given"
        for name in sorted(model.training.model_fields_set - {"scope", "seed"}):
            yield f"model.training.{type(model.training).model_fields[name].alias}", f"{why} has all weights"


def _unread_of_workers(worker: Worker) -> Iterator[tuple[str, str]]:
    """Fields that were given and are not read, each with the setting that makes it so."""
    for name, field in (("gpu_memory", "gpuMemory"), ("cache", "cache")):
        if worker.device is Device.CPU and name in worker.model_fields_set:
            yield f"worker.{field}", "worker.device is CPU"


def _unread_of_variants(variants: Variants) -> Iterator[tuple[str, str]]:
    if not variants.is_searched:
        if "budget" in variants.model_fields_set:
            yield "variants.budget", "variants.search is Disabled"
        if variants.pruning.choice is FactorChoice.AUTO and not variants.optional_factors:
            yield "variants.pruning.choice", "variants leaves nothing to choose"
        return
    if variants.pruning.choice is FactorChoice.AUTO:
        yield "variants.pruning.choice", "variants.search is Auto, which finds factors out"
    if "factors" in variants.pruning.model_fields_set:
        yield "variants.pruning.factors", "variants.search is Auto, which finds them out"
    if "storage" in variants.model_fields_set:
        yield "variants.storage", "variants.search is Auto, which looks at every storage"


def _unread_factors(spec: GNNServiceSpec) -> Iterator[tuple[str, str]]:
    pruning, why = spec.variants.pruning, why_no_factors(spec)
    if why and not spec.variants.is_searched and "factors" in pruning.model_fields_set:
        yield "variants.pruning.factors", why


def _say_what_answers_nothing(spec: GNNServiceSpec) -> None:
    """Name listed variants that are made and never chosen. Which of them a search keeps is found out."""
    names = () if spec.variants.is_searched else spec.standing_variants()
    if (words := says_standing(names, is_searched=False)) is not None:
        print(f"note: {words}", file=sys.stderr)


def _say_what_may_be_missing(spec: GNNServiceSpec) -> None:
    variants, embeddings = spec.variants, spec.embeddings
    chosen = () if variants.is_searched else variants.chosen_names()
    embedded = () if embeddings is None or embeddings.variant is None else (embeddings.variant,)
    named = (
        ("routing", spec.routing.named_variants, "the service then waits for another name"),
        ("embeddings", embedded, "no embeddings are then made"),
    )
    for field, names, then in named:
        for name in spec.uncertain_variants(names):
            kept = (
                "made only where that is predicted to be worth it (spec.variants.pruning.choice is Auto)"
                if name in chosen
                else "kept only where no other variant is as accurate and as fast"
            )
            words = f"spec.{field} names {name}, which is {kept}: generation may leave it out, and {then}"
            print(f"note: {words}", file=sys.stderr)


def _say_which_files_are_missing(spec: GNNServiceSpec) -> None:
    """Say it of all of them, and go on: a manifest may be for another machine."""
    volume = spec.graph.volume
    there = "" if volume is None else f"; in a cluster the files are those of claim {volume.claim_name}"
    for one in paths_of(spec):
        if one.is_missing:
            print(f"note: {one.field}: no such file on this machine: {one.place}{there}", file=sys.stderr)
    mount = DataVolume(None if volume is None else Path(volume.mount_path))
    for one in paths_of(spec):
        if (why := _why_unresolved(one.value, mount)) is not None:
            print(f"note: not for a cluster as it is: {one.field} {why}", file=sys.stderr)


def _why_unresolved(given: DataPath, base: PathBase) -> ValueError | None:
    try:
        resolve(given.written, base)
    except ValueError as error:
        return error
    return None


def _cluster_facts(spec: GNNServiceSpec) -> Iterator[str]:
    """Facts that matter in a cluster only."""
    gpu = spec.worker.gpu
    workers = count(spec.worker.replicas, "worker") + ("" if gpu is None else f" with {gpu.count} {gpu.resource_name}")
    yield "suspended" if spec.suspend else workers
    if spec.generation.gpu is not None:
        yield f"trained on {spec.generation.gpu.count} {spec.generation.gpu.resource_name}"
    if spec.graph.volume is not None:
        yield f"graph from claim {spec.graph.volume.claim_name} at {spec.graph.volume.mount_path}"
    repository = spec.repository
    if repository.claim_name is not None:
        yield f"repository on claim {repository.claim_name}"
    else:
        yield f"repository on a new claim of {(repository.claim or RepositoryClaim()).storage}"
