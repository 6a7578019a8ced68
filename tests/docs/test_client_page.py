"""docs/client.md: its examples run against a worker, and it names all that the package offers."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
from tests.support.pages.pages import code_blocks, first_cells, read_page, section
from tests.support.serving.client_worker import Brought, client_worker
from tests.support.serving.secured_worker import started

import gnnserve_client
from gnnserve_client import AsyncClient, Changes, Client
from gnnserve_client.async_client import AsyncChangesClient
from gnnserve_client.client import ChangesClient
from gnnserve_worker.serving.security.credentials import Credentials

PAGE = read_page("client.md")
WRITING = "writing-0123456789ab"


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    Path("write-token").write_text(WRITING)
    names: dict[str, Any] = {}
    with started(Credentials(write_tokens=tmp_path / "write-token"), of=client_worker(Brought())) as worker:
        for program in code_blocks(PAGE, "python"):
            here = program.replace("http://127.0.0.1:8080", f"http://127.0.0.1:{worker.port}")
            exec(compile(here, "docs/client.md", "exec"), names)  # noqa: S102  (our own page)
        names["client"].close()
    told = capsys.readouterr().out
    assert told.startswith("[40 40 10]\nx1 ")
    assert "\n3 3\n" in told
    assert "UnknownNode nodes[1]\nnode ids are 0 to 999" in told
    assert told.endswith(f"{[10 + 10 * (node % 4) for node in range(20)]}\n")


def parameters(of: Any) -> list[str]:
    return [name for name in inspect.signature(of).parameters if name != "self"]


@pytest.mark.parametrize(
    ("heading", "of"),
    [
        pytest.param("Predictions", Client.predict, id="predict"),
        pytest.param("Changing the graph", Changes, id="Changes"),
        pytest.param("TLS and tokens", Client, id="Client"),
    ],
)
def test_every_argument_is_explained(heading: str, of: Any) -> None:
    _, *explained = first_cells(section(PAGE, heading))
    assert sorted(explained) == sorted(parameters(of))


def test_every_error_and_every_name_is_on_the_page() -> None:
    errors = {name for name in gnnserve_client.__all__ if name.endswith("Error")}
    assert set(first_cells(section(PAGE, "Errors"))) <= errors
    assert [name for name in gnnserve_client.__all__ if f"`{name}`" not in PAGE and f"import {name}" not in PAGE
            and name not in {"Applied", "Prediction"}] == []  # fmt: skip
    assert sorted(gnnserve_client.__all__) == sorted(gnnserve_client._HOMES)
    for name in gnnserve_client.__all__:
        assert getattr(gnnserve_client, name).__name__ == name
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = gnnserve_client.Nothing


@pytest.mark.parametrize(("mine", "other"), [(Client, AsyncClient), (ChangesClient, AsyncChangesClient)])
def test_both_clients_have_the_same_methods(mine: Any, other: Any) -> None:
    methods = {name: parameters(method) for name, method in vars(mine).items() if name[0] != "_"}
    assert methods == {name: parameters(method) for name, method in vars(other).items() if name[0] != "_"}
    assert [name for name in methods if f"{name}(" not in PAGE and f".{name}" not in PAGE] == []
