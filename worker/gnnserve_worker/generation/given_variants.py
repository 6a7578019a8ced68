"""Finished variants that the user gives (`spec.variants.given`): read and checked before anything is computed.

Dynamic GNN inference as-a-service, section 3.3, takes a user's own variants or a master; this is the former. Without
torch, as `checkpoint.py`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from gnnserve_api.errors import InputError
from gnnserve_api.files.repository import NetworkManifest
from gnnserve_api.spec.given import GivenNetwork
from gnnserve_api.spec.model import Model
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.spec.variants import Variants
from gnnserve_api.wording import in_words
from gnnserve_worker.generation.checkpoint import (
    WantedNetwork,
    digest_of_weights,
    given_decoder_of,
    load_checkpoint,
    wanted_of,
)
from gnnserve_worker.graph.store import FeatureColumn, GraphData
from gnnserve_worker.models.architecture import RelationalShape, RelationalSpec
from gnnserve_worker.models.registry import Tensors, without_decoder
from gnnserve_worker.tasks.generated import DecoderTensors

_SHOWN_NAMES = 12


@dataclass(frozen=True, slots=True, eq=False)
class GivenVariant:
    name: str
    """The name without storage and fan-outs."""
    columns: np.ndarray
    """int64: ids of the features that it reads, each once, in the order of the first layer's inputs."""
    tensors: Tensors
    hidden: int | None = None
    """Width of its hidden layers; None: that of the model."""
    decoder: DecoderTensors | None = None
    """What its weights have to score pairs by; None: outputs are not read in pairs."""

    def network(self, network: NetworkManifest) -> NetworkManifest:
        """Its own, by that of the model."""
        return network if self.hidden is None else msgspec.structs.replace(network, hidden=self.hidden)


def given_digests(variants: Variants) -> dict[str, str]:
    """Digest of the weights of each given variant, by its name. InputError: a file is missing, or not the pinned
    one."""
    return {
        name: digest_of_weights(f"{_field(place)}.checkpoint", given.weights)
        for place, (name, given) in enumerate(zip(variants.given_names(), variants.given, strict=True))
    }


def load_given(spec: GNNServiceSpec, digests: Mapping[str, str], graph: GraphData) -> tuple[GivenVariant, ...]:
    """The given variants in the order of the spec. Raises InputError."""
    variants = spec.variants
    return tuple(
        _load(spec, place, name, given, digests[name], graph)
        for place, (name, given) in enumerate(zip(variants.given_names(), variants.given, strict=True))
    )


def _field(place: int) -> str:
    return f"spec.variants.given[{place}]"


def _load(
    spec: GNNServiceSpec, place: int, name: str, given: GivenNetwork, digest: str, graph: GraphData
) -> GivenVariant:
    # Imported here: a start that finds its revision needs digests alone.
    from gnnserve_worker.generation.checkpoint_over_rows import WantedOverRows  # noqa: PLC0415

    field, features = _field(place), graph.features.shape[1]
    stated = range(features) if given.columns is None else given.columns
    columns = resolve_columns(f"{field}.columns", stated, graph.feature_columns, features)
    remedy = (
        f"{field}.columns are {len(columns):,} features, and the first layer reads {{}}: list the columns that it was "
        "trained on"
    )
    model = given_model(spec, place, given)
    wanted = WantedOverRows(model, len(columns), spec.network(len(graph.classes)).classes, columns_remedy=remedy)
    tensors, decoder = load_given_weights(spec, place, given, digest, wanted)
    return GivenVariant(name, columns, tensors, given.hidden, decoder)


