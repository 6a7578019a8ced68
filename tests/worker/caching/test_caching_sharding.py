import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnnserve_worker.caching.sharding import LINE_BYTES, FreeSlots, choose_block_columns, plan_cache, share_out

MIB = 1 << 20


@pytest.mark.parametrize(
    ("columns", "widths", "item_bytes", "wanted"),
    [
        pytest.param(602, [602, 301, 150, 75], 4, 64, id="Reddit: the 8x variant's columns, rounded down"),
        pytest.param(100, [100, 50, 25, 12], 4, 32, id="Products: a line at least"),
        pytest.param(602, [602, 301, 150, 75], 1, 128, id="int8"),
        pytest.param(4096, [4096, 16], 2, 256, id="no more than 16 blocks"),
        pytest.param(256, [256], 2, 256, id="projected, one width: one block"),
        pytest.param(5, [5], 4, 32, id="rows shorter than a line"),
    ],
)
def test_blocks_follow_the_narrowest_variant(columns, widths, item_bytes, wanted):
    assert choose_block_columns(columns, widths, item_bytes) == wanted


def test_the_same_memory_holds_as_many_more_nodes_of_a_narrow_variant():
    plan = plan_cache(nodes=1_000_000, columns=512, widths=[512, 256, 128, 64], item_bytes=4, budgets_bytes=[900 * MIB])
    nodes = [plan.capacity // -(-width // plan.block_columns) for width in (512, 256, 128, 64)]
    assert [round(count / nodes[0], 2) for count in nodes] == [1, 2, 4, 8]


@given(
    nodes=st.integers(1, 10**6),
    columns=st.integers(1, 2000),
    factor=st.integers(1, 16),
    item_bytes=st.sampled_from([1, 2, 4]),
    budgets=st.lists(st.integers(0, 2000), min_size=1, max_size=4),
)
def test_no_device_takes_more_than_its_budget(nodes, columns, factor, item_bytes, budgets):
    budgets_bytes = [budget * MIB for budget in budgets]
    plan = plan_cache(
        nodes=nodes, columns=columns, widths=[columns, max(1, columns // factor)], item_bytes=item_bytes,
        budgets_bytes=budgets_bytes,
    )  # fmt: skip
    if plan is None:
        return
    assert 0 < plan.capacity <= plan.items
    assert plan.blocks * plan.block_columns >= columns
    assert plan.block_bytes % LINE_BYTES == 0
    for taken, slots, budget in zip(plan.memory_bytes, plan.slots, budgets_bytes, strict=True):
        assert slots == 0 or taken <= budget


def test_a_budget_that_holds_no_slot_makes_no_cache():
    assert plan_cache(nodes=10**6, columns=512, widths=[512], item_bytes=4, budgets_bytes=[5 * MIB]) is None
    assert plan_cache(nodes=10**6, columns=512, widths=[512], item_bytes=4, budgets_bytes=[5 * MIB, 10**9]) is None


def test_slots_are_no_more_than_a_directory_can_number():
    plan = plan_cache(
        nodes=200_000_000, columns=2048, widths=[2048, 128], item_bytes=1, budgets_bytes=[140 << 30, *[110 << 30] * 3]
    )
    assert plan.slots_per_device * len(plan.slots) < 2**31
    assert plan.capacity > 2**31 - 1000


def test_a_cache_is_no_larger_than_what_there_is():
    plan = plan_cache(nodes=1000, columns=64, widths=[64], item_bytes=4, budgets_bytes=[900 * MIB, 900 * MIB])
    assert plan.slots == (500, 500)


def test_slots_are_shared_out_evenly_as_room_allows():
    assert share_out(90, [100, 10, 100]) == (40, 10, 40)
    assert share_out(1000, [100, 10, 100]) == (100, 10, 100)


def test_items_lie_at_home_until_that_is_full_and_then_anywhere():
    free = FreeSlots([2, 3])
    assert free.take(np.array([0, 2, 1])).tolist() == [0, 1, 3]
    assert free.take(np.array([4, 6])).tolist() == [4, 5]
    assert free.count == 0
    with pytest.raises(ValueError, match="1 slots wanted, 0 are free"):
        free.take(np.array([1]))
    free.give_back(np.array([4, 0], dtype=np.int32))
    assert free.take(np.array([8, 3])).tolist() == [0, 4]


def test_two_devices_hold_what_one_of_twice_the_size_would():
    # All of the nodes belong to the first device.
    nodes = 2 * np.arange(20)
    assert len(set(FreeSlots([10, 10]).take(nodes).tolist())) == len(FreeSlots([20]).take(nodes)) == 20
