"""The identity of a revision follows from the content of its files, and not from the folder that they are in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gnnserve_api.errors import InputError
from gnnserve_api.manifest import load_manifest
from gnnserve_api.spec.service import API_VERSION, KIND
from gnnserve_worker.generation.pipeline import identity_of
from gnnserve_worker.repository.paths import RevisionIdentity

TABLES = {"nodes.csv": "id,label,size\n0,a,1\n1,b,2\n", "edges.csv": "source,target\n0,1\n", "m.safetensors": "weights"}
TYPED = {
    "csv": {
        "nodes": [{"type": "t", "uri": "nodes.csv", "label": "label"}],
        "edges": [{"uri": "edges.csv", "sourceType": "t", "relation": "r", "targetType": "t"}],
    }
}
NODES, EDGES = {"uri": "nodes.csv", "label": "label"}, {"uri": "edges.csv"}
SPECS: dict[str, dict[str, Any]] = {
    "tables": {"graph": {"source": {"csv": {"nodes": NODES, "edges": EDGES}}}},
    "an archive": {"graph": {"source": {"npz": {"uri": "nodes.csv"}}}},
    "types": {"graph": {"source": {"typed": TYPED}}},
    "weights": {"graph": {"source": {"npz": {"uri": "nodes.csv"}}}, "model": {"checkpoint": {"uri": "m.safetensors"}}},
    "given variants": {
        "graph": {"source": {"npz": {"uri": "edges.csv"}}},
        "variants": {"given": [{"checkpoint": {"uri": "./m.safetensors"}, "columns": [0]}]},
    },
}  # fmt: skip


def written(folder: Path, spec: dict[str, Any]) -> Path:
    folder.mkdir()
    for name, content in TABLES.items():
        (folder / name).write_text(content)
    head = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "a"}}
    (folder / "a.yaml").write_text(json.dumps({**head, "spec": spec}))
    return folder


def identity_in(folder: Path) -> RevisionIdentity:
    return identity_of(load_manifest(folder / "a.yaml").spec)


@pytest.mark.parametrize("kind", SPECS)
def test_a_folder_that_moved_has_the_same_revision_and_one_with_other_content_has_another(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = written(tmp_path / "here", SPECS[kind])
    before = identity_in(folder)
    moved = folder.rename(tmp_path / "there")
    monkeypatch.chdir("/")
    assert identity_in(moved) == before
    for name, content in TABLES.items():
        if name in json.dumps(SPECS[kind]):
            (moved / name).write_text(f"{content} ")
            assert identity_in(moved) != before, name
            (moved / name).write_text(content)


def test_files_that_are_missing_are_named_together(tmp_path: Path) -> None:
    folder = written(tmp_path / "here", SPECS["tables"])
    for name in ("nodes.csv", "edges.csv"):
        (folder / name).unlink()
    with pytest.raises(InputError, match=rf"names 2 files that are not there: .*nodes.csv \({folder}/nodes.csv\), .*"):
        identity_in(folder)
    (folder / "edges.csv").touch()
    with pytest.raises(InputError, match=rf"cannot read {folder}/nodes.csv"):
        identity_in(folder)