def load_given_over_relations(
    spec: GNNServiceSpec, digests: Mapping[str, str], architecture: RelationalSpec, shape: RelationalShape
) -> tuple[GivenVariant, ...]:
    """The given variants over relations, in the order of the spec. `shape`: of the model. Raises InputError."""
    names, found = spec.variants.given_names(), []
    for place, (name, given) in enumerate(zip(names, spec.variants.given, strict=True)):
        if embedded := shape.embedded():
            types = in_words([shape.graph.types[kind].name for kind in embedded])
            raise InputError(
                _field(place),
                f"reads embeddings of nodes of type {types}, which have no features: new nodes begin with the mean of "
                "one network's embeddings, so that a service has one such network",
                "give the type features, or the weights as spec.model.checkpoint of a service of their own",
            )  # fmt: skip
        own = replace(shape, hidden=given_model(spec, place, given).hidden)
        # Imported here, as above.
        from gnnserve_worker.generation.checkpoint_over_relations import WantedOverRelations  # noqa: PLC0415

        wanted = WantedOverRelations(architecture, own)
        tensors, decoder = load_given_weights(spec, place, given, digests[name], wanted)
        found.append(GivenVariant(name, np.zeros(0, np.int64), tensors, given.hidden, decoder))
    return tuple(found)


def given_model(spec: GNNServiceSpec, place: int, given: GivenNetwork) -> Model:
    """The model with the hidden width of a given variant. Raises InputError where its heads do not share it."""
    if given.hidden is None:
        return spec.model
    model = spec.model.model_copy(update={"hidden": given.hidden})
    if len(model.fanouts) > 1 and given.hidden % (model.heads or 1):
        raise InputError(
            f"{_field(place)}.hidden", f"is {given.hidden}, no multiple of spec.model.heads, {model.heads}",
            "give weights whose heads are those of spec.model",
        )  # fmt: skip
    return model


def load_given_weights(
    spec: GNNServiceSpec, place: int, given: GivenNetwork, digest: str, wanted: WantedNetwork
) -> tuple[Tensors, DecoderTensors | None]:
    """The weights of a given variant, and what they have to score pairs by; None: outputs are not read in pairs. Raises
    InputError."""
    field = f"{_field(place)}.checkpoint"
    tensors = load_checkpoint(given.weights, digest, wanted_of(spec, wanted), field)
    decoder = given_decoder_of(field, given.weights, tensors) if spec.task.asked().reads_pairs else None
    return (tensors if decoder is None else without_decoder(tensors)[0]), decoder


def resolve_columns(
    field: str, stated: Iterable[int | str], source: Sequence[FeatureColumn], features: int
) -> np.ndarray:
    """Ids (int64) of the features that names and indices stand for, in their order. Raises InputError."""
    ends = np.cumsum([column.width for column in source]).tolist()
    places = {column.name: range(end - column.width, end) for column, end in zip(source, ends, strict=True)}
    found: list[int] = []
    seen: dict[int, int | str] = {}
    for column in stated:
        for feature in _features_of(field, column, places, features):
            if feature in seen:
                first = seen[feature]
                what = (
                    f"{column!r} twice" if first == column else f"{first!r} and {column!r}, which is the same feature"
                )
                raise InputError(field, f"lists {what}", "list each column once")
            seen[feature] = column
            found.append(feature)
    return np.array(found, dtype=np.int64)


def _features_of(field: str, column: int | str, places: Mapping[str, range], features: int) -> range:
    if isinstance(column, int):
        if column < features:
            return range(column, column + 1)
        raise InputError(
            field,
            f"lists {column:,}, and the graph has {features:,} features",
            f"use indices from 0 to {features - 1:,}",
        )
    if column in places:
        return places[column]
    if not places:
        raise InputError(
            field, f"names {column!r}, and this source gives its features no names", "list their indices, from 0"
        )
    near = difflib.get_close_matches(column, places, n=1)
    shown = ", ".join([*places][:_SHOWN_NAMES]) + ", …" * (len(places) > _SHOWN_NAMES)
    raise InputError(
        field,
        f"names {column!r}, which is no feature column of the graph; it has {shown}",
        f"did you mean {near[0]!r}?" if near else "name some of these",
    )
