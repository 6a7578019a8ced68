"""From whatever the machine is like to a running cluster with today's images, and back.

For tests and benchmarks alike, and for several processes at once. A cluster that was started by hand is used and left
running; one that the first of them starts begins from nothing, and the last one wipes it, unless
GNNSERVE_KEEP_CLUSTER=1.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.cluster.harness import api_server, binaries, images
from tests.cluster.harness.client import Cluster
from tests.cluster.harness.commands import HarnessError, say
from tests.cluster.harness.images import OPERATOR_IMAGE, WORKER_IMAGE
from tests.cluster.harness.layout import Layout
from tests.cluster.harness.node import Node
from tests.cluster.harness.shared import shared

USERS = Path("/run/lock/gnnserve-cluster.users")


def users_kubeconfig() -> str | None:
    """KUBECONFIG, unless it is that of the harness's own node."""
    given = os.environ.get("KUBECONFIG")
    return given if given and Path(given) != Layout.of_this_machine().kubeconfig else None


def why_not() -> str | None:
    """What keeps this machine from having a cluster, where that is no failure."""
    if os.geteuid() != 0 and not users_kubeconfig():
        return "a Kubernetes node needs root; run as root, or set KUBECONFIG to a cluster that you have"
    return None


@contextmanager
def running_api_server(*, controllers: bool, api_server_flags: Sequence[str] = ()) -> Iterator[Cluster]:
    """An API server of its own, empty, for as long as this process lives; `controllers`: and who collects garbage.

    Nothing runs pods, and any number of them stand beside each other and beside the node. Needs no root.
    """
    with api_server.started(controllers=controllers, api_server_flags=api_server_flags) as layout:
        yield Cluster(
            str(layout.kubeconfig), layout.bin / "kubectl", layout.bin / "helm", OPERATOR_IMAGE, WORKER_IMAGE, None
        )


@contextmanager
def running_cluster() -> Iterator[Cluster]:
    given = users_kubeconfig()
    if given is not None:
        yield _users_cluster(given)
        return
    _require_what_a_node_needs()
    node = Node.of_this_machine()
    with shared(USERS, partial(_begin, node), partial(_end, node)):
        yield Cluster(
            str(node.layout.kubeconfig),
            node.layout.bin / "kubectl",
            node.layout.bin / "helm",
            OPERATOR_IMAGE,
            WORKER_IMAGE,
            node,
        )


def _begin(node: Node, is_first: bool) -> None:
    """Those who come later find the node and the images of the first one."""
    if not is_first:
        return
    # What is claimed and used by nobody is of a session that was killed before it could take the node down.
    if node.is_claimed() or not node.runs():
        node.wipe()
    if not node.runs():
        node.claim()
    node.up()
    images.build_all(node.layout)
    for tag in images.TAGS.values():
        images.load(node.layout, tag)


def _end(node: Node) -> None:
    if not node.is_claimed():
        return
    if os.environ.get("GNNSERVE_KEEP_CLUSTER") == "1":
        node.disown()
        say("the cluster is kept; `python -m tests.cluster.harness wipe` ends it")
    else:
        node.wipe()


def _require_what_a_node_needs() -> None:
    reason = why_not()
    if reason:
        raise HarnessError(reason)
    if sys.version_info[:2] != (3, 11):
        found = ".".join(map(str, sys.version_info[:2]))
        raise HarnessError(f"pods run Python 3.11 and mount the packages of this environment, which is Python {found}")


def _users_cluster(kubeconfig: str) -> Cluster:
    layout = Layout.of_this_machine()
    programs = {name: shutil.which(name) for name in ("kubectl", "helm")}
    binaries.build(layout, [name for name, found in programs.items() if not found])
    kubectl, helm = (Path(found) if found else layout.bin / name for name, found in programs.items())
    return Cluster(
        kubeconfig,
        kubectl,
        helm,
        os.environ.get("GNNSERVE_OPERATOR_IMAGE", OPERATOR_IMAGE),
        os.environ.get("GNNSERVE_WORKER_IMAGE", WORKER_IMAGE),
        None,
    )
