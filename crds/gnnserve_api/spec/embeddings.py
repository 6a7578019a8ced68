"""Embeddings of a revision for other programs and for recommendations: which variant's, and where they go."""

from __future__ import annotations

from typing import Annotated, Protocol

from pydantic import Field

from gnnserve_api.spec.audience import Audience
from gnnserve_api.spec.endpoint import EndpointSpec
from gnnserve_api.spec.fields import ApiModel, ObjectName, text
from gnnserve_api.spec.rules import rule

MOST_SINKS = 4


class PostgresSinkSpec(ApiModel):
    """A database of PostgreSQL 15 or newer with the extension pgvector. It gets a view with a row for each node: `id`,
    `embedding`, `revision` and `offset`."""

    secret_name: ObjectName
    """Name of a Secret in the namespace of the service. Its key `uri` is the address of the database,
    `postgresql://user:password@host/database`."""
    view: (
        Annotated[str, text(r"^[a-z_][a-z0-9_]*$", "a name of lower-case letters, digits and '_', no digit first", 40)]
        | None
    ) = None
    """Name of the view of the embeddings, in the schema `gnnserve_embeddings`. Absent: namespace and name of the
    service, such as `default_digits`."""


class EmbeddingSink(ApiModel):
    """Place that embeddings are written to: exactly one member must be set."""

    postgres: PostgresSinkSpec | None = None
    """A PostgreSQL with pgvector. With `gnnserve run` and `generate`, `--embeddings-uri-file` names the address."""

    @rule("has(self.postgres)", "a sink must be one: postgres must be set")
    def _exactly_one(self) -> bool:
        return self.postgres is not None


class EmbeddingsSpec(ApiModel):
    """When a revision is published, the embeddings of all its nodes are computed over all of their neighbours. The
    revision answers before they are done, and nothing is trained anew where this changes."""

    variant: Annotated[str, text(r"^[A-Za-z0-9][A-Za-z0-9._-]*$", "the name of a variant", 63)] | None = None
    """Name of the variant whose embeddings are computed. Absent: the most accurate one that has embeddings."""
    index: Annotated[bool, Audience.EMBEDDINGS | Audience.WORKERS] = True
    """Whether the index that `POST /v1/recommend` needs is made."""
    sinks: Annotated[tuple[EmbeddingSink, ...], Field(max_length=MOST_SINKS)] = ()
    """Databases that embeddings are written to. A sink has all of one revision at any time, never a part of another.
    Empty: none."""

    @rule(
        "!has(self.index) || self.index || (has(self.sinks) && size(self.sinks) > 0)",
        "index must be true where there are no sinks: there would be nothing to do",
    )
    def _something_is_wanted(self) -> bool:
        return self.index or bool(self.sinks)

    @property
    def secrets(self) -> tuple[str, ...]:
        """Names of the Secrets of its sinks, in their order."""
        return tuple(sink.postgres.secret_name for sink in self.sinks if sink.postgres is not None)


class _Spec(Protocol):
    endpoint: EndpointSpec
    embeddings: EmbeddingsSpec | None


_OTHERS = ("tls", "tokens", "writeTokens")


@rule(
    "!has(self.embeddings) || !has(self.embeddings.sinks) || self.embeddings.sinks.all(sink, "
    + " && ".join(
        f"(!has(self.endpoint.{other}) || self.endpoint.{other}.secretName != sink.postgres.secretName)"
        for other in _OTHERS
    ) + ")",
    "embeddings.sinks must name Secrets of their own: each value of those of endpoint is a token or a key",
)  # fmt: skip
def sinks_have_secrets_of_their_own(spec: _Spec) -> bool | str:
    if spec.embeddings is None:
        return True
    endpoint = spec.endpoint
    others = {"tls": endpoint.tls, "tokens": endpoint.tokens, "writeTokens": endpoint.write_tokens}
    for index, name in enumerate(spec.embeddings.secrets):
        for field, other in others.items():
            if other is not None and other.secret_name == name:
                return (
                    f"embeddings.sinks[{index}] and endpoint.{field} both name the Secret {name!r}, and must name "
                    "two: each value of those of endpoint is a token or a key"
                )
    return True
