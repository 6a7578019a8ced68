"""Decides which of the listed factors are written where features are sparse and their dense tables would be very large.

31,241 columns of words take 28 MB as a projected table and 3.4 GB as that of x1, which computes the same. The rule
looks at sizes and at the manifest alone. It cannot tell a default list that a user wrote from one that the API server
filled in. `wideTables: Keep` asks for all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gnnserve_api.spec.pruning import DEFAULT_FACTORS, WideTables
from gnnserve_api.spec.searched import SEARCHED_FACTORS
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.spec.variants import Projection
from gnnserve_api.variants import columns_of, variant_name
from gnnserve_worker.graph.store import Features
from gnnserve_worker.repository.staged import stored_bytes

_MOST_TABLE_BYTES = 2**30
_MOST_TIMES_SOURCE = 16


@dataclass(frozen=True, slots=True)
class WrittenFactors:
    kept: tuple[int, ...]
    """Factors that are written, ascending. If there are none, all variants are projected."""
    left_out: tuple[int, ...]
    left_out_bytes: int
    """Size of the widest left-out table in all storages together; 0: none is left out."""

    def said(self) -> str:
        """A message of one line that names what is left out; empty if nothing is."""
        if not self.left_out:
            return ""
        names = ", ".join(variant_name(factor) for factor in self.left_out)
        return (
            f"{names}, whose dense tables would take up to {self.left_out_bytes / 2**30:.1f} GiB for sparse features; "
            "projected computes what x1 computes; set spec.variants.pruning.wideTables to Keep to write them"
        )


def written_factors(spec: GNNServiceSpec, features: Features) -> WrittenFactors:
    pruning = spec.variants.pruning
    factors = tuple(sorted(pruning.factors))
    if (
        isinstance(features, np.ndarray)
        or (factors != DEFAULT_FACTORS and not spec.variants.is_searched)
        or pruning.wide_tables is WideTables.KEEP
        or spec.variants.projection is not Projection.AUTO
    ):
        return WrittenFactors(factors, (), 0)
    nodes, columns = features.shape[0], spec.model.row_columns(features.shape[1])
    source_bytes = features.data.nbytes + features.indices.nbytes + features.indptr.nbytes
    sizes = {
        factor: sum(stored_bytes(nodes, columns_of(columns, factor), storage) for storage in spec.variants.storage)
        for factor in factors
    }
    most = max(_MOST_TABLE_BYTES, _MOST_TIMES_SOURCE * source_bytes)
    left_out = tuple(factor for factor in factors if sizes[factor] > most and not _is_needed(spec, factor))
    kept = tuple(factor for factor in factors if factor not in left_out)
    return WrittenFactors(kept, left_out, sizes[left_out[0]] if left_out else 0)


def _is_needed(spec: GNNServiceSpec, factor: int) -> bool:
    """Whether routing names a variant of the factor, or others are made of it."""
    named = [*([spec.routing.variant] if spec.routing.variant else []), *(spec.routing.weights or {})]
    return spec.variants.reads_factor(factor) or any(name in named for name in spec.variants.names_of(factor))


def with_factors(spec: GNNServiceSpec, factors: tuple[int, ...]) -> GNNServiceSpec:
    """The spec with these factors, for generation. The revision's identity is still that of the manifest's spec."""
    pruning = spec.variants.pruning.model_copy(update={"factors": factors})
    return spec.model_copy(update={"variants": spec.variants.model_copy(update={"pruning": pruning})})


def with_searched_factors(spec: GNNServiceSpec, columns: int) -> GNNServiceSpec:
    """The spec with the factors that a search looks at, those that leave a column of so many."""
    return with_factors(spec, tuple(factor for factor in SEARCHED_FACTORS if columns_of(columns, factor)))
