"""TLS: which key pairs are refused and why, and a worker that speaks it: reload, plain HTTP, handshakes that stall."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from tests.support.kubernetes.mounted import mount
from tests.support.machine.waiting import WAIT_S
from tests.support.serving.certificates import encrypt_key, make_key_pair, serial_in, serial_of, trusting
from tests.support.serving.secured_worker import started

from gnnserve_api.errors import GnnserveError, ResourceError
from gnnserve_worker.serving.metrics.metrics import ServingMetrics
from gnnserve_worker.serving.process import served_service
from gnnserve_worker.serving.security import credentials as credentials_module
from gnnserve_worker.serving.security.credentials import Credentials, CredentialsInUse
from gnnserve_worker.serving.security.handshakes import HandshakeLimits
from gnnserve_worker.serving.security.tls import RENEW_WORDS, KeyPairFiles, ListeningTls, load_key_pair

A, B = "alpha-0123456789abcdef", "beta-0123456789abcdef"


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, KeyPairFiles]:
    folder = tmp_path_factory.mktemp("pairs")
    made = {name: make_key_pair(folder / name) for name in ("one", "other")}
    made["expired"] = make_key_pair(folder / "expired", days=-1)
    encrypted = folder / "encrypted.key"
    encrypt_key(made["one"].key, encrypted)
    made["encrypted"] = KeyPairFiles(made["one"].certificate, encrypted)
    made["mismatched"] = KeyPairFiles(made["one"].certificate, made["other"].key)
    made["swapped"] = KeyPairFiles(made["one"].key, made["one"].certificate)
    made["keyless"] = KeyPairFiles(made["one"].certificate, folder / "nowhere")
    made["missing"] = KeyPairFiles(folder / "nowhere", made["one"].key)
    nothing = folder / "nothing"
    nothing.write_text("")
    made["empty"] = KeyPairFiles(nothing, nothing)
    made["certificate for a key"] = KeyPairFiles(made["one"].certificate, made["one"].certificate)
    return made


REFUSED = [
    ("expired", "no client would accept it: certificate has expired"),
    ("mismatched", "is not the key of"),
    ("encrypted", "it is encrypted"),
    ("swapped", "holds no certificate in PEM"),
    ("keyless", "No such file"),
    ("missing", "No such file"),
    ("empty", "holds no certificate in PEM"),
    ("certificate for a key", "cannot be read as certificate and unencrypted key"),
]


@pytest.mark.parametrize(("name", "words"), REFUSED, ids=[name for name, _ in REFUSED])
def test_a_pair_that_could_not_serve_is_refused_with_the_reason(
    pairs: dict[str, KeyPairFiles], name: str, words: str
) -> None:
    with pytest.raises(ResourceError) as caught:
        load_key_pair(pairs[name])
    assert words in str(caught.value)
    assert "PRIVATE" not in str(caught.value)
    with pytest.raises(ResourceError):  # nor does a worker start with it
        CredentialsInUse(Credentials(pairs[name]), ServingMetrics("digits"))


def test_a_good_pair_tells_when_it_expires(pairs: dict[str, KeyPairFiles]) -> None:
    (told,) = ssl.create_default_context(cafile=pairs["one"].certificate).get_ca_certs()
    assert load_key_pair(pairs["one"]).expires_at_s == ssl.cert_time_to_seconds(str(told["notAfter"]))


def shown(listening: ListeningTls, trusted: Path, name: str | None) -> str:
    """The serial number of what a new connection is shown, over memory."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = trusting(trusted)
    context.check_hostname = name is not None
    server = listening.context.wrap_bio(to_server, to_client, server_side=True)
    client = context.wrap_bio(to_client, to_server, server_hostname=name)
    waiting = [client, server]
    while waiting:
        for side in tuple(waiting):
            try:
                side.do_handshake()
                waiting.remove(side)
            except ssl.SSLWantReadError:
                continue
    certificate = client.getpeercert(binary_form=True)
    assert certificate is not None
    return serial_of(certificate)


