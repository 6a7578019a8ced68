"""What lies where: by what a byte is worth, within the budget."""

from __future__ import annotations

import pytest
from tests.support.gpu.gpu_revisions import projected_revision, revision

from gnnserve_api.variants import Storage
from gnnserve_worker.gpu.buffers import LaneSizes, bucket_of, plan_lane
from gnnserve_worker.gpu.placement import (
    INDICES,
    INDPTR,
    LINK_BYTES,
    PlacedArray,
    Placement,
    PlacementGroup,
    parts_of,
    plan_placement,
)

MB = 2**20
GRAPH = PlacedArray("graph", PlacementGroup.GRAPH, 100 * MB, 10_000.0)
TABLE = PlacedArray("table", PlacementGroup.TABLES, 400 * MB, 400_000.0, cacheable=True)
OTHER = PlacedArray("other", PlacementGroup.TABLES, 400 * MB, 100_000.0, cacheable=True)


def _plan(*parts: PlacedArray, budget_mb: int, caches: bool = True, unpinnable: tuple[str, ...] = ()) -> Placement:
    placement = plan_placement(
        parts, required_bytes=10 * MB, budget_bytes=budget_mb * MB, caches=caches, unpinnable=unpinnable
    )
    assert placement is not None
    return placement


def test_everything_lies_on_the_device_where_it_fits() -> None:
    placement = _plan(GRAPH, TABLE, OTHER, budget_mb=910)

    assert set(placement.on_device) == {"graph", "table", "other"}
    assert placement.on_host == ()
    assert placement.cache_bytes == {}
    assert placement.taken_bytes == 910 * MB


def test_what_saves_most_per_byte_goes_first() -> None:
    placement = _plan(GRAPH, TABLE, OTHER, budget_mb=450)

    assert placement.on_device == ("table",)
    assert placement.on_host == ("graph", "other")


def test_what_is_left_is_cache_of_what_stayed_behind() -> None:
    placement = _plan(GRAPH, TABLE, budget_mb=310)

    assert placement.on_device == ("graph",)
    # But for the 110 MB that the next revision needs beside it.
    assert placement.cache_bytes == {"table": 90 * MB}
    assert placement.taken_bytes == 200 * MB


def test_what_the_replaced_revision_has_need_not_be_left_for_the_next() -> None:
    placement = plan_placement(
        (GRAPH, TABLE), required_bytes=10 * MB, budget_bytes=310 * MB, caches=True, replaced_bytes=80 * MB
    )

    assert placement is not None
    assert placement.cache_bytes == {"table": 170 * MB}


def test_caches_share_as_their_tables_are_read() -> None:
    placement = _plan(TABLE, OTHER, budget_mb=120)

    assert placement.cache_bytes == {"table": 80 * MB, "other": 20 * MB}


def test_without_caches_what_is_left_is_left() -> None:
    placement = _plan(GRAPH, TABLE, budget_mb=310, caches=False)

    assert placement.cache_bytes == {}
    assert placement.taken_bytes == 110 * MB


def test_a_cache_too_small_to_be_worth_it_is_none() -> None:
    parts = (GRAPH, TABLE)
    placement = plan_placement(parts, required_bytes=0, budget_bytes=2 * GRAPH.size_bytes + MB - 1, caches=True)

    assert placement is not None
    assert placement.cache_bytes == {}


def test_what_cannot_be_pinned_goes_before_what_is_worth_more() -> None:
    placement = _plan(GRAPH, TABLE, OTHER, budget_mb=450, unpinnable=("other",))

    assert placement.on_device == ("other",)
    assert placement.on_host == ("graph", "table")


def test_what_neither_fits_nor_can_be_pinned_is_left_out() -> None:
    placement = _plan(GRAPH, TABLE, budget_mb=110, unpinnable=("table",))

    assert placement.left_out == ("table",)
    assert placement.on_device == ("graph",)


def test_nothing_goes_without_what_is_required() -> None:
    assert plan_placement([GRAPH], required_bytes=11, budget_bytes=10, caches=True) is None


def test_parts_of_a_revision_are_what_its_variants_read() -> None:
    loaded = revision("GraphSAGE", (4, 3))
    parts = {part.name: part for part in parts_of(loaded)}

    assert set(parts) == {INDPTR, INDICES, "features-float32 rows"}
    # Per seed 5 rows draw and 16 neighbours are drawn; x1 reads 48 bytes of a row, x2 24, which is a sector.
    assert parts[INDPTR].read_bytes_per_seed == 5 * LINK_BYTES
    assert parts[INDICES].read_bytes_per_seed == 16 * LINK_BYTES
    assert parts["features-float32 rows"].read_bytes_per_seed == 21 * (48 + 32) / 2
    assert parts["features-float32 rows"].cacheable


def test_own_rows_of_a_projected_table_are_a_part_without_cache() -> None:
    parts = {part.name: part for part in parts_of(projected_revision("GraphSAGE", (4, 3), Storage.FLOAT32))}

    assert parts["projected-float32 rows"].cacheable
    assert not parts["projected-float32 own rows"].cacheable
    assert parts["projected-float32 own rows"].worth < parts["projected-float32 rows"].worth


def test_chunks_are_smaller_where_fanouts_would_make_them_large() -> None:
    def planned(*fanouts: int) -> LaneSizes:
        return plan_lane(revision("GIN", fanouts).variants.values())

    usual, large = planned(25, 10), planned(99, 100, 100)

    assert usual.seeds == 256
    assert usual.buckets == (1, 2, 4, 8, 16, 32, 64, 128, 256)
    assert large.seeds == 32
    assert large.device_bytes <= 512 * 2**20 < large.device_bytes * 2


@pytest.mark.parametrize(("seeds", "bucket"), [(1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (256, 256)])
def test_a_bucket_is_the_next_power_of_two(seeds: int, bucket: int) -> None:
    assert bucket_of(seeds) == bucket
