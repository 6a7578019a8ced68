"""`gnnserve plan`: what generation would learn, write and take, with latencies where they are modelled, without
training."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import msgspec
from rich import box
from rich.table import Table
from rich.text import Text

from gnnserve_api.advice import says_standing
from gnnserve_api.manifest import load_manifest
from gnnserve_cli.commands.options import DEFAULT_REPOSITORY, Json, Manifest, RepositoryRoot
from gnnserve_cli.progress import showing_progress
from gnnserve_cli.render import format_bytes, format_ms, output, print_json, put, round_floats
from gnnserve_worker.progress import Progress

if TYPE_CHECKING:
    from gnnserve_worker.generation.search.plan import SearchPlan


def plan(manifest: Manifest, repository: RepositoryRoot = DEFAULT_REPOSITORY, as_json: Json = False) -> None:
    """Tell what generation would learn and write, how long it would take, and model latencies, without training."""
    # Imported here: they bring numpy and numba, which the other commands start without.
    from gnnserve_worker.generation.search.plan import plan as planned  # noqa: PLC0415
    from gnnserve_worker.repository.paths import DOWNLOADS  # noqa: PLC0415
    from gnnserve_worker.tasks.generation import task_of  # noqa: PLC0415

    spec = load_manifest(manifest).spec
    with showing_progress() as listener:
        data = task_of(spec).load(repository / DOWNLOADS, listener)
        listener(Progress("plan variants", 0, 1))
        found = planned(spec, data)
        listener(Progress("plan variants", 1, 1))
    standing = {*spec.standing_variants()}
    words = says_standing([name for name in found.writes if name in standing], is_searched=spec.variants.is_searched)
    if words is not None:
        print(f"note: {words}", file=sys.stderr)
    if as_json:
        print_json(round_floats({**msgspec.to_builtins(found, str_keys=True), "totalS": found.total_s}))
        return
    console = output()
    if found.variants:
        put(console, _table(found), "")
    put(console, *_says(found))


def _table(found: SearchPlan) -> Table:
    sizes = [*found.variants[0].p50_ms]
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, header_style="bold")
    table.add_column("Variant", style="bold", no_wrap=True)
    table.add_column("Family", no_wrap=True)
    for header in ("Rows/seed", *(f"p50 ms at {seeds:,}" for seeds in sizes), "Table"):
        table.add_column(header, justify="right", no_wrap=True)
    table.add_column("Network", no_wrap=True)
    for one in found.variants:
        times = [format_ms(one.p50_ms[seeds]) for seeds in sizes]
        network = f"trained: {one.trains}" if one.trains else "derived"
        rows = f"{one.rows_per_seed:,.1f}"
        table.add_row(Text(one.name), one.family, rows, *times, format_bytes(one.table_bytes), network)
    return table


def _says(found: SearchPlan) -> list[str]:
    learnt = [f"Learnt: {one.name}: {one.why}." for one in found.learnt]
    seconds = (
        f"{found.first_network_s:,.0f} s for the first network, at most {found.other_networks_s:,.0f} s for others, "
        f"{found.measuring_s:,.0f} s for measuring."
    )
    if found.model_error is None:
        return [
            *(learnt or ["Nothing is learnt: all weights are given."]),
            f"Written: {', '.join(found.writes)}.",
            f"Latencies are not modelled: {found.not_modelled}. Accuracies are not known before training.",
            f"Generation would take about {found.total_s:,.0f} s, as guessed from the graph's sizes: {seconds}",
        ]
    return [
        *learnt,
        f"Latencies are modelled, from made-up variants on this machine: off by {100 * found.model_error:.0f} % there, "
        "mostly. Accuracies are not known before training.",
        f"Generation would take about {found.total_s:,.0f} s on this machine: {seconds}",
    ]
