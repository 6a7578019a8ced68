"""What spec.endpoint changes in the children, and that without it nothing changes."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.kubernetes.pod_security import violations
from tests.support.operator.desired_children import build, of_kind, pod_of
from tests.support.operator.observed import make_service, make_settings

from gnnserve_api.spec.service import GNNService
from gnnserve_operator.desired.access import service_url
from gnnserve_operator.desired.deployment import MountedClaim, build_worker_template
from gnnserve_operator.desired.metadata import Parent, digest_of

TLS: dict[str, Any] = {"tls": {"secretName": "pair"}}
TOKENS: dict[str, Any] = {"tokens": {"secretName": "accepted"}}
WRITE_TOKENS: dict[str, Any] = {"writeTokens": {"secretName": "writing"}}
PARENT = Parent("digits", "shop", "uid")


def template_of(service: GNNService) -> dict[str, Any]:
    return build_worker_template(PARENT, service.spec, make_settings(), MountedClaim("digits-repository"))


def container_of(service: GNNService) -> dict[str, Any]:
    container: dict[str, Any] = template_of(service)["spec"]["containers"][0]
    return container


def test_without_an_endpoint_the_pod_template_is_as_before_there_was_one() -> None:
    """Another digest would restart every worker when the operator is upgraded: raise it only knowing that."""
    plain = template_of(make_service())
    assert plain == template_of(make_service(endpoint={}))
    assert "https" not in str(plain)
    assert "secret" not in str(plain)
    assert "GNNSERVE_T" not in str(plain)
    assert {probe["httpGet"]["scheme"] for name, probe in container_of(make_service()).items() if "Probe" in name} == {
        "HTTP"
    }


@pytest.mark.parametrize("endpoint", [TLS, TOKENS, TLS | TOKENS, WRITE_TOKENS])
def test_another_endpoint_is_another_template_and_the_same_recipe(endpoint: dict[str, Any]) -> None:
    with_it, without = make_service(endpoint=endpoint), make_service()
    assert digest_of(template_of(with_it)) != digest_of(template_of(without))
    assert with_it.spec.recipe() == without.spec.recipe()
    assert of_kind(build(with_it), "Job") == of_kind(build(without), "Job")


def test_secrets_are_mounted_read_only_for_the_group_and_may_be_missing() -> None:
    """The kubelet takes away the files of a deleted Secret only where it is optional."""
    pod = pod_of(build(make_service(endpoint=TLS | TOKENS | WRITE_TOKENS)), "Deployment")
    volumes = {volume["name"]: volume["secret"] for volume in pod["volumes"] if "secret" in volume}
    assert volumes == {
        "tls": {"secretName": "pair", "optional": True, "defaultMode": 0o440},
        "tokens": {"secretName": "accepted", "optional": True, "defaultMode": 0o440},
        "write-tokens": {"secretName": "writing", "optional": True, "defaultMode": 0o440},
    }
    container = pod["containers"][0]
    mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
    assert mounts["tls"] == {"name": "tls", "mountPath": "/etc/gnnserve/tls", "readOnly": True}
    assert mounts["tokens"] == {"name": "tokens", "mountPath": "/etc/gnnserve/tokens", "readOnly": True}
    env = {variable["name"]: variable.get("value") for variable in container["env"]}
    assert (env["GNNSERVE_TLS"], env["GNNSERVE_TOKENS"]) == ("/etc/gnnserve/tls", "/etc/gnnserve/tokens")
    assert env["GNNSERVE_WRITE_TOKENS"] == mounts["write-tokens"]["mountPath"] == "/etc/gnnserve/write-tokens"
    assert violations(pod) == []
    assert "accepted" not in str(container)  # nor is what is in it: neither variables nor arguments


def test_with_tls_probes_scrapes_service_and_address_are_https() -> None:
    service = make_service(endpoint=TLS)
    children = build(service)
    container = container_of(service)
    assert container["ports"] == [{"name": "https", "containerPort": 8080, "protocol": "TCP"}]
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert (container[name]["httpGet"]["scheme"], container[name]["httpGet"]["port"]) == ("HTTPS", "https")
    assert template_of(service)["metadata"]["annotations"]["prometheus.io/scheme"] == "https"
    assert of_kind(children, "Service")["spec"]["ports"] == [
        {"name": "https", "protocol": "TCP", "port": 443, "targetPort": "https"}
    ]
    (scraped,) = of_kind(children, "PodMonitor")["spec"]["podMetricsEndpoints"]
    assert (scraped["port"], scraped["scheme"], scraped["tlsConfig"]) == (
        "https", "https", {"insecureSkipVerify": True}
    )  # fmt: skip
    assert service_url(PARENT, service.spec, "cluster.local") == "https://digits.shop.svc.cluster.local"


def test_tokens_alone_leave_ports_and_schemes_alone() -> None:
    plain, with_tokens = make_service(), make_service(endpoint=TOKENS)
    for kind in ("Service", "PodMonitor", "NetworkPolicy"):
        of_plain = {key: child for key, child in build(plain).items() if key[0] == kind}
        assert of_plain == {key: child for key, child in build(with_tokens).items() if key[0] == kind}
    assert container_of(with_tokens)["ports"] == container_of(plain)["ports"]
    assert service_url(PARENT, with_tokens.spec, "x") == "http://digits.shop.svc.x"


def test_workers_are_reached_on_their_port_whatever_they_speak() -> None:
    for endpoint in ({}, TLS):
        policy = build(make_service(endpoint=endpoint))[("NetworkPolicy", "digits-worker")]
        assert policy["spec"]["ingress"] == [{"ports": [{"protocol": "TCP", "port": 8080}]}]


@pytest.mark.parametrize(("endpoint", "name"), [({}, "grpc"), (TLS, "grpcs")])
def test_grpc_has_a_port_of_pods_and_service_and_is_let_through(endpoint: dict[str, Any], name: str) -> None:
    service = make_service(endpoint=endpoint | {"grpc": True})
    children, container = build(service), container_of(service)
    assert container["ports"][1:] == [{"name": name, "containerPort": 8001, "protocol": "TCP"}]
    env = {variable["name"]: variable.get("value") for variable in container["env"]}
    assert env["GNNSERVE_GRPC_PORT"] == "8001"
    (port,) = of_kind(children, "Service")["spec"]["ports"][1:]
    assert (port["name"], port["port"], port["targetPort"]) == (name, 8001, name)
    assert port.get("appProtocol") == (None if endpoint else "kubernetes.io/h2c")
    policy = children["NetworkPolicy", "digits-worker"]
    assert policy["spec"]["ingress"] == [
        {"ports": [{"protocol": "TCP", "port": 8080}, {"protocol": "TCP", "port": 8001}]}
    ]
    assert len(container_of(make_service(endpoint=endpoint))["ports"]) == 1
