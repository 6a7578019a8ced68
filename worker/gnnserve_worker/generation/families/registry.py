"""The families that generation knows. A new one is a file beside this one, and an entry here and in
`gnnserve_api/families.py`."""

from __future__ import annotations

from gnnserve_worker.generation.families.family import VariantFamily
from gnnserve_worker.generation.families.projected import ProjectedFamily
from gnnserve_worker.generation.families.pruned import PrunedFamily

FAMILIES: tuple[VariantFamily, ...] = (PrunedFamily(), ProjectedFamily())
"""In the order of the profile, which begins with the widest variant."""
