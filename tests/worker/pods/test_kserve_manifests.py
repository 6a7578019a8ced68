"""The manifests of examples/kserve as KServe makes pods of them, by rules of Kubernetes and of Knative."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import yaml
from tests.support.kubernetes.kserve import CONTAINER, MODEL_PATH, choose_runtime, render_pod, service_ports
from tests.support.pods.pods import ROOT

from gnnserve_worker.pods.standalone import parse_arguments

EXAMPLES = ROOT / "examples" / "kserve"
RUNTIMES = [yaml.safe_load((EXAMPLES / name).read_text()) for name in ("runtime.yaml", "runtime-grpc.yaml")]
SERVICE: dict[str, Any] = yaml.safe_load((EXAMPLES / "inference-service.yaml").read_text())
HTTP_PORT, GRPC_PORT = 8080, 9000


def asking_by(protocol: str, **model: Any) -> dict[str, Any]:
    service = copy.deepcopy(SERVICE)
    service["spec"]["predictor"]["model"] |= {"protocolVersion": protocol, **model}
    return service


def rendered(protocol: str, **model: Any) -> dict[str, Any]:
    service = asking_by(protocol, **model)
    return render_pod(service, choose_runtime(service, RUNTIMES))


def test_the_protocol_of_a_service_chooses_the_runtime() -> None:
    names = [choose_runtime(asking_by(by), RUNTIMES)["metadata"]["name"] for by in ("v2", "grpc-v2")]
    assert names == ["gnnserve", "gnnserve-grpc"]
    assert choose_runtime(SERVICE, RUNTIMES)["metadata"]["name"] == "gnnserve"
    with pytest.raises(LookupError):
        choose_runtime(asking_by("v1"), RUNTIMES)


def test_the_runtimes_differ_in_their_protocol_alone() -> None:
    http, grpc = copy.deepcopy(RUNTIMES)
    for runtime in (http, grpc):
        del runtime["metadata"], runtime["spec"]["protocolVersions"]
        (container,) = runtime["spec"]["containers"]
        del container["ports"], container["readinessProbe"]
    assert http == grpc


@pytest.mark.parametrize("protocol", ["v2", "grpc-v2"])
def test_the_worker_gets_what_kserve_mounts_and_listens_where_it_asks(protocol: str) -> None:
    pod = rendered(protocol, args=["--latency-ms=50"])
    (container,) = pod["containers"]
    options = parse_arguments(container["args"])
    assert (options.model_name, str(options.model_dir)) == (SERVICE["metadata"]["name"], MODEL_PATH)
    assert (options.http_port, options.grpc_port) == (HTTP_PORT, GRPC_PORT)
    assert options.latency_ms == 50, "the service's own arguments come behind the runtime's"
    assert "{{" not in str(container)
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    (model,) = (mount for mount in container["volumeMounts"] if mount["mountPath"] == MODEL_PATH)
    assert (model["subPath"], model["readOnly"]) == ("digits", True)


@pytest.mark.parametrize(("protocol", "port"), [("v2", ("http1", HTTP_PORT)), ("grpc-v2", ("h2c", GRPC_PORT))])
def test_knative_takes_the_one_port_and_what_is_ready_is_the_protocol_that_is_asked_for(
    protocol: str, port: tuple[str, int]
) -> None:
    (container,) = rendered(protocol)["containers"]
    assert [(one["name"], one["containerPort"]) for one in container["ports"]] == [port], "Knative takes one, so named"
    (handler,) = container["readinessProbe"].values()
    assert handler["port"] == port[1]
    # While it loads it is not ready, but alive: gRPC's health has one word for both.
    assert container["livenessProbe"] == {"httpGet": {"path": "/v2/health/live", "port": HTTP_PORT}}
    for variable in container["env"]:
        assert variable.keys() == {"name", "value"}, "Knative takes no fields of the pod there"
        assert variable["name"] != "PYTHONPATH", "KServe refuses it"


def test_a_standard_deployment_may_have_both_protocols() -> None:
    assert service_ports(rendered("v2")["containers"][0]) == [("http1", 80, HTTP_PORT)]
    assert service_ports(rendered("grpc-v2")["containers"][0]) == [("h2c", 80, GRPC_PORT)]
    both = rendered("v2", ports=[{"name": "h2c", "containerPort": GRPC_PORT, "protocol": "TCP"}])
    ports = service_ports(both["containers"][0])
    assert ports == [("http1", 80, HTTP_PORT), ("h2c", GRPC_PORT, GRPC_PORT)], "of several, Kubernetes wants names"


@pytest.mark.parametrize("runtime", RUNTIMES, ids=lambda runtime: runtime["metadata"]["name"])
def test_pods_are_restricted_and_threads_are_as_many_as_processors(runtime: dict[str, Any]) -> None:
    (container,) = runtime["spec"]["containers"]
    assert container["name"] == CONTAINER
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    threads = next(variable["value"] for variable in container["env"] if variable["name"] == "OMP_NUM_THREADS")
    assert container["resources"]["limits"]["cpu"] == threads
