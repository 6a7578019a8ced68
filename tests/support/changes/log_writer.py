"""A program that appends batches to a SQLite log until it is killed, and prints which of them were confirmed.

Arguments: the file, the name of the client, the sequence that it begins with.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from tests.support.changes.logs import UID, entry

from gnnserve_worker.changes.sqlite_log import SqliteLog

MOST = 4
"""Batches of a group."""


def main(path: str, client: str, first: str) -> None:
    log = SqliteLog(Path(path), UID)
    draw = random.Random()  # noqa: S311
    sequence = int(first)
    while True:
        size = draw.randint(1, MOST)
        group = [
            entry(client, number, bytes(draw.choice([100, 20_000]))) for number in range(sequence, sequence + size)
        ]
        for one, appended in zip(group, log.append(group), strict=True):
            sys.stdout.write(f"{one.sequence} {appended.offset}\n")
        sys.stdout.flush()
        sequence += size


if __name__ == "__main__":
    main(*sys.argv[1:])
