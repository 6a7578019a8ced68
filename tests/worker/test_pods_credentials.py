"""A worker pod's credentials: where its environment says they are, and that it ends, saying why, where they are not."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from tests.support.certificates import make_key_pair
from tests.support.mounted import mount

from gnnserve_api.pods import PodExit
from gnnserve_worker.pods import serve
from gnnserve_worker.pods.routing_watch import ApiServer
from gnnserve_worker.pods.serve import Settings

POD = {
    "GNNSERVE_SERVICE": "digits",
    "GNNSERVE_NAMESPACE": "shop",
    "GNNSERVE_ROUTING": "digits-routing",
    "GNNSERVE_REPOSITORY": "/repository",
    "KUBERNETES_SERVICE_HOST": "10.0.0.1",
    "KUBERNETES_SERVICE_PORT": "443",
}


def test_without_words_about_them_there_are_none() -> None:
    settings = Settings.read(POD)
    assert (settings.tls, settings.tokens) == (None, None)


def test_folders_are_those_of_the_environment() -> None:
    settings = Settings.read({**POD, "GNNSERVE_TLS": "/etc/gnnserve/tls", "GNNSERVE_TOKENS": "/etc/gnnserve/tokens"})
    assert (settings.tls, settings.tokens) == (Path("/etc/gnnserve/tls"), Path("/etc/gnnserve/tokens"))


def end_of(folder: Path) -> int:
    (folder / "repository").mkdir()
    settings = Settings(
        service="digits",
        namespace="shop",
        routing="digits-routing",
        repository=folder / "repository",
        api=ApiServer("http://127.0.0.1:1", folder / "token"),
        host="127.0.0.1",
        port=0,
        tls=folder / "tls",
        tokens=folder / "tokens",
    )
    return serve.run(lambda: settings)


def test_a_pod_does_not_answer_without_its_tokens(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    mount(tmp_path / "tokens", {"a": "too short"})
    with caplog.at_level(logging.CRITICAL):
        assert end_of(tmp_path) == PodExit.BAD_INPUT
    assert f"{tmp_path / 'tokens' / 'a'}: holds 9 characters that are no token" in caplog.text
    assert "too short" not in caplog.text


def test_a_pod_does_not_answer_without_its_certificate(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    mount(tmp_path / "tokens", {"a": "alpha-0123456789abcdef"})
    pair = make_key_pair(tmp_path / "made", days=-1)
    mount(tmp_path / "tls", {"tls.crt": pair.certificate.read_bytes(), "tls.key": pair.key.read_bytes()})
    with caplog.at_level(logging.CRITICAL):
        assert end_of(tmp_path) == PodExit.RESOURCE
    assert "tls.crt: no client would accept it: certificate has expired" in caplog.text
