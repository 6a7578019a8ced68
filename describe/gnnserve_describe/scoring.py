"""Scores and embeddings of a module over a graph: which of its outputs they are, and what stands behind the logits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from gnnserve_api.errors import InputError
from gnnserve_describe.calling import ModuleCall
from gnnserve_describe.graph import GraphTensors

_ENDS = {"softmax": "softmax", "log_softmax": "log_softmax", "sigmoid": "sigmoid", "sigmoid_": "sigmoid"}
"""Functions that make probabilities of logits, or their logarithms, by their names in torch."""
_SHAPES = frozenset({"squeeze", "unsqueeze", "view", "reshape", "flatten", "contiguous"})
"""Functions that give the same numbers in another shape."""

Path = tuple[Any, ...]
"""Keys, or names of attributes, that lead to a tensor in what `forward` returns."""


@dataclass(frozen=True, slots=True)
class ProbabilityFunction:
    """A function that makes probabilities, and is the last one."""

    name: str
    number: int
    """How many of its kind come before it."""


@dataclass(frozen=True, slots=True)
class Outputs:
    scores: Path
    embeddings: Path | None
    end: ProbabilityFunction | None
    adds_class: bool = False
    """Whether there is one logit for two classes: that of the first class is 0."""


@dataclass(frozen=True, slots=True, eq=False)
class Scorer:
    module: torch.nn.Module
    call: ModuleCall
    outputs: Outputs
    target: str = ""
    """Type of the nodes that are scored."""
    name: str = "scores"
    """What the program calls its scores."""

    def __call__(self, graph: GraphTensors) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Scores [nodes, columns] of the target type, and embeddings."""
        return self.read(self.run(graph))

    def run(self, graph: GraphTensors) -> Any:
        """What the module returns."""
        end = self.outputs.end
        with nullcontext() if end is None else _WithoutEnd(end):
            return self.call(self.module, graph)

    def read(self, found: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Scores and embeddings in what the module returned."""
        given, embeddings = self.parts(found)
        scores = _matrix(given)
        if self.outputs.adds_class:
            scores = torch.cat([torch.zeros_like(scores), scores], dim=1)
        return scores, embeddings

    def parts(self, found: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Scores as the module returned them, and embeddings."""
        path = self.outputs.embeddings
        return _at(found, self.outputs.scores), None if path is None else _at(found, path)

    def scores(self, graph: GraphTensors) -> torch.Tensor:
        with torch.no_grad():
            return self(graph)[0]


def outputs_of(
    module: torch.nn.Module, call: ModuleCall, graph: GraphTensors, target: str, labels: torch.Tensor | None,
    named: str = "", *, gives_rows: bool = False,
) -> Outputs:  # fmt: skip
    """`graph`: one with other numbers of nodes than of edges. `named`: which output scores are, by its name or place in
    what `forward` returns; empty: the likely one. `gives_rows`: scores are rows of nodes, which are taken as they are.
    InputError: none of the outputs is of nodes."""
    seen = _SeenEnds()
    with torch.no_grad(), seen:
        found = call(module, graph)
    tensors = list(tensors_of(found))
    nodes = graph.nodes(target)
    of_nodes = [
        (path, tensor)
        for path, tensor in tensors
        if tensor.dim() in (1, 2) and len(tensor) == nodes and tensor.is_floating_point() and _is_of(path, target)
    ]
    if not of_nodes:
        raise _no_scores(tensors, graph, nodes, f" of type {target}" if target else "")
    of_nodes = _named(of_nodes, named)
    if gives_rows:
        return Outputs(of_nodes[0][0], None, None)
    scores = _chosen(of_nodes, labels)
    others = [path for path, tensor in of_nodes if path != scores[0] and tensor.dim() == 2]
    end = seen.end_of(scores[1])
    if end is None and _are_probabilities(scores[1]):
        raise InputError(
            "forward", "its scores are probabilities (each row sums to 1), made by other operations than softmax",
            "return the logits, which are the scores before they become probabilities",
        )  # fmt: skip
    is_single = _matrix(scores[1]).shape[1] == 1 and labels is not None and _has_two_classes(labels)
    return Outputs(scores[0], others[0] if others else None, end, is_single)


def _is_of(path: Path, target: str) -> bool:
    """Whether a tensor of a dictionary by types is of the target's."""
    return not target or not any(isinstance(step, str) for step in path) or target in path


def _named(found: list[tuple[Path, torch.Tensor]], named: str) -> list[tuple[Path, torch.Tensor]]:
    """The outputs of that name; all of them where it is empty."""
    kept = [each for each in found if not named or named in map(str, each[0])]
    if not kept:
        there = ", ".join(".".join(map(str, path)) or "the only one" for path, _ in found)
        raise InputError("--output", f"no output of nodes is called {named!r}", f"name one of: {there}")
    return kept


def _chosen(found: Sequence[tuple[Path, torch.Tensor]], labels: torch.Tensor | None) -> tuple[Path, torch.Tensor]:
    """The first one, or the first that has a column for each class."""
    if labels is not None:
        classes = int(labels.max()) + 1 if labels.dim() == 1 and not labels.is_floating_point() else labels.shape[-1]
        for path, tensor in found:
            if _matrix(tensor).shape[1] == classes:
                return path, tensor
    return found[0]


def _are_probabilities(scores: torch.Tensor) -> bool:
    if scores.dim() == 1 or scores.shape[1] == 1 or bool((scores < 0).any()):
        return False
    return bool((scores.sum(dim=1) - 1).abs().max() < 1e-4)


def _has_two_classes(labels: torch.Tensor) -> bool:
    values = set(torch.unique(labels[labels >= 0]).tolist()) if labels.dtype is not torch.bool else {0, 1}
    return bool(values) and values <= {0, 1}


def _matrix(scores: torch.Tensor) -> torch.Tensor:
    return scores.unsqueeze(1) if scores.dim() == 1 else scores


def _at(found: Any, path: Path) -> torch.Tensor:
    for step in path:
        found = found[step] if isinstance(found, Mapping | Sequence) else getattr(found, step)
    made: torch.Tensor = found
    return made


def tensors_of(found: Any, path: Path = ()) -> Iterator[tuple[Path, torch.Tensor]]:
    if torch.is_tensor(found):
        yield path, found
    elif isinstance(found, Mapping):
        for key, each in found.items():
            yield from tensors_of(each, (*path, key))
    elif isinstance(found, Sequence) and not isinstance(found, str):
        for place, each in enumerate(found):
            yield from tensors_of(each, (*path, place))
    elif hasattr(found, "__dataclass_fields__"):
        for name in found.__dataclass_fields__:
            yield from tensors_of(getattr(found, name), (*path, name))


def _no_scores(
    tensors: Sequence[tuple[Path, torch.Tensor]], graph: GraphTensors, nodes: int, of_type: str
) -> InputError:
    shapes = ", ".join(f"{tensor.dtype} {list(tensor.shape)}" for _, tensor in tensors) or "no tensor"
    firsts = {tensor.shape[0] if tensor.dim() else 0 for _, tensor in tensors}
    if not tensors:
        problem, remedy = "there are no scores in it", "return a matrix with a row for each node"
    elif any(tensor.dim() == 1 and len(tensor) == nodes and not tensor.is_floating_point() for _, tensor in tensors):
        problem, remedy = "they are integers, as the numbers of classes are", "return the scores before argmax"
    elif firsts & {edges.shape[1] for edges in graph.edges.values()}:
        problem = "it scores edges"
        remedy = (
            "where it scores pairs of nodes, describe the part that makes their rows with --links, and give what "
            "scores two rows by --decoder; classes of edges are not served yet"
        )
    elif firsts <= {0, 1}:
        problem = "it scores the graph as a whole"
        remedy = "only scores of nodes are served: describe the part before the pooling"
    else:
        problem, remedy = (
            f"none of its outputs has a row for each of the {nodes} nodes{of_type} of the small graph that it is "
            "called with",
            "return a matrix with a row for each node",
        )
    return InputError("forward", f"it returns {shapes}: {problem}", remedy)


def without_end(call: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A call whose last function, where that makes probabilities, passes its input on."""

    def called(*given: torch.Tensor) -> torch.Tensor:
        seen = _SeenEnds()
        with torch.no_grad(), seen:
            found = call(*given)
        end = seen.end_of(found)
        if end is None:
            return found
        with torch.no_grad(), _WithoutEnd(end):
            return call(*given)

    return called


class _SeenEnds(TorchFunctionMode):
    """Remembers what made each tensor that functions of `_ENDS` returned."""

    def __init__(self) -> None:
        super().__init__()
        self._made: list[tuple[torch.Tensor, ProbabilityFunction]] = []
        self._counts = dict.fromkeys(_ENDS.values(), 0)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        name = _ENDS.get(getattr(func, "__name__", ""))
        if name is not None:
            self._made.append((found, ProbabilityFunction(name, self._counts[name])))
            self._counts[name] += 1
        elif getattr(func, "__name__", "") in _SHAPES:
            end = self.end_of(args[0])
            self._made += [] if end is None else [(found, end)]
        return found

    def end_of(self, scores: torch.Tensor) -> ProbabilityFunction | None:
        return next((end for tensor, end in self._made if tensor is scores), None)


class _WithoutEnd(TorchFunctionMode):
    """Lets one call pass its input on."""

    def __init__(self, end: ProbabilityFunction) -> None:
        super().__init__()
        self._end = end
        self._count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _ENDS.get(getattr(func, "__name__", "")) == self._end.name:
            self._count += 1
            if self._count == self._end.number + 1:
                return args[0]
        return func(*args, **(kwargs or {}))
