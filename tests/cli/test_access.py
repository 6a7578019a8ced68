"""Tokens and TLS from the command line: what is sent, what is trusted, and that no token is shown."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.support.serving.certificates import make_key_pair
from tests.support.serving.secured_worker import Running, started
from typer.testing import CliRunner

from gnnserve_api.errors import InputError
from gnnserve_cli.client import fetch_route, open_url, read_access
from gnnserve_cli.exits import ExitCode
from gnnserve_cli.main import app
from gnnserve_client.address import Endpoint, ServerAccess, parse_url
from gnnserve_worker.serving.security.credentials import Credentials

TOKEN, OTHER = "alpha-0123456789abcdef", "other-0123456789abcdef"


@dataclass(frozen=True, slots=True)
class Secured:
    running: Running
    url: str
    ca: Path
    tokens: Path
    wrong: Path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    pair = make_key_pair(folder)
    tokens, wrong = folder / "tokens", folder / "wrong"
    tokens.write_text(f"{TOKEN}\n")
    wrong.write_text(f"{OTHER}\n")
    with started(Credentials(pair, tokens)) as running:
        yield Secured(running, f"https://127.0.0.1:{running.port}", pair.certificate, tokens, wrong)


COMMANDS = [
    pytest.param(["predict", "--nodes", "3"], id="predict"),
    pytest.param(["variants"], id="variants"),
    pytest.param(["report"], id="report"),
    pytest.param(["load", "--duration", "0.05"], id="a closed loop"),
    pytest.param(["load", "--duration", "0.1", "--rate", "50", "--binary"], id="an open loop"),
]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_that_asks_a_server_shows_a_token_and_checks_the_certificate(
    server: Secured, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, *options = command
    asked = [name, server.url, *options, "--ca-file", str(server.ca)]
    result = CliRunner().invoke(app, [*asked, "--token-file", str(server.tokens)])
    assert result.exit_code == 0, result.stderr
    assert TOKEN not in result.output + result.stderr
    for wrong in ([], ["--token-file", str(server.wrong)]):
        result = CliRunner().invoke(app, [*asked, *wrong])
        assert result.exit_code == ExitCode.BAD_INPUT
        assert "401 Unauthorized" in result.stderr
        assert "--token-file" in result.stderr
        assert OTHER not in result.stderr
    monkeypatch.setenv("GNNSERVE_TOKEN", TOKEN)
    assert CliRunner().invoke(app, asked).exit_code == 0
    untrusted = CliRunner().invoke(app, [name, server.url, *options])
    assert untrusted.exit_code == ExitCode.RESOURCE
    assert "is not trusted: self-signed certificate" in untrusted.stderr
    assert TOKEN not in untrusted.stderr


def test_every_request_of_a_load_shows_the_token_and_its_report_does_not(server: Secured) -> None:
    result = CliRunner().invoke(
        app, ["load", server.url, "--duration", "0.05", "--json", "--ca-file", str(server.ca), "--token-file",
              str(server.tokens)],
    )  # fmt: skip
    report = json.loads(result.output)
    assert set(report["statuses"]) == {"200"}
    assert TOKEN not in result.output


@pytest.mark.parametrize("content", ["", "short", "gehe\u00efm-0123456789abc", "two words 0123456789"])
def test_a_bad_token_is_refused_before_anybody_is_asked_and_not_shown(
    tmp_path: Path, content: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "token"
    path.write_text(content)
    result = CliRunner().invoke(app, ["variants", "http://127.0.0.1:1", "--token-file", str(path)])
    assert result.exit_code == ExitCode.BAD_INPUT
    assert str(path) in result.stderr
    assert not content or content not in result.stderr
    monkeypatch.setenv("GNNSERVE_TOKEN", content)
    result = CliRunner().invoke(app, ["variants", "http://127.0.0.1:1"])
    # Set and empty is none, as shells leave it.
    assert result.exit_code == (ExitCode.BAD_INPUT if content else ExitCode.RESOURCE)
    assert not content or content not in result.stderr


def test_the_file_goes_before_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "token"
    path.write_text(TOKEN)
    monkeypatch.setenv("GNNSERVE_TOKEN", OTHER)
    assert read_access(path, None).token == TOKEN
    assert read_access(None, None).token == OTHER


def test_nothing_that_is_printed_of_an_endpoint_has_the_token() -> None:
    access = ServerAccess(TOKEN)
    endpoint = parse_url("http://127.0.0.1:1", access)
    with pytest.raises(Exception, match="no answer") as caught:
        fetch_route(endpoint)
    for shown in (repr(access), repr(endpoint), endpoint.url, str(caught.value), repr(caught.value)):
        assert TOKEN not in shown
    assert endpoint == Endpoint("127.0.0.1", 1, TOKEN)


def test_an_https_url_has_its_own_port_and_a_ca_file_is_for_https(tmp_path: Path) -> None:
    ca = make_key_pair(tmp_path).certificate
    assert parse_url("https://h").port == 443
    assert parse_url("https://h:8443").url == "https://h:8443"
    with pytest.raises(InputError, match=r"ca_file: .*proves nothing"):
        parse_url("http://h", ServerAccess(ca_file=ca))
    nothing = tmp_path / "nothing"
    nothing.write_text("")
    for bad, words in ((nothing, "no certificate in PEM"), (tmp_path / "nowhere", "No such file")):
        with pytest.raises(InputError, match=words):
            parse_url("https://h", ServerAccess(ca_file=bad))
        with pytest.raises(InputError, match=f"^--ca-file: .*{words}"):
            open_url("https://h", ServerAccess(ca_file=bad))


def test_a_server_that_speaks_plain_http_is_named_for_it(server: Secured) -> None:
    result = CliRunner().invoke(app, ["variants", f"http://127.0.0.1:{server.running.port}"])
    assert result.exit_code == ExitCode.RESOURCE


SECURED = """\
apiVersion: gnnserve.dev/v1alpha1
kind: GNNService
metadata: {name: digits}
spec:
  graph: {source: {builtin: Digits}}
  endpoint: {tls: {secretName: pair}, tokens: {secretName: accepted}, writeTokens: {secretName: writing}}
