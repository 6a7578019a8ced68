"""Generation as `run` and `generate` show it: its progress, its interruption, and how far to trust its profile."""

from __future__ import annotations

from pathlib import Path

import typer

from gnnserve_api.gnnservice import GNNService
from gnnserve_api.profile import Profile
from gnnserve_api.repository import RevisionManifest
from gnnserve_cli.exits import ExitCode
from gnnserve_cli.progress import showing_progress
from gnnserve_cli.render import count
from gnnserve_worker.generation import pipeline
from gnnserve_worker.repository.paths import Layout
from gnnserve_worker.repository.repository import Repository

BUSY_TAIL_RATIO = 8.0
"""p99 over median. On a quiet machine it is near 2."""


def generate_visibly(service: GNNService, repository: Repository) -> RevisionManifest:
    try:
        with showing_progress() as listener:
            published = pipeline.generate(service, repository, listener)
    except KeyboardInterrupt:
        typer.echo("interrupted; nothing was published", err=True)
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    folder = Layout(repository.folder).revision(published.revision)
    if (warning := warn_of_busy_machine(published.profile, folder)) is not None:
        typer.echo(f"warning: {warning}", err=True)
    return published


def warn_of_busy_machine(profile: Profile, folder: Path) -> str | None:
    """None where the profile is good. The median over the variants, as in choosing: one stall says nothing."""
    sizes = profile.variants[0].latency
    ratios = {point.seeds: profile.tail_ratio(i) for i, point in enumerate(sizes)}
    seeds, ratio = max(ratios.items(), key=lambda item: item[1])
    if ratio <= BUSY_TAIL_RATIO:
        return None
    return (
        f"p99 is {ratio:.0f} times the median at {count(seeds, 'node')}: the machine was busy while profiling, or some "
        f"neighbourhoods are far larger than others, as full ones are; objectives count as harder to meet than they "
        f"mostly are; to measure again, delete {folder} and generate again"
    )
