"""The files that the components read, and the objects that the cluster starts with. JSON where YAML is expected."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.cluster.harness.layout import (
    BRIDGE,
    DNS_SERVICE_IP,
    HOST_IP,
    PAUSE_IMAGE,
    POD_CIDR,
    STORAGE_CLASS,
    Layout,
)
from tests.cluster.harness.packages import CNI_PLUGINS

COMPONENT_KUBECONFIGS = ("controller-manager", "scheduler", "kubelet", "kube-proxy", "coredns")
PROVISIONER = "gnnserve.dev/test-folders"


def write(layout: Layout) -> None:
    for folder in (layout.etc / "cni", layout.logs / "pods", layout.volumes, layout.run):
        folder.mkdir(parents=True, exist_ok=True)
    write_kubeconfigs(layout, COMPONENT_KUBECONFIGS)
    (layout.etc / "containerd.toml").write_text(_containerd(layout))
    (layout.etc / "Corefile").write_text(_corefile(layout))
    _json(layout.etc / "cni" / "10-bridge.conflist", _network(layout))
    _json(layout.etc / "kubelet.yaml", _kubelet(layout))
    _json(layout.etc / "objects.json", {"apiVersion": "v1", "kind": "List", "items": _objects()})


def write_kubeconfigs(layout: Layout, components: Iterable[str]) -> None:
    layout.etc.mkdir(parents=True, exist_ok=True)
    for name in components:
        _kubeconfig(layout, layout.etc / f"{name}.kubeconfig", name)
    _kubeconfig(layout, layout.kubeconfig, "admin")


def _json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1))


def _kubeconfig(layout: Layout, path: Path, certificate: str) -> None:
    user = {
        "client-certificate": str(layout.pki / f"{certificate}.crt"),
        "client-key": str(layout.pki / f"{certificate}.key"),
    }
    cluster = {"server": layout.addresses.api, "certificate-authority": str(layout.pki / "ca.crt")}
    _json(
        path,
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "gnnserve", "cluster": cluster}],
            "users": [{"name": certificate, "user": user}],
            "contexts": [{"name": "gnnserve", "context": {"cluster": "gnnserve", "user": certificate}}],
            "current-context": "gnnserve",
        },
    )
    path.chmod(0o600)


def _containerd(layout: Layout) -> str:
    # restrict_oom_score_adj: without CAP_SYS_RESOURCE oom_score_adj cannot be lowered, and every sandbox would fail.
    return f"""\
version = 2
root = "{layout.containerd}"
state = "{layout.run}/containerd"
[grpc]
  address = "{layout.containerd_socket}"
[plugins."io.containerd.grpc.v1.cri"]
  restrict_oom_score_adj = true
  sandbox_image = "{PAUSE_IMAGE}"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{CNI_PLUGINS}"
    conf_dir = "{layout.etc}/cni"
"""


def _network(layout: Layout) -> dict[str, Any]:
    addresses = {
        "type": "host-local",
        "dataDir": str(layout.state / "cni"),
        "ranges": [[{"subnet": POD_CIDR, "gateway": HOST_IP}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {"type": "bridge", "bridge": BRIDGE, "isGateway": True, "ipMasq": False, "hairpinMode": True}
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    return {"cniVersion": "0.4.0", "name": "gnnserve", "plugins": [{**bridge, "ipam": addresses}, ports]}


def _kubelet(layout: Layout) -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": HOST_IP,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(layout.pki / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(layout.pki / "kubelet-server.crt"),
        "tlsPrivateKeyFile": str(layout.pki / "kubelet-server.key"),
        # No systemd is assumed, and the kubelet would refuse version 1 of cgroups.
        "cgroupDriver": "cgroupfs",
        "failCgroupV1": False,
        "failSwapOn": False,
        "makeIPTablesUtilChains": False,
        "containerRuntimeEndpoint": f"unix://{layout.containerd_socket}",
        "clusterDNS": [DNS_SERVICE_IP],
        "clusterDomain": "cluster.local",
        "resolvConf": "",
        "podLogsDir": str(layout.logs / "pods"),
        # What was imported by hand cannot be pulled again, so nothing is collected and little evicted.
        "imageGCHighThresholdPercent": 100,
        "serializeImagePulls": False,
        # What is killed again and again, as chaos does, would otherwise be away for minutes.
        "crashLoopBackOff": {"maxContainerRestartPeriod": "10s"},
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "1%",
            "imagefs.available": "1%",
            "nodefs.inodesFree": "1%",
        },
    }


def _corefile(layout: Layout) -> str:
    # A pod's name in the records of a headless Service is how Prometheus comes to know it.
    # Names outside the cluster get NXDOMAIN at once: pods have no way out, and a resolver that waits would hide it.
    return f"""\
cluster.local:53 in-addr.arpa:53 ip6.arpa:53 {{
    bind {HOST_IP}
    errors
    ready 127.0.0.1:8181
    kubernetes cluster.local in-addr.arpa ip6.arpa {{
        kubeconfig {layout.etc}/coredns.kubeconfig gnnserve
        ttl 5
        endpoint_pod_names
    }}
}}
.:53 {{
    bind {HOST_IP}
    template ANY ANY . {{
        rcode NXDOMAIN
    }}
}}
"""


def _objects() -> list[dict[str, Any]]:
    ports = [{"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "dns-tcp", "port": 53, "protocol": "TCP"}]
    coredns = {"name": "system:coredns"}
    return [
        # CoreDNS runs on the host: a Service without a selector, and one endpoint made by hand.
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "kube-dns", "namespace": "kube-system", "labels": {"k8s-app": "kube-dns"}},
            "spec": {"clusterIP": DNS_SERVICE_IP, "ports": ports},
        },
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": "kube-dns-host",
                "namespace": "kube-system",
                "labels": {
                    "kubernetes.io/service-name": "kube-dns",
                    "endpointslice.kubernetes.io/managed-by": "gnnserve-tests",
                },
            },
            "addressType": "IPv4",
            "ports": ports,
            "endpoints": [{"addresses": [HOST_IP], "conditions": {"ready": True}}],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": coredns,
            "rules": [
                {
                    "apiGroups": [""],
                    "resources": ["endpoints", "services", "pods", "namespaces"],
                    "verbs": ["list", "watch"],
                },
                {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
            ],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": coredns,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", **coredns},
            "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", **coredns}],
        },
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {
                "name": STORAGE_CLASS,
                "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
            },
            "provisioner": PROVISIONER,
            "volumeBindingMode": "Immediate",
            "reclaimPolicy": "Delete",
        },
    ]
