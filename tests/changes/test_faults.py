"""Clients write and read through workers that are killed, paused and cut off from their PostgreSQL, as is that itself.

A short piece of `make bench-updates-faults`: real processes, and every promise of docs/updates.md about what they say.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from tests.changes.campaign.clients import Pace
from tests.changes.campaign.faults import KILLS, Away
from tests.changes.campaign.history import Acknowledged, Seen
from tests.changes.campaign.play import Plan, play
from tests.support import campaigns
from tests.support.changes.postgres import PostgresServer

KILLED = campaigns.whole_or(9, 3)
PLAN = Plan("a test 3", KILLED, "stored1", pace=Pace(0.05, 0.05), away=Away(0.05, 0.3, 0.05))


@pytest.mark.campaign
def test_nothing_that_was_acknowledged_is_lost_doubled_or_out_of_order(server: PostgresServer, tmp_path: Path) -> None:
    played = play(PLAN, tmp_path, server)
    assert played.violations == ()
    faults = Counter(done.event.fault for done in played.done)
    assert {faults[kill] for kill in KILLS} == {KILLED // len(KILLS)}
    acknowledged = [one for one in played.history.attempts if isinstance(one.answer, Acknowledged)]
    by_client = Counter(client for client, _ in {one.key for one in acknowledged})
    assert len(by_client) == PLAN.writers
    assert any(isinstance(read.answer, Seen) and read.min_offset for read in played.history.reads)
    assert len(played.history.replicas) == PLAN.workers
    assert played.compactions.done
