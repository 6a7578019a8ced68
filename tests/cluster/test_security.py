"""What only a cluster shows: restricted pods of every kind, and an endpoint with TLS and tokens from Secrets."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from tests.cluster.harness.client import Cluster, Namespace, wait_for
from tests.cluster.harness.commands import HarnessError
from tests.cluster.harness.installation import RELEASE, Installation
from tests.cluster.harness.services import SMALL_SPEC, Service
from tests.support.serving.certificates import make_key_pair

from gnnserve_worker.serving.security.tls import KeyPairFiles

OLD, NEW = "old-token-0123456789abcdef", "new-token-0123456789abcdef"
PAIR, TOKENS = "digits-tls", "digits-tokens"


@dataclass(frozen=True, slots=True)
class Secured:
    service: Service
    trust: ssl.SSLContext
    pair: KeyPairFiles

    def put_pair(self) -> None:
        content = {"tls.crt": self.pair.certificate.read_bytes(), "tls.key": self.pair.key.read_bytes()}
        self.service.namespace.apply(secret(PAIR, content, "kubernetes.io/tls"))

    def put_tokens(self, **tokens: str) -> None:
        content = {name: token.encode() for name, token in tokens.items()}
        self.service.namespace.apply(secret(TOKENS, content))
        self.hurry()

    def delete_secret(self, name: str) -> None:
        self.service.namespace.kubectl("delete", f"secret/{name}")
        self.hurry()

    def hurry(self) -> None:
        """The kubelet looks at a pod's volumes when the pod changes, or else once a minute."""
        for pod in self.service.worker_pod_names():
            note = f"tests/look={uuid.uuid4().hex}"
            self.service.namespace.kubectl("annotate", f"pod/{pod}", note, "--overwrite")

    def ask(self, method: str, path: str, token: str | None = None) -> tuple[int, bytes]:
        """By the Service's address, which the certificate does not name; whose it is, is checked."""
        connection = http.client.HTTPSConnection(self.service.address(), 443, timeout=10, context=self.trust)
        try:
            body = json.dumps({"nodes": [0, 1, 2]}) if method == "POST" else None
            connection.request(method, path, body, {} if token is None else {"Authorization": f"Bearer {token}"})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()


def secret(name: str, content: dict[str, bytes], kind: str = "Opaque") -> dict[str, Any]:
    encoded = {key: base64.b64encode(value).decode() for key, value in content.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "type": kind, "data": encoded}


