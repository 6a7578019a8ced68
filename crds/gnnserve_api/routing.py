"""Routing: what the operator declares to workers, and what a worker says that it does.

The declaration is the key `routing.json` of a ConfigMap that workers watch; `gnnserve run` makes one from the
manifest. Choosing a variant by it is the worker's `scheduling/choice.py`.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec
from msgspec import UNSET, UnsetType

from gnnserve_api import decoding
from gnnserve_api.batching import DEFAULT_BATCHING, Batching
from gnnserve_api.live_accuracy import InputDrift, VariantAccuracy
from gnnserve_api.objective import NO_OBJECTIVE, Objective
from gnnserve_api.overlay import DEFAULT_OVERLAY_LIMITS, OverlayLimits
from gnnserve_api.updates import UpdatesState

ROUTING_KEY = "routing.json"


class RoutingMode(StrEnum):
    ADAPTIVE = "Adaptive"
    """The worker chooses for each batch: the most accurate variant that keeps its requests, and the next batch, in
    time. The operator corrects what it takes variants to cost."""
    METRICS = "Metrics"
    """The operator chooses one variant for all, from the load that Prometheus measured."""
    WEIGHTS = "Weights"
    """A fixed split of the requests over variants, for canaries and experiments."""
    STATIC = "Static"
    """One variant, whatever the load."""


class AffineCost(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A batch of s seeds takes fixed_ms + per_seed_ms · s, up to `batching.maxSeeds`."""

    fixed_ms: float
    per_seed_ms: float

    def at(self, seeds: float) -> float:
        return self.fixed_ms + self.per_seed_ms * seeds


