"""Reading the programs that a manifest names: their files, their contracts, and whether both fit the graph.

They are that of `spec.model` and those of `spec.variants.given`. A contract is in the manifest, or beside the file:
`manifest.yaml` of gnnserve-describe, `export.json` of `gnnserve export`. Nothing here runs a program, and another
process reads its file. What checks one calls it `spec.model.program`; `naming` calls it by the field that it is of.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import safetensors.numpy
from msgspec import UNSET
from pydantic import ValidationError
from safetensors import SafetensorError

from gnnserve_api import decoding
from gnnserve_api.errors import InputError
from gnnserve_api.files.export import ExportManifest
from gnnserve_api.files.graph_schema import GraphSchema
from gnnserve_api.files.programs import (
    InputRole,
    ProgramInput,
    ProgramLimits,
    ProgramManifest,
    RelationKey,
    contract_problems,
)
from gnnserve_api.files.repository import NetworkManifest, program_network
from gnnserve_api.manifest_problems import describe
from gnnserve_api.manifest_yaml import read_yaml
from gnnserve_api.spec.paths import BASE_CONTEXT, ManifestFolder
from gnnserve_api.spec.program import DecoderWeights, Program, ProgramFile
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_worker.generation.expected.listed import MODEL
from gnnserve_worker.generation.ranking import columns_by_type
from gnnserve_worker.graph.sources.files import digest_of, pinned_digest, why_unreadable
from gnnserve_worker.models.registry import Tensors
from gnnserve_worker.programs.allowed import check_size, may_have_data_files
from gnnserve_worker.programs.answers import Runner
from gnnserve_worker.programs.exported import contract_of_export
from gnnserve_worker.programs.facts import FIELD, ProgramFacts, check_contract
from gnnserve_worker.programs.inspection import inspect
from gnnserve_worker.programs.runner import ProgramRunner
from gnnserve_worker.tasks.generated import DecoderTensors

if TYPE_CHECKING:
    from gnnserve_worker.generation.listed_layers import GivenLayers

DESCRIBED, EXPORTED = "manifest.yaml", "export.json"
_SUFFIXES_OF_TORCH = (".pt", ".pth", ".pt2", ".ckpt", ".safetensors", ".pkl")


@dataclass(frozen=True, slots=True)
class GivenProgram:
    folder: Path
    contract: ProgramManifest
    """With the paths that its files have in the folder, and the limits of the manifest."""
    digest: str
    """Digest of all that it is made of: its file, its weights beside it, its contract there."""
    columns: tuple[int, ...] | None = None
    """Columns of the features that it reads, in its order, numbered over all types, type after type; None: all, in the
    order of the source."""
    decoder: Path | None = None
    """File of the weights that pairs of its rows are scored by; None: there are none."""
    fanouts: tuple[int, ...] | None = None
    """Neighbours that are sampled per hop; None: all of them."""
    weights: str = MODEL
    """Name of its weights, as `ListedScores.weights`."""
    field: str = FIELD
    """Field that names it, for messages."""
    layers: GivenLayers | None = None
    """Weights of layers that the spec lists, which are computed in this process; None: the file is the network."""

    @property
    def is_learnt(self) -> bool:
        """Whether it has no weights yet."""
        return self.layers is not None and self.layers.tensors is None

    def with_weights(self, tensors: Tensors) -> GivenProgram:
        """The program with weights that were learnt for its layers."""
        if self.layers is None:
            raise ValueError(f"{self.field} has its weights in its file")
        layers = self.layers.learnt(tensors)
        digest = layers.digest
        contract = msgspec.structs.replace(self.contract, sha256=digest)
        return replace(self, layers=layers, contract=contract, digest=digest)

    @property
    def network(self) -> NetworkManifest:
        return program_network(self.contract, self.fanouts)

    @property
    def fanouts_field(self) -> str:
        """Field of its fan-outs, for messages."""
        return f"{self.field}.fanouts" if self.layers is None else "spec.model.fanouts"

    @property
    def file(self) -> Path:
        return self.folder / self.contract.file

    def runner(self, lanes: int) -> Runner:
        """Runs it, as many at a time as `lanes`."""
        if self.layers is None:
            return ProgramRunner(self.file, lanes, self.contract.limits)
        return self.layers.runner(self.contract)

    def decoder_tensors(self) -> DecoderTensors:
        """What it has beside it to score pairs by. InputError: it cannot be read."""
        return decoder_tensors(self.decoder, self.field) if self.layers is None else self.layers.decoder

    @property
    def files(self) -> tuple[Path, ...]:
        return (self.file, *(self.folder / name for name in self.contract.data_files))


def read_programs(spec: GNNServiceSpec) -> tuple[GivenProgram, ...]:
    """The model, and behind it those of `spec.variants.given` in its order; empty: the model is no program. InputError:
    a file is missing, or another one than the manifest says."""
    if (model := spec.model.program) is None:
        return ()
    limits = model.limits.to_limits()
    found = [read_program(model, limits)]
    for place, (name, one) in enumerate(zip(spec.variants.given_names(), spec.variants.given, strict=True)):
        field = f"spec.variants.given[{place}].program"
        if one.program is not None:
            with naming(field):
                found.append(replace(read_program(one.program, limits), weights=name, field=field))
    return tuple(found)


@contextmanager
def naming(field: str) -> Iterator[None]:
    """Have what is refused of a program name the field that it is of in place of `spec.model.program`, whose limits are
    those of all."""
    try:
        yield
    except InputError as error:
        where, remedy = (re.sub(rf"{FIELD}(?!\.limits)", field, said) for said in (error.where, error.remedy))
        is_limit = field != FIELD and where.startswith(FIELD)
        raise InputError(where, f"for {field} {error.problem}" if is_limit else error.problem, remedy) from error


def read_program(given: ProgramFile, limits: ProgramLimits) -> GivenProgram:
    """`limits`: of the process that will run it. InputError: a file is missing, or another one than the manifest
    says."""
    path = given.uri.path
    if not path.is_dir():
        if not given.has_contract:
            raise InputError(
                FIELD, f"says neither hops nor inputs nor scores, and uri names the file {path}",
                "give them, or name the folder that gnnserve-describe or gnnserve export wrote",
            )  # fmt: skip
        return _given(given, limits, path.parent, _Contract(given.contract(path.name, "")), None)
    if given.has_contract:
        raise InputError(
            f"{FIELD}.uri", f"names the folder {path}, whose own file says what inputs and scores are",
            "name the .onnx file in it, or leave hops, inputs, scores and embeddings out",
        )  # fmt: skip
    for name, read in _CONTRACTS.items():
        if (path / name).is_file():
            return _given(given, limits, path, read(path / name), path / name)
    raise InputError(
        f"{FIELD}.uri", f"{path} has neither {DESCRIBED} nor {EXPORTED}",
        "name a folder that gnnserve-describe or gnnserve export wrote, or a .onnx file with hops, inputs and scores",
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Contract:
    program: ProgramManifest
    columns: tuple[int, ...] | None = None
    """Columns of features that the program reads; None: all."""
    decoder: DecoderWeights | None = None


def _given(
    given: ProgramFile, limits: ProgramLimits, folder: Path, told: _Contract, beside: Path | None
) -> GivenProgram:
    contract, decoder = told.program, given.decoder or told.decoder
    file = folder / contract.file
    if file.suffix in _SUFFIXES_OF_TORCH:
        raise InputError(
            f"{FIELD}.uri", f"{file} seems to be a file of torch, and programs are ONNX",
            "export the model by gnnserve-describe, or give its weights as spec.model.checkpoint",
        )  # fmt: skip
    check_size(file)
    sha256 = pinned_digest(FIELD, file, given.sha256)
    if contract.sha256 not in {"", sha256}:
        raise InputError(
            f"{FIELD}.uri", f"{file} has SHA-256 {sha256}, and {beside} was written beside {contract.sha256}",
            "describe the model again",
        )  # fmt: skip
    data = inspect(file, limits).data_files if may_have_data_files(file) else ()
    contract = msgspec.structs.replace(contract, sha256=sha256, data_files=data, limits=limits)
    lines = [sha256, *(digest_of(f"{FIELD}.uri", folder / name) for name in data)]
    if beside is not None:
        lines.append(digest_of(f"{FIELD}.uri", beside))
    if decoder is not None:
        lines.append(pinned_digest(f"{FIELD}.decoder", decoder.uri.path, decoder.sha256))
    digest = sha256 if len(lines) == 1 else hashlib.sha256("\n".join(lines).encode()).hexdigest()
    weights = None if decoder is None else decoder.uri.path
    return GivenProgram(folder, contract, digest, told.columns, weights, given.fanouts)


def decoder_tensors(path: Path | None, program: str = FIELD) -> DecoderTensors:
    """What a program has beside it to score pairs by. `path`: a safetensors file; None: there is none. `program`: the
    field that names it. InputError: it cannot be read."""
    field, within = f"{program}.decoder", "the folder of the program"
    without = ", as the folder's manifest.yaml does; for dot products describe the encoder again, without --decoder"
    if path is None:
        return DecoderTensors(field, {}, "", within, without)
    try:
        found = safetensors.numpy.load(path.read_bytes())
        tensors = {name: tensor.astype(np.float32) for name, tensor in found.items()}
    except (OSError, SafetensorError, TypeError) as error:
        remedy = "write it with safetensors.torch.save_file(state_dict, PATH)"
        raise InputError(field, f"{path} cannot be read: {error}", remedy) from error
    return DecoderTensors(field, tensors, path.name, within, without)


def _described(path: Path) -> _Contract:
    """That of a manifest of gnnserve-describe, whose paths begin in its folder."""
    (document,) = _documents(path)
    for name in ("spec", "model", "program"):
        document = document.get(name) if isinstance(document, Mapping) else None
    if not isinstance(document, Mapping):
        raise InputError(f"{FIELD}.uri", f"{path} has no spec.model.program", "describe the model again")
    try:
        program = Program.model_validate(document, context={BASE_CONTEXT: ManifestFolder(path.parent, None)})
    except ValidationError as error:
        below = ("spec", "model", "program")
        problems = "; ".join(describe({**detail, "loc": (*below, *detail["loc"])}) for detail in error.errors())
        raise InputError(f"{FIELD}.uri", f"{path}: {problems}", "describe the model again") from error
    file = program.uri.path
    if file.parent != path.parent or not program.has_contract:
        raise InputError(
            f"{FIELD}.uri", f"{path} names the program {program.uri}, expected a file beside it, with its contract",
            "describe the model again",
        )  # fmt: skip
    return _Contract(program.contract(file.name, program.sha256 or ""), decoder=program.decoder)


def _documents(path: Path) -> Sequence[object]:
    try:
        documents = read_yaml(path.read_text(encoding="utf-8"), str(path))
    except (OSError, ValueError) as error:
        problem = why_unreadable(path, error)[0]
        raise InputError(f"{FIELD}.uri", problem, "describe the model again") from error
    if len(documents) != 1:
        problem = f"{path} has {len(documents)} documents, expected one"
        raise InputError(f"{FIELD}.uri", problem, "describe the model again")
    return documents


def _exported(path: Path) -> _Contract:
    """That of an export, whose rows must be features as they are served here."""
    try:
        made = decoding.decode(path.read_bytes(), ExportManifest)
    except (OSError, msgspec.MsgspecError) as error:
        problem = f"{path} is no export.json of this version: {error}"
        raise InputError(f"{FIELD}.uri", problem, "export the variant again") from error
    if made.rows is not None and not made.takes_features:
        raise InputError(
            f"{FIELD}.uri", f"{path} is of {made.variant}, whose rows are {made.rows.kind} and no features",
            "export a variant that reads features, as x1",
        )  # fmt: skip
    columns = None if made.rows is None else made.rows.columns or None
    return _Contract(contract_of_export(made, ""), columns, _decoder_of(made, path.parent))


def _decoder_of(made: ExportManifest, folder: Path) -> DecoderWeights | None:
    if made.decoder is UNSET or made.decoder.file is None:
        return None
    return DecoderWeights.model_validate(
        {"uri": made.decoder.file}, context={BASE_CONTEXT: ManifestFolder(folder, None)}
    )


_CONTRACTS: Mapping[str, Callable[[Path], _Contract]] = {DESCRIBED: _described, EXPORTED: _exported}
"""What reads the contract that lies beside a program, by the name of its file; the first that is there is read."""


def check_file(given: GivenProgram) -> ProgramFacts:
    """Facts that its file states. InputError: the program may not be run, or the contract does not fit it."""
    with naming(given.field):
        facts = inspect(given.file, given.contract.limits)
        check_contract(facts, given.contract)
        return facts


def check_program(given: GivenProgram, facts: ProgramFacts | None, spec: GNNServiceSpec, schema: GraphSchema) -> None:
    """InputError: the program, or its contract, does not fit the graph or the rest of the spec. `facts`: None of layers
    that stand for a program."""
    if problems := contract_problems(given.contract, schema):
        raise InputError(FIELD, "; ".join(problems), "correct the contract")
    _check_fanouts(given, spec)
    if facts is not None:
        _check_columns(facts, given, schema)


def _check_columns(facts: ProgramFacts, given: GivenProgram, schema: GraphSchema) -> None:
    stated = facts.columns_of_inputs
    for each in given.contract.inputs:
        if each.name not in stated or each.role not in _COLUMNS:
            continue
        whose, read = _COLUMNS[each.role](given, each, schema)
        if read != stated[each.name]:
            raise InputError(
                f"{FIELD}.inputs.{each.name}",
                f"{each.name} takes {stated[each.name]} columns, and {whose} have {read} features",
                "give the graph that the model was trained on",
            )


def _of_nodes(given: GivenProgram, each: ProgramInput, schema: GraphSchema) -> tuple[str, int]:
    place, widths = schema.place_of(each.type), [kind.features or 0 for kind in schema.types]
    found = widths[place]
    if given.columns is not None:
        found = len(columns_by_type(np.array(given.columns), widths)[place])
    return schema.names.nodes_of(each.type), found


def _of_edges(given: GivenProgram, each: ProgramInput, schema: GraphSchema) -> tuple[str, int]:
    del given
    (found,) = (one for one in schema.relations if RelationKey(one.source, one.name, one.target) == each.relation)
    return schema.names.edges_of(found.key), 0 if found.payload is UNSET else len(found.payload.columns)


_COLUMNS: Mapping[InputRole, Callable[[GivenProgram, ProgramInput, GraphSchema], tuple[str, int]]] = {
    InputRole.FEATURES: _of_nodes,
    InputRole.EDGE_FEATURES: _of_edges,
}
"""Whose features an input has, and how many, by its role."""


def _check_fanouts(given: GivenProgram, spec: GNNServiceSpec) -> None:
    """Check fan-outs of a contract that the manifest does not have, which could not be checked before."""
    contract, own = given.contract, given.fanouts
    fields = [] if own is None else [(given.fanouts_field, own)]
    fields += [(f"spec.variants.fanouts[{place}]", one) for place, one in enumerate(spec.variants.fanouts)]
    for field, fanouts in fields:
        if contract.reads_degrees:
            raise InputError(
                field, f"{list(fanouts)} is for programs that do not read degrees, and {given.field} does",
                "leave it out: layers that count edges are right over whole lists alone",
            )  # fmt: skip
        if len(fanouts) != contract.hops:
            raise InputError(
                field, f"{list(fanouts)} has {len(fanouts)} numbers, and {given.field} {contract.hops} hops",
                "give a number for each hop",
            )  # fmt: skip
        if own is not None and any(one > most for one, most in zip(fanouts, own, strict=True)):
            raise InputError(
                field, f"{list(fanouts)} reads more neighbours than {given.fanouts_field}, {list(own)}",
                "give no number above those",
            )  # fmt: skip
