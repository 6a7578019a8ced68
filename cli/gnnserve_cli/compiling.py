"""Compiling, beside a server, what the first change of its graph needs.

The worker's image has all kernels. Elsewhere a first start compiles those that it answers with, and the first change
would wait for its own: 8 s on two cores. Another process compiles them meanwhile, where they are kept, and does not
hold up requests as a thread of the server would.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable

from gnnserve_worker.graph.store import Graph
from gnnserve_worker.inference.made_up import table_of
from gnnserve_worker.kernel_cache import would_be_kept
from gnnserve_worker.repository.loaded import LoadedRevision

_OF_CHANGES = "gnnserve_worker.graph.living_lists._change"
"""A kernel that every change of an edge runs."""
_OF_STORED = "gnnserve_worker.models.living_sums._change"
"""One that it runs beside where there are stored layers."""


def compile_for_changes(loaded: LoadedRevision, say: Callable[[str], None]) -> None:
    """Begin to compile in another process, and say so, where that has not been done; not for graphs of several
    types."""
    manifest = loaded.manifest
    if manifest is None or not isinstance(loaded.graph, Graph):
        return
    stored = (_OF_STORED,) if any(variant.stored is not None for variant in manifest.variants) else ()
    if not any(map(would_be_kept, (_OF_CHANGES, *stored))):
        return
    tables = sorted({table_of(variant, manifest.tables[variant.table]) for variant in manifest.variants})
    # -P: not with modules of the folder that the server was started in, such as a user's random.py.
    command = [
        sys.executable, "-P", "-m", "gnnserve_worker.compile_kernels", "--changes",
        manifest.variants[0].network.architecture, *tables,
    ]  # fmt: skip

    def run() -> None:
        # In a session of its own: Ctrl-C is for the server. What it has to say is of no use: at worst the first change
        # compiles as it would without it.
        subprocess.run(  # noqa: S603 - this interpreter, and names of ours
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True, check=False
        )

    threading.Thread(target=run, name="compile", daemon=True).start()
    say("compiling what changes of the graph need, once; a change that comes sooner waits for it")
