"""The node by hand: `python -m tests.cluster.harness up`. Needs the standard library only, so no venv either.

build             compile the programs and make the images; what is there stays
up                (build and) start; does nothing when all runs
status            every component; exit status 1 unless all are ready
env               what a shell needs: eval "$(python -m tests.cluster.harness env)"
image TARGET TAG  build a target of the Dockerfile and hand it to the node if that runs
gpus N [NAME]     let the node offer N pieces of an extended resource (nvidia.com/gpu)
down              stop; objects and images stay on disk
hold              what tests start, until the input ends: they find it, and do not start it anew
api               an API server without a node, in a folder of its own, until Ctrl-C; prints its KUBECONFIG
wipe              stop and forget all but programs and built images

All of it lies under ~/.cache/gnnserve/cluster (or GNNSERVE_CLUSTER_DIR), which may be deleted after `wipe`.
"""

from __future__ import annotations

import contextlib
import shlex
import signal
import sys
from concurrent.futures import ThreadPoolExecutor

from tests.cluster.harness import binaries, images, packages, prometheus
from tests.cluster.harness.commands import HarnessError, say
from tests.cluster.harness.node import Node
from tests.cluster.harness.session import running_api_server, running_cluster, why_not


def main(words: list[str]) -> int:
    node = Node.of_this_machine()
    match words:
        case ["build"]:
            build(node)
        case ["up"]:
            node.up()
        case ["status"]:
            found = node.status()
            print("\n".join(f"{name:20} {state}" for name, state in found.items()))
            return int(not all(state.startswith("ready") for state in found.values()))
        case ["env"]:
            for name, value in node.environment().items():
                print(f"export {name}={shlex.quote(value)}")
        case ["image", target, tag]:
            images.build(node.layout, tag, target)
            say(f"{tag} takes {images.size(node.layout, tag)} unpacked")
            if node.runs():
                images.load(node.layout, tag)
        case ["gpus", count, *name] if count.isdigit() and len(name) <= 1:
            node.offer(int(count), *name)
        case ["down"]:
            node.down()
        case ["api"]:
            with running_api_server(controllers=True) as alone, contextlib.suppress(KeyboardInterrupt):
                print(f"export KUBECONFIG={shlex.quote(alone.kubeconfig)}", flush=True)
                signal.pause()
        case ["hold"]:
            if why_not() is None:
                with running_cluster(), contextlib.suppress(KeyboardInterrupt):
                    sys.stdin.read()
        case ["wipe"]:
            node.wipe()
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


def build(node: Node) -> None:
    # First, since two runs of apt-get exclude each other.
    packages.install(node.layout, {**packages.NODE_PACKAGES, **packages.IMAGE_PACKAGES})
    prometheus.unpack(node.layout)
    with ThreadPoolExecutor() as pool:
        # Unpacking Debian packages leaves the cores mostly to the compiler.
        made = pool.submit(images.build_all, node.layout)
        binaries.build(node.layout)
        made.result()


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except HarnessError as failed:
        say(str(failed))
        sys.exit(1)
