"""Seconds that each stage of a generation takes, in a checkout of whichever commit: `python -m tools.step_times
MANIFEST FOLDER…`. A stage is what progress reports; its seconds are those from its first report to the next stage's."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tools.calls import variables_of

_PROGRAM = """
import json, sys, tempfile, time
from pathlib import Path
from gnnserve_api.manifest import load_manifest
from gnnserve_worker.generation.pipeline import generate
from gnnserve_worker.repository.repository import Repository
heard, now = [("start", time.monotonic())], time.monotonic
def listen(progress):
    if progress.stage != heard[-1][0]:
        heard.append((progress.stage, now()))
with tempfile.TemporaryDirectory() as folder:
    generate(load_manifest(Path(sys.argv[1])), Repository(Path(folder), "default", "timed"), listen)
steps = zip(heard, [*heard[1:], ("", now())])
print(json.dumps([[stage, ended_s - begun_s] for (stage, begun_s), (_, ended_s) in steps]))
"""


def time_steps(manifest: Path, folder: Path) -> dict[str, float]:
    """Seconds by stage, in order, of a generation by the checkout in `folder`; the same stage's several turns added."""
    command = [sys.executable, "-c", _PROGRAM, str(manifest.resolve())]
    ended = subprocess.run(command, cwd=folder, env=variables_of(folder), check=True, stdout=subprocess.PIPE)
    steps: dict[str, float] = {}
    for stage, step_s in json.loads(ended.stdout.splitlines()[-1]):
        steps[stage] = steps.get(stage, 0.0) + step_s
    return steps


def main(manifest: Path, folders: list[Path]) -> None:
    for folder in folders:
        print(folder.name, flush=True)
        for stage, step_s in time_steps(manifest, folder).items():
            print(f"{step_s:8.2f} s  {stage}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(folder) for folder in sys.argv[2:]])
