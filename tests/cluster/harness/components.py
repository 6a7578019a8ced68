"""The node's processes, in the order of their start: how each is called and when it is ready."""

from __future__ import annotations

import ssl
import sys
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.harness.commands import HarnessError, succeeds, tail
from tests.cluster.harness.layout import HOST_IP, NODE, POD_CIDR, SERVICE_CIDR, Layout
from tests.cluster.harness.processes import Background

REPOSITORY = Path(__file__).resolve().parents[3]


@dataclass(frozen=True, slots=True)
class Component:
    name: str
    command: Callable[[Layout], list[str]]
    answers: Callable[[Layout], bool]

    def process(self, layout: Layout) -> Background:
        return Background(self.name, layout.run / f"{self.name}.pid", layout.logs / f"{self.name}.log")

    def start(self, layout: Layout) -> None:
        self.process(layout).start(self.command(layout))

    def ready(self, layout: Layout) -> bool:
        return self.process(layout).pid() is not None and self.answers(layout)

    def wait(self, layout: Layout, patience_s: float = 90) -> None:
        process = self.process(layout)
        deadline = time.monotonic() + patience_s
        while not self.ready(layout):
            ended = process.pid() is None
            if ended or time.monotonic() > deadline:
                what = "ended" if ended else f"was not ready after {patience_s:.0f} s"
                raise HarnessError(f"{self.name} {what}; the end of {process.log}:\n{tail(process.log)}")
            time.sleep(0.1)


def _get(url: str, authority: Path | None = None) -> bool:
    tls = ssl.create_default_context(cafile=authority)
    if authority is None:
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=tls))
    try:
        with opener.open(url, timeout=3) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def ctr(layout: Layout, *words: str) -> tuple[str, ...]:
    return ("ctr", "--address", str(layout.containerd_socket), "--namespace", "k8s.io", *words)


def _etcd_url(layout: Layout) -> str:
    return f"http://127.0.0.1:{layout.addresses.etcd_port}"


def _etcd(layout: Layout) -> list[str]:
    client, peer = _etcd_url(layout), f"http://127.0.0.1:{layout.addresses.etcd_peer_port}"
    return [
        "etcd",
        f"--data-dir={layout.state}/etcd",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        "--unsafe-no-fsync",
    ]


def _apiserver(layout: Layout) -> list[str]:
    pki, addresses = layout.pki, layout.addresses
    return [
        f"{layout.bin}/kube-apiserver",
        f"--etcd-servers={_etcd_url(layout)}",
        f"--bind-address={addresses.host}",
        f"--secure-port={addresses.api_port}",
        f"--advertise-address={addresses.host}",
        f"--tls-cert-file={pki}/apiserver.crt",
        f"--tls-private-key-file={pki}/apiserver.key",
        f"--client-ca-file={pki}/ca.crt",
        f"--kubelet-certificate-authority={pki}/ca.crt",
        f"--kubelet-client-certificate={pki}/apiserver-kubelet-client.crt",
        f"--kubelet-client-key={pki}/apiserver-kubelet-client.key",
        # The node's name need not resolve.
        "--kubelet-preferred-address-types=InternalIP",
        f"--service-cluster-ip-range={SERVICE_CIDR}",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--service-account-key-file={pki}/sa.pub",
        f"--service-account-signing-key-file={pki}/sa.key",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        f"--requestheader-client-ca-file={pki}/front-proxy-ca.crt",
        "--requestheader-allowed-names=front-proxy-client",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={pki}/front-proxy-client.crt",
        f"--proxy-client-key-file={pki}/front-proxy-client.key",
        "--enable-aggregator-routing=true",
        "--profiling=false",
    ]


def _controller_manager(layout: Layout) -> list[str]:
    kubeconfig, pki = f"{layout.etc}/controller-manager.kubeconfig", layout.pki
    return [
        f"{layout.bin}/kube-controller-manager",
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        "--bind-address=127.0.0.1",
        f"--secure-port={layout.addresses.controller_manager_port}",
        f"--service-account-private-key-file={pki}/sa.key",
        f"--root-ca-file={pki}/ca.crt",
        f"--cluster-signing-cert-file={pki}/ca.crt",
        f"--cluster-signing-key-file={pki}/ca.key",
        "--use-service-account-credentials",
        "--leader-elect=false",
    ]


def _scheduler(layout: Layout) -> list[str]:
    kubeconfig = f"{layout.etc}/scheduler.kubeconfig"
    return [
        f"{layout.bin}/kube-scheduler",
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        "--bind-address=127.0.0.1",
        "--leader-elect=false",
    ]


def _kube_proxy(layout: Layout) -> list[str]:
    return [
        f"{layout.bin}/kube-proxy",
        f"--kubeconfig={layout.etc}/kube-proxy.kubeconfig",
        "--proxy-mode=nftables",
        f"--cluster-cidr={POD_CIDR}",
        f"--hostname-override={NODE}",
        "--healthz-bind-address=127.0.0.1:10256",
        "--metrics-bind-address=127.0.0.1:10249",
    ]


def _kubelet(layout: Layout) -> list[str]:
    return [
        f"{layout.bin}/kubelet",
        f"--config={layout.etc}/kubelet.yaml",
        f"--kubeconfig={layout.etc}/kubelet.kubeconfig",
        f"--hostname-override={NODE}",
        f"--node-ip={HOST_IP}",
        f"--root-dir={layout.kubelet}",
    ]


ETCD = Component("etcd", _etcd, lambda layout: _get(f"{_etcd_url(layout)}/health"))
CONTAINERD = Component(
    "containerd",
    lambda layout: ["containerd", "--config", f"{layout.etc}/containerd.toml"],
    lambda layout: succeeds(*ctr(layout, "version")),
)
API_SERVER = Component(
    "apiserver", _apiserver, lambda layout: _get(f"{layout.addresses.api}/readyz", layout.pki / "ca.crt")
)
CONTROLLER_MANAGER = Component(
    "controller-manager",
    _controller_manager,
    lambda layout: _get(f"https://127.0.0.1:{layout.addresses.controller_manager_port}/healthz"),
)
SCHEDULER = Component("scheduler", _scheduler, lambda _: _get("https://127.0.0.1:10259/readyz"))
DNS = Component(
    "coredns",
    lambda layout: [f"{layout.bin}/coredns", "-conf", f"{layout.etc}/Corefile"],
    lambda _: _get("http://127.0.0.1:8181/ready"),
)
PROXY = Component("kube-proxy", _kube_proxy, lambda _: _get("http://127.0.0.1:10256/healthz"))
KUBELET = Component("kubelet", _kubelet, lambda _: _get("http://127.0.0.1:10248/healthz"))
PROVISIONER = Component(
    "provisioner",
    lambda layout: [
        *("env", f"PYTHONPATH={REPOSITORY}", sys.executable, "-m", "tests.cluster.harness.provisioner"),
        str(layout.root),
    ],
    lambda _: True,
)

ALL = (ETCD, CONTAINERD, API_SERVER, CONTROLLER_MANAGER, SCHEDULER, DNS, PROXY, KUBELET, PROVISIONER)