@pytest.mark.parametrize("name", ["localhost", None])
def test_new_connections_get_the_new_pair_with_a_name_and_without(
    pairs: dict[str, KeyPairFiles], name: str | None
) -> None:
    listening = ListeningTls(load_key_pair(pairs["one"]))
    assert shown(listening, pairs["one"].certificate, name) == serial_in(pairs["one"].certificate)
    listening.replace(load_key_pair(pairs["other"]))
    assert shown(listening, pairs["other"].certificate, name) == serial_in(pairs["other"].certificate)


@pytest.mark.parametrize("name", [name for name, _ in REFUSED if name not in {"swapped"}])
def test_a_bad_pair_leaves_the_old_one_in_place_says_so_and_is_tried_again(
    tmp_path: Path, pairs: dict[str, KeyPairFiles], name: str, caplog: pytest.LogCaptureFixture
) -> None:
    def put(files: KeyPairFiles) -> None:
        places = (("tls.crt", files.certificate), ("tls.key", files.key))
        mount(tmp_path, {file: path.read_bytes() for file, path in places if path.exists()})

    put(pairs["one"])
    metrics = ServingMetrics("digits")
    in_use = CredentialsInUse(Credentials(KeyPairFiles(tmp_path / "tls.crt", tmp_path / "tls.key")), metrics)
    refused = 'gnnserve_credentials_refused{kind="tls",service="digits"}'
    assert in_use.tls is not None
    for pair, is_refused in ((pairs[name], True), (pairs[name], True), (pairs["other"], False)):
        put(pair)
        in_use.look(lambda act: act())
        serving = "one" if is_refused else "other"
        assert shown(in_use.tls, pairs[serving].certificate, None) == serial_in(pairs[serving].certificate)
        assert f"{refused} {float(is_refused)}" in metrics.render().decode()
    said = [record.message for record in caplog.records if record.levelname == "ERROR"]
    assert len(said) == 1  # once for as long as it is the same
    assert "what was read before stays in use" in said[0]


