"""The `GNNService` resource: what a user writes, for `gnnserve run` and `kubectl apply` alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from gnnserve_api.files.repository import NetworkManifest
from gnnserve_api.pods.routing import RoutingTable
from gnnserve_api.spec import (
    canary,
    channels,
    device_rules,
    embeddings,
    generation,
    heterogeneous_rules,
    pooled,
    program_rules,
    task,
    updates,
)
from gnnserve_api.spec.audience import Audience, selection
from gnnserve_api.spec.cascade import MAX_PERCENTS
from gnnserve_api.spec.embedded_variants import embedding_names
from gnnserve_api.spec.embeddings import EmbeddingsSpec
from gnnserve_api.spec.endpoint import EndpointSpec
from gnnserve_api.spec.fields import (
    NAME_PATTERN,
    ApiModel,
    ImageReference,
    ObjectName,
    RevisionName,
    with_defaults,
)
from gnnserve_api.spec.following import fixed_names
from gnnserve_api.spec.generation import Generation
from gnnserve_api.spec.graph import GraphSpec
from gnnserve_api.spec.heterogeneous_rules import reads_products
from gnnserve_api.spec.made_variants import made_variants, possible_spaces, search_space
from gnnserve_api.spec.model import MODEL_IS_GIVEN, Model
from gnnserve_api.spec.objective import ObjectiveSpec
from gnnserve_api.spec.paths import RECIPE_CONTEXT, relative_paths_have_a_volume
from gnnserve_api.spec.recipe import digest_of_recipe
from gnnserve_api.spec.repository import RepositorySpec, declared_storage
from gnnserve_api.spec.routing import RoutingSpec
from gnnserve_api.spec.rules import Members, rule, rule_of_each, rules_in, server_rule
from gnnserve_api.spec.task import Task
from gnnserve_api.spec.updates import UpdatesSpec
from gnnserve_api.spec.variants import LISTED, SOME_ARE_MADE, Variants
from gnnserve_api.spec.worker import Worker
from gnnserve_api.variants import MAX_VARIANTS, Storage, stored_layer_name

GROUP = "gnnserve.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "GNNService"
_DNS_LABEL = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
_IS_NAMED_AS_CASCADES = "has(one.name) && one.name.matches('(^|-)then(-|$)')"
"""What separates the two names in a cascade's: with it in a given name, two cascades could have one name."""
_HAS_CASCADES = "has(self.variants.cascades) && size(self.variants.cascades) > 0"
_WITH_CASCADES = (
    f"(({LISTED.replace('self.', 'self.variants.')} + 1) * (1 + (has(self.variants.fanouts) ? "
    "size(self.variants.fanouts) : 0)) + (has(self.variants.oneRow) ? size(self.variants.oneRow) : 0)) * "
    f"size(self.variants.storage) + {MAX_PERCENTS} * size(self.variants.cascades)"
)
"""CEL: variants, at most, where cascades are given."""

_OF_PARTS = rules_in(
    channels, updates, embeddings, heterogeneous_rules, task, program_rules, pooled, canary, generation, device_rules
)  # fmt: skip
"""Rules that are declared beside the parts that they are about."""


