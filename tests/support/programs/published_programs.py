"""Published revisions whose model is a program."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tests.support.generation.repository import (
    CLASSES,
    FEATURES,
    TABLE,
    commit,
    repository_in,
    tiny_graph,
    tiny_profile,
    write_features,
)
from tests.support.programs.programs import manifest_of, write_linear

from gnnserve_api.files.programs import InputRole, ProgramInput, ProgramManifest
from gnnserve_api.files.repository import RevisionManifest, VariantManifest, program_network
from gnnserve_worker.opening.revision import open_revision
from gnnserve_worker.repository.repository import Repository

WEIGHTS = np.random.default_rng(1).normal(size=(FEATURES, len(CLASSES))).astype(np.float32)
PROGRAM_OF = manifest_of((ProgramInput("x", InputRole.FEATURES),), hops=1, columns=len(CLASSES))


def variant_of(name: str, program: ProgramManifest) -> VariantManifest:
    network = program_network(program)
    return VariantManifest(
        name=name, family="pruned", table=TABLE, columns=FEATURES, fanouts=network.fanouts, network=network,
        compute="float32", weights=program.file,
    )  # fmt: skip


def published(root: Path, program: ProgramManifest = PROGRAM_OF) -> tuple[Repository, RevisionManifest]:
    """Two variants of one program."""
    repository, graph = repository_in(root), tiny_graph()
    (root / "brought").mkdir(parents=True)
    write_linear(root / "brought" / "model.onnx", WEIGHTS)
    for name in program.data_files:
        (root / "brought" / name).write_bytes(b"weights")
    profile = tiny_profile({"x1": FEATURES, "x2": FEATURES})
    with repository.locked(None):
        repository.put_graph(graph)
        with repository.stage("recipe", graph.digest) as staged:
            write_features(staged, graph.features, range(FEATURES))
            kept = staged.write_program("x1", root / "brought", program)
            variants = [variant_of(name, kept) for name in ("x1", "x2")]
            open_revision(staged.files_of(variants))
            return repository, commit(staged, "2026-01-01T00:00:00Z", profile, variants)
