"""Weights on the Hugging Face Hub, against a stand-in of it: fetched once, verified, and refused with a next step."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from tests.support.generation.stand_in_hub import COMMIT, SIGNATURE, StandInHub, running_hub
from tests.support.graphs.graphs import (
    network_manifest,
    npz_arrays,
    planted_graph,
    random_tensors,
    service_of,
    write_npz,
)

from gnnserve_api.errors import InputError, ResourceError
from gnnserve_api.files.repository import RevisionManifest
from gnnserve_api.pods.interface import HUB_ENDPOINT_VARIABLE, HUB_TOKEN_FILE_VARIABLE, HUB_TOKEN_VARIABLE
from gnnserve_api.spec.hub import TENSORS, HubAddress
from gnnserve_api.spec.paths import paths_of
from gnnserve_api.spec.service import GNNService
from gnnserve_worker.downloads.connection import DownloadPatience
from gnnserve_worker.generation.hub import client
from gnnserve_worker.generation.hub.client import Hub
from gnnserve_worker.generation.hub.weights import fetched_file, with_fetched_files, with_kept_files
from gnnserve_worker.generation.pipeline import find, generate
from gnnserve_worker.progress import Progress, silent
from gnnserve_worker.repository.repository import Repository

GRAPH = planted_graph((0, 1), nodes=40, columns=4, classes=(0, 1))
WEIGHTS = safetensors.numpy.save(random_tensors(network_manifest("GraphSAGE", (3, 2), classes=2), 4, seed=0))
NAME = "lab/papers"
SECRET = "hf_secret-of-the-lab"  # noqa: S105


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandInHub]:
    with running_hub() as found:
        monkeypatch.setenv(HUB_ENDPOINT_VARIABLE, found.endpoint)
        monkeypatch.delenv(HUB_TOKEN_VARIABLE, raising=False)
        monkeypatch.setattr("time.sleep", lambda seconds: None)
        yield found


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    write_npz(tmp_path / "graph.npz", npz_arrays(GRAPH))
    return Repository(tmp_path / "repository", "default", "tiny")


def _service(repository: Repository, uri: str, **checkpoint: Any) -> GNNService:
    return service_of(
        (repository.folder.parents[2] / "graph.npz").as_uri(),
        model={"hidden": 8, "fanouts": [3, 2], "checkpoint": {"uri": uri, **checkpoint}},
        variants={"pruning": {"factors": [1]}, "projection": "Disabled"},
    )


def _address(uri: str) -> HubAddress:
    address = HubAddress.parse(uri, TENSORS.default)
    assert address is not None
    return address


def _fetch(hub: StandInHub, folder: Path, name: str = NAME, file: str = "") -> Path:
    return fetched_file(_address(hub.address(name, file)), "spec.model.checkpoint.uri", folder, silent)


def test_weights_of_a_commit_are_served_as_a_file_would_be(hub: StandInHub, repository: Repository) -> None:
    hub.put(NAME, {"README.md": b"x", "model.safetensors": WEIGHTS}, large=("model.safetensors",))
    service = _service(repository, hub.address(NAME))
    told: list[Progress] = []
    assert find(service, repository) is None and not hub.requests

    published = generate(service, repository, told.append)

    assert published.checkpoint == hashlib.sha256(WEIGHTS).hexdigest()
    assert "download model.safetensors" in {one.stage for one in told}
    file = repository.folder.parents[2] / "file.safetensors"
    file.write_bytes(WEIGHTS)
    beside = generate(_service(repository, file.as_uri()), repository)
    assert isinstance(beside, RevisionManifest) and beside.checkpoint == published.checkpoint


def test_what_was_fetched_needs_no_network(hub: StandInHub, repository: Repository) -> None:
    hub.put(NAME, {"model.safetensors": WEIGHTS})
    service = _service(repository, hub.address(NAME))
    published = generate(service, repository)
    asked = len(hub.requests)
    assert generate(service, repository).revision == published.revision
    found = find(service, repository)
    assert found is not None and found.revision == published.revision
    assert len(hub.requests) == asked == 2


def test_an_altered_file_is_fetched_again(hub: StandInHub, tmp_path: Path) -> None:
    hub.put(NAME, {"model.safetensors": WEIGHTS})
    path = _fetch(hub, tmp_path)
    path.write_bytes(WEIGHTS[:-1] + b"x")
    assert _fetch(hub, tmp_path).read_bytes() == WEIGHTS


def test_addresses_stay_what_the_recipe_is_made_of(hub: StandInHub, repository: Repository) -> None:
    hub.put(NAME, {"model.safetensors": WEIGHTS, "parts/small.safetensors": WEIGHTS})
    service = _service(repository, hub.address(NAME, "parts/small.safetensors"))
    spec = with_fetched_files(service.spec, repository.downloads, silent)
    checkpoint = spec.model.checkpoint
    assert checkpoint is not None and checkpoint.uri.path.read_bytes() == WEIGHTS
    assert checkpoint.uri.path.is_relative_to(repository.downloads)
    assert spec.recipe() == service.spec.recipe()
    assert with_kept_files(service.spec, repository.downloads) == spec
    assert with_fetched_files(spec, repository.downloads, silent) == spec
    assert [one.field for one in paths_of(service.spec)] == ["spec.graph.source.npz.uri"]


def test_a_token_goes_to_the_hub_alone(hub: StandInHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.put(NAME, {"model.safetensors": WEIGHTS}, large=("model.safetensors",), token=SECRET)
    file = tmp_path / "token"
    file.write_text(f"{SECRET}\n")
    monkeypatch.setenv(HUB_TOKEN_FILE_VARIABLE, str(file))
    assert _fetch(hub, tmp_path).read_bytes() == WEIGHTS
    assert {one.authorization for one in hub.requests if one.host == "hub"} == {f"Bearer {SECRET}"}
    assert [one.authorization for one in hub.requests if one.host == "store"] == [None]
    kept = "".join(one.read_text(errors="replace") for one in tmp_path.rglob("*.json"))
    assert SECRET not in kept and SIGNATURE not in kept


def test_a_token_is_not_shown() -> None:
    found = Hub.of_environment({HUB_TOKEN_VARIABLE: SECRET})
    assert found.token == SECRET and SECRET not in repr(found)
    with pytest.raises(InputError, match=r"characters that no token has") as refused:
        Hub.of_environment({HUB_TOKEN_VARIABLE: f"{SECRET}\nx: y"})
    assert SECRET not in str(refused.value)


def test_a_secret_without_the_key_may_come_later(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match=r"has no key token"):
        Hub.of_environment({HUB_TOKEN_FILE_VARIABLE: str(tmp_path / "token")})


@pytest.mark.parametrize(
    ("files", "parts", "file", "words"),
    [
        ({"a.safetensors": b"", "b.safetensors": b""}, {}, "", "it has a.safetensors, b.safetensors; write one"),
        (
            {"pytorch_model.bin": b"", "config.json": b""}, {}, "",
            "its weights are in pytorch_model.bin, which may run code when it is read; .* `gnnserve model inspect "
            "pytorch_model.bin --out model.safetensors` reads it as data",
        ),
        ({"README.md": b""}, {}, "", "nor any .safetensors file; name a repository that has one"),
        ({"model.safetensors": b""}, {"token": SECRET}, "", "or it is private and no token is given; .*HF_TOKEN"),
        ({"model.safetensors": b"x"}, {"gated": True}, "", "open to some accounts alone, and no token is given; ask"),
    ],
)  # fmt: skip
def test_what_cannot_be_fetched_is_refused_with_the_next_step(
    files: dict[str, bytes], parts: dict[str, Any], file: str, words: str, hub: StandInHub, tmp_path: Path
) -> None:
    hub.put(NAME, files, **parts)
    with pytest.raises(InputError, match=words):
        _fetch(hub, tmp_path, file=file)


def test_a_repository_or_a_commit_that_is_not_there_is_named(hub: StandInHub, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"there is no repository lab/papers, or it is private"):
        _fetch(hub, tmp_path)
    hub.put(NAME, {"model.safetensors": WEIGHTS})
    other = _address(hub.address(NAME).replace(COMMIT, COMMIT[::-1]))
    with pytest.raises(InputError, match=rf"lab/papers has no commit {COMMIT[::-1]}; `git ls-remote "):
        fetched_file(other, "spec.model.checkpoint.uri", tmp_path, silent)


def test_a_token_that_may_not_read_it_is_told_apart(
    hub: StandInHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.put(NAME, {"model.safetensors": WEIGHTS}, token="another")  # noqa: S106
    monkeypatch.setenv(HUB_TOKEN_VARIABLE, SECRET)
    with pytest.raises(InputError, match=r"the token may not read it; correct the name$") as refused:
        _fetch(hub, tmp_path)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("large", [(), ("model.safetensors",)])
def test_another_content_than_the_hub_speaks_of_is_refused(
    large: tuple[str, ...], hub: StandInHub, tmp_path: Path
) -> None:
    hub.put(NAME, {"model.safetensors": WEIGHTS}, large=large)
    hub.sent["model.safetensors"] = WEIGHTS[:-1] + bytes([WEIGHTS[-1] ^ 1])
    with pytest.raises(ResourceError, match=r"what arrived has .* and the hub says"):
        _fetch(hub, tmp_path)
    assert [one.name for one in tmp_path.rglob("*") if one.is_file()] == [".lock"]


def test_a_file_that_is_cut_off_is_asked_for_again(hub: StandInHub, tmp_path: Path) -> None:
    hub.put(NAME, {"model.safetensors": WEIGHTS})
    hub.sent["model.safetensors"] = WEIGHTS[:100]
    with pytest.raises(ResourceError, match=rf"100 of {len(WEIGHTS):,} bytes arrived"):
        _fetch(hub, tmp_path)
    assert len(hub.requests) == 2 + len(DownloadPatience().pauses_s)


def test_a_file_that_breaks_off_is_continued_where_it_ended(hub: StandInHub, tmp_path: Path) -> None:
    content = bytes(range(256)) * 40
    hub.put(NAME, {"model.safetensors": content}, large=("model.safetensors",))
    hub.broken_off = 8000
    assert _fetch(hub, tmp_path).read_bytes() == content
    assert [one.range for one in hub.requests if one.host == "store"] == [None, "bytes=8000-"]


def test_a_page_in_the_place_of_a_file_is_refused_by_its_title(hub: StandInHub, tmp_path: Path) -> None:
    page = b"<html><head><title>Sign in to the network</title></head>"
    hub.put(NAME, {"model.safetensors": page})
    with pytest.raises(
        InputError, match=r"a web page \(Sign in to the network\), .*; check the proxy, and HF_ENDPOINT"
    ):
        _fetch(hub, tmp_path)


def test_a_longer_file_than_the_hub_says_is_not_read_to_its_end(hub: StandInHub, tmp_path: Path) -> None:
    hub.put(NAME, {"model.safetensors": WEIGHTS})
    hub.sent["model.safetensors"] = WEIGHTS * 2
    with pytest.raises(InputError, match=r"is longer than the hub says"):
        _fetch(hub, tmp_path)


def test_a_large_file_is_refused_before_it_is_fetched(
    hub: StandInHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "MOST_BYTES", 100)
    hub.put(NAME, {"model.safetensors": WEIGHTS})
    with pytest.raises(InputError, match=r"are fetched at most; bring the file to the volume of spec.graph.volume"):
        _fetch(hub, tmp_path)
    assert len(hub.requests) == 1


def test_a_hub_that_is_away_for_a_moment_is_asked_again(hub: StandInHub, tmp_path: Path) -> None:
    hub.put(NAME, {"model.safetensors": WEIGHTS})
    hub.failures = 3
    assert _fetch(hub, tmp_path).read_bytes() == WEIGHTS


def test_a_hub_that_cannot_be_reached_is_told_with_a_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HUB_ENDPOINT_VARIABLE, "http://127.0.0.1:9")
    address = _address(f"hf://{NAME}@{COMMIT}")
    with pytest.raises(
        ResourceError, match=r"cannot connect: .* let HF_ENDPOINT name a mirror, or bring the file here"
    ):
        fetched_file(address, "spec.model.checkpoint.uri", tmp_path, silent)


def test_an_answer_about_another_commit_is_refused(hub: StandInHub, tmp_path: Path) -> None:
    hub.put(NAME, {"model.safetensors": WEIGHTS})
    hub.commit = "f" * 40
    with pytest.raises(ResourceError, match=r"it tells of commit ffff"):
        _fetch(hub, tmp_path)


def test_a_program_is_fetched_too(hub: StandInHub, repository: Repository) -> None:
    hub.put(NAME, {"model.onnx": b"program", "model.safetensors": WEIGHTS})
    contract = {
        "hops": 1, "inputs": [{"name": "x", "is": "Features"}, {"name": "e", "is": "Edges"}],
        "scores": {"name": "s", "columns": 2},
    }  # fmt: skip
    np.savez(repository.folder.parents[2] / "expected.npz", nodes=np.arange(2), scores=np.zeros((2, 2)))
    service = service_of(
        (repository.folder.parents[2] / "graph.npz").as_uri(),
        model={
            "program": {"uri": hub.address(NAME), "decoder": {"uri": hub.address(NAME)}, **contract},
            "expected": {"uri": (repository.folder.parents[2] / "expected.npz").as_uri()},
        },
        task={"links": {"decoder": "MLP", "dimensions": 2}},
    )
    spec = with_fetched_files(service.spec, repository.downloads, silent)
    program = spec.model.program
    assert program is not None and program.decoder is not None
    assert (program.uri.path.read_bytes(), program.decoder.uri.path.read_bytes()) == (b"program", WEIGHTS)
