"""The builders' manifests: complete, restricted, deterministic, and stored by the API server as they are."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from pydantic import ValidationError
from tests.support.kubernetes.pod_security import violations
from tests.support.operator.desired_children import build, environment, of_kind, pod_of
from tests.support.operator.observed import UID, make_result, make_service

from gnnserve_api.manifest import parse_manifest
from gnnserve_api.pods.generation import decode_result
from gnnserve_api.pods.routing import decode_routing
from gnnserve_api.spec.pods import PodSettings
from gnnserve_api.spec.service import GNNService
from gnnserve_operator.desired.deployment import digest_of_pods
from gnnserve_worker.serving.tracing.options import TracingOptions, read_tracing

LONG = "a" * 63
FULL: dict[str, Any] = {
    "graph": {"source": {"npz": {"uri": "file:///data/$(HOME)/a.npz"}}, "volume": {"claimName": "graphs"}},
    "objective": {"latencyMs": 5},
    "generation": {
        "gpu": {"resourceName": "nvidia.com/mig-1g.10gb", "count": 2},
        "resources": {"limits": {"cpu": 4, "memory": "8Gi"}, "requests": {"cpu": "500m"}},
        "nodeSelector": {"gpu": "yes"},
        "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "runtimeClassName": "nvidia",
    },
    "worker": {
        "replicas": 3,
        "resources": {"limits": {"cpu": 2}},
        "tolerations": [{"operator": "Exists"}],
    },
    "repository": {"claim": {"storage": "20Gi", "storageClassName": "fast", "accessMode": "ReadWriteMany"}},
    "image": "gnnserve/worker:2",
    "imagePullSecrets": ["registry"],
}
EXTRA = {
    "workerExtraVolumes": [{"name": "packages", "persistentVolumeClaim": {"claimName": "packages"}}],
    "workerExtraVolumeMounts": [{"name": "packages", "mountPath": "/packages", "readOnly": True}],
    "workerExtraEnv": [{"name": "PYTHONPATH", "value": "/packages"}],
}


SERVICES = [
    pytest.param(make_service(), {}, id="the least spec"),
    pytest.param(make_service(**FULL), EXTRA, id="every field"),
    pytest.param(make_service(LONG, **FULL), {}, id="the longest name"),
    pytest.param(make_service(suspend=True, worker={"replicas": 0}), {}, id="suspended"),
]


@pytest.mark.parametrize(("service", "settings"), SERVICES)
def test_every_child_is_named_labelled_and_owned(service: GNNService, settings: dict[str, Any]) -> None:
    children = build(service, **settings)
    assert len(children) == 12
    for child in children.values():
        metadata = child["metadata"]
        assert re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", metadata["name"])
        assert metadata["namespace"] == "shop"
        assert metadata["ownerReferences"] == [
            {
                "apiVersion": "gnnserve.dev/v1alpha1",
                "kind": "GNNService",
                "name": service.metadata.name,
                "uid": UID,
                "controller": True,
                "blockOwnerDeletion": False,
            }
        ]
        labels = metadata["labels"]
        assert labels["app.kubernetes.io/managed-by"] == "gnnserve-operator"
        assert labels["gnnserve.dev/service"] == service.metadata.name
        assert all(re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", value) for value in labels.values())


@pytest.mark.parametrize(("service", "settings"), SERVICES)
def test_pods_are_restricted(service: GNNService, settings: dict[str, Any]) -> None:
    children = build(service, **settings)
    for kind in ("Job", "Deployment"):
        pod = pod_of(children, kind)
        assert violations(pod) == []
        assert pod["enableServiceLinks"] is False
        assert pod["securityContext"]["fsGroup"] == 65_532
        (container,) = pod["containers"]
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        writable = {m["mountPath"] for m in container["volumeMounts"] if not m.get("readOnly")}
        assert writable == {"/tmp"} | ({"/repository"} if kind == "Job" else set())  # noqa: S108
        assert {m["name"] for m in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}


@pytest.mark.parametrize(("service", "settings"), SERVICES)
def test_where_the_platform_chooses_the_user_pods_name_none_and_stay_restricted(
    service: GNNService, settings: dict[str, Any]
) -> None:
    children, fixed = build(service, runAs="Platform", **settings), build(service, **settings)
    for kind in ("Job", "Deployment"):
        pod, other = pod_of(children, kind), pod_of(fixed, kind)
        assert violations(pod) == []
        assert not {"runAsUser", "runAsGroup", "fsGroup"} & pod["securityContext"].keys()
        assert other["securityContext"] == {
            **pod["securityContext"], "runAsUser": 65_532, "runAsGroup": 65_532, "fsGroup": 65_532
        }  # fmt: skip
        # The image's files are everyone's to read, and what is written goes to /tmp: no user needs a home.
        assert environment(pod["containers"][0])["HOME"] == "/tmp"  # noqa: S108
        assert {**pod, "securityContext": {}} == {**other, "securityContext": {}}


def test_the_checker_of_restricted_pods_finds_what_is_not() -> None:
    pod = {"hostNetwork": True, "volumes": [{"name": "v", "hostPath": {}}], "containers": [{"name": "c"}]}
    assert violations(pod) == [
        "hostNetwork", "volume v: hostPath", "c: allowPrivilegeEscalation", "c: runAsNonRoot", "c: seccompProfile",
        "c: capabilities.drop",
    ]  # fmt: skip


@pytest.mark.parametrize(("service", "settings"), SERVICES)
def test_manifests_hold_nothing_that_the_api_server_leaves_out(service: GNNService, settings: dict[str, Any]) -> None:
    def empties(value: Any, path: str) -> list[str]:
        if isinstance(value, dict):
            # An emptyDir is an empty object, and an empty label selector or "core" group means something.
            found = [path] if not value and not path.endswith("emptyDir") else []
            return found + [name for key, item in value.items() for name in empties(item, f"{path}.{key}")]
        if isinstance(value, list):
            found = [] if value else [path]
            return found + [name for index, item in enumerate(value) for name in empties(item, f"{path}[{index}]")]
        return [path] if value is None or (value == "" and "apiGroups" not in path) else []

    children = build(service, **settings)
    assert empties(list(children.values()), "") == []
    assert json.loads(json.dumps(list(children.values()))) == list(children.values())


@pytest.mark.parametrize(("service", "settings"), SERVICES)
def test_building_twice_builds_the_same(service: GNNService, settings: dict[str, Any]) -> None:
    assert build(service, **settings) == build(service, **settings)


def test_settings_reach_both_pods() -> None:
    children = build(make_service(**FULL), **EXTRA, imagePullPolicy="Never")
    for kind in ("Job", "Deployment"):
        pod = pod_of(children, kind)
        (container,) = pod["containers"]
        assert pod["volumes"][-1]["name"] == "packages"
        assert container["volumeMounts"][-1]["mountPath"] == "/packages"
        assert container["env"][-1] == {"name": "PYTHONPATH", "value": "/packages"}
        assert container["imagePullPolicy"] == "Never"
        assert container["image"] == "gnnserve/worker:2"
        assert pod["imagePullSecrets"] == [{"name": "registry"}]


IMAGES = {"generationImage": "gnnserve/generate:1", "gpuWorkerImage": "gnnserve/worker-gpu:1"}
ON_GPU = {"worker": {"device": "GPU", "gpu": {}}}


@pytest.mark.parametrize(
    ("spec", "settings", "job", "worker"),
    [
        pytest.param({}, {}, "worker:1", "worker:1", id="one image for all"),
        pytest.param({}, IMAGES, "generate:1", "worker:1", id="no GPU"),
        pytest.param(ON_GPU, IMAGES, "generate:1", "worker-gpu:1", id="a worker with a GPU"),
        pytest.param(ON_GPU, {}, "worker:1", "worker:1", id="one image for GPUs, too"),
        pytest.param({**ON_GPU, "image": "gnnserve/own:1"}, IMAGES, "own:1", "own:1", id="of the spec"),
    ],
)
def test_a_pod_has_the_image_of_its_task(spec: dict[str, Any], settings: dict[str, Any], job: str, worker: str) -> None:
    children = build(make_service(**spec), **settings)
    found = [pod_of(children, kind)["containers"][0]["image"] for kind in ("Job", "Deployment")]
    assert found == [f"gnnserve/{job}", f"gnnserve/{worker}"]


def test_a_job_carries_what_generation_needs() -> None:
    service = make_service(**FULL)
    children = build(service)
    job, pod = of_kind(children, "Job"), pod_of(children, "Job")
    spec = job["spec"]
    assert (spec["backoffLimit"], spec["activeDeadlineSeconds"]) == (2, 86_400)
    assert "suspend" not in spec, "others may suspend it too"
    assert spec["podReplacementPolicy"] == "Failed"
    assert spec["podFailurePolicy"]["rules"][0] == {
        "action": "FailJob",
        "onExitCodes": {"containerName": "generate", "operator": "In", "values": [2]},
    }
    assert "ttlSecondsAfterFinished" not in spec
    assert job["metadata"]["labels"]["gnnserve.dev/recipe"] == service.spec.recipe()
    assert spec["template"]["metadata"]["labels"]["gnnserve.dev/recipe"] == service.spec.recipe()
    assert pod["restartPolicy"] == "Never"
    assert pod["automountServiceAccountToken"] is False
    assert "serviceAccountName" not in pod
    assert pod["nodeSelector"] == {"gpu": "yes"}
    assert pod["tolerations"] == [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}]
    assert pod["runtimeClassName"] == "nvidia"
    (container,) = pod["containers"]
    assert container["command"] == ["python", "-m", "gnnserve_worker.pods.generate"]
    assert container["terminationMessagePolicy"] == "FallbackToLogsOnError"
    assert container["resources"] == {
        "requests": {"cpu": "500m"},
        "limits": {"cpu": "4", "memory": "8Gi", "nvidia.com/mig-1g.10gb": "2"},
    }
    assert {"name": "graph", "mountPath": "/data", "readOnly": True} in container["volumeMounts"]
    assert {"name": "graph", "persistentVolumeClaim": {"claimName": "graphs"}} in pod["volumes"]
    assert environment(container)["OMP_NUM_THREADS"] == {"resourceFieldRef": {"resource": "limits.cpu"}}


def test_the_manifest_in_a_job_has_the_recipe_of_the_service() -> None:
    service = make_service(**FULL, variants={"pruning": {"factors": [1, 3]}}, model={"hidden": 64})
    container = pod_of(build(service), "Job")["containers"][0]
    text = environment(container)["GNNSERVE_MANIFEST"]
    assert "$$(HOME)" in text, "Kubernetes would expand a variable in it"
    manifest = parse_manifest(text.replace("$$", "$"), "GNNSERVE_MANIFEST")
    assert manifest.spec.recipe() == service.spec.recipe()
    assert (manifest.metadata.name, manifest.metadata.namespace) == ("digits", "shop")
    assert set(json.loads(text)["spec"]) == {"graph", "model", "variants"}
    assert "volume" not in json.loads(text)["spec"]["graph"]


ANOTHER_JOB: list[tuple[str, dict[str, Any], bool]] = [
    ("another model", {"model": {"hidden": 64}}, True),
    ("another image", {"image": "gnnserve/worker:2"}, True),
    ("other resources", {"generation": {"resources": {"limits": {"cpu": 1}}}}, True),
    ("another volume", {"graph": {"source": {"builtin": "Digits"}, "volume": {"claimName": "graphs"}}}, True),
    ("another repository", {"repository": {"claimName": "shared"}}, True),
    ("more retries", {"generation": {"retries": 5}}, False),
    ("more workers", {"worker": {"replicas": 5}}, False),
    ("an objective", {"objective": {"latencyMs": 5}}, False),
    ("a default written out", {"model": {"hidden": 128}}, False),
    ("a suspension", {"suspend": True}, False),
]


@pytest.mark.parametrize(("spec", "differs"), [c[1:] for c in ANOTHER_JOB], ids=[c[0] for c in ANOTHER_JOB])
def test_another_template_is_another_job(spec: dict[str, Any], differs: bool) -> None:
    def name(service: GNNService) -> str:
        return str(of_kind(build(service), "Job")["metadata"]["name"])

    assert (name(make_service(**spec)) != name(make_service())) is differs


def test_workers_answer_until_their_successors_do() -> None:
    deployment = of_kind(build(make_service(**FULL)), "Deployment")
    spec, template = deployment["spec"], deployment["spec"]["template"]
    assert spec["replicas"] == 3
    assert spec["strategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    assert spec["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    pod = template["spec"]
    (container,) = pod["containers"]
    assert container["command"] == ["python", "-m", "gnnserve_worker.pods.serve"]
    assert container["lifecycle"] == {"preStop": {"sleep": {"seconds": 5}}}
    assert pod["terminationGracePeriodSeconds"] == 60
    assert container["startupProbe"]["httpGet"]["path"] == "/healthz"
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert container["readinessProbe"]["periodSeconds"] == 1
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert pod["topologySpreadConstraints"][0]["whenUnsatisfiable"] == "ScheduleAnyway"
    assert template["metadata"]["annotations"]["prometheus.io/port"] == "8080"
    assert container["resources"] == {"limits": {"cpu": "2"}}


def test_workers_know_whom_they_serve_and_what_to_follow() -> None:
    pod = pod_of(build(make_service()), "Deployment")
    variables = environment(pod["containers"][0])
    assert variables["GNNSERVE_SERVICE"] == "digits"
    assert variables["GNNSERVE_NAMESPACE"] == "shop"
    assert variables["GNNSERVE_ROUTING"] == "digits-routing"
    assert variables["GNNSERVE_REPOSITORY"] == "/repository"
    assert variables["GNNSERVE_LAME_DUCK_S"] == "5"
    assert "NUMBA_CACHE_DIR" not in variables, "it would hide the kernels that the image carries"
    assert pod["serviceAccountName"] == "digits-worker"
    assert pod["automountServiceAccountToken"] is True
    routing = next(volume for volume in pod["volumes"] if volume["name"] == "routing")
    assert routing["configMap"] == {"name": "digits-routing", "optional": True}


def test_workers_may_follow_their_config_map_and_nothing_else() -> None:
    children = build(make_service())
    (rule,) = of_kind(children, "Role")["rules"]
    assert rule == {
        "apiGroups": [""],
        "resources": ["configmaps"],
        "resourceNames": [of_kind(children, "ConfigMap")["metadata"]["name"]],
        "verbs": ["get", "list", "watch"],
    }
    binding = of_kind(children, "RoleBinding")
    assert binding["roleRef"]["name"] == of_kind(children, "Role")["metadata"]["name"]
    account = of_kind(children, "ServiceAccount")
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account["metadata"]["name"], "namespace": "shop"}]
    assert account["automountServiceAccountToken"] is False


def test_workers_are_scraped_as_often_as_the_slow_loop_looks() -> None:
    for interval_seconds, scraped in ((5, "5s"), (15, "15s"), (3600, "15s")):
        children = build(make_service(routing={"intervalSeconds": interval_seconds}))
        (endpoint,) = of_kind(children, "PodMonitor")["spec"]["podMetricsEndpoints"]
        assert endpoint == {"port": "http", "path": "/metrics", "interval": scraped}


def test_selectors_find_the_pods_they_are_about() -> None:
    children = build(make_service())
    worker = of_kind(children, "Deployment")["spec"]["template"]["metadata"]["labels"].items()
    generation = of_kind(children, "Job")["spec"]["template"]["metadata"]["labels"].items()
    selectors = {
        "Service": of_kind(children, "Service")["spec"]["selector"],
        "budget": of_kind(children, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        "monitor": of_kind(children, "PodMonitor")["spec"]["selector"]["matchLabels"],
        "policy": children["NetworkPolicy", "digits-worker"]["spec"]["podSelector"]["matchLabels"],
    }
    for selector in selectors.values():
        assert selector.items() <= worker
        assert not selector.items() <= generation
    policy = children["NetworkPolicy", "digits-generate"]["spec"]["podSelector"]["matchLabels"].items()
    assert policy <= generation
    assert not policy <= worker


def test_network_policies_let_through_what_pods_need() -> None:
    children = build(make_service(), apiServerPorts=[6443])
    worker = children["NetworkPolicy", "digits-worker"]["spec"]
    assert worker["ingress"] == [{"ports": [{"protocol": "TCP", "port": 8080}]}]
    assert worker["egress"] == [
        {"ports": [{"protocol": p, "port": port} for port in (53, 5353) for p in ("UDP", "TCP")]},
        {"ports": [{"protocol": "TCP", "port": 6443}]},
    ]
    generation = children["NetworkPolicy", "digits-generate"]["spec"]
    assert generation["policyTypes"] == ["Ingress", "Egress"]
    assert not {"ingress", "egress"} & set(generation)
    assert "NetworkPolicy" not in {kind for kind, _ in build(make_service(), networkPolicy=False)}


@pytest.mark.parametrize(
    ("source", "extra_env", "ports"),
    [
        pytest.param({"ogb": {"name": "ogbn-arxiv"}}, [], [80, 443], id="where it is published"),
        pytest.param({"pyg": {"name": "Cora", "mirror": "http://m.lan:8000/x"}}, [], [80, 443, 8000], id="a mirror"),
        pytest.param(
            {"ogb": {"name": "ogbn-arxiv"}},
            [{"name": "GNNSERVE_MIRROR", "value": "http://m.lan:8000"}],
            [80, 443, 8000],
            id="a mirror of all manifests",
        ),
        pytest.param({"pyg": {"name": "Cora", "mirror": "https://m.lan:no"}}, [], [80, 443], id="a port of no number"),
        pytest.param(
            {"pyg": {"name": "Cora"}},
            [{"name": "https_proxy", "value": "http://proxy.lan:3128"}, {"name": "HTTP_PROXY", "valueFrom": {}}],
            [80, 443, 3128],
            id="a proxy of the chart's extraEnv",
        ),
        pytest.param(
            {"pyg": {"name": "Cora"}},
            [{"name": "HTTPS_PROXY", "value": "proxy.lan:3128"}, {"name": "ALL_PROXY", "value": "u:p@10.0.0.5:8888/"}],
            [80, 443, 3128, 8888],
            id="proxies without a scheme",
        ),
        pytest.param({"pyg": {"name": "Cora", "mirror": "file:///data"}}, [], None, id="a folder"),
        pytest.param({"npz": {"uri": "file:///data/graph.npz"}}, [], None, id="a file"),
    ],
)
def test_the_job_reaches_what_a_public_graph_is_fetched_from(
    source: dict[str, Any], extra_env: list[dict[str, Any]], ports: list[int] | None
) -> None:
    service = make_service(graph={"source": source, "volume": {"claimName": "data"}})
    policy = build(service, workerExtraEnv=extra_env)["NetworkPolicy", "digits-generate"]["spec"]
    if ports is None:
        assert "egress" not in policy
        return
    names, downloads = policy["egress"]
    assert {port["port"] for port in names["ports"]} == {53, 5353}
    assert downloads == {"ports": [{"protocol": "TCP", "port": port} for port in ports]}
    assert "ingress" not in policy


HUB_WEIGHTS = {"checkpoint": {"uri": "hf://lab/papers@0123456789abcdef0123456789abcdef01234567"}}


@pytest.mark.parametrize(
    ("extra_env", "ports"),
    [([], [80, 443]), ([{"name": "HF_ENDPOINT", "value": "https://hub.lan:8443"}], [80, 443, 8443])],
    ids=["the hub", "a mirror"],
)
def test_the_job_alone_reaches_the_hub(extra_env: list[dict[str, Any]], ports: list[int]) -> None:
    children = build(make_service(model=HUB_WEIGHTS), workerExtraEnv=extra_env, apiServerPorts=[6443])
    _, fetched = children["NetworkPolicy", "digits-generate"]["spec"]["egress"]
    assert fetched == {"ports": [{"protocol": "TCP", "port": port} for port in ports]}
    of_workers = children["NetworkPolicy", "digits-worker"]["spec"]["egress"]
    assert [port["port"] for rule in of_workers for port in rule["ports"]] == [53, 53, 5353, 5353, 6443]


def test_the_job_alone_sees_the_token_of_the_hub_and_nothing_else_of_its_secret() -> None:
    children = build(make_service(model=HUB_WEIGHTS, generation={"hub": {"secretName": "lab"}}))
    pod = pod_of(children, "Job")
    (volume,) = [volume for volume in pod["volumes"] if volume["name"] == "hub"]
    assert volume["secret"] == {
        "secretName": "lab", "optional": True, "defaultMode": 0o440, "items": [{"key": "token", "path": "token"}],
    }  # fmt: skip
    (container,) = pod["containers"]
    assert {"name": "hub", "mountPath": "/etc/gnnserve/hub", "readOnly": True} in container["volumeMounts"]
    assert environment(container)["GNNSERVE_HUB_TOKEN"] == "/etc/gnnserve/hub/token"  # noqa: S105
    assert "lab" not in str(pod_of(children, "Deployment")["volumes"])
    assert "GNNSERVE_HUB_TOKEN" not in str(build(make_service(model=HUB_WEIGHTS)))


@pytest.mark.parametrize("spec", [{}, {"graph": {"source": {"pyg": {"name": "Cora"}}}}], ids=["no network", "fetched"])
def test_a_mesh_may_reach_every_pod_and_every_pod_the_mesh(spec: dict[str, Any]) -> None:
    service = make_service(embeddings={"variant": "x1"}, **spec)
    meshed = build(service, meshPorts=[15008, 15012])
    ports = {"ports": [{"protocol": "TCP", "port": port} for port in (15008, 15012)]}
    names = {"ports": [{"protocol": protocol, "port": port} for port in (53, 5353) for protocol in ("UDP", "TCP")]}
    policies = {name: child["spec"] for (kind, name), child in meshed.items() if kind == "NetworkPolicy"}
    assert policies.keys() == {"digits-worker", "digits-generate", "digits-embeddings"}
    for name, policy in policies.items():
        plain = build(service)["NetworkPolicy", name]["spec"]
        assert policy["ingress"] == [*plain.get("ingress", []), ports]
        assert policy["egress"] == [*plain.get("egress", [names]), ports]


@pytest.mark.parametrize(
    ("endpoint", "port"),
    [("http://collector.monitoring:4318", 4318), ("https://otlp.example/v", 443), ("http://collector", 80)],
)
def test_workers_send_traces_where_the_spec_says_so_and_may_reach_its_port(endpoint: str, port: int) -> None:
    service = make_service(worker={"tracing": {"endpoint": endpoint, "sampledPermille": 25}})
    children = build(service)
    variables = environment(pod_of(children, "Deployment")["containers"][0])
    traced = {name: value for name, value in variables.items() if name.startswith("OTEL_")}
    assert traced == {
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
        "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
        "OTEL_TRACES_SAMPLER_ARG": "0.025",
    }
    options = read_tracing({name: str(value) for name, value in traced.items()})
    assert options == TracingOptions(endpoint, 25)
    egress = children["NetworkPolicy", "digits-worker"]["spec"]["egress"]
    assert {"ports": [{"protocol": "TCP", "port": port}]} in egress
    assert not [name for name in environment(pod_of(build(make_service()), "Deployment")["containers"][0]) if
                name.startswith("OTEL_")]  # fmt: skip
    assert "OTEL_" not in str(of_kind(children, "Job"))


def test_without_api_server_ports_no_port_is_opened() -> None:
    worker = build(make_service(), apiServerPorts=[])["NetworkPolicy", "digits-worker"]["spec"]
    assert len(worker["egress"]) == 1, "a rule without ports would open all of them"


def test_the_claim_is_as_the_spec_says() -> None:
    claim = of_kind(build(make_service(**FULL)), "PersistentVolumeClaim")
    assert claim["spec"] == {
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": "20Gi"}},
        "storageClassName": "fast",
    }
    least = of_kind(build(make_service()), "PersistentVolumeClaim")
    assert least["spec"] == {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "10Gi"}}}


def test_a_claim_of_the_users_is_mounted_and_not_made() -> None:
    children = build(make_service(repository={"claimName": "shared"}))
    assert "PersistentVolumeClaim" not in {kind for kind, _ in children}
    for kind in ("Job", "Deployment"):
        volume = next(v for v in pod_of(children, kind)["volumes"] if v["name"] == "repository")
        assert volume["persistentVolumeClaim"] == {"claimName": "shared"}


def test_the_config_map_tells_workers_and_remembers() -> None:
    service = make_service(**FULL)
    config_map = of_kind(build(service), "ConfigMap")
    table = decode_routing(config_map["data"]["routing.json"])
    assert table == service.spec.routing_table("rev-1")
    assert decode_result(config_map["data"]["generation.json"]) == make_result(service.spec.recipe())
    assert config_map["metadata"]["annotations"]["gnnserve.dev/claim"] == "uid-of-the-claim"


PLACED: dict[str, Any] = {
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a", "b"]}]},
                    {"matchExpressions": [{"key": "gpus", "operator": "Exists"}]},
                ]
            }
        },
        "podAntiAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {
                    "weight": 50,
                    "podAffinityTerm": {
                        "labelSelector": {"matchLabels": {"gnnserve.dev/service": "digits"}},
                        "topologyKey": "kubernetes.io/hostname",
                        "namespaceSelector": {},
                    },
                }
            ]
        },
    },
    "priorityClassName": "serving",
    "podLabels": {"team": "search", "sidecar.istio.io/inject": "true"},
    "podAnnotations": {"example.com/log": "json"},
}


@pytest.mark.parametrize(
    ("part", "kind"), [pytest.param("worker", "Deployment", id="workers"), pytest.param("generation", "Job", id="Job")]
)
def test_pods_are_placed_and_described_as_the_spec_says(part: str, kind: str) -> None:
    plain, placed = of_kind(build(make_service()), kind), of_kind(build(make_service(**{part: PLACED})), kind)
    pod, metadata = placed["spec"]["template"]["spec"], placed["spec"]["template"]["metadata"]
    assert pod["affinity"] == PLACED["affinity"]
    assert pod["priorityClassName"] == "serving"
    before = plain["spec"]["template"]["metadata"]
    assert metadata["labels"] == {**before["labels"], **PLACED["podLabels"]}
    assert metadata["annotations"] == {**before.get("annotations", {}), **PLACED["podAnnotations"]}
    assert placed["metadata"]["labels"] == plain["metadata"]["labels"]
    assert placed["spec"].get("selector") == plain["spec"].get("selector")


def test_no_label_or_annotation_of_ours_can_be_set_by_a_spec() -> None:
    children = build(make_service(endpoint={"tls": {"secretName": "a"}}))
    for kind in ("Deployment", "Job"):
        metadata = of_kind(children, kind)["spec"]["template"]["metadata"]
        for field, names in (("podLabels", metadata["labels"]), ("podAnnotations", metadata.get("annotations", {}))):
            for name in names:
                with pytest.raises(ValidationError, match=f"{field} must not have .*: remove {re.escape(name)}"):
                    PodSettings.model_validate({field: {name: "a"}})


def test_workers_are_spread_as_the_spec_says_in_place_of_our_default() -> None:
    constraints = [
        {"topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule", "minDomains": 2},
        {"topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway", "maxSkew": 3},
    ]
    service = make_service(repository={"claimName": "models"}, worker={"topologySpreadConstraints": constraints})
    counted = {
        "labelSelector": {"matchLabels": {"gnnserve.dev/service": "digits", "app.kubernetes.io/component": "worker"}},
        "matchLabelKeys": ["pod-template-hash"],
    }
    assert pod_of(build(service), "Deployment")["topologySpreadConstraints"] == [
        {"maxSkew": 1, **constraints[0], **counted},
        {**constraints[1], **counted},
    ]


def test_the_service_is_exposed_and_annotated_as_the_spec_says() -> None:
    plain = of_kind(build(make_service()), "Service")
    assert plain["spec"]["type"] == "ClusterIP"
    assert "annotations" not in plain["metadata"]
    annotations = {"service.beta.kubernetes.io/aws-load-balancer-internal": "true"}
    exposed = build(make_service(endpoint={"service": {"type": "LoadBalancer", "annotations": annotations}}))
    service = of_kind(exposed, "Service")
    assert service["metadata"] == {**plain["metadata"], "annotations": annotations}
    assert service["spec"] == {**plain["spec"], "type": "LoadBalancer"}
    assert of_kind(exposed, "Deployment") == of_kind(build(make_service()), "Deployment"), "no pod is replaced"


def test_a_change_of_the_service_alone_is_none_of_the_pods() -> None:
    exposed = make_service(endpoint={"service": {"type": "NodePort"}}).spec
    assert digest_of_pods(exposed) == digest_of_pods(make_service().spec)
    moved = make_service(worker={"priorityClassName": "serving"}).spec
    assert digest_of_pods(moved) != digest_of_pods(make_service().spec)


def test_a_gpu_stated_twice_is_asked_for_once() -> None:
    resources = {"limits": {"nvidia.com/gpu": 4}, "requests": {"nvidia.com/gpu": 4}}
    service = make_service(generation={"gpu": {"count": 2}, "resources": resources})
    container = pod_of(build(service), "Job")["containers"][0]
    assert container["resources"] == {"requests": {"nvidia.com/gpu": "2"}, "limits": {"nvidia.com/gpu": "2"}}


def test_workers_ask_for_their_gpu_and_are_told_how_to_use_it() -> None:
    worker = {
        "replicas": 3,
        "device": "GPU",
        "gpu": {"resourceName": "nvidia.com/mig-1g.10gb", "count": 2},
        "gpuMemory": "40Gi",
        "cache": {"policy": "LFU"},
        "runtimeClassName": "nvidia",
        "resources": {"limits": {"cpu": 4}},
    }
    children = build(make_service(worker=worker))
    pod = pod_of(children, "Deployment")
    assert violations(pod) == []
    assert pod["runtimeClassName"] == "nvidia"
    (container,) = pod["containers"]
    assert container["resources"] == {"limits": {"cpu": "4", "nvidia.com/mig-1g.10gb": "2"}}
    told = {name: value for name, value in environment(container).items() if "GPU" in str(value) or "_CACHE" in name}
    assert told == {"GNNSERVE_DEVICE": "GPU", "GNNSERVE_CACHE": "LFU"}
    assert environment(container)["GNNSERVE_GPU_MEMORY"] == str(40 * 2**30)


@pytest.mark.parametrize(
    "worker",
    [
        pytest.param({}, id="nothing is said"),
        pytest.param({"device": "Auto", "cache": {"policy": "Frequency"}}, id="the defaults are written out"),
    ],
)
def test_workers_are_told_of_devices_only_what_is_no_default(worker: dict[str, Any]) -> None:
    (container,) = pod_of(build(make_service(worker=worker)), "Deployment")["containers"]
    assert not environment(container).keys() & {"GNNSERVE_DEVICE", "GNNSERVE_CACHE", "GNNSERVE_GPU_MEMORY"}


@pytest.mark.parametrize(
    ("worker", "unavailable"),
    [
        pytest.param({"replicas": 3}, 0, id="without a GPU a worker answers until its successor does"),
        pytest.param({"replicas": 3, "gpu": {}}, 1, id="one of several gives its GPU to its successor"),
        pytest.param({"replicas": 1, "gpu": {}}, 0, id="the only one answers on"),
    ],
)
def test_an_update_does_not_wait_for_a_gpu_that_its_own_workers_hold(worker: dict[str, Any], unavailable: int) -> None:
    strategy = of_kind(build(make_service(worker=worker)), "Deployment")["spec"]["strategy"]
    assert strategy["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": unavailable}


def test_children_come_in_an_order_in_which_they_can_be_used() -> None:
    kinds = [kind for kind, _ in build(make_service())]
    for first, then in (
        ("Role", "RoleBinding"), ("ServiceAccount", "RoleBinding"), ("RoleBinding", "Deployment"),
        ("NetworkPolicy", "Job"), ("PersistentVolumeClaim", "Job"), ("ConfigMap", "Deployment"),
    ):  # fmt: skip
        assert kinds.index(first) < kinds.index(then)


@pytest.mark.parametrize(
    ("uri", "said"), [("parts/a.npz", "/mnt/graphs"), ("file:///mnt/graphs/a.npz", None), ("/mnt/graphs/a.npz", None)]
)
def test_a_job_is_told_where_relative_paths_begin_and_only_then(uri: str, said: str | None) -> None:
    volume = {"claimName": "graphs", "mountPath": "/mnt/graphs"}
    children = build(make_service(graph={"source": {"npz": {"uri": uri}}, "volume": volume}))
    (container,) = of_kind(children, "Job")["spec"]["template"]["spec"]["containers"]
    told = {variable["name"]: variable.get("value") for variable in container["env"]}
    assert told.get("GNNSERVE_DATA") == said
    assert json.loads(told["GNNSERVE_MANIFEST"])["spec"]["graph"]["source"]["npz"]["uri"] == uri