class GNNServiceSpec(ApiModel):
    graph: GraphSpec
    """Graph that is served, and the scaling of node features."""
    model: Annotated[Model, Audience.REVISION] = with_defaults(Model)
    """Model that is trained on the graph, or whose weights are given."""
    task: Annotated[Task, Audience.REVISION] = with_defaults(Task)
    """Task of the service: classes of nodes, or scores of pairs of nodes where `links` is given."""
    variants: Annotated[Variants, Audience.REVISION] = with_defaults(Variants)
    """Variants that are generated from the model, listed or searched for."""
    objective: Annotated[ObjectiveSpec, Audience.WORKERS] = with_defaults(ObjectiveSpec)
    """Objective of the service, for requests that state none of their own: latency, accuracy, or both."""
    routing: RoutingSpec = with_defaults(RoutingSpec)
    """Routing of requests to variants, and the measurements behind the choice."""
    endpoint: EndpointSpec = with_defaults(EndpointSpec)
    """Access of clients to the workers: Service, TLS, tokens, gRPC, and limits of what a request may bring."""
    worker: Worker = with_defaults(Worker)
    """Worker pods that answer requests: number, resources, placement, device and batching."""
    generation: Generation = with_defaults(Generation)
    """Job that trains and profiles a revision: resources, placement, attempts. In a cluster only."""
    repository: RepositorySpec = with_defaults(RepositorySpec)
    """Repository of the revisions: a volume, and the number of models kept."""
    updates: UpdatesSpec | None = None
    """Changes of the served graph, by `POST /v1/changes` with one of `endpoint.writeTokens`. Absent: the graph stays as
    it was generated."""
    embeddings: Annotated[EmbeddingsSpec | None, Audience.EMBEDDINGS] = None
    """Embeddings of every revision: an index for `POST /v1/recommend`, and rows in databases. Absent: none are made."""
    image: Annotated[ImageReference | None, Audience.PODS] = None
    """Image of generation and worker pods. Absent: the operator's setting."""
    image_pull_secrets: Annotated[tuple[ObjectName, ...], Field(max_length=8), Audience.PODS] = ()
    """Names of the Secrets to pull the image with, in the namespace of the service. Absent: none."""
    revision: Annotated[RevisionName | None, Audience.RETURN] = None
    """Name of a published revision to go back to. Workers answer from it, whatever graph, model and variants say, and
    nothing is trained. Where changes were compacted since, its model answers over the graph as it is now. Absent:
    workers answer from what graph, model and variants describe."""
    suspend: Annotated[bool, Audience.OPERATOR] = False
    """Stop generation and every worker, and keep the data."""

    _stability_is_of_trained_masters = rule(
        f"!({MODEL_IS_GIVEN} || has(self.model.layers)) || self.variants.pruning.stabilitySeeds == 0",
        "variants.pruning.stabilitySeeds {self.variants.pruning.stabilitySeeds} must be 0 with a model.checkpoint, "
        "model.program or model.layers: no columns are ranked by networks that are trained here",
    )

    _workers_may_spread = rule(
        "!has(self.worker.topologySpreadConstraints) || size(self.worker.topologySpreadConstraints) == 0 || "
        "has(self.repository.claimName) || "
        "(has(self.repository.claim) && self.repository.claim.accessMode == 'ReadWriteMany')",
        "worker.topologySpreadConstraints may be given with a repository that pods of several nodes may mount only: "
        "repository.claimName, or repository.claim.accessMode ReadWriteMany",
    )

    _variants_sample_fewer = rule_of_each(
        "self.variants.fanouts",
        "one",
        "size(one) == size(self.model.fanouts) && one != self.model.fanouts && [0, 1, 2, 3, 4, 5, 6, 7].all(i, "
        "i >= size(one) || i >= size(self.model.fanouts) || self.model.fanouts[i] < 0 || one[i] <= "
        "self.model.fanouts[i])",
        "each of variants.fanouts must be smaller than model.fanouts {self.model.fanouts}[, and {one} is not]: as "
        "many numbers, none above it, one below it",
        unless="has(self.model.program) || !has(self.variants.fanouts)",
    )

    _checkpoint_is_used = rule(
        f"!has(self.model.checkpoint) || {SOME_ARE_MADE.replace('self.', 'self.variants.')}",
        "model.checkpoint must not be given where variants.given are all there is: none is made of it",
    )

    _given_variants_sample = rule(
        "!(self.model.architecture in ['SGC', 'SIGN']) || !has(self.variants.given) || size(self.variants.given) == 0",
        "variants.given must not be given with model.architecture SGC or SIGN[, whose features are propagated: leave "
        "it out, or use model.checkpoint]",
    )

    _stored_layers_aggregate = rule(
        "self.model.fanouts[0] != 0 || !has(self.variants.stored) || size(self.variants.stored) == 0",
        "variants.stored must not be given where model.fanouts are 0: nothing but the features is aggregated",
    )

    _stored_layers_exist = rule_of_each(
        "self.variants.stored",
        "layer",
        "layer <= size(self.model.fanouts)",
        "each of variants.stored must be a layer of the model, which has one for each of model.fanouts "
        "{self.model.fanouts}[; {layer} is none]",
    )

    _deeper_layers_follow = rule(
        "!has(self.variants.storedFollowChanges) || !self.variants.storedFollowChanges || (has(self.variants.stored) "
        "&& self.variants.stored.exists(layer, layer > 1 || size(self.model.fanouts) == 1)) || "
        "(has(self.variants.oneRow) && self.variants.oneRow.exists(one, one.hops > 0)) || "
        "(has(self.variants.search) && self.variants.search == 'Auto' && !has(self.model.program) && "
        "self.model.fanouts[0] != 0)",
        "variants.storedFollowChanges must not be given without a layer behind the first in variants.stored, hops in "
        "variants.oneRow, or variants.search Auto of a model that samples neighbours by layers: stored1 and mlp0 "
        "follow changes anyway",
    )

    _cascades_are_of_listed_variants = rule(
        f"!({_HAS_CASCADES}) || !has(self.variants.search) || self.variants.search != 'Auto'",
        "variants.cascades must be left out with variants.search Auto: their stages are variants that are listed",
    )

    _cascades_differ = rule_of_each(
        "self.variants.cascades",
        "one",
        "self.variants.cascades.exists_one(other, other.first == one.first && other.then == one.then)",
        "two of variants.cascades must not have the same stages[, {one.first} and {one.then}]: list their "
        "passOnPercents together",
        unless=f"!({_HAS_CASCADES})",
    )

    _cascades_leave_few_variants = rule(
        f"!({_HAS_CASCADES}) || {_WITH_CASCADES} <= {MAX_VARIANTS}",
        f"with variants.cascades, the other variants and {MAX_PERCENTS} for each cascade must be at most "
        f"{MAX_VARIANTS}[, and are {{{_WITH_CASCADES}}}]: list fewer factors, storages, fanouts or cascades",
    )

    _cascades_go_by_the_highest_score = rule(
        f"self.variants.thresholds != 'PerClass' || !({_HAS_CASCADES})",
        "variants.cascades must not be given with variants.thresholds PerClass: they go by the highest score",
    )

    _given_names_are_not_of_cascades = rule(
        f"!({_HAS_CASCADES}) || !has(self.variants.given) || !self.variants.given.exists(one, {_IS_NAMED_AS_CASCADES})",
        "names of given variants must not have the part then, which those of cascades have, where there are any[: "
        "{one.name}]",
        Members("self.variants.given", "one", f"!({_IS_NAMED_AS_CASCADES})"),
    )

    _of_parts = _OF_PARTS
    _relative_paths_have_a_volume = relative_paths_have_a_volume(graph=GraphSpec, model=Model, variants=Variants)

    def impossible_variants(self) -> tuple[str, ...]:
        """Variants that `routing` names and that no revision of this spec has. Not a rule of the schema: a spec that
        breaks it was always accepted, and stays readable. A revision that is named may have any."""
        if self.revision is not None or not self.routing.named_variants:
            return ()
        possible = {*self.possible_variants()}
        return tuple(name for name in self.routing.named_variants if name not in possible)

    def fixed_variants(self) -> tuple[str, ...]:
        """Variants that `routing` names and that workers do not choose, since they do not follow changes. Not a rule of
        the schema, which the names of variants are too much for."""
        fixed = self._fixed_names()
        return tuple(name for name in self.routing.named_variants if name in fixed)

    def following_variants(self) -> tuple[str, ...]:
        """Names among `possible_variants` that workers may choose."""
        fixed = self._fixed_names()
        return tuple(name for name in self.possible_variants() if name not in fixed)

    def standing_variants(self) -> tuple[str, ...]:
        """Names among `possible_variants` that answer nothing, since they do not follow changes."""
        fixed = self._fixed_names()
        return tuple(name for name in self.possible_variants() if name in fixed)

    def _fixed_names(self) -> frozenset[str]:
        if self.updates is None or self.revision is not None:
            return frozenset()
        return frozenset().union(*(fixed_names(each, self.model) for each in self._listings()))

    def _listings(self) -> Sequence[Variants]:
        """Variants that are made together; a search makes several of such lists."""
        if self.variants.is_searched:
            return [one.variants for space in possible_spaces(self) for one in space.rounds]
        return [made_variants(self)]

    def unfit_for_embeddings(self) -> str | None:
        """Why the variant that `embeddings` names, or any that there may be, cannot be what is asked for, as a clause
        about `spec.embeddings` with what to do; None: it can. Not a rule of the schema, as `impossible_variants`."""
        if self.embeddings is None or self.revision is not None:
            return None
        named, possible, giving = self.embeddings.variant, self.possible_variants(), self.embedding_variants()
        fit = self._searchable(giving) if self.embeddings.index else giving
        if named in fit or (named is None and (fit or not giving)):
            return None
        choice = f"name one of {', '.join(fit)}, or leave it out" if fit else "leave spec.embeddings out"
        if named is None:
            return (
                f"no variant that gives embeddings, {', '.join(giving)}, follows changes of the graph, spec.updates: "
                "the index would not be searched; leave one of the two out"
            )
        if named not in possible:
            return f"variant {named} is none that spec.variants generates; {choice}"
        if named not in giving:
            return f"variant {named} gives no embeddings; {choice}"
        return f"variant {named} cannot follow changes of the graph, spec.updates; {choice}"

    def embedding_variants(self) -> tuple[str, ...]:
        """Names among `possible_variants` that give embeddings."""
        layers, of_pairs = len(self.model.fanouts), self.task.asked().reads_pairs
        names = (embedding_names(each, layers, are_of_pairs=of_pairs) for each in self._listings())
        giving = frozenset().union(*names)
        return tuple(name for name in self.possible_variants() if name in giving)

    def _searchable(self, giving: Sequence[str]) -> tuple[str, ...]:
        """Those that give embeddings whose index is searched where the graph changes."""
        fixed = self._fixed_names()
        if reads_products(self) and self.task.asked().reads_pairs:
            # All variants of the model are of one network over types, whatever of it is stored, and some follow.
            last = (stored_layer_name(len(self.model.fanouts), storage) for storage in Storage)
            fixed = fixed.difference(last)
        return tuple(name for name in giving if name not in fixed)

    def uncertain_variants(self, named: Sequence[str]) -> tuple[str, ...]:
        """Those of these variants that generation may leave out. With `revision` nothing is generated."""
        if self.revision is not None:
            return ()
        uncertain = {*self.possible_variants()}.difference(self.certain_variants())
        return tuple(name for name in named if name in uncertain)

    def certain_variants(self) -> tuple[str, ...]:
        """Names among `possible_variants` of those that every revision has; none of a search."""
        return () if self.variants.is_searched else made_variants(self).listed_names()

    def possible_variants(self) -> tuple[str, ...]:
        """All variants that a revision may have."""
        if not self.variants.is_searched:
            variants = made_variants(self)
            return (*variants.listed_names(), *variants.optional_names())
        names = (name for space in possible_spaces(self) for searched in space.rounds for name in searched.names)
        return tuple(dict.fromkeys(names))

    @property
    def trains_networks(self) -> bool:
        """Whether anything is trained: not where all weights are given."""
        beside = search_space(self).hops if self.variants.is_searched else self.variants.one_row
        return bool(beside) or not self.is_all_given

    @property
    def is_all_given(self) -> bool:
        """Whether the weights of all that is made of a model come from files."""
        return self.model.is_given or self.variants.are_all_given

    def recipe(self) -> str:
        """Digest of what generation depends on: equal recipes need no new training. With `revision` it depends on that
        alone."""
        return self._recipe

    @cached_property
    def _recipe(self) -> str:
        # Cached: a spec never changes, and each plan of a service compares its recipe several times.
        if self.revision is not None:
            return digest_of_recipe({"revision": self.revision})
        canonical = {
            "model": self.model.canonical(is_trained=self.trains_networks),
            "variants": self.variants.canonical(),
        }
        made_of, canonical_spec = selection(type(self), Audience.REVISION), super().model_copy(update=canonical)
        return digest_of_recipe(canonical_spec.model_dump(mode="json", include=made_of, context=RECIPE_CONTEXT))

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        copied = super().model_copy(update=update, deep=deep)
        copied.__dict__.pop("_recipe", None)  # a copy takes over what was computed; its parts may be others
        return copied

    def network(self, classes: int) -> NetworkManifest:
        """The network that the model is: it ends in scores of so many classes, or in the embeddings of links."""
        return self.model.network(self.task.asked().outputs(classes))

    def routing_table(self, revision: str, recipe: str | None = None) -> RoutingTable:
        """What workers are told while they answer from that revision, before anything was measured. `recipe` is the
        revision's, which may be an older spec's; None: it is this spec's."""
        return RoutingTable(
            revision=revision,
            recipe=self.recipe() if recipe is None else recipe,
            objective=self.objective.to_objective(),
            batching=self.worker.batching.to_batching(),
            overlay=self.endpoint.overlay.to_limits(),
            refresh=None if self.updates is None else self.updates.refresh_budget,
            program_limits=None if self.model.program is None else self.model.program.limits.to_limits(),
            mode=self.routing.mode,
            base_variant=self.routing.variant,
            weights=self.routing.weights or {},
            shadow_permille=self.routing.shadow_permille,
            canary=None if self.routing.canary is None else self.routing.canary.beside(revision),
            makes_index=self.embeddings is not None and self.embeddings.index,
        )


