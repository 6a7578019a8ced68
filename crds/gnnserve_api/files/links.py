"""Records of links in a revision: between which nodes, how pairs are scored, and how scores become probabilities."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from gnnserve_api.files.graph_schema import GraphSchema


class LinkCalibration(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """From scores of a variant to probabilities: 1 / (1 + exp(-(slope * score + intercept)))."""

    slope: float
    intercept: float


class EndManifest(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """The nodes that may stand at one end of a link."""

    type: str
    """Name of their type; empty in a graph of one type."""
    start: int
    """Position of the first of them."""
    end: int
    """Position behind the last of them."""

    def over(self, schema: GraphSchema) -> EndManifest:
        """The end where its type stands in another numbering of nodes."""
        place, firsts = schema.place_of(self.type), schema.first_nodes
        return EndManifest(self.type, firsts[place], firsts[place + 1])


class LinksManifest(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Decoder that pairs are scored by."""

    decoder: str
    """`Dot`, `DistMult` or `MLP`."""
    dimensions: int
    """Width of the embeddings, which the networks give as their scores."""
    relation: str
    """Name of the relation; empty in a graph of one type."""
    first: EndManifest
    second: EndManifest
    validation_links: int
    test_links: int
    weights: str | None = None
    """Path of a safetensors file with the decoder's weights, which all variants share; None: it has none."""
    embeddings_of: str | UnsetType | None = UNSET
    """Deprecated: not written any more. Earlier gnnserves named here the network over several types whose final
    embeddings the rows are (null: none). Pairs of stored nodes are answered of such rows; new nodes are not."""

    # A `TaskSection` (`repository.py`).

    @property
    def listed_files(self) -> tuple[str, ...]:
        return () if self.weights is None else (self.weights,)

    @property
    def answers_all_types(self) -> bool:
        return True

    def asked_alone(self, schema: GraphSchema) -> slice:
        first = self.first.over(schema)
        return slice(first.start, first.end) if self.first != self.second else slice(0)

    def over(self, schema: GraphSchema) -> LinksManifest:
        return msgspec.structs.replace(self, first=self.first.over(schema), second=self.second.over(schema))
