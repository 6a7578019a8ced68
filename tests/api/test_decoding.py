"""Decoders of JSON, which threads may ask for at the same time."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("crds", "operator", "worker", "cli", "client", "describe")
ELSEWHERE = re.compile(r"msgspec\.json\.Decoder\(|json\.decode\((?:[^()]|\([^()]*\))*\btype=")
IN_THREADS = """
import sys, threading
import msgspec
from gnnserve_api import decoding

sys.setswitchinterval(1e-6)  # a few of these rounds end the process, where types are prepared side by side


def decode_at_once(kind):
    start, found = threading.Barrier(4), []

    def decode():
        start.wait()
        found.append(decoding.decode(content, kind).part.numbers)

    threads = [threading.Thread(target=decode) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [(1, 2)] * 4, found


content = b'{"part": {"numbers": [1, 2]}}'
fields = [(f"field{i}", dict[str, list[int] | None], msgspec.field(default_factory=dict)) for i in range(60)]
for round in range(60):
    part = msgspec.defstruct("Part", [("numbers", tuple[int, ...], ()), *fields], frozen=True)
    decode_at_once(msgspec.defstruct("Whole", [("part", part), *fields], frozen=True))
"""


def test_threads_may_decode_a_type_for_the_first_time_at_once() -> None:
    # In a process of its own, which a race would end with SIGSEGV.
    ended = subprocess.run([sys.executable, "-c", IN_THREADS], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


def test_decoders_are_made_in_one_place() -> None:
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py") if path.name != "decoding.py"]
    assert [str(path.relative_to(ROOT)) for path in files if ELSEWHERE.search(path.read_text())] == []