"""


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    path = tmp_path / "secured.yaml"
    path.write_text(SECURED)
    return path


def serve(manifest: Path, tmp_path: Path, *options: str) -> tuple[int, str]:
    result = CliRunner().invoke(
        app, ["serve", str(manifest), "--repository", str(tmp_path / "none"), "--port", "0", *options]
    )
    return result.exit_code, result.stderr


def test_a_manifests_secrets_are_a_clusters_and_it_is_said_what_a_laptop_does_without(
    manifest: Path, tmp_path: Path
) -> None:
    _, said = serve(manifest, tmp_path)
    assert "note: spec.endpoint.tls names a Secret of a cluster: this server speaks plain HTTP" in said
    assert "note: spec.endpoint.tokens names a Secret of a cluster: this server answers every client" in said
    assert "note: spec.endpoint.writeTokens names a Secret of a cluster: this server takes no labels" in said
    pair = make_key_pair(tmp_path / "pair")
    tokens = tmp_path / "tokens"
    tokens.write_text(TOKEN)
    _, said = serve(
        manifest, tmp_path, "--tls-cert", str(pair.certificate), "--tls-key", str(pair.key),
        "--token-file", str(tokens), "--write-token-file", str(tokens),
    )  # fmt: skip
    assert "note" not in said


@pytest.mark.parametrize(
    ("options", "code", "problem"),
    [
        (["--token-file", "missing"], ExitCode.BAD_INPUT, "error: missing: cannot be read"),
        (["--token-file", "short"], ExitCode.BAD_INPUT, "error: short, line 1: "),
        (["--write-token-file", "missing"], ExitCode.BAD_INPUT, "error: missing: cannot be read"),
        (["--tls-cert", "missing", "--tls-key", "missing"], ExitCode.RESOURCE, "error: missing: cannot be read"),
    ],
)
def test_what_cannot_be_used_is_told_before_anything_is_trained(
    manifest: Path,
    tmp_path: Path,
    options: list[str],
    code: ExitCode,
    problem: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("short").write_text("short")
    result = CliRunner().invoke(app, ["run", str(manifest), "--repository", "made", "--port", "0", *options])
    assert result.exit_code == code
    assert problem in result.stderr
    assert not Path("made").exists()


@pytest.mark.parametrize(("given", "missing"), [("--tls-cert", "--tls-key"), ("--tls-key", "--tls-cert")])
def test_half_a_key_pair_is_refused(manifest: Path, tmp_path: Path, given: str, missing: str) -> None:
    code, said = serve(manifest, tmp_path, given, "file.pem")
    assert code == ExitCode.BAD_INPUT
    assert f"{missing}: is not given, and {given} is" in said


@pytest.mark.parametrize(
    "url",
    ["http://me:geheim@h:80/x", "http://me:geheim@h:port", "http://me:ge/geheim@h", "me:geheim@h", "http://me:geheim@",
     "ftp://me:geheim@h", "http://me:geheim@h:0", "http://me:geheim@[::1", "http://me:geheim@a b"],
)  # fmt: skip
def test_a_password_in_an_address_is_not_shown(url: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_url(url)
    assert "geheim" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "noted"),
    [
        ("http://127.0.0.1:1", False),
        ("http://[::1]:1", False),
        ("http://localhost:1", False),
        ("https://h:1", False),
        ("http://digits.default.svc", True),
        ("http://10.0.0.1:8080", True),
    ],
)
def test_a_token_that_goes_in_plain_http_to_another_machine_is_noted(
    url: str, noted: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    open_url(url, ServerAccess())
    assert capsys.readouterr().err == ""
    assert open_url(url, ServerAccess(TOKEN)) == parse_url(url, ServerAccess(TOKEN)) or url.startswith("https")
    told = capsys.readouterr()
    assert ("in plain HTTP" in told.err) == noted
    assert TOKEN not in told.err
    assert told.out == ""
