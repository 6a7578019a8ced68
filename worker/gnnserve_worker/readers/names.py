"""Hints in names of modules: the relation or type that one is of, its number in a list, and its place in a network."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gnnserve_api.files.programs import RelationKey
from gnnserve_worker.readers.description import CheckpointLayer, relation_of, steps_of

Scope = RelationKey | str
"""The relation or the type that a module is of; an empty text: all of them."""
EVERYWHERE = ""

_NUMBER = re.compile(r"\d+")
_WORD = re.compile(r"[a-z]+")
_EARLY = frozenset({
    "in", "input", "inp", "first", "pre", "before", "enc", "encoder", "encoders", "emb", "embed", "embedding", "node",
    "start", "initial", "feature", "features", "proj", "projection", "stem", "init",
})  # fmt: skip
_LATE = frozenset({
    "out", "output", "last", "final", "end", "post", "head", "class", "classifier", "cls", "pred", "predict",
    "predictor", "mlp", "fc", "decoder", "readout", "logits", "cl", "outlin",
})  # fmt: skip
_RESIDUAL = frozenset({"res", "residual", "residuals", "skip", "skips", "shortcut", "shortcuts", "bypass"})
_EMBEDDING = frozenset({"emb", "embs", "embed", "embedding", "embeddings"})
_ORDINALS: Mapping[str, int] = {
    "first": 1, "second": 2, "third": 3, "fourth": 4, "fifth": 5, "one": 1, "two": 2, "three": 3, "four": 4,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ModuleGroup:
    """Modules of one place in a network: one for each relation or type, or one for all."""

    name: str
    """Without that of a relation or type."""
    modules: Mapping[Scope, CheckpointLayer]

    @property
    def one(self) -> CheckpointLayer:
        return next(iter(self.modules.values()))

    @property
    def tensors(self) -> tuple[str, ...]:
        return tuple(key for module in self.modules.values() for key in module.tensors)


def grouped(modules: Sequence[CheckpointLayer], type_names: Iterable[str] = ()) -> list[ModuleGroup]:
    """Modules by their places, in the order in which they come. `type_names`: those of the graph, beside those that
    names of relations tell."""
    relations = [match for one in modules if (match := relation_of(one.name)) is not None]
    types = {*filter(None, type_names)} | {match[end] for match in relations for end in ("source", "target")}
    found: dict[str, dict[Scope, CheckpointLayer]] = {}
    for module in modules:
        base, scope = _parted(module.name, types)
        found.setdefault(base, {})[scope] = module
    return [ModuleGroup(base, members) for base, members in found.items()]


def _parted(name: str, types: set[str]) -> tuple[str, Scope]:
    steps = steps_of(name)
    if (relation := relation_of(name)) is not None:
        steps = steps[:-1]
        if len(steps) > 1 and steps[-1] == "convs":  # HeteroConv's own list
            steps = steps[:-1]
        return ".".join(steps), RelationKey(relation["source"], relation["name"], relation["target"])
    for place in reversed(range(len(steps))):
        if (type_ := steps[place].strip("<>")) in types:
            return ".".join(steps[:place] + steps[place + 1 :]), type_
    return name, EVERYWHERE


def numbers_of(name: str) -> tuple[int, ...]:
    return tuple(map(int, _NUMBER.findall(name)))


def stem_of(name: str) -> str:
    """The name with its last number left out."""
    return re.sub(r"\d+(?!.*\d)", "#", name)


def is_of_list(name: str) -> bool:
    """Whether the module stands in a list (`convs.0`), which counts from 0; attributes mostly count from 1."""
    return name.rpartition(".")[2].isdigit()


def words_of(name: str) -> set[str]:
    """Words of a name, in lower case: `gnn.lin_in1` has gnn, lin, in."""
    return {*_WORD.findall(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower())}


def order_of(name: str) -> tuple[int, tuple[int, ...], str]:
    """Sorts modules of a kind by what their names say."""
    own = words_of(name.rpartition(".")[2])
    ordinals = tuple(number for word, number in _ORDINALS.items() if word in own)
    late = bool(own & _LATE - _EARLY)
    early = bool(own & _EARLY) and not ordinals
    return (-1 if early and not late else 1 if late else 0), (*numbers_of(name), *ordinals), name


def stands_before(name: str) -> int:
    """1: the name tells that it stands before the convolutions; -1: that it stands behind; 0: neither."""
    words = words_of(name)
    return bool(words & _EARLY) - bool(words & _LATE)


def is_residual(name: str) -> bool:
    return bool(words_of(name) & _RESIDUAL)


def is_embedding(name: str) -> bool:
    return bool(words_of(name) & _EMBEDDING)
