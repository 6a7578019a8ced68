"""One way to the API server for kopf and for our own requests, read from a pod's ServiceAccount or from kubeconfigs."""

from __future__ import annotations

import asyncio
import base64
import json
import math
import os
import ssl
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import kopf
import pytest
import yaml
from tests.support.kubernetes.fake_api import FakeApi
from tests.support.kubernetes.fake_cluster import FakeCluster
from tests.support.serving.certificates import make_key_pair

from gnnserve_api.errors import ResourceError
from gnnserve_operator import exec_credentials
from gnnserve_operator.login import TOKEN_FILE_S, ClusterLogin, load_access, login

OF_A_FILE = "of a file"
V1 = "client.authentication.k8s.io/v1"


def write_kubeconfig(
    path: Path, user: dict[str, Any], name: str = "one", server: str = "http://one:1", **cluster: Any
) -> Path:
    """Its `current-context` is its own."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump({
        "apiVersion": "v1", "kind": "Config", "current-context": name,
        "clusters": [{"name": name, "cluster": {"server": server, **cluster}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "users": [{"name": name, "user": user}],
    }))  # fmt: skip
    return path


def load(*kubeconfigs: Path) -> ClusterLogin:
    return asyncio.run(load_access({"KUBECONFIG": os.pathsep.join(map(str, kubeconfigs))}))


def headers(access: ClusterLogin) -> dict[str, str]:
    return access.connection.as_http_headers()


def printing(status: object, version: str = V1) -> dict[str, Any]:
    """A user whose credentials a command prints."""
    printed = json.dumps({"apiVersion": version, "kind": "ExecCredential", "status": status})
    return {"exec": {"apiVersion": V1, "command": sys.executable, "args": ["-c", f"print({printed!r})"]}}


def test_kopf_and_we_go_where_kubeconfig_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(FakeApi(FakeCluster(), 1234).write_kubeconfig(tmp_path)))
    info = asyncio.run(login())
    assert (info.server, info.as_http_headers()) == ("http://127.0.0.1:1234", {"Authorization": "Bearer not-a-secret"})
    assert asyncio.run(load_access()) == ClusterLogin(info, math.inf)


def test_without_the_variable_the_kubeconfig_of_the_home_folder_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    write_kubeconfig(tmp_path / ".kube/config", {"token": "at home"})
    assert headers(asyncio.run(load_access({}))) == {"Authorization": "Bearer at home"}


@pytest.fixture
def account(tmp_path: Path) -> Path:
    made = make_key_pair(tmp_path / "account")
    made.certificate.rename(tmp_path / "account/ca.crt")
    (tmp_path / "account/token").write_text("first\n")
    return tmp_path / "account"


@pytest.mark.parametrize(
    ("host", "server"), [("10.0.0.1", "https://10.0.0.1:443"), ("fd00::1", "https://[fd00::1]:443")]
)
def test_in_a_pod_the_service_account_is_used_and_read_again(account: Path, host: str, server: str) -> None:
    pod = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": "443"}
    first = asyncio.run(load_access(pod, account))
    assert (first.connection.server, first.connection.token, first.lasts_s) == (server, "first", TOKEN_FILE_S)
    assert first.connection.as_ssl_context().verify_mode is ssl.CERT_REQUIRED
    (account / "token").write_text("second")
    assert headers(asyncio.run(load_access(pod, account))) == {"Authorization": "Bearer second"}


def test_files_of_a_kubeconfig_begin_at_it_and_a_token_in_a_file_is_read_again(tmp_path: Path) -> None:
    made = make_key_pair(tmp_path / "keys")
    (tmp_path / "keys/token").write_text(f"{OF_A_FILE}\n")
    user = {"tokenFile": "keys/token", "client-certificate": "keys/tls.crt", "client-key": "keys/tls.key"}
    found = load(write_kubeconfig(tmp_path / "config", user, server="https://one:1/", **{
        "certificate-authority": "keys/tls.crt", "proxy-url": "http://proxy:3128",
    }))  # fmt: skip
    assert found.lasts_s == TOKEN_FILE_S
    assert found.connection == kopf.ConnectionInfo(
        server="https://one:1", ca_path=made.certificate, insecure=False, token=OF_A_FILE,
        certificate_path=made.certificate, private_key_path=made.key, proxy_url="http://proxy:3128", trust_env=True,
    )  # fmt: skip


def test_certificates_within_a_kubeconfig_are_used(tmp_path: Path) -> None:
    made = make_key_pair(tmp_path / "keys")
    certificate, key = (base64.b64encode(file.read_bytes()).decode() for file in (made.certificate, made.key))
    user = {"client-certificate-data": certificate, "client-key-data": key}
    data = {"certificate-authority-data": certificate}
    context = load(
        write_kubeconfig(tmp_path / "config", user, server="https://one:1", **data)
    ).connection.as_ssl_context()
    assert [entry["subject"] for entry in context.get_ca_certs()] == [((("commonName", "localhost"),),)]
    unchecked = load(
        write_kubeconfig(tmp_path / "other", {}, server="https://one:1", **{"insecure-skip-tls-verify": True})
    )
    assert unchecked.connection.as_ssl_context().verify_mode is ssl.CERT_NONE


def test_of_several_kubeconfigs_the_first_that_has_a_name_wins(tmp_path: Path) -> None:
    first = tmp_path / "a/first"
    first.parent.mkdir()
    first.write_text(yaml.safe_dump({"current-context": "two", "clusters": None, "users": [
        {"name": "two", "user": {"tokenFile": "token"}},
    ]}))  # fmt: skip
    (first.parent / "token").write_text("of the first")
    second = write_kubeconfig(tmp_path / "b/second", {"token": "hidden"}, "two", "http://two:2")
    third = write_kubeconfig(tmp_path / "third", {"token": "other"}, "two", "http://three:3")
    found = load(tmp_path / "nowhere", first, second, third).connection
    assert (found.server, found.token) == ("http://two:2", "of the first")


def test_a_name_and_a_password_are_sent(tmp_path: Path) -> None:
    found = load(write_kubeconfig(tmp_path / "config", {"username": "me", "password": "word"}))
    assert headers(found) == {"Authorization": f"Basic {base64.b64encode(b'me:word').decode()}"}


def test_what_a_command_prints_is_used_until_it_ends(tmp_path: Path) -> None:
    ends = datetime.now(UTC) + timedelta(hours=1)
    status = {"token": "printed", "expirationTimestamp": ends.isoformat()}
    found = load(write_kubeconfig(tmp_path / "config", printing(status)))
    assert (found.connection.token, found.connection.expiration) == ("printed", ends)
    assert 3500 < found.lasts_s < 3600
    lasting = load(write_kubeconfig(tmp_path / "config", printing({"token": "printed"})))
    assert (lasting.connection.token, lasting.lasts_s) == ("printed", math.inf)


def test_a_command_gets_its_variables_and_begins_at_the_kubeconfig(tmp_path: Path) -> None:
    made = make_key_pair(tmp_path / "keys")
    command = tmp_path / "plugin"
    command.write_text(
        f"#!{sys.executable}\nimport json, os\n"
        "info = json.loads(os.environ['KUBERNETES_EXEC_INFO'])\n"
        "assert (info['kind'], info['spec']) == ('ExecCredential', {'interactive': False})\n"
        "files = [open(name).read() for name in (os.environ['CERTIFICATE'], os.environ['KEY'])]\n"
        "status = dict(zip(('clientCertificateData', 'clientKeyData'), files))\n"
        "print(json.dumps({'apiVersion': info['apiVersion'], 'kind': 'ExecCredential', 'status': status}))\n"
    )
    command.chmod(0o755)
    variables = {"CERTIFICATE": made.certificate, "KEY": made.key}
    user = {"exec": {
        "apiVersion": V1, "command": "./plugin", "args": None,
        "env": [{"name": name, "value": str(path)} for name, path in variables.items()],
    }}  # fmt: skip
    found = load(write_kubeconfig(tmp_path / "config", user, server="https://one:1")).connection
    assert found.certificate_data == made.certificate.read_text()
    assert found.private_key_data == made.key.read_text()


def test_a_command_that_asks_and_waits_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exec_credentials, "LIMIT_S", 0.1)
    user = {"exec": {"apiVersion": V1, "command": "sleep", "args": ["600"]}}
    with pytest.raises(ResourceError, match=r"sleep has printed no credentials .* it must not ask for input"):
        load(write_kubeconfig(tmp_path / "config", user))


OF_NOBODY = {"exec": {"apiVersion": V1, "command": "no-such-plugin", "installHint": "Install it by apt."}}
FAILING = {"exec": {"apiVersion": V1, "command": "sh", "args": ["-c", "echo log in first >&2; exit 3"]}}
SILENT = {"exec": {"apiVersion": V1, "command": "true"}}
PROVIDER = {"auth-provider": {"name": "oidc", "config": {"id-token": "x"}}}
ENCRYPTED = {"server": "https://one:1"}


@pytest.mark.parametrize(
    ("user", "cluster", "words"),
    [
        (OF_NOBODY, {}, "no-such-plugin .* cannot be run: No such file or directory; Install it by apt."),
        (FAILING, {}, "sh ended with exit code 3: log in first"),
        (SILENT, {}, "true printed no ExecCredential"),
        (printing(None), {}, "printed neither status.token nor status.clientCertificateData"),
        (printing({"token": "x"}, "v0"), {}, f"an ExecCredential of v0, and the kubeconfig expects {V1}"),
        (PROVIDER, {}, r"sets users\[\].user.auth-provider, which .* not support; use a token or exec"),
        ({"as": "admin"}, {}, r"sets users\[\].user.as,"),
        ({}, {"tls-server-name": "other"}, r"sets clusters\[\].cluster.tls-server-name,"),
        ({"tokenFile": "nowhere"}, {}, "No such file or directory: .*nowhere"),
        ({"token": 5}, {}, r"is not a kubeconfig: Expected `str \| null`, got `int`"),
        ({}, ENCRYPTED | {"certificate-authority": "nowhere"}, "No such file or directory"),
        ({}, ENCRYPTED | {"certificate-authority-data": "bm8="}, "no way to the Kubernetes API"),
    ],
)
def test_a_kubeconfig_that_cannot_be_used_is_told_why(
    tmp_path: Path, user: dict[str, Any], cluster: dict[str, Any], words: str
) -> None:
    with pytest.raises(ResourceError, match=words):
        load(write_kubeconfig(tmp_path / "config", user, **cluster))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [", "is not a kubeconfig"),
        ("", "sets no current-context; choose one by"),
        ("current-context: a", "contexts have none of the name 'a'"),
        ("{current-context: a, contexts: [{name: a, context: {cluster: b}}]}", "clusters have none of the name 'b'"),
    ],
)
def test_an_incomplete_kubeconfig_is_told_what_it_lacks(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "config").write_text(text)
    with pytest.raises(ResourceError, match=words):
        load(tmp_path / "config")


def test_without_a_way_in_the_message_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match=r"there is no .*nowhere; set KUBECONFIG, or run in a pod"):
        load(tmp_path / "nowhere")
    pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    with pytest.raises(ResourceError, match=r"No such file or directory: .*token"):
        asyncio.run(load_access(pod, tmp_path))
    (tmp_path / "token").write_text("")
    with pytest.raises(ResourceError, match="token is empty"):
        asyncio.run(load_access(pod, tmp_path))