@pytest.fixture(scope="module")
def secured(cluster: Cluster, operator: Installation, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    namespace = cluster.create_workspace(f"secured-{uuid.uuid4().hex[:4]}")
    service = Service(namespace, "digits")
    pair = make_key_pair(tmp_path_factory.mktemp("pair"), "digits", also=f"DNS:digits.{namespace}.svc")
    trust = ssl.create_default_context(cafile=pair.certificate)
    trust.check_hostname = False
    service.apply({**SMALL_SPEC, "endpoint": {"tls": {"secretName": PAIR}, "tokens": {"secretName": TOKENS}}})
    wait_for("a worker that waits for its Secrets", lambda: bool(service.worker_pods()), timeout_s=300)
    named = (f"{PAIR} (spec.endpoint.tls.secretName)", f"{TOKENS} (spec.endpoint.tokens.secretName)")
    wait_for(
        "both Secrets to be named",
        lambda: all(words in service.condition("Ready").get("message", "") for words in named),
    )
    made = Secured(service, trust, pair)
    made.put_pair()
    made.put_tokens(old=OLD)
    service.wait_until_ready()
    yield made
    namespace.delete()


@pytest.fixture
def namespace(secured: Secured) -> Namespace:
    """For the diagnosis of a failed test."""
    return secured.service.namespace


def test_a_missing_secret_is_named_and_with_it_the_endpoint_becomes_ready(secured: Secured) -> None:
    """The first half is the fixture's. Ready: the kubelet probed, and the operator asked, over HTTPS."""
    service = secured.service
    assert service.status()["endpoint"] == f"https://digits.{service.namespace}.svc.cluster.local"
    assert service.restarts() == 0
    assert len(service.children("jobs")) == 1


def test_nobody_is_answered_without_a_token_and_probes_need_none(secured: Secured) -> None:
    assert secured.ask("POST", "/v1/predict", OLD)[0] == 200
    for token in (None, NEW, OLD + "x"):
        for method, path in (("POST", "/v1/predict"), ("GET", "/v1/variants"), ("GET", "/v1/nodes")):
            status, body = secured.ask(method, path, token)
            assert (status, json.loads(body)["error"]["code"]) == (401, "Unauthorized")
    for path in ("/healthz", "/readyz", "/metrics", "/v1/route"):
        assert secured.ask("GET", path)[0] == 200


def test_plain_http_gets_nothing(secured: Secured) -> None:
    address = secured.service.address()
    connection = http.client.HTTPConnection(address, 443, timeout=10)
    with pytest.raises((http.client.HTTPException, OSError)):
        connection.request("GET", "/healthz")
        connection.getresponse()
    connection.close()


def test_a_rotated_token_is_followed_without_a_restart_or_a_failed_request(secured: Secured) -> None:
    service = secured.service
    pods = service.worker_pod_names()
    statuses = []

    def follows(token: str, kept: str, wanted: int) -> bool:
        statuses.append(secured.ask("POST", "/v1/predict", kept)[0])
        return secured.ask("POST", "/v1/predict", token)[0] == wanted

    secured.put_tokens(old=OLD, new=NEW)
    wait_for("the new token to be accepted", lambda: follows(NEW, OLD, 200), timeout_s=180)
    secured.put_tokens(new=NEW)
    wait_for("the old token to be refused", lambda: follows(OLD, NEW, 401), timeout_s=180)
    assert set(statuses) == {200}
    assert service.worker_pod_names() == pods
    assert service.restarts() == 0


def test_secrets_that_cannot_be_used_are_told_a_new_pod_waits_for_them_and_nothing_has_to_be_restarted(
    secured: Secured,
) -> None:
    service = secured.service
    assert service.condition("CredentialsValid")["reason"] == "CredentialsInUse"
    secured.put_tokens(new="short")
    told = service.wait_for("Ready", "CredentialsUnusable", "False", timeout_s=180)
    assert f"Secret {TOKENS} (spec.endpoint.tokens.secretName)" in told
    assert "tokens/new: is no token" in told
    assert secured.ask("POST", "/v1/predict", NEW)[0] == 401
    secured.put_tokens(new=NEW)
    service.wait_until_ready()
    # A Secret that is deleted revokes its tokens, and leaves the certificate in the workers' memory.
    secured.delete_secret(TOKENS)
    assert "holds no token" in service.wait_for("Ready", "CredentialsUnusable", "False", timeout_s=180)
    secured.delete_secret(PAIR)
    wait_for("the worker to miss its certificate", lambda: PAIR in service.condition("CredentialsValid")["message"])
    assert secured.ask("POST", "/v1/predict", NEW)[0] == 401
    # A pod that starts has nothing in its memory.
    (pod,) = service.worker_pod_names()
    service.namespace.kubectl("delete", f"pod/{pod}")
    named = (f"{PAIR} (spec.endpoint.tls.secretName)", f"{TOKENS} (spec.endpoint.tokens.secretName)")

    def new_pod_names_both() -> bool:
        (new,) = service.worker_pod_names()
        told = service.condition("Ready")
        return new in told["message"] and all(words in told["message"] for words in named)

    wait_for("a new pod to wait for both", new_pod_names_both, timeout_s=180)
    assert service.condition("Stalled")["reason"] == "CredentialsUnusable"
    secured.put_pair()
    secured.put_tokens(new=NEW)
    service.wait_until_ready()
    assert secured.ask("POST", "/v1/predict", NEW)[0] == 200
    assert service.restarts() == 0
    assert {"CredentialsUnusable", "CredentialsInUse"} <= {event["reason"] for event in service.events()}


def test_no_token_is_in_logs_status_metrics_or_process_arguments(secured: Secured, operator: Installation) -> None:
    service = secured.service
    said = "\n".join(
        [
            json.dumps(service.worker_logs()),
            json.dumps(operator.logs()),
            json.dumps(service.read()),
            json.dumps(service.worker_pods()),
            secured.ask("GET", "/metrics")[1].decode(),
            operator.metrics(),
        ]
    )
    for token in (OLD, NEW):
        assert token not in said


def test_a_pod_of_each_kind_runs_where_the_restricted_profile_is_enforced(
    secured: Secured, operator: Installation, cluster: Cluster
) -> None:
    """The API server refused it otherwise; nothing exempts these namespaces or these users."""
    for namespace in (secured.service.namespace, operator.namespace):
        labels = namespace.get(f"namespace/{namespace}")["metadata"]["labels"]
        assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    assert operator.pod()["status"]["phase"] == "Running"
    components = {
        pod["metadata"]["labels"].get("app.kubernetes.io/component") for pod in secured.service.children("pods")
    }
    assert components == {"worker", "generation"}
    # Its pod is gone once it succeeded, and was let in before.
    told = cluster.helm("test", RELEASE, "--namespace", operator.namespace.name, "--timeout=2m")
    assert "Succeeded" in told
    for pod in (*secured.service.children("pods"), operator.pod()):
        metadata = {"name": f"again-{uuid.uuid4().hex[:4]}", "namespace": pod["metadata"]["namespace"]}
        again = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {**pod["spec"], "nodeName": None}}
        create = ("create", "--dry-run=server", "--filename=-", "--validate=ignore")
        cluster.kubectl(*create, stdin=json.dumps(again))
        again["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = True
        with pytest.raises(HarnessError, match="violates PodSecurity"):
            cluster.kubectl(*create, stdin=json.dumps(again))
