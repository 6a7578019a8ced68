"""A generation Job's program: what it leaves as its termination message, its exit code and in the repository."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from tests.support.lacks import needs_root
from tests.support.machine import fork_server
from tests.support.machine.waiting import WAIT_S
from tests.support.pods import generating_pod
from tests.support.pods.generating_pod import (
    environ_of,
    keep_signals,  # noqa: F401 - a fixture
    manifest_of,
)
from tests.support.pods.pods import ROOT

from gnnserve_api.errors import InputError, RepositoryError, ResourceError, StorageError
from gnnserve_api.pods.generation import MAX_TERMINATION_MESSAGE_BYTES, GenerationResult, VariantSummary, decode_result
from gnnserve_api.pods.interface import PodExit
from gnnserve_api.tiers import points_of, stated_tiers
from gnnserve_worker.generation import pipeline
from gnnserve_worker.kernel_cache import folder_of
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.pods import generate
from gnnserve_worker.repository.repository import Repository

PROGRAM = "gnnserve_worker.pods.generate"
COMMAND = [sys.executable, "-m", PROGRAM]
"""Imports everything anew: `test_a_user_without_a_name…` trains so."""


@pytest.mark.parametrize(
    "victim",
    [
        pytest.param("revisions/*/revision.json", id="its manifest"),
        pytest.param("revisions/*/tables/features-float32.npy", id="its table"),
        pytest.param("graphs/*/indices.npy", id="its graph"),
    ],
)
@pytest.mark.usefixtures("keep_signals")
def test_a_damaged_revision_is_set_aside_and_generated_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], victim: str
) -> None:
    environ = environ_of(tmp_path, manifest_of(tmp_path))
    folder = tmp_path / "repository/default/tiny"
    assert generate.main(environ) == PodExit.OK
    (damaged,) = folder.glob(victim)
    damaged.chmod(0o644)
    damaged.write_bytes(damaged.read_bytes()[:-2])
    capsys.readouterr()
    assert generate.main(environ) == PodExit.OK
    assert f"damaged, and kept in {folder}/damaged/" in capsys.readouterr().err
    summary = decode_result((tmp_path / "termination-log").read_bytes())
    assert load_revision(Repository(tmp_path / "repository", "default", "tiny"), summary.revision).manifest is not None
    kept = {path.parent.name for path in (folder / "damaged").glob("*/*")}
    assert len(kept) == 1, "nothing is deleted"


@pytest.fixture(scope="module")
def imported() -> None:
    fork_server.prepare(generating_pod.__name__)


@pytest.mark.usefixtures("imported")
def test_revision_is_published_and_summarized(tmp_path: Path) -> None:
    environ = environ_of(tmp_path, manifest_of(tmp_path))
    messages = []
    for _ in range(2):  # the second finds it published
        result = fork_server.completed(PROGRAM, env=environ)
        assert result.returncode == PodExit.OK, result.stderr
        messages.append((tmp_path / "termination-log").read_bytes())
    assert messages[0] == messages[1]
    assert "published: revision" in result.stderr
    assert (tmp_path / "repository/default/tiny/updates").is_dir(), "workers may have to write there"
    summary = decode_result(messages[0])
    manifest = load_revision(Repository(tmp_path / "repository", "default", "tiny"), summary.revision).manifest
    assert manifest is not None
    assert (summary.recipe, summary.graph) == (manifest.recipe, manifest.graph)
    tiers = {within.point.name: at for at, within in stated_tiers(points_of(manifest.profile)).items()}
    assert summary.variants == tuple(
        VariantSummary(
            name=variant.name, columns=variant.columns,
            accuracy_permille=round(1000 * variant.validation_accuracy, 1),
            latency_ms=round(manifest.profile.latency_curve(variant.name).at(1), 4),
            factor=variant.factor, size_bytes=variant.size_bytes, memory_bytes=variant.memory_bytes,
            tier_permille=tiers.get(variant.name),
        )
        for variant in manifest.profile.variants
    )  # fmt: skip


def test_a_relative_path_is_looked_for_where_the_volume_of_the_data_is_mounted(tmp_path: Path) -> None:
    spec = {"graph": {"source": {"npz": {"uri": "parts/no-such.npz"}}}}
    head = {"apiVersion": "gnnserve.dev/v1alpha1", "kind": "GNNService", "metadata": {"name": "digits"}}
    environ = environ_of(tmp_path, json.dumps({**head, "spec": spec})) | {"GNNSERVE_DATA": "/mnt/shop"}
    fork_server.completed(PROGRAM, env=environ)
    assert "cannot read /mnt/shop/parts/no-such.npz" in (tmp_path / "termination-log").read_text()


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        pytest.param("", "environment variable GNNSERVE_MANIFEST: is not set", id="no manifest"),
        pytest.param("{", "environment variable GNNSERVE_MANIFEST, line 1", id="half a manifest"),
        pytest.param('{"kind": "Pod"}', "environment variable GNNSERVE_MANIFEST:", id="another kind"),
        pytest.param(
            json.dumps(
                {
                    "apiVersion": "gnnserve.dev/v1alpha1", "kind": "GNNService", "metadata": {"name": "digits"},
                    "spec": {"graph": {"source": {"npz": {"uri": "file:///data/no-such.npz"}}}},
                }
            ),
            "spec.graph.source.npz.uri: cannot read /data/no-such.npz: No such file or directory", id="no graph file",
        ),
        pytest.param(
            json.dumps(
                {
                    "apiVersion": "gnnserve.dev/v1alpha1", "kind": "GNNService", "metadata": {"name": "digits"},
                    "spec": {"graph": {"source": {"npz": {"uri": "no-such.npz"}}}},
                }
            ),
            "spec.graph.source.npz.uri: is relative to the volume of the data, and there is none: add "
            "spec.graph.volume with the claim that has the file", id="a relative path and no volume",
        ),
        pytest.param(
            json.dumps(
                {
                    "apiVersion": "gnnserve.dev/v1alpha1", "kind": "GNNService", "metadata": {"name": "digits"},
                    "spec": {
                        "graph": {"source": {"builtin": "Digits"}}, "variants": {"pruning": {"factors": [1, 65]}},
                    },
                }
            ),
            "spec.variants.pruning.factors[1]: 65 is larger than the graph's 64 features", id="a factor too large",
        ),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("imported")
def test_bad_input_ends_with_one_message_and_its_own_code(tmp_path: Path, manifest: str, message: str) -> None:
    result = fork_server.completed(PROGRAM, env=environ_of(tmp_path, manifest))
    assert result.returncode == PodExit.BAD_INPUT
    left = (tmp_path / "termination-log").read_text()
    assert message in left
    assert f"error: {left}" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (InputError("spec.x", "is wrong", "correct it"), PodExit.BAD_INPUT, "spec.x: is wrong; correct it"),
        (RepositoryError("/x", "was altered", "delete it"), PodExit.REPOSITORY, "/x: was altered; delete it"),
        (ResourceError("the disk is full"), PodExit.RESOURCE, "the disk is full"),
        (StorageError("/repository", "is full", "free some space", on_command_line="use --x", in_cluster="let it grow"),
         PodExit.RESOURCE, "/repository: is full; free some space, or let it grow"),
        (OSError(errno.ENOSPC, "No space left on device"), PodExit.RESOURCE, "No space left on device"),
        (MemoryError(), PodExit.RESOURCE, "raise spec.generation.resources.limits.memory"),
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), PodExit.RESOURCE, "(CUDA out of memory."),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), PodExit.RESOURCE, "(DefaultCPUAllocator"),
        (ImportError("libtorch.so: failed to map segment"), PodExit.RESOURCE, "(libtorch.so: failed to map segment)"),
        (KeyError("x9"), PodExit.FAILURE, "unexpected KeyError: 'x9'; the pod's log has the details"),
    ],
    ids=["input", "repository", "resource", "storage", "full disk", "memory", "memory of a GPU", "memory of torch",
         "memory for torch", "a defect"],
)  # fmt: skip
@pytest.mark.usefixtures("keep_signals")
def test_error_becomes_a_code_and_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception,
    code: PodExit, message: str,
) -> None:  # fmt: skip
    def fail(*_: Any, **_named: Any) -> None:
        raise error

    monkeypatch.setattr(pipeline, "generate", fail)
    assert generate.main(environ_of(tmp_path, manifest_of(tmp_path))) == code
    assert message in (tmp_path / "termination-log").read_text()
    expected = isinstance(error, KeyError) or (isinstance(error, OSError) and error.errno == errno.ENOSPC)
    assert ("Traceback" in capsys.readouterr().err) is expected


@pytest.mark.usefixtures("keep_signals")
def test_an_image_without_what_trains_is_told_with_the_one_that_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch_geometric", None)
    needed = "needs torch_geometric, which is not installed; `pip install 'gnnserve[generate]'` brings it, and in a "
    assert generate.main(environ_of(tmp_path, manifest_of(tmp_path))) == PodExit.RESOURCE
    assert (tmp_path / "termination-log").read_text() == f"training: {needed}cluster an image of target `generate`"

    def fail(*_: Any, **_named: Any) -> None:
        raise ModuleNotFoundError("No module named 'torch_geometric'", name="torch_geometric")

    monkeypatch.setattr(pipeline, "generate", fail)
    assert generate.main(environ_of(tmp_path, manifest_of(tmp_path))) == PodExit.RESOURCE
    assert (tmp_path / "termination-log").read_text() == f"generation {needed}cluster an image of target `generate`"


@pytest.mark.usefixtures("keep_signals")
def test_result_that_cannot_be_told_is_a_failure_to_try_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    result = GenerationResult(revision="r1", recipe="recipe", graph="graph", variants=())
    monkeypatch.setattr("gnnserve_worker.pods.generation_job.carry_out", lambda *_: result)
    environ = environ_of(tmp_path, manifest_of(tmp_path))
    environ["GNNSERVE_TERMINATION_MESSAGE"] = str(tmp_path / "missing/termination-log")
    assert generate.main(environ) == PodExit.RESOURCE
    assert "missing/termination-log: the termination message cannot be written" in capsys.readouterr().err


@pytest.mark.usefixtures("imported")
def test_terminated_generation_leaves_nothing_unfinished(tmp_path: Path) -> None:
    environ = environ_of(tmp_path, manifest_of(tmp_path, epochs=10_000))
    with fork_server.started(PROGRAM, env=environ, stderr=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "] train x1: " in line:
                break
        process.terminate()
        rest = process.stderr.read()
        assert process.wait(WAIT_S) == 143
    assert "stopped by SIGTERM" in rest
    assert "Traceback" not in rest
    assert not (tmp_path / "termination-log").exists()
    left = {path.name for path in (tmp_path / "repository/default/tiny").rglob("*.json")}
    assert left == {"graph.json"}, "the graph is whole, and there is no revision"
    assert not list((tmp_path / "repository/default/tiny").glob("revisions/*"))


@pytest.mark.parametrize(
    ("message", "kept"),
    [
        pytest.param("short", "short", id="short"),
        pytest.param("x" * 4096, "x" * 4096, id="just fits"),
        pytest.param("x" * 4097, "x" * 4093 + "…", id="a byte too long"),
        pytest.param("ä" * 3000, "ä" * 2046 + "…", id="cut between characters"),
        pytest.param("\udcff", "\\udcff", id="a file's name that is no text"),
    ],
)
def test_message_is_cut_to_what_kubernetes_keeps(message: str, kept: str) -> None:
    found = generate.cut(message)
    assert found.decode() == kept
    assert len(found) <= MAX_TERMINATION_MESSAGE_BYTES


# --- as another user

USER, GROUP = 1_000_680_000, 0
"""As OpenShift gives them: no file of the image knows the user, who owns nothing."""


AS_USER = ["setpriv", f"--reuid={USER}", f"--regid={GROUP}", f"--groups={USER}", "--no-new-privs"]


def run_as_user(folder: Path, manifest: str, kernels: Path) -> subprocess.CompletedProcess[str]:
    """Run the pod's program as that user, with the fsGroup of the same number and kernels as an image has them."""
    environ = {**environ_of(folder, manifest), "HOME": str(folder), "NUMBA_CACHE_DIR": str(kernels)}
    command = [*AS_USER, *COMMAND]
    return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)


