"""Embeddings of a revision for other programs and for recommendations: which variant's, and where they go."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gnnserve_api.spec.audience import Audience
from gnnserve_api.spec.endpoint import is_no_secret_of_endpoint
from gnnserve_api.spec.fields import ApiModel, ObjectName, text
from gnnserve_api.spec.rules import rule, rule_of_each

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

    _exactly_one = rule("has(self.postgres)", "a sink must be one: postgres must be set")


class EmbeddingsSpec(ApiModel):
    """When a revision is published, the embeddings of all its nodes are computed over all of their neighbours. The
    revision answers before they are done, and nothing is trained anew where this changes."""

    variant: Annotated[str, text(r"^[A-Za-z0-9][A-Za-z0-9._-]*$", "the name of a variant", 63)] | None = None
    """Name of the variant whose embeddings are computed. Absent: the most accurate one that has embeddings, of
    those that follow changes of the graph where there are any."""
    index: Annotated[bool, Audience.EMBEDDINGS | Audience.WORKERS] = True
    """Whether the index that `POST /v1/recommend` needs is made."""
    sinks: Annotated[tuple[EmbeddingSink, ...], Field(max_length=MOST_SINKS)] = ()
    """Databases that embeddings are written to. A sink has all of one revision at any time, never a part of another.
    Empty: none."""

    _something_is_wanted = rule(
        "!has(self.index) || self.index || (has(self.sinks) && size(self.sinks) > 0)",
        "index must be true where there are no sinks: there would be nothing to do",
    )

    @property
    def secrets(self) -> tuple[str, ...]:
        """Names of the Secrets of its sinks, in their order."""
        return tuple(sink.postgres.secret_name for sink in self.sinks if sink.postgres is not None)


sinks_have_secrets_of_their_own = rule_of_each(
    "self.embeddings.sinks",
    "sink",
    is_no_secret_of_endpoint("sink.postgres.secretName"),
    "embeddings.sinks must name Secrets of their own[, and {sink.postgres.secretName} is one of endpoint's]: each "
    "value of those of endpoint is a token or a key",
    unless="!has(self.embeddings) || !has(self.embeddings.sinks)",
)
