"""Progress of generation: of each stage and of all steps together, and how a log shows it. The command line draws bars.

Pipelines report stages. The first ones say which steps are expected, with a guess of their seconds; `OverallProgress`
stands between a pipeline and a listener and adds to each report how far all steps are. Guesses are corrected as steps
end: those of a kind are mostly wrong by one factor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TextIO

IMPORT, EXPECTED, CHECK = "import graph", "compare expected scores", "run the program"
CHOOSE_FACTORS, WRITE, PUBLISH = "choose factors", "write tables", "publish"
PROFILE = "profile"
"""The stage in which latencies are measured: where it was heard, the profile is new."""
STALE = "measure stale rows"
LINE_INTERVAL_S = 10.0
"""Seconds between two lines about one stage: a log needs a sign of life, not every step."""
_LINE_SHARE = 0.1
"""Share of all work after which a line is due sooner."""
_MINUTE_S, _HOUR_S = 60.0, 3600.0
_LEAST_S = 0.1
"""Least guess of a step, so that each weighs something."""
_PRIOR_S = 2.0
"""Seconds of right guesses that corrections begin with: what short steps took says little of long ones."""


@dataclass(frozen=True, slots=True)
class Step:
    """A part of a pipeline that is expected."""

    stage: str
    """The stage that the pipeline reports it as."""
    kind: str
    """What it is of: guesses of one kind are corrected by what others of it took."""
    seconds: float
    """A guess."""


@dataclass(frozen=True, slots=True)
class Overall:
    """How far all steps are."""

    step: int
    """Steps that have begun, from 1."""
    steps: int
    share: float
    """Share of the work that is done: it never falls, and is 1 when all has been published."""
    left_s: float
    """Seconds that are expected to be left."""

    def said(self) -> str:
        """`3/9, 41 %, 2 min left`."""
        left = "" if self.share >= 1 else f", {says_left(self.left_s)}"
        return f"{self.step}/{self.steps}, {int(100 * self.share)} %{left}"


@dataclass(frozen=True, slots=True)
class Progress:
    stage: str
    """A short description, stable over the stage: `train x4`, `rank by Lasso`, `profile`."""
    done: int
    total: int
    detail: str = ""
    """The latest figure worth showing: `validation 0.963`."""
    expected: Sequence[Step] | None = None
    """Steps behind this stage, in order, in place of those that were expected before; None: they stay."""
    overall: Overall | None = None
    """How far all steps are; None: no steps are known, as where a stage is all there is."""


ProgressListener = Callable[[Progress], None]


def silent(_: Progress) -> None:
    """A listener that shows nothing."""


# --- all steps together


@dataclass(slots=True)
class _Entry:
    step: Step
    begun_s: float | None = None
    done: float = 0.0
    """Share of the step."""
    has_ended: bool = False


@dataclass(slots=True)
class StepEstimate:
    """Share and time left of steps, from what is reported of their stages. Pure: the clock's seconds are handed in.

    The share grows by the part of the remaining work that each report does. So it never falls, whatever becomes
    expected later, and it reaches 1 with the last step alone.
    """

    now_s: float
    """When it was last heard."""
    _entries: list[_Entry] = field(default_factory=list)
    _took_s: dict[str, float] = field(default_factory=dict)
    """By kind: what steps of it took."""
    _guessed_s: dict[str, float] = field(default_factory=dict)
    """By kind: what these steps were guessed to take."""
    _share: float = 0.0

    def expect(self, steps: Sequence[Step]) -> None:
        """Expect these steps in place of those that have not begun."""
        self._entries = [one for one in self._entries if one.begun_s is not None or one.has_ended]
        self._entries += [_Entry(step) for step in steps]

    def hear(self, progress: Progress, now_s: float) -> Overall:
        heard = next((one for one in self._entries if one.step.stage == progress.stage and not one.has_ended), None)
        if heard is not None:
            before = self._work_left()
            self._skip_before(heard)
            self._move(heard, progress, now_s)
            if before > 0:
                self._share += (1 - self._share) * (before - self._work_left()) / before
        if progress.expected is not None:
            self.expect(progress.expected)
        self.now_s = now_s
        return self._overall()

    def finish(self) -> Overall:
        """All is done, whatever was expected."""
        for one in self._entries:
            one.done, one.has_ended = 1.0, True
        self._share = 1.0
        return self._overall()

    def _skip_before(self, heard: _Entry) -> None:
        for one in self._entries:
            if one is heard:
                return
            one.done, one.has_ended = 1.0, True

    def _move(self, heard: _Entry, progress: Progress, now_s: float) -> None:
        is_told_at_its_end = heard.begun_s is None and progress.done >= progress.total
        if heard.begun_s is None:
            # The first report of some stages comes after a part of them: they began when the one before was heard.
            heard.begun_s = now_s if progress.done == 0 else self.now_s
        heard.done = max(heard.done, min(1.0, progress.done / max(1, progress.total)))
        if progress.done < progress.total:
            return
        heard.done, heard.has_ended = 1.0, True
        if not is_told_at_its_end:  # else it may have been there already, as networks of an interrupted generation
            kind, took_s = heard.step.kind, now_s - heard.begun_s
            self._took_s[kind] = self._took_s.get(kind, _PRIOR_S) + took_s
            self._guessed_s[kind] = self._guessed_s.get(kind, _PRIOR_S) + max(_LEAST_S, heard.step.seconds)

    def _seconds_of(self, step: Step) -> float:
        kind = step.kind
        return max(_LEAST_S, step.seconds) * self._took_s.get(kind, 1.0) / self._guessed_s.get(kind, 1.0)

    def _work_left(self) -> float:
        # Guesses as they were made: what has ended corrects the time that is left, not the work.
        return sum(max(_LEAST_S, one.step.seconds) * (1 - one.done) for one in self._entries)

    def _left_s(self) -> float:
        return sum(self._left_of(one) for one in self._entries if not one.has_ended)

    def _left_of(self, one: _Entry) -> float:
        expected_s = self._seconds_of(one.step) * (1 - one.done)
        if one.begun_s is None or one.done == 0:
            return expected_s
        by_its_pace_s = (self.now_s - one.begun_s) * (1 - one.done) / one.done
        return one.done * by_its_pace_s + (1 - one.done) * expected_s

    def _overall(self) -> Overall:
        begun = sum(one.begun_s is not None or one.has_ended for one in self._entries)
        return Overall(max(1, begun), max(1, len(self._entries)), self._share, self._left_s())


class OverallProgress:
    """A listener that hands on what it hears, each report with how far all steps are."""

    def __init__(self, listener: ProgressListener, clock: Callable[[], float], steps: Sequence[Step]) -> None:
        """`steps`: those that are expected until a report tells better."""
        self._listener = listener
        self._clock = clock
        self._estimate = StepEstimate(clock())
        self._estimate.expect(steps)

    def __call__(self, progress: Progress) -> None:
        self._listener(replace(progress, overall=self._estimate.hear(progress, self._clock())))

    def finish(self, stage: str, detail: str) -> None:
        """Report the last stage, with which all is done."""
        self._listener(Progress(stage, 1, 1, detail, overall=self._estimate.finish()))


def says_left(seconds: float) -> str:
    """`40 s left`, `2 min left`, `1.5 h left`: no more digits than a guess has."""
    if seconds < _MINUTE_S:
        return f"{max(1, round(seconds)) if seconds < 10 else 5 * round(seconds / 5)} s left"
    if seconds < _HOUR_S:
        return f"{round(seconds / _MINUTE_S)} min left"
    return f"{seconds / _HOUR_S:.1f} h left"


# --- logs


class LineListener:
    """A listener that prints a line when a stage begins, when it ends, and every `LINE_INTERVAL_S` between, or when a
    tenth of all work was done since the last line."""

    def __init__(self, stream: TextIO, clock: Callable[[], float]) -> None:
        self._stream = stream
        self._clock = clock
        self._stage = ""
        self._printed_at = 0.0
        self._printed_share = 0.0

    def __call__(self, progress: Progress) -> None:
        now = self._clock()
        begins = progress.stage != self._stage
        share = self._printed_share if progress.overall is None else progress.overall.share
        is_due = now - self._printed_at >= LINE_INTERVAL_S or share - self._printed_share >= _LINE_SHARE
        if not (begins or progress.done >= progress.total or is_due):
            return
        self._printed_share = share
        self._stage, self._printed_at = progress.stage, now
        overall = "" if progress.overall is None else f"[{progress.overall.said()}] "
        detail = f"  {progress.detail}" if progress.detail else ""
        print(f"{overall}{progress.stage}: {progress.done}/{progress.total}{detail}", file=self._stream, flush=True)
