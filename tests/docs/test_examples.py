"""All of examples/: each service is read from any working directory, by `gnnserve run` and in a cluster alike."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.support.pages.pages import ROOT

from gnnserve_api.manifest import load_manifest
from gnnserve_api.spec.paths import DataVolume, paths_of, resolve
from gnnserve_worker.generation.given_variants import given_digests, load_given
from gnnserve_worker.graph.sources.load import load_source

EXAMPLES = ROOT / "examples"
SERVICES = sorted(
    path for path in EXAMPLES.rglob("*.yaml") if "\nkind: GNNService\n" in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("manifest", SERVICES, ids=lambda path: path.name)
def test_files_of_an_example_are_beside_its_manifest_and_on_its_volume(
    manifest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    spec = load_manifest(manifest).spec
    for one in paths_of(spec):
        name = one.value.written
        assert one.value.path == manifest.parent / name, one.field
        assert spec.graph.volume is not None, one.field
        mount = Path(spec.graph.volume.mount_path)
        assert resolve(name, DataVolume(mount)) == mount / name, one.field


def test_given_variants_are_those_that_the_script_makes(tmp_path: Path) -> None:
    folder = EXAMPLES / "given-variants"
    make = _program(folder / "make.py")
    make.EPOCHS = 1
    make.make(tmp_path)
    spec = load_manifest(Path(shutil.copy(folder / "given-variants.yaml", tmp_path))).spec
    graph = load_source(spec.graph.source, Path("unused"))
    loaded = load_given(spec, given_digests(spec.variants), graph)
    assert [[*variant.columns] for variant in loaded] == [[*columns] for columns in make.COLUMNS.values()]


def _program(path: Path) -> Any:
    found = importlib.util.spec_from_file_location("example", path)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module