def test_tokens_follow_their_files_bad_ones_left_out_and_none_is_kept_that_was_taken_away(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mount(tmp_path, {"a": A})
    metrics = ServingMetrics("digits")
    in_use = CredentialsInUse(Credentials(tokens=tmp_path), metrics)
    access = in_use.access

    def accepted() -> set[str]:
        in_use.look(lambda act: act())
        return {token for token in (A, B) if access.accepts([(b"authorization", b"Bearer " + token.encode())])}

    assert accepted() == {A}
    mount(tmp_path, {"a": A, "b": B})
    assert accepted() == {A, B}
    mount(tmp_path, {"a": "not one", "b": B})
    assert accepted() == {B}
    assert 'gnnserve_credentials_refused{kind="tokens",service="digits"} 1.0' in metrics.render().decode()
    mount(tmp_path, {})
    assert accepted() == set()
    assert access.needs_token
    mount(tmp_path, {"a": A})
    assert accepted() == {A}
    assert 'gnnserve_credentials_refused{kind="tokens",service="digits"} 0.0' in metrics.render().decode()
    (tmp_path / "a").unlink()
    (tmp_path / "..data").unlink()
    tmp_path.rename(tmp_path.with_name("elsewhere"))
    assert accepted() == {A}  # it cannot be read at all, which nobody asked for
    assert A not in caplog.text
    assert "not one" not in caplog.text


@pytest.mark.parametrize("content", [{}, {"a": ""}, {"a": "short"}, {"a": "gehe\u00efm-0123456789abc"}])
def test_a_worker_does_not_start_without_a_token_that_it_could_accept(tmp_path: Path, content: dict[str, str]) -> None:
    mount(tmp_path, content)
    with pytest.raises(GnnserveError, match=r"16 to 4096 letters") as caught:
        CredentialsInUse(Credentials(tokens=tmp_path), ServingMetrics("digits"))
    assert not any(value and value in str(caught.value) for value in content.values())


def read_state(in_use: CredentialsInUse) -> tuple[bool, str]:
    """Of the only kind that is declared, after another look."""
    in_use.look(lambda act: act())
    (state,) = in_use.states()
    return state.is_usable, state.problem


def test_a_tokens_state_says_whether_any_is_accepted_and_what_is_wrong_and_never_a_value(tmp_path: Path) -> None:
    metrics = ServingMetrics("digits")
    mount(tmp_path, {"a": A})
    in_use = CredentialsInUse(Credentials(tokens=tmp_path), metrics)
    assert read_state(in_use) == (True, "")
    mount(tmp_path, {"a": "short"})
    usable, problem = read_state(in_use)
    assert (usable, "short" in problem) == (False, False)
    assert problem.startswith(f"{tmp_path / 'a'}: is no token: it has fewer than 16 characters; write 16 to 4096")
    assert 'gnnserve_credentials_usable{kind="tokens",service="digits"} 0.0' in metrics.render().decode()
    mount(tmp_path, {"a": "short", "b": B})
    usable, partly = read_state(in_use)
    assert (usable, partly) == (True, problem)
    mount(tmp_path, {})  # the Secret was deleted
    usable, problem = read_state(in_use)
    assert (usable, "holds no token, so that every request is refused" in problem) == (False, True)
    mount(tmp_path, {"b": B})
    assert read_state(in_use) == (True, "")
    assert 'gnnserve_credentials_usable{kind="tokens",service="digits"} 1.0' in metrics.render().decode()


@pytest.mark.parametrize("name", ["mismatched", "missing"])
def test_a_pairs_state_is_usable_while_the_old_one_is_in_use_and_until_it_expires(
    tmp_path: Path, pairs: dict[str, KeyPairFiles], name: str
) -> None:
    def put(files: KeyPairFiles) -> None:
        places = (("tls.crt", files.certificate), ("tls.key", files.key))
        mount(tmp_path, {file: path.read_bytes() for file, path in places if path.exists()})

    put(pairs["one"])
    now_s = 0.0
    files = KeyPairFiles(tmp_path / "tls.crt", tmp_path / "tls.key")
    in_use = CredentialsInUse(Credentials(files), ServingMetrics("digits"), lambda: now_s)
    assert read_state(in_use) == (True, "")
    put(pairs[name])
    usable, problem = read_state(in_use)
    assert (usable, problem.endswith("; what was read before stays in use")) == (True, True)
    now_s = load_key_pair(pairs["one"]).expires_at_s
    usable, problem = read_state(in_use)
    assert (usable, "stays in use" in problem) == (False, False)
    put(pairs["one"])
    assert read_state(in_use) == (False, f"{files.certificate}: has expired, and clients refuse it; {RENEW_WORDS}")


def test_without_credentials_nothing_is_followed_and_no_metric_tells_of_any() -> None:
    metrics = ServingMetrics("digits")
    in_use = CredentialsInUse(Credentials(), metrics)
    assert not in_use.may_change
    assert in_use.tls is None
    assert not in_use.access.needs_token
    assert "gnnserve_certificate_expiry_timestamp_seconds{" not in metrics.render().decode()


# A whole worker


def trusting_everybody() -> ssl.SSLContext:
    """As the kubelet and the operator."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def ask(connection: http.client.HTTPConnection, token: str | None) -> int:
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    connection.request("POST", "/v1/predict", json.dumps({"nodes": [3]}), headers)
    response = connection.getresponse()
    response.read()
    return response.status


def test_a_worker_speaks_https_and_follows_renewed_certificates_and_rotated_tokens_without_a_failed_request(
    tmp_path: Path, pairs: dict[str, KeyPairFiles], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credentials_module, "LOOK_EVERY_S", 0.02)
    tls, tokens = tmp_path / "tls", tmp_path / "tokens"
    one, other = pairs["one"], pairs["other"]

    def put(files: KeyPairFiles) -> None:
        mount(tls, {"tls.crt": files.certificate.read_bytes(), "tls.key": files.key.read_bytes()})

    put(one)
    mount(tokens, {"a": A})
    with started(Credentials(KeyPairFiles(tls / "tls.crt", tls / "tls.key"), tokens)) as running:
        kept = running.connect(one.certificate)
        assert [ask(kept, A), ask(kept, None), ask(kept, B)] == [200, 401, 401]
        statuses = []
        mount(tokens, {"a": A, "b": B})
        fresh = running.connect(one.certificate)
        while ask(fresh, B) != 200:
            statuses.append(ask(kept, A))
        put(other)
        while True:
            statuses.append(ask(kept, A))  # the connection that is there stays
            changed = running.connect(other.certificate)
            try:
                statuses.append(ask(changed, B))
                break
            except ssl.SSLCertVerificationError:
                changed.close()
        mount(tokens, {"b": B})
        while ask(kept, A) == 200:
            statuses.append(ask(changed, B))
        statuses.append(ask(changed, B))
        assert set(statuses) == {200}
        assert ask(kept, A) == 401
        for connection in (kept, fresh, changed):
            connection.close()


def test_a_pod_waits_for_its_credentials_tells_what_is_wrong_with_them_and_serves_once_they_are_there(
    tmp_path: Path, pairs: dict[str, KeyPairFiles], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credentials_module, "LOOK_EVERY_S", 0.02)
    monkeypatch.setattr(served_service, "_WAIT_S", 0.02)
    tls, tokens = tmp_path / "tls", tmp_path / "tokens"
    mount(tls, {"tls.crt": pairs["one"].certificate.read_bytes(), "tls.key": pairs["other"].key.read_bytes()})
    mount(tokens, {})
    with started(Credentials(KeyPairFiles(tls / "tls.crt", tls / "tls.key"), tokens, waits=True)) as running:

        def get(path: str, trusted: Path | None = None) -> tuple[int, str]:
            context = trusting_everybody() if trusted is None else trusting(trusted)
            connection = http.client.HTTPSConnection("127.0.0.1", running.port, timeout=WAIT_S, context=context)
            connection.request("GET", path)
            response = connection.getresponse()
            told = response.status, response.read().decode()
            connection.close()
            return told

        def wait_for(*words: str) -> None:
            while not all(word in (told := get("/readyz"))[1] for word in words):
                assert told[0] == 503

        wait_for("the worker is loading: no usable credentials: ", "tls.key: is not the key of", "holds no token")
        assert get("/healthz") == (200, "ok\n")  # or the kubelet would end it
        assert get("/v1/route")[0] == 503
        assert get("/v1/variants")[0] == 401
        with pytest.raises(ssl.SSLCertVerificationError):  # it proves nothing
            get("/healthz", pairs["one"].certificate)
        mount(tokens, {"a": A})
        while "holds no token" in get("/readyz")[1]:
            pass
        wait_for("no usable credentials: ", "tls.key: is not the key of")
        connection = http.client.HTTPSConnection(
            "127.0.0.1", running.port, timeout=WAIT_S, context=trusting_everybody()
        )
        assert ask(connection, A) == 503
        connection.close()
        mount(tls, {"tls.crt": pairs["one"].certificate.read_bytes(), "tls.key": pairs["one"].key.read_bytes()})
        while get("/readyz") != (200, "ok\n"):
            pass
        connection = running.connect(pairs["one"].certificate)
        assert [ask(connection, A), ask(connection, B)] == [200, 401]
        connection.close()
        assert json.loads(get("/v1/route")[1])["credentials"] == [
            {"kind": "tokens", "isUsable": True, "problem": ""}, {"kind": "tls", "isUsable": True, "problem": ""}
        ]  # fmt: skip


def test_plain_http_on_the_tls_port_is_hung_up_on_and_disturbs_nobody(pairs: dict[str, KeyPairFiles]) -> None:
    with started(Credentials(pairs["one"])) as running:
        with socket.create_connection(("127.0.0.1", running.port), timeout=WAIT_S) as plain:
            plain.sendall(b"GET /healthz HTTP/1.1\r\nhost: w\r\n\r\n")
            told = b""
            with suppress(ConnectionResetError):
                while part := plain.recv(4096):
                    told += part
        assert b"HTTP/1.1 200" not in told
        with pytest.raises(ssl.SSLCertVerificationError):  # signed by nobody whom it trusts
            ask(running.connect(pairs["other"].certificate), None)
        connection = running.connect(pairs["one"].certificate)
        assert ask(connection, None) == 200
        connection.close()


@pytest.mark.parametrize("begun", [b"", b"\x16\x03\x01\x02\x00\x01"], ids=["silence", "half a ClientHello"])
def test_a_handshake_that_stalls_is_ended_and_disturbs_nobody(pairs: dict[str, KeyPairFiles], begun: bytes) -> None:
    with (
        started(Credentials(pairs["one"]), HandshakeLimits(timeout_s=0.2)) as running,
        socket.create_connection(("127.0.0.1", running.port), timeout=WAIT_S) as stalled,
    ):
        stalled.sendall(begun)
        connection = running.connect(pairs["one"].certificate)
        assert ask(connection, None) == 200
        with suppress(ConnectionResetError):
            assert stalled.recv(1) == b""
        assert ask(connection, None) == 200
        connection.close()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_old_versions_of_tls_are_not_spoken(pairs: dict[str, KeyPairFiles], version: ssl.TLSVersion) -> None:
    listening = ListeningTls(load_key_pair(pairs["one"]))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.minimum_version = context.maximum_version = version
    context.set_ciphers("ALL:@SECLEVEL=0")
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(to_client, to_server)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    with pytest.raises(ssl.SSLError, match=r"UNSUPPORTED_PROTOCOL|VERSION"):
        listening.context.wrap_bio(to_server, to_client, server_side=True).do_handshake()


def test_silent_handshakes_beyond_the_limit_make_room_the_oldest_first(pairs: dict[str, KeyPairFiles]) -> None:
    """None of them times out: without the limit they would all be there."""
    limits = HandshakeLimits(at_once=4, timeout_s=300, undisturbed_s=0.05)
    with started(Credentials(pairs["one"]), limits) as running, ExitStack() as stack:
        address = ("127.0.0.1", running.port)
        silent = [stack.enter_context(socket.create_connection(address, timeout=WAIT_S)) for _ in range(12)]
        connection = running.connect(pairs["one"].certificate)
        assert ask(connection, None) == 200
        listener = running.worker.services["digits"].listener.tls
        assert listener is not None
        assert listener.under_way < limits.at_once
        for stalled in silent[:8]:
            with suppress(ConnectionResetError):
                assert stalled.recv(1) == b""
        assert ask(connection, None) == 200
        connection.close()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_no_session_is_resumed_so_that_every_connection_sees_the_pair_of_the_moment(
    pairs: dict[str, KeyPairFiles], version: ssl.TLSVersion
) -> None:
    listening = ListeningTls(load_key_pair(pairs["one"]))
    context = trusting(pairs["one"].certificate)
    context.check_hostname = False
    context.minimum_version = context.maximum_version = version

    def connect(session: ssl.SSLSession | None) -> ssl.SSLObject:
        to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = context.wrap_bio(to_client, to_server, session=session)
        server = listening.context.wrap_bio(to_server, to_client, server_side=True)
        for side in (client, server) * 3:
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
        server.write(b"hello")
        assert client.read(5) == b"hello"  # tickets come with it
        return client

    first = connect(None)
    assert not connect(first.session).session_reused
