"""What a pipeline says of all its steps together, checked while it is heard."""

from __future__ import annotations

from dataclasses import dataclass, field

from gnnserve_worker.progress import Progress


@dataclass(frozen=True, slots=True)
class HeardSteps:
    """A listener of a generation."""

    heard: list[Progress] = field(default_factory=list)

    def __call__(self, progress: Progress) -> None:
        self.heard.append(progress)

    def check(self) -> None:
        """The share rises to 1 and reaches it last, and the steps that were expected are those that were taken."""
        overall = [each.overall for each in self.heard if each.overall is not None]
        shares = [each.share for each in overall]
        assert len(overall) == len(self.heard)
        assert shares == sorted(shares)
        assert shares[0] < 0.5
        assert [share == 1 for share in shares] == [False] * (len(shares) - 1) + [True]
        assert overall[-1].step == overall[-1].steps
        at = max(place for place, each in enumerate(self.heard) if each.expected is not None)
        taken = [each.stage for each in self.heard[at + 1 :]]
        assert [step.stage for step in self.heard[at].expected or () if step.stage not in taken] == []