class Canary(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A second revision, which answers a share of the requests."""

    revision: str
    percent: int
    """0 to 100."""


class RoutingTable(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True):
    """Which revision a worker is to answer from, and how. A new one takes effect without a restart.

    A worker refuses what it does not know, rather than leave out what was asked for; defaults are not written, so that
    it meets only what was asked for.
    """

    revision: str
    recipe: str
    """Digest of the part of the spec that the revision was generated from."""
    objective: Objective = NO_OBJECTIVE
    """The service's own objective, for requests that state none."""
    batching: Batching = DEFAULT_BATCHING
    overlay: OverlayLimits = DEFAULT_OVERLAY_LIMITS
    """Limits of what a request may bring."""
    mode: RoutingMode = RoutingMode.ADAPTIVE
    base_variant: str | None = None
    """The variant that answers in modes Metrics and Static. In Adaptive it is only informative."""
    weights: dict[str, int] = {}
    """Mode Weights: requests of each variant, as shares of their sum. Not empty there."""
    costs: dict[str, AffineCost] = {}
    """What batches cost as measured, by variant, where that is not what the profile says."""
    reason: str = ""
    """Why that base variant, in a sentence."""
    issued_at: str = ""
    """RFC 3339, the operator's clock; for people, and so that a renewed table differs from the last."""
    ttl_seconds: float | None = None
    """How long `costs` hold, counted from when the worker got the table: clocks of two machines are never compared.
    None: for ever. The base variant and everything else stay until there is another table."""
    shadow_permille: int = 0
    """Most of a worker's time, in permille, in which the most accurate variant computes answers again."""
    repair: int = 0
    """How often a damaged revision of the service was generated again. A worker that finds damage tells this number
    with it. Another number has the worker try again at once."""
    canary: Canary | None = None
    """None: the revision answers all requests."""
    makes_index: bool = False
    """Whether the spec asks for an index of recommendations, so that one that is missing is being made."""


class Damage(msgspec.Struct, frozen=True, rename="camel"):
    """Files of a revision that are not what was published, found twice in a row: a checksum differs, or a file is
    missing beside others. A volume that is away, or that cannot be read, is no damage."""

    revision: str
    repair: int = 0
    """`RoutingTable.repair` when that was found."""


class VariantRoute(msgspec.Struct, frozen=True, rename="camel"):
    """One variant, as the worker sees it."""

    name: str
    loss_permille: float
    """Validation accuracy below the most accurate variant; or accuracy in service, where labels show another loss."""
    profiled: AffineCost
    """Fitted to the median times of the profile; one figure of speed for the operator's sums."""
    expected: AffineCost
    """The same, as the worker expects it now: the table's costs, corrected by what it measured since."""
    expected_new_nodes: AffineCost | UnsetType = UNSET
    """What batches of new nodes, which requests bring with an overlay, are expected to cost now. Absent where neither
    the profile nor a batch has shown it."""


class CredentialKind(StrEnum):
    TLS = "tls"
    """Certificate and key."""
    TOKENS = "tokens"
    """Accepted tokens."""
    WRITE_TOKENS = "writeTokens"
    """Tokens that may write."""
    LOG = "log"
    """Address of the PostgreSQL that has the log of changes."""


class CredentialState(msgspec.Struct, frozen=True, rename="camel"):
    """State of one kind of a worker's credentials. It is public, and never has any content of a Secret."""

    kind: str
    """A `CredentialKind`; a newer worker may tell of others."""
    is_usable: bool
    """Requests can be answered with it: a certificate that clients may accept, or at least one accepted token."""
    problem: str = ""
    """What is wrong with what lies there now; empty: nothing."""


class ProgramState(msgspec.Struct, frozen=True, rename="camel"):
    """Program that a worker runs, in a process of its own."""

    problem: str
    """Why its last run gave no scores, as a sentence; empty: it gave them."""
    restarts: int
    """Processes that were given up since the revision was loaded."""


class CanaryRoute(msgspec.Struct, frozen=True, rename="camel"):
    """The second revision, as the worker sees it."""

    revision: str
    percent: int
    """The declared share of the requests."""
    answers: bool
    """Whether it gets that share; else the other revision answers all."""
    problem: str | None = None
    """Why it does not, or what is wrong with it."""
    accuracy: tuple[VariantAccuracy, ...] | UnsetType = UNSET
    """Its variants in service, by the same labels as those of the first revision; absent before the first label."""
    program: ProgramState | UnsetType = UNSET
    """State of the program that it runs; absent where it runs none."""


class Route(msgspec.Struct, frozen=True, rename="camel"):
    """What `GET /v1/route` answers: the routing in effect, which follows a new table within seconds.

    An operator reads those of newer workers too.
    """

    revision: str
    """The one that answers now."""
    base_variant: str
    """The variant that answers a one-node request that states nothing: in mode Adaptive on an idle worker, in Metrics
    and Static at any time."""
    reason: str
    """Why that variant, in a sentence."""
    allowed_variants: tuple[str, ...]
    objective: Objective = NO_OBJECTIVE
    """The service's own objective, for requests that state none."""
    batching: Batching = DEFAULT_BATCHING
    problem: str | None = None
    """Why the declared table is not in effect, where it is not."""
    mode: RoutingMode = RoutingMode.ADAPTIVE
    issued_at: str = ""
    """When the table in effect was issued."""
    is_expired: bool = False
    """The table's costs have outlived their time: the worker goes by its own."""
    variants: tuple[VariantRoute, ...] = ()
    """The revision's variants, the most accurate first."""
    needs_token: bool = False
    """Paths that show the graph or its answers want a token. Workers that do not know tokens do not say so."""
    device: str | UnsetType = UNSET
    """The device that computes batches: CPU, or the GPU's name. Workers that know of none but the CPU do not say so."""
    device_problem: str | UnsetType = UNSET
    """Why it is the CPU where a GPU was wanted or allowed, or what the GPU cannot do as well as it could."""
    program: ProgramState | UnsetType = UNSET
    """State of the program that it runs; absent where it runs none."""
    credentials: tuple[CredentialState, ...] = ()
    """State of each kind of credentials that the worker was told to use; empty from older workers."""
    overlay: OverlayLimits | UnsetType = UNSET
    """Limits of what a request may bring. Workers that know no overlays do not say so."""
    accuracy: tuple[VariantAccuracy, ...] | UnsetType = UNSET
    """The variants in service, by the labels that clients sent; a worker that has evaluated none does not say it."""
    inputs: tuple[InputDrift, ...] | UnsetType = UNSET
    """Columns of which requests bring other values than stored nodes have; absent where there are none."""
    damaged: Damage | UnsetType = UNSET
    """The declared revision, where its files are damaged; a worker that answers from nothing says it in its 503."""
    updates: UpdatesState | UnsetType = UNSET
    """How far it has followed the log of changes; absent where it was told of none."""
    canary: CanaryRoute | UnsetType = UNSET
    """The second revision; absent where one answers all requests."""


def encode_routing(table: RoutingTable) -> str:
    """JSON with sorted fields: equal tables are equal texts."""
    return msgspec.json.encode(table, order="sorted").decode()


def decode_routing(text: str | bytes) -> RoutingTable:
    """Raises msgspec.DecodeError, which names the field."""
    return decoding.decode(text, RoutingTable)
