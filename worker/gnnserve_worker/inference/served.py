"""The revision that a worker answers from, as the engine and the protocols see it.

Narrow, so that they can be tried without kernels or files: a manifest, and four values that are made when it is opened.
`asking/served_graph.py` is its graph, `tasks/` has its task, `changes.py` beside this file what becomes of its graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gnnserve_api.errors import InputError
from gnnserve_api.families import Capabilities
from gnnserve_api.files.cascades import CascadeManifest
from gnnserve_api.files.profile import Profile
from gnnserve_api.files.programs import ProgramLimits
from gnnserve_api.files.repository import RevisionManifest
from gnnserve_api.pods.routing import RoutingTable
from gnnserve_api.spec.model import FULL_NEIGHBOURHOOD
from gnnserve_api.tiers import points_of, stated_tiers
from gnnserve_worker.asking.overlay import Overlays
from gnnserve_worker.asking.served_graph import ServedGraph
from gnnserve_worker.inference.batch import Infer, with_cascades
from gnnserve_worker.inference.device_stats import ON_CPU, DeviceStats
from gnnserve_worker.inference.refreshed import InferWithin
from gnnserve_worker.inference.served_changes import ServedChanges
from gnnserve_worker.nearest.revision_index import RevisionIndex
from gnnserve_worker.programs.stats import ProgramRun, ProgramStats
from gnnserve_worker.repository.watched import WatchedFiles
from gnnserve_worker.sampling.neighbours import most_by_hop
from gnnserve_worker.tasks.deciding import SeedPairs
from gnnserve_worker.tasks.embedded import capabilities_of
from gnnserve_worker.tasks.embedding import embedded_task
from gnnserve_worker.tasks.served import ServedTask


class TableError(InputError):
    """A routing table asks for variants that its revision does not have: correct the table, or the manifest."""


@dataclass(frozen=True, slots=True)
class ServedCompute:
    """Function that computes answers, from which files and on which device."""

    infer: Infer
    """Runs a batch; one thread at a time may call it."""
    warm_up: Callable[[], None]
    """Run once, before the first batch."""
    overlays: Overlays
    """What requests may bring along."""
    infer_within: InferWithin | None = None
    """`infer`, by how much a batch bears of stale rows; None: none that it reads may be stale."""
    files: WatchedFiles | None = None
    """Files that the revision is mapped from; None: none that could change."""
    device_stats: Callable[[], DeviceStats] = lambda: ON_CPU
    """State of the device on which `infer` computes now. Any thread may call it; it is quick."""
    forget_copies: Callable[[], None] = lambda: None
    """Its files are as they were verified, and may have been something else meanwhile: what was copied out of them
    since it was loaded is copied again, and no batch that begins later reads an older copy. From any thread but that
    of `infer`, whose batch it waits for."""
    is_elsewhere: bool = False
    """Whether another process computes batches, which may take long and keeps this one waiting."""
    would_gain: Callable[[], bool] = lambda: False
    """Whether it would have more of its device's memory, were it loaded again beside itself: another revision had that
    as this one was loaded, and has given it back. From any thread, and quickly."""
    programs: Callable[[], ProgramStats | None] = lambda: None
    """State of the programs that it runs; None: it runs none. Any thread may call it; it is quick."""
    program_runs: Callable[[float, float], Sequence[ProgramRun]] = lambda _began_ms, _ended_ms: ()
    """Runs of its programs that gave scores within that time, by `time.perf_counter` in ms. Any thread may call it; it
    is quick."""
    limit_programs: Callable[[ProgramLimits], None] = lambda _: None
    """Has their processes keep to other limits. Any thread may call it; it is quick."""
    indexes: tuple[RevisionIndex, ...] = ()
    """Those that recommendations are found in, of the nodes that may be recommended; empty: it has no place for any."""


@dataclass(frozen=True, slots=True)
class ServedRevision:
    manifest: RevisionManifest
    graph: ServedGraph
    task: ServedTask
    compute: ServedCompute
    changes: ServedChanges
    most_drawn_per_seed: float = field(init=False)
    """Most rows that a variant gathers for a seed; infinite where it reads whole neighbourhoods."""
    capabilities: Mapping[str, Capabilities] = field(init=False)
    """What each variant can give that not every request needs."""
    answering: Profile = field(init=False)
    """The profile of the variants that answer at all: where the graph changes, of those that follow changes. The most
    accurate of these is what losses, tolerances and accuracy in service are judged against."""
    has_embeddings: bool = field(init=False)
    """Whether a variant can give its last hidden layer: a network of one layer has none."""
    paired: Mapping[str, CascadeManifest] = field(init=False)
    """Cascades by name to which a batch must say which of its seeds are asked about together; empty: it need not."""
    tier_permille: Mapping[str, int] = field(init=False)
    """By variant, the accuracy tolerance from which on it answers; without those that never do."""

    def __post_init__(self) -> None:
        manifest = self.manifest
        drawn = {variant.name: _most_drawn(variant.fanouts) for variant in manifest.variants}
        most_drawn = max([*drawn.values(), *(drawn[one.first] + drawn[one.then] for one in manifest.cascades)])
        object.__setattr__(self, "most_drawn_per_seed", most_drawn)
        paired = {one.name: one for one in manifest.cascades} if self.task.decides.by_pairs else {}
        object.__setattr__(self, "paired", paired)
        gives = capabilities_of(embedded_task(manifest), manifest)
        object.__setattr__(self, "capabilities", gives)
        object.__setattr__(self, "answering", manifest.profile.answering(self.changes.needed))
        object.__setattr__(self, "has_embeddings", any(each.embeddings for each in gives.values()))
        tiers = stated_tiers(points_of(self.answering))
        by_variant = {within.point.name: permille for permille, within in tiers.items()}
        object.__setattr__(self, "tier_permille", by_variant)

    def infer_by(
        self, variant: str, pairs: SeedPairs | None, most_permille: float = math.inf, most_us: float = math.inf
    ) -> Infer:
        """What computes a batch of a variant. `pairs`: which of its seeds are asked about together; None: it need not
        know. `most_permille`, `most_us`: as of `InferWithin`."""
        infer = self.compute.infer
        if min(most_permille, most_us) < math.inf and self.compute.infer_within is not None:
            infer = self.compute.infer_within(most_permille, most_us)
        if pairs is None:
            return infer
        return with_cascades(infer, (self.paired[variant],), self.task.decides, lambda _: pairs)

    def follow(self, table: RoutingTable) -> None:
        """Compute as the table says, whatever answers are chosen by it."""
        if table.program_limits is not None:
            self.compute.limit_programs(table.program_limits)
        if self.changes.living is not None:
            self.changes.living.refreshing.budget = table.refresh
        for index in self.compute.indexes:
            index.is_expected = table.makes_index

    def needed_beside_index(self, *, brings: bool) -> Capabilities:
        """What a variant gives whose embeddings an index is searched with. `brings`: over an overlay, too."""
        gives_embeddings = self.task.recommending.output == "embeddings"
        return replace(self.changes.needed, overlay=brings, embeddings=gives_embeddings)

    def comparable_variants(self, index_weights: str, *, brings: bool = False) -> list[str]:
        """Variants whose embeddings can be compared with those of an index that was made by weights of this digest.
        `brings`: as of `needed_beside_index`."""
        needed, recommending = self.needed_beside_index(brings=brings), self.task.recommending
        return [
            variant.name
            for variant in self.manifest.variants
            if recommending.compares(self.manifest.files[variant.weights].sha256, index_weights)
            and self.capabilities[variant.name].cover(needed)
        ]

    def check(self, table: RoutingTable) -> None:
        """Raises TableError where the table routes to variants that do not exist here. Their costs do no harm."""
        known = [variant.name for variant in self.manifest.profile.variants]
        wanted = [*table.weights] if table.base_variant is None else [table.base_variant, *table.weights]
        if unknown := [name for name in wanted if name not in known]:
            raise TableError(
                f"routing mode {table.mode}",
                f"revision {self.manifest.revision} has no variant {', '.join(unknown)}",
                f"choose from {', '.join(known)}",
            )


def _most_drawn(fanouts: tuple[int, ...]) -> float:
    if FULL_NEIGHBOURHOOD in fanouts:
        return math.inf
    return sum(most_by_hop(fanouts))