class Metadata(BaseModel):
    """The part of Kubernetes' ObjectMeta that gnnserve reads; the rest is kept out of its way."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: Annotated[str, Field(pattern=NAME_PATTERN, max_length=63)]
    namespace: Annotated[str, Field(pattern=_DNS_LABEL, max_length=63)] = "default"


class GNNService(ApiModel):
    """One graph neural network, served as several variants that trade accuracy for latency."""

    api_version: Literal["gnnserve.dev/v1alpha1"]
    kind: Literal["GNNService"]
    metadata: Metadata
    spec: GNNServiceSpec

    _name_is_a_services = server_rule(
        f"self.metadata.name.matches('{NAME_PATTERN}') && size(self.metadata.name) <= 63",
        "metadata.name must be at most 63 lower-case letters, digits and '-', a letter first, as a Service's",
    )
    _storage_does_not_shrink = server_rule(
        # Back to what the claim has it may: a size that the storage class refuses must not stay declared for ever.
        f"quantity({declared_storage('self')}).compareTo(quantity({declared_storage('oldSelf')})) >= 0 || "
        "!has(self.status) || !has(self.status.repositoryStorage) || "
        f"quantity({declared_storage('self')}).compareTo(quantity(self.status.repositoryStorage)) >= 0",
        "spec.repository.claim.storage cannot be less than what the claim has (status.repositoryStorage)",
        f"'spec.repository.claim.storage ' + {declared_storage('self')} + ' is less than the ' + "
        "(has(self.status) && has(self.status.repositoryStorage) ? self.status.repositoryStorage : '') + "
        "' that the claim has, and a claim cannot shrink: set at least that'",
    )
