"""Generations killed at each of their steps: `python -m tests.support.generation.killed_at_steps MANIFESTS FOLDER
[STEP…]`.

MANIFESTS is a JSON file with manifests by name. Each is generated undisturbed once; then by one process after another,
each killed by SIGKILL at one step, the first at the first, until one lives. Each is a process of its own, forked before
anything was computed. Prints a line of JSON for each manifest, with what every process did.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sklearn.metrics  # noqa: F401 - for all children at once, as what generation imports late
from tests.support.machine.interruption import in_child

from gnnserve_api.spec.service import GNNService
from gnnserve_worker.generation import learning, one_relation, pipeline, profile, relations, steps, train  # noqa: F401
from gnnserve_worker.generation.learning import KeptNetworks
from gnnserve_worker.progress import IMPORT, Progress
from gnnserve_worker.repository import files
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.repository.revision_files import StagedRevision

STEPS = ("import", "choose networks", "learn", "plan", "write", "measure", "publish")
"""In their order (`generation/steps.py`)."""


def main(manifests: Path, folder: Path, steps_of_all: Sequence[str]) -> None:
    for name, manifest in json.loads(manifests.read_text()).items():
        service = GNNService.model_validate(manifest)
        known = [step for step in steps_of_all if step != "learn" or service.spec.model.program is None]
        _, undisturbed = generate_in_child(service, folder / name / "whole", None)
        runs = [generate_in_child(service, folder / name / "killed", step) for step in [*known, None]]
        told = {
            "name": name, "steps": known, "undisturbed": undisturbed, "statuses": [status for status, _ in runs],
            "runs": [done for _, done in runs],
        }  # fmt: skip
        print(json.dumps(told), flush=True)


def generate_in_child(service: GNNService, root: Path, step: str | None) -> tuple[int, dict[str, Any]]:
    """How the process ended that is killed at this step (None: at none), and what it did."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "done").write_text("")
    status = in_child(partial(generate, service, root, step))
    repository = Repository(root, "default", service.metadata.name)
    made = [
        {name: entry.sha256 for name, entry in manifest.files.items()} | {"of": manifest.graph}
        for manifest in repository.revisions()
    ]
    return status, {"learnt": (root / "done").read_text().splitlines(), "published": made}


def generate(service: GNNService, root: Path, step: str | None) -> None:
    def die_at(name: str) -> None:
        if name == step:
            os.kill(os.getpid(), signal.SIGKILL)

    def listen(progress: Progress) -> None:
        if progress.stage == IMPORT and progress.done == progress.total:
            die_at("import")

    def keep(kept: KeptNetworks, network: Any) -> None:
        keep_network(kept, network)
        with (root / "done").open("a") as done:
            done.write(f"{network.name}\n")
        die_at("learn")

    def commit(staged: StagedRevision, **parts: Any) -> Any:
        # All but the one file is there that makes it a revision.
        patch.setattr(files, "rename", before(files.rename, lambda: die_at("publish")))
        return commit_revision(staged, **parts)

    keep_network, commit_revision = KeptNetworks.keep, StagedRevision.commit
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(profile, "ROUNDS", (2, 2))
        patch.setattr(KeptNetworks, "keep", keep)
        patch.setattr(StagedRevision, "commit", commit)
        patch.setattr(steps, "lessons_of", behind(steps.lessons_of, lambda: die_at("choose networks")))
        written = behind(steps.write_plans, lambda: die_at("write"))
        patch.setattr(steps, "write_plans", before(written, lambda: die_at("plan")))
        patch.setattr(steps, "measure_profile", behind(steps.measure_profile, lambda: die_at("measure")))
        pipeline.generate(service, Repository(root, "default", service.metadata.name), listen)


def before(function: Callable[..., Any], act: Callable[[], None]) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        act()
        return function(*arguments, **named)

    return call


def behind(function: Callable[..., Any], act: Callable[[], None]) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        result = function(*arguments, **named)
        act()
        return result

    return call


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:] or STEPS)
