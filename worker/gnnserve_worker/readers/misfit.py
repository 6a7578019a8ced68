"""The error of tensors that are not those of a network, and the ways out that its messages name."""

from __future__ import annotations

AS_LAYERS = "list its layers in spec.model.layers: `gnnserve model inspect FILE` writes them for this file"
AS_PROGRAM = "serve it as a program, which gnnserve-describe writes of any model (docs/programs.md)"


class MisfitError(Exception):
    """Tensors of a file are not those of the network that is wanted."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.remedy = remedy
