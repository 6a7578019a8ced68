"""A worker pod's credentials: where its environment says they are, and that it waits where they are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from gnnserve_api.errors import InputError
from gnnserve_worker.following.routing_watch import ApiServer
from gnnserve_worker.pods import serve
from gnnserve_worker.pods.serve import WorkerSettings
from gnnserve_worker.serving.process import server
from gnnserve_worker.serving.process.served_service import ServiceSettings
from gnnserve_worker.serving.security.credentials import Credentials
from gnnserve_worker.serving.security.tls import KeyPairFiles

POD = {
    "GNNSERVE_SERVICE": "digits",
    "GNNSERVE_NAMESPACE": "shop",
    "GNNSERVE_ROUTING": "digits-routing",
    "GNNSERVE_REPOSITORY": "/repository",
    "KUBERNETES_SERVICE_HOST": "10.0.0.1",
    "KUBERNETES_SERVICE_PORT": "443",
}


def test_without_words_about_them_there_are_none() -> None:
    settings = WorkerSettings.read(POD)
    assert (settings.tls, settings.tokens, settings.write_tokens) == (None, None, None)


def test_folders_are_those_of_the_environment() -> None:
    settings = WorkerSettings.read(
        {**POD, "GNNSERVE_TLS": "/etc/gnnserve/tls", "GNNSERVE_TOKENS": "/etc/gnnserve/tokens"}
        | {"GNNSERVE_WRITE_TOKENS": "/etc/gnnserve/write-tokens"}
    )
    assert (settings.tls, settings.tokens) == (Path("/etc/gnnserve/tls"), Path("/etc/gnnserve/tokens"))
    assert settings.write_tokens == Path("/etc/gnnserve/write-tokens")


def test_a_pod_waits_for_what_its_secrets_lack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ended, it would be started again with growing delays, and could tell nobody why."""
    used: list[Credentials] = []

    def make_worker(services: list[ServiceSettings], _lame_duck_s: float) -> None:
        used.extend(of.credentials for of in services)
        raise InputError("worker", "is not to run in this test")

    monkeypatch.setattr(server, "WorkerServer", make_worker)
    settings = WorkerSettings(
        service="digits",
        namespace="shop",
        routing="digits-routing",
        repository=tmp_path / "repository",
        api=ApiServer("http://127.0.0.1:1", tmp_path / "token"),
        host="127.0.0.1",
        port=0,
        tls=tmp_path / "tls",
        tokens=tmp_path / "tokens",
        write_tokens=tmp_path / "write",
    )
    serve.run(lambda: settings)
    pair = KeyPairFiles(tmp_path / "tls" / "tls.crt", tmp_path / "tls" / "tls.key")
    assert used == [Credentials(pair, tmp_path / "tokens", tmp_path / "write", waits=True)]
