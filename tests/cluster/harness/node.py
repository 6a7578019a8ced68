"""The node as a whole: up, down, wipe, status, and what it offers.

One node a machine, in any number of commands: a command that changes it holds its lock. Only processes that the harness
started are ever ended.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from tests.cluster.harness import binaries, certificates, components, configuration, images, network, packages
from tests.cluster.harness.commands import HarnessError, only_one, output_of, say, succeeds
from tests.cluster.harness.components import CONTAINERD, Component, ctr
from tests.cluster.harness.layout import NODE, Layout


@dataclass(frozen=True, slots=True)
class Node:
    layout: Layout

    @classmethod
    def of_this_machine(cls) -> Node:
        return cls(Layout.of_this_machine())

    # What there is

    def runs(self) -> bool:
        return all(component.process(self.layout).pid() is not None for component in components.ALL)

    def status(self) -> dict[str, str]:
        found = {}
        for component in components.ALL:
            pid = component.process(self.layout).pid()
            if pid is None:
                found[component.name] = "stopped"
            else:
                found[component.name] = f"{'ready' if component.ready(self.layout) else 'not ready'}, pid {pid}"
        found[f"node {NODE}"] = "ready" if self._registered() else "not ready"
        return found

    def environment(self) -> dict[str, str]:
        return {
            "KUBECONFIG": str(self.layout.kubeconfig),
            "CONTAINERD_ADDRESS": str(self.layout.containerd_socket),
            "CONTAINERD_NAMESPACE": "k8s.io",
            "PATH": f"{self.layout.bin}:{os.environ.get('PATH', '')}",
        }

    # What changes it

    def up(self) -> None:
        began = time.monotonic()
        if os.geteuid() != 0:
            raise HarnessError("a node needs root; set KUBECONFIG to use a cluster that you have")
        binaries.build(self.layout)
        packages.install(self.layout, packages.NODE_PACKAGES)
        with self._alone():
            self._refuse_a_second_node()
            self._owner.parent.mkdir(parents=True, exist_ok=True)
            self._owner.write_text(str(self.layout.root))
            certificates.make(self.layout)
            configuration.write(self.layout)
            network.up()
            self._start()
        say(f"the node is ready after {time.monotonic() - began:.1f} s; KUBECONFIG={self.layout.kubeconfig}")

    def down(self) -> None:
        with self._alone():
            self._refuse_a_second_node()
            self._stop()

    def wipe(self) -> None:
        with self._alone():
            self._refuse_a_second_node()
            self._stop()
            mounted = self._mounts()
            if mounted:
                # Somebody's data may lie behind a mount.
                raise HarnessError(f"still mounted: {', '.join(mounted)}; nothing was removed")
            for folder in (self.layout.state, self.layout.logs / "pods"):
                shutil.rmtree(folder, ignore_errors=True)
            shutil.rmtree(self.layout.run, ignore_errors=True)

    def offer(self, count: int, resource: str = "nvidia.com/gpu") -> None:
        """An extended resource that pods can ask for; no device appears in them."""
        offered = {resource: str(count)}
        patch = json.dumps({"status": {"capacity": offered, "allocatable": offered}})
        self._kubectl("patch", "node", NODE, "--subresource=status", "--type=merge", "--patch", patch)

    def tag(self, image: str, other: str) -> None:
        """Another name for an image that the node has."""
        output_of(*ctr(self.layout, "images", "tag", "--force", image, other))

    # How

    @property
    def _owner(self) -> Path:
        return self.layout.run / "owner"

    def _alone(self) -> AbstractContextManager[None]:
        return only_one(Path("/run/lock/gnnserve-node.lock"), "start or stop the node")

    def _refuse_a_second_node(self) -> None:
        owner = self._owner.read_text() if self._owner.exists() else str(self.layout.root)
        if owner != str(self.layout.root) and self.runs():
            raise HarnessError(f"this machine's node belongs to GNNSERVE_CLUSTER_DIR={owner}")

    def _kubectl(self, *words: str) -> str:
        return output_of(self.layout.bin / "kubectl", "--kubeconfig", self.layout.kubeconfig, *words)

    def _start(self) -> None:
        layout = self.layout
        components.ETCD.start(layout)
        CONTAINERD.start(layout)
        components.ETCD.wait(layout)
        components.API_SERVER.start(layout)
        CONTAINERD.wait(layout)
        images.import_pause(layout)
        components.API_SERVER.wait(layout)
        followers = components.ALL[3:]
        for component in followers:
            component.start(layout)
        self._kubectl("apply", "--filename", str(layout.etc / "objects.json"))
        for component in followers:
            component.wait(layout)
        self._await("the node to be Ready", self._registered, components.KUBELET)
        # Pods are refused until their namespace has its ServiceAccount.
        self._await("the default ServiceAccount", self._has_defaults, components.CONTROLLER_MANAGER)

    def _await(self, what: str, arrived: Callable[[], bool], culprit: Component, patience_s: float = 60) -> None:
        deadline = time.monotonic() + patience_s
        while not arrived():
            if time.monotonic() > deadline:
                raise HarnessError(
                    f"waited {patience_s:.0f} s for {what}; see {culprit.process(self.layout).log} for the reason"
                )
            time.sleep(0.1)

    def _registered(self) -> bool:
        """Ready, and said so by the kubelet that runs now: an older condition survives a restart."""
        try:
            conditions = json.loads(self._kubectl("get", "node", NODE, "--output", "json"))["status"]["conditions"]
            started = components.KUBELET.process(self.layout).record.stat().st_mtime
        except (HarnessError, FileNotFoundError):
            return False
        ready = next((found for found in conditions if found["type"] == "Ready"), None)
        return (
            ready is not None
            and ready["status"] == "True"
            and datetime.fromisoformat(ready["lastHeartbeatTime"]).timestamp() >= int(started)
        )

    def _has_defaults(self) -> bool:
        kubectl = (self.layout.bin / "kubectl", "--kubeconfig", self.layout.kubeconfig, "--namespace", "default")
        return succeeds(*kubectl, "get", "serviceaccount/default", "configmap/kube-root-ca.crt")

    def _stop(self) -> None:
        layout = self.layout
        early = [component for component in reversed(components.ALL) if component.name not in KEPT_FOR_THE_PODS]
        for component in early:
            component.process(layout).signal(signal.SIGTERM)
        for component in early:
            component.process(layout).stop()
        self._end_pods()
        for name in KEPT_FOR_THE_PODS:
            next(component for component in components.ALL if component.name == name).process(layout).stop()
        # Volumes (tokens are mounted from memory) and the roots of containers: the deepest first.
        for mount in reversed(self._mounts()):
            if not succeeds("umount", mount):
                succeeds("umount", "--lazy", mount)
        shutil.rmtree(layout.state / "cni", ignore_errors=True)
        if self._owner.exists():
            # Otherwise we made none of it, and it may be that of another Kubernetes.
            network.down()
            _remove_pod_cgroups()
            self._owner.unlink()

    def _end_pods(self) -> None:
        """No orderly end for pods: their shims would outlive containerd, and only containerd knows how to end them."""
        layout = self.layout
        tasks = layout.run / "containerd" / "io.containerd.runtime.v2.task" / "k8s.io"
        if CONTAINERD.process(layout).pid() is None:
            if not (tasks.is_dir() and any(tasks.iterdir()) and (layout.etc / "containerd.toml").exists()):
                return
            CONTAINERD.start(layout)
        CONTAINERD.wait(layout, 30)
        namespaces = self._pod_namespaces()
        for _ in range(20):
            running = output_of(*ctr(layout, "tasks", "list", "--quiet")).split()
            if not running:
                break
            for task in running:
                succeeds(*ctr(layout, "tasks", "kill", "--all", "--signal", "SIGKILL", task))
                succeeds(*ctr(layout, "tasks", "delete", task))
            time.sleep(0.1)
        for name in namespaces:
            succeeds("ip", "netns", "del", name)

    def _pod_namespaces(self) -> set[str]:
        """The network namespaces of our sandboxes, and no others."""
        found: set[str] = set()
        for container in output_of(*ctr(self.layout, "containers", "list", "--quiet")).split():
            described = output_of(*ctr(self.layout, "containers", "info", container))
            found.update(re.findall(r'"path": "/var/run/netns/(cni-[0-9a-f-]+)"', described))
        return found

    def _mounts(self) -> list[str]:
        ours = (str(self.layout.state) + "/", str(self.layout.run) + "/")
        # Spaces in the paths are written as \\040; ours have none.
        mounted = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
        return sorted({path for path in mounted if path.startswith(ours)})

    # Whose it is

    @property
    def _session(self) -> Path:
        return self.layout.run / "session"

    def claim(self) -> None:
        """Remember that tests started the node, so that they may take it down."""
        self._session.parent.mkdir(parents=True, exist_ok=True)
        self._session.touch()

    def disown(self) -> None:
        self._session.unlink(missing_ok=True)

    def is_claimed(self) -> bool:
        return self._session.exists()


KEPT_FOR_THE_PODS = ("apiserver", "containerd", "etcd")


def _remove_pod_cgroups() -> None:
    for folder, _, _ in os.walk("/sys/fs/cgroup", topdown=False):
        if "/kubepods" in folder:
            try:
                Path(folder).rmdir()
            except OSError:
                continue
