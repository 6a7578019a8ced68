"""What a generation Job leaves for the operator: its container's termination message when it succeeds.

Kubernetes keeps at most 4096 bytes of one, so this is a summary; the whole profile is in the repository and at
`GET /v1/variants`. The operator stores it beside the routing table, under `generation.json` of the same ConfigMap.
"""

from __future__ import annotations

import msgspec

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


class GenerationResult(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    revision: str
    recipe: str
    graph: str
    """Digest of the graph."""
    variants: tuple[VariantSummary, ...]
    """In the order of the profile."""


def encode_result(result: GenerationResult) -> str:
    return msgspec.json.encode(result, order="sorted").decode()


def encode_message(result: GenerationResult) -> str:
    """The result as a termination message. Factors, sizes and tiers are left out where it would be too long."""
    message = encode_result(result)
    if len(message.encode()) <= MAX_TERMINATION_MESSAGE_BYTES:
        return message
    brief = (VariantSummary(v.name, v.columns, v.accuracy_permille, v.latency_ms) for v in result.variants)
    return encode_result(msgspec.structs.replace(result, variants=tuple(brief)))


def decode_result(text: str | bytes) -> GenerationResult:
    """Raises msgspec.DecodeError, which names the field."""
    return msgspec.json.decode(text, type=GenerationResult)