@needs_root("only root may run a program as another user")
def test_a_user_without_a_name_is_told_what_it_may_not_write_and_trains_where_it_may() -> None:
    if subprocess.run([*AS_USER, sys.executable, "-c", "pass"], capture_output=True, check=False).returncode != 0:
        pytest.fail(f"another user cannot run {sys.executable}: let all read and enter its folders")
    # Not below pytest's folders, which are its user's alone.
    with tempfile.TemporaryDirectory() as name, tempfile.TemporaryDirectory() as root_alone_writes:
        folder, kernels = Path(name), Path(root_alone_writes)
        folder.chmod(0o777)
        kernels.chmod(0o755)
        if (compiled := folder_of(None)) is not None and compiled.is_dir():
            shutil.copytree(compiled, kernels / compiled.name)
        manifest = manifest_of(folder)
        repository = folder / "repository"
        repository.mkdir()
        repository.chmod(0o770)
        os.chown(repository, 65_532, 65_532)
        ended = run_as_user(folder, manifest, kernels)
        told = (folder / "termination-log").read_text()
        assert ended.returncode == PodExit.RESOURCE, ended.stderr
        assert "cannot be written: Permission denied; the published revisions are untouched" in told
        assert f"runs as user {USER} and group {GROUP} (and {USER}), and {repository} belongs to user 65532" in told
        assert "with mode 770: give one of them the right to it" in told
        assert "Traceback" not in ended.stderr
        assert "[1/" not in ended.stderr, "nothing is imported or trained before"

        os.chown(repository, 65_532, USER)
        ended = run_as_user(folder, manifest, kernels)
        assert ended.returncode == PodExit.OK, ended.stderr
        assert decode_result((folder / "termination-log").read_text()).variants
