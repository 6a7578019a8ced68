"""The answer to a prediction, as arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnserve_api.errors import InputError


@dataclass(frozen=True, slots=True)
class Prediction:
    """One row per node, or per pair, in the order asked; reading an output that was not asked for raises InputError."""

    variant: str
    """The variant that answered."""
    revision: str
    """The revision that it belongs to."""
    objective_met: bool
    """Whether the answer came within the latency that applied; true where none did."""
    offset: int | None
    """Offset of the log of changes that the answer has seen; None: the graph does not change."""
    tier_permille: int | None
    """The tolerance from which on the variant answers, where the answer tells it."""
    server_ms: Mapping[str, float]
    """Milliseconds that the server spent, by stage: queue, sample, gather, compute."""
    elapsed_ms: float
    """Milliseconds of the exchange that brought the answer, as the client saw it."""
    outputs: Mapping[str, NDArray[Any]] = field(repr=False)
    """The arrays by their names."""

    @property
    def labels(self) -> NDArray[Any]:
        """The graph's own label per node: int64 or texts. Where nodes may have several, an object array of lists."""
        return self._output("labels")

    @property
    def scores(self) -> NDArray[np.float32]:
        """Float32 [nodes, classes]: raw outputs of the network, before softmax, or sigmoid on multi-label graphs. Of
        pairs, float32 [pairs]."""
        return self._output("scores")

    @property
    def embeddings(self) -> NDArray[np.float32]:
        """Float32 [nodes, hidden]: the last hidden layer."""
        return self._output("embeddings")

    @property
    def probabilities(self) -> NDArray[np.float32]:
        """Float32 [pairs]: calibrated probabilities of links. Only where pairs were asked about."""
        return self._output("probabilities")

    def _output(self, name: str) -> NDArray[Any]:
        try:
            return self.outputs[name]
        except KeyError:
            asked = ", ".join(self.outputs)
            raise InputError(name, f"the request asked for {asked} alone", f'ask with outputs=["{name}"]') from None


def labels_array(labels: list[Any]) -> NDArray[Any]:
    if labels and isinstance(labels[0], list):
        array = np.empty(len(labels), object)
        for i, several in enumerate(labels):  # lists of one length would become a matrix
            array[i] = several
        return array
    return np.array(labels)
