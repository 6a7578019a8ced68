"""Records of a variant that consists of two others, in a revision."""

from __future__ import annotations

import msgspec

from gnnserve_api.families import Family


class CascadeManifest(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A variant that consists of two others: the first answers, and the second where the first is not confident."""

    name: str
    family: Family
    first: str
    """The variant that every node, or pair, goes through."""
    then: str
    """The variant that answers about what the first passes on."""
    temperature: float
    """What scores of `first` are divided by before confidence is read off them; fitted on validation nodes. 1 where
    pairs are scored, whose calibration says how sure a score is."""
    threshold: float
    """Least confidence, from 0 to 1, with which the answer of `first` stands: the probability of its likeliest class;
    of a pair, that of being a link, or of being none, whichever is larger."""
