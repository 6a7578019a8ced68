"""Compiling, beside a server, what the first change of its graph needs.

The worker's image has all kernels. Elsewhere a first start compiles those that it answers with, and the first change
would wait for its own: 8 s on two cores. Another process compiles them meanwhile, where they are kept, and does not
hold up requests as a thread of the server would.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Container, Mapping

from gnnserve_api.files.graph_schema import NAMES_OF_TYPES, WITHOUT_NAMES, SchemaNames
from gnnserve_worker.compile_kernels import of_changes
from gnnserve_worker.inference.made_up import table_of
from gnnserve_worker.kernel_cache import EVERYTHING, can_be_kept, is_compiled
from gnnserve_worker.models.registry import OF_ONE_TYPE, RELATIONAL
from gnnserve_worker.opening.loaded import LoadedRevision

_GRAPHS: Mapping[SchemaNames, tuple[str, Container[str]]] = {
    WITHOUT_NAMES: ("one-type", OF_ONE_TYPE),
    NAMES_OF_TYPES: ("by-type", RELATIONAL),
}
"""A graph as `compile_kernels --graph` has it, and the architectures over it, by how nodes are called."""
_TRIES = 2
"""How often it is begun where it ends too soon. What was compiled until then is kept, so that it goes on from there."""


def compile_for_changes(loaded: LoadedRevision, say: Callable[[str], None]) -> None:
    """Begin to compile in another process, and say so, where that has not been done; not for a program, whose process
    has no kernels."""
    manifest = loaded.manifest
    if manifest is None:
        return
    architecture = manifest.variants[0].network.architecture
    graph, architectures = _GRAPHS[loaded.graph.schema.names]
    if architecture not in architectures:
        return
    tables = sorted({table_of(variant, manifest.tables[variant.table]) for variant in manifest.variants})
    wanted = of_changes(graph, architecture, tables)
    if not can_be_kept() or is_compiled(EVERYTHING) or is_compiled(wanted):
        return
    # -P: not with modules of the folder that the server was started in, such as a user's random.py.
    command = [
        sys.executable, "-P", "-m", "gnnserve_worker.compile_kernels", "--graph", graph, "--changes",
        architecture, *tables,
    ]  # fmt: skip

    def run() -> None:
        for _ in range(_TRIES):
            # In a session of its own: Ctrl-C is for the server. What it has to say is of no use: at worst the first
            # change compiles as it would without it.
            code = subprocess.run(  # noqa: S603 - this interpreter, and names of ours
                command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True, check=False
            ).returncode
            if code == 0:
                return
        say(
            f"compiling what changes of the graph need was ended {_TRIES} times before it was done (exit status "
            f"{code}): the first change compiles the rest and waits for it, or the next start does"
        )

    say("compiling what changes of the graph need, once; a change that comes sooner waits for it")
    threading.Thread(target=run, name="compile", daemon=True).start()
