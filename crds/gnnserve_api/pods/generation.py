"""Result that a generation Job leaves for the operator: its container's termination message when it succeeds.

Kubernetes keeps at most 4096 bytes of one, so this is a summary; the whole profile is in the repository and at
`GET /v1/variants`. Where even the summary is longer, it is shortened in two steps: first the details of variants are
left out, then the names of the fields too, and each variant is a list of values. The longest that a spec permits fits
then. The operator stores the result beside the routing table, under `generation.json` of the same ConfigMap.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from gnnserve_api import decoding

GENERATION_KEY = "generation.json"
MAX_TERMINATION_MESSAGE_BYTES = 4096


class VariantSummary(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True):
    name: str
    columns: int
    """Columns of its table that it reads."""
    accuracy_permille: float
    """Validation accuracy, rounded to a tenth."""
    latency_ms: float
    """Predicted p99 of a request of one node on an idle worker, in milliseconds."""
    # Missing where an earlier gnnserve wrote the message, and where they would make it too long.
    factor: int | None = None
    """k: it reads 1/k of the feature columns."""
    size_bytes: int | None = None
    """The serialised weights."""
    memory_bytes: int | None = None
    """Weights and the columns of its table that it reads."""
    tier_permille: int | None = None
    """The accuracy tolerance from which on it answers; None also where it never does."""


class GenerationResult(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True):
    revision: str
    recipe: str
    graph: str
    """Digest of the graph."""
    variants: tuple[VariantSummary, ...]
    """Variants in the order of the profile."""
    offset: int = 0
    """Offset of the log of changes that the graph was made at; 0: the graph of its source."""
    memory_bytes: int = 0
    """Files of the revision and of its graph that a worker maps; 0: an earlier gnnserve wrote the result."""
    following_tiers: dict[str, int] = {}
    """`VariantSummary.tier_permille` by name, among the variants that follow changes of the graph, which alone answer
    with `spec.updates`; empty: they are the same, or there is no room for them."""

    def tiers_permille(self, *, graph_changes: bool) -> Mapping[str, int]:
        """The accuracy tolerance from which on each variant answers, by name; without those that never do."""
        if graph_changes and self.following_tiers:
            return self.following_tiers
        return {variant.name: variant.tier_permille for variant in self.variants if variant.tier_permille is not None}

    @property
    def revision_bytes(self) -> int:
        """Memory that the revision is known to take, at least."""
        return self.memory_bytes or max((variant.memory_bytes or 0 for variant in self.variants), default=0)


_Row = tuple[str, int, float, float]
"""The fields of a `VariantSummary` that are never missing, in its order."""


class _Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A `GenerationResult` as a termination message may have it."""

    revision: str
    recipe: str
    graph: str
    variants: tuple[VariantSummary | _Row, ...]
    offset: int = 0
    memory_bytes: int = msgspec.field(default=0, name="memoryBytes")
    following_tiers: dict[str, int] = msgspec.field(default_factory=dict, name="followingTiers")


def encode_result(result: GenerationResult) -> str:
    return _encode(result)


def encode_message(result: GenerationResult) -> str:
    """The result as a termination message, as complete as fits."""
    rows: tuple[_Row, ...] = tuple((v.name, v.columns, v.accuracy_permille, v.latency_ms) for v in result.variants)
    of_rows = tuple(VariantSummary(*row) for row in rows)
    brief = msgspec.structs.replace(result, variants=of_rows, following_tiers={})
    for message in (_encode(result), _encode(brief)):
        if len(message.encode()) <= MAX_TERMINATION_MESSAGE_BYTES:
            return message
    return _encode(_Message(result.revision, result.recipe, result.graph, rows, result.offset, result.memory_bytes))


def _encode(message: GenerationResult | _Message) -> str:
    return msgspec.json.encode(message, order="sorted").decode()


def decode_result(text: str | bytes) -> GenerationResult:
    """What `encode_result` or `encode_message` wrote. Raises msgspec.DecodeError, which names the field."""
    message = decoding.decode(text, _Message)
    variants = (v if isinstance(v, VariantSummary) else VariantSummary(*v) for v in message.variants)
    return GenerationResult(
        message.revision, message.recipe, message.graph, tuple(variants), message.offset, message.memory_bytes,
        message.following_tiers,
    )  # fmt: skip
