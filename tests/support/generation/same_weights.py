"""Generations that learn nothing anew: what one has learnt is taken by another, over another graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gnnserve_api.variants import one_row_name
from gnnserve_worker.generation import lessons as taught
from gnnserve_worker.generation import one_relation, relations
from gnnserve_worker.generation.families.family import OneRowNetwork
from gnnserve_worker.generation.learning import Resumption
from gnnserve_worker.generation.lessons import LearntNetworks, Lesson, TensorsAndRuns, WeightSources
from gnnserve_worker.generation.programs import prepared

_Take = Callable[[Iterable[Lesson], WeightSources, LearntNetworks], LearntNetworks]


class KeptWeights:
    """Networks of a generation that is not searched for variants."""

    def __init__(self) -> None:
        self._learnt: LearntNetworks | None = None
        self._decoder: Mapping[str, np.ndarray] = {}

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Keep what generations learn meanwhile, the last one's."""

        def take(lessons: Iterable[Lesson], sources: WeightSources, learnt: LearntNetworks) -> LearntNetworks:
            self._learnt = taught.take_lessons(lessons, sources, learnt)
            self._decoder = sources.decoder
            return self._learnt

        with _taking(take):
            yield

    @contextmanager
    def used(self) -> Iterator[None]:
        """Have generations take these networks in place of learning."""

        kept = self._learnt
        assert kept is not None, "nothing was learnt"

        def take(lessons: Iterable[Lesson], sources: WeightSources, learnt: LearntNetworks) -> LearntNetworks:
            # Products of one-row networks are made of rows of the graph.
            return replace(kept, one_rows={name: again(sources, name) for name in kept.one_rows})

        def again(sources: WeightSources, name: str) -> OneRowNetwork:
            (hops,) = (one.hops for one in kept.spec.variants.one_row if one_row_name(one.hops) == name)
            teacher: Any = SimpleNamespace(digest="", embedded={})
            assert sources.one_rows is not None
            return sources.one_rows.one_row(hops, name, teacher)

        def of_network(_: Resumption, name: str, *__: object) -> TensorsAndRuns:
            return kept.one_rows[name].tensors, ()

        with _taking(take) as patched:
            patched.setattr(WeightSources, "decoder", property(lambda _: self._decoder))
            patched.setattr(Resumption, "network", of_network)
            yield


@contextmanager
def _taking(take: _Take) -> Iterator[pytest.MonkeyPatch]:
    of_kinds: Any = (one_relation, relations, prepared)
    with pytest.MonkeyPatch.context() as patched:
        for module in of_kinds:
            patched.setattr(module, "take_lessons", take)
        yield patched
