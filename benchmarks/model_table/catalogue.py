"""All models of the table, in its order."""

from __future__ import annotations

from benchmarks.model_table import frameworks, ogb, public, pyg_one_type, pyg_several_types

ENTRIES = (
    *pyg_one_type.ENTRIES,
    *pyg_several_types.ENTRIES,
    *ogb.ENTRIES,
    *frameworks.ENTRIES,
    *public.ENTRIES,
)
