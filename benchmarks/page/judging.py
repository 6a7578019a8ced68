"""Judges all committed results by the verdicts of today, after a change of what is wanted; nothing is measured."""

from __future__ import annotations

from benchmarks.page.catalogue import MODULES, benchmark
from benchmarks.results import FOLDER, judge_again


def main() -> None:
    for name in MODULES:
        if (FOLDER / f"{name}.json").exists():
            judge_again(benchmark(name))


if __name__ == "__main__":
    main()
