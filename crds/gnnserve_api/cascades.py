"""What a revision records of a variant that consists of two others."""

from __future__ import annotations

import msgspec

from gnnserve_api.families import Family


class CascadeManifest(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A variant that consists of two others: the first answers, and the second where the first is not confident."""

    name: str
    family: Family
    first: str
    """The variant that every node goes through."""
    then: str
    """The variant that answers about what the first passes on."""
    temperature: float
    """What scores of `first` are divided by before confidence is read off them; fitted on validation nodes."""
    threshold: float
    """Least confidence, from 0 to 1, with which the answer of `first` stands: the probability of its likeliest class.
    """
