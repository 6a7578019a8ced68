"""Where the harness keeps things, and the addresses of its node.

`bin` holds what is slow to make and never changes, `images` the image store, `state` everything that `wipe` forgets.
What lives only as long as the processes (sockets, pids, the network's traces) is under /run. One node a machine: the
bridge, its addresses and the ports are fixed. An API server without a node (`api_server.py`) has its own of all these.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

NODE = "node1"
BRIDGE = "gnnserve0"
POD_CIDR = "10.244.0.0/24"
SERVICE_CIDR = "10.96.0.0/16"
# The bridge's own address: the API server, the kubelet and DNS listen here or on 127.0.0.1, and nowhere else.
# An API server that advertised 127.0.0.1 would give `kubernetes.default` an endpoint that no pod reaches.
HOST_IP = "10.244.0.1"
API_SERVICE_IP = "10.96.0.1"
DNS_SERVICE_IP = "10.96.0.10"

PAUSE_IMAGE = "localhost/gnnserve/pause:1"
STORAGE_CLASS = "gnnserve-test"
# The user of the pods; files that pods write belong to it.
POD_UID = 65532


@dataclass(frozen=True, slots=True)
class Addresses:
    """Addresses of the control plane; by default those of the node."""

    host: str = HOST_IP
    api_port: int = 6443
    etcd_port: int = 23790
    etcd_peer_port: int = 23800
    controller_manager_port: int = 10257

    @property
    def api(self) -> str:
        return f"https://{self.host}:{self.api_port}"


@dataclass(frozen=True, slots=True)
class Layout:
    root: Path
    # A short path: a unix socket's name holds at most 107 bytes, and containerd's shims add their own.
    run: Path = Path("/run/gnnserve")
    home: Path | None = None
    """Folder of state and logs, where they do not lie beside the programs."""
    addresses: Addresses = Addresses()

    @classmethod
    def of_this_machine(cls) -> Layout:
        chosen = os.environ.get("GNNSERVE_CLUSTER_DIR")
        return cls(Path(chosen).resolve() if chosen else Path.home() / ".cache" / "gnnserve" / "cluster")

    @property
    def bin(self) -> Path:
        return self.root / "bin"

    @property
    def source(self) -> Path:
        return self.root / "src"

    @property
    def logs(self) -> Path:
        return (self.home or self.root) / "log"

    @property
    def images(self) -> Path:
        return self.root / "images"

    @property
    def state(self) -> Path:
        return (self.home or self.root) / "state"

    @property
    def pki(self) -> Path:
        return self.state / "pki"

    @property
    def etc(self) -> Path:
        return self.state / "etc"

    @property
    def volumes(self) -> Path:
        return self.state / "volumes"

    @property
    def kubelet(self) -> Path:
        return self.state / "kubelet"

    @property
    def containerd(self) -> Path:
        return self.state / "containerd"

    @property
    def containerd_socket(self) -> Path:
        return self.run / "containerd.sock"

    @property
    def kubeconfig(self) -> Path:
        return self.state / "kubeconfig"
