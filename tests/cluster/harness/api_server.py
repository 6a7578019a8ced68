"""An API server without a node: etcd, kube-apiserver and, where wanted, the controllers, on free ports of 127.0.0.1.

Objects are stored, defaulted, validated and watched as anywhere; their pods do not run. It starts from nothing within
seconds, lives in a temporary folder, and ends with the process that started it, even if that is killed.
"""

from __future__ import annotations

import shutil
import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from tests.cluster.harness import binaries, certificates, configuration, packages
from tests.cluster.harness.components import API_SERVER, CONTROLLER_MANAGER, ETCD
from tests.cluster.harness.layout import Addresses, Layout

PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kubectl", "helm")
DEBIAN_PACKAGES = {"etcd": "etcd-server", "openssl": "openssl", "setpriv": "util-linux"}
# Ended by the kernel as soon as their parent is gone.
ENDS_WITH_US = ("setpriv", "--pdeathsig", "KILL")
EXTRA_FLAGS = {
    # It would announce itself as the endpoint of `kubernetes.default`, which 127.0.0.1 may not be.
    API_SERVER.name: ("--endpoint-reconciler-type=none",),
    # What a fleet waits for should be the operator, not the controllers' share of requests, 20 a second by default.
    CONTROLLER_MANAGER.name: ("--kube-api-qps=1000", "--kube-api-burst=2000"),
}


@contextmanager
def started(*, controllers: bool, api_server_flags: Sequence[str] = ()) -> Iterator[Layout]:
    flags = {**EXTRA_FLAGS, API_SERVER.name: (*EXTRA_FLAGS[API_SERVER.name], *api_server_flags)}
    machine = Layout.of_this_machine()
    binaries.build(machine, PROGRAMS)
    packages.install(machine, DEBIAN_PACKAGES)
    home = Path(tempfile.mkdtemp(prefix="gnnserve-api-"))
    layout = replace(machine, run=home / "run", home=home, addresses=_free_addresses())
    try:
        certificates.make(layout)
        configuration.write_kubeconfigs(layout, ("controller-manager",))
        with ExitStack() as running:
            for component in (ETCD, API_SERVER, *((CONTROLLER_MANAGER,) if controllers else ())):
                process = component.process(layout)
                process.start([*ENDS_WITH_US, *component.command(layout), *flags.get(component.name, ())])
                # What it stores goes with it, and open watches would hold its end up.
                running.callback(process.stop, patience_s=2)
                component.wait(layout)
            yield layout
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _free_addresses() -> Addresses:
    with ExitStack() as taken:
        # All at once, so that none is given twice.
        sockets = [taken.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(4)]
        ports = [found.getsockname()[1] for found in sockets]
    return Addresses("127.0.0.1", *ports)
