"""One way to the API server for kopf and for our own requests, which follows a rotated token."""

from __future__ import annotations

import asyncio
import datetime
from pathlib import Path
from typing import Any

import pytest
from kubernetes.aio.config import incluster_config
from tests.support.fake_api import FakeApi
from tests.support.fake_cluster import FakeCluster

from gnnserve_api.errors import ResourceError
from gnnserve_operator.login import load_connection, login


def test_kopf_and_we_go_where_kubeconfig_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(FakeApi(FakeCluster(), 1234).write_kubeconfig(tmp_path)))
    info = asyncio.run(login())
    assert (info.server, info.scheme, info.token) == ("http://127.0.0.1:1234", "Bearer", "not-a-secret")
    assert asyncio.run(load_connection()).host == info.server


def test_in_a_pod_the_service_account_is_used_and_its_rotated_token_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, authority = tmp_path / "token", tmp_path / "ca.crt"
    token.write_text("first")
    authority.write_text("a certificate")
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(authority))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    read: Any = incluster_config.InClusterConfigLoader._read_token_file

    def read_and_expire(loader: Any) -> None:
        read(loader)
        loader.token_expires_at = datetime.datetime.min

    monkeypatch.setattr(incluster_config.InClusterConfigLoader, "_read_token_file", read_and_expire)

    async def headers() -> list[str | None]:
        connection = await load_connection()
        before = await connection.get_api_key_with_prefix("BearerToken")
        token.write_text("second")
        return [before, await connection.get_api_key_with_prefix("BearerToken")]

    assert asyncio.run(headers()) == ["bearer first", "bearer second"]
    info = asyncio.run(login())
    assert (info.server, info.ca_path, info.token) == ("https://10.0.0.1:443", str(authority), "second")


def test_without_a_way_in_the_message_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nowhere"))
    with pytest.raises(ResourceError, match="set KUBECONFIG, or run in a pod"):
        asyncio.run(load_connection())
