"""The program: the module exported with free numbers of nodes and edges; what cannot be, by the user's line."""

from __future__ import annotations

import io
import logging
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from gnnserve_api.errors import InputError
from gnnserve_api.files.programs import InputRole, ProgramInput
from gnnserve_describe.blame import Blame, CodeLine, blame_of, blame_of_caller, chain_of
from gnnserve_describe.equal_layers import exportable
from gnnserve_describe.graph import GraphTensors
from gnnserve_describe.layout import InputLayout
from gnnserve_describe.scoring import Scorer
from gnnserve_describe.translations import TRANSLATIONS

OPSET = 18
EMBEDDINGS = "embeddings"
"""Name of that output."""
_MOST = 1 << 40
"""More nodes or edges than any call has; some operations want to know that there is a bound."""
_PADDING = 2
"""Nodes, and edges between them, that are added to each call where a program cannot run without any."""


class ProgramModule(torch.nn.Module):
    """The module with the inputs of a program in place of its own, and the outputs of all scorers."""

    def __init__(self, scorers: Sequence[Scorer], layout: InputLayout, *, is_padded: bool) -> None:
        super().__init__()
        self.module = scorers[0].module
        self._scorers, self._layout, self._is_padded = scorers, layout, is_padded

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        counts = {
            each.type: tensor.shape[0]
            for each, tensor in zip(self._layout.inputs, tensors, strict=True)
            if each.role is InputRole.FEATURES
        }
        given = self._padded(tensors, counts) if self._is_padded else tensors
        returned = self._scorers[0].run(self._layout.graph_of(given))
        found = [(each, scorer.target) for scorer in self._scorers for each in scorer.read(returned)]
        # Modules may compute in other formats (float16, float64), and programs give float32.
        outputs = ((each.float(), kind) for each, kind in found if each is not None)
        return tuple(each[: counts[kind]] if self._is_padded else each for each, kind in outputs)

    def _padded(self, tensors: Sequence[torch.Tensor], counts: Mapping[str, int]) -> list[torch.Tensor]:
        return [_padded(each, tensor, counts) for each, tensor in zip(self._layout.inputs, tensors, strict=True)]


def _padded(each: ProgramInput, tensor: torch.Tensor, counts: Mapping[str, int]) -> torch.Tensor:
    if each.role is not InputRole.EDGES:
        more = torch.zeros((_PADDING, *tensor.shape[1:]), dtype=tensor.dtype)
        return torch.cat([tensor, more])
    numbers = torch.arange(_PADDING)
    sources, targets = numbers + counts[each.relation.source], numbers.flip(0) + counts[each.relation.target]
    return torch.cat([tensor, torch.stack([sources, targets])], dim=1)


def export_program(
    scorers: Sequence[Scorer], layout: InputLayout, example: GraphTensors, other: GraphTensors, path: Path,
    *, is_padded: bool = False,
) -> None:  # fmt: skip
    """Write the program. `scorers`: of one module and call. `other`: a graph with other numbers of nodes and edges, to
    find what depends on them. InputError: it cannot be exported."""
    scorer, *_ = scorers
    module = ProgramModule(scorers, layout, is_padded=is_padded)
    tensors = layout.tensors_of(example)
    names = [
        name
        for each in scorers
        for name, path_ in ((each.name, each.outputs.scores), (EMBEDDINGS, each.outputs.embeddings))
        if path_ is not None
    ]
    fixings = _SeenFixings()
    with _quietly(), torch.no_grad(), exportable(scorer.module):
        try:
            with fixings:
                program = torch.export.export(module, tensors, dynamic_shapes=(_free_sizes(layout),), strict=False)
        except Exception as error:
            raise _not_exported(error, fixings, lines_that_repeat(scorer, example, other)) from error
        try:
            made = torch.onnx.export(
                program, dynamo=True, input_names=[each.name for each in layout.inputs], output_names=names,
                opset_version=OPSET, custom_translation_table=dict(TRANSLATIONS), verbose=False,
            )  # fmt: skip
        except Exception as error:
            raise _not_translated(error) from error
        if made is not None:
            made.save(path)


def _free_sizes(layout: InputLayout) -> tuple[dict[int, Any], ...]:
    """Which axes of inputs count nodes or edges; equal names are equal numbers."""
    sizes: dict[str, Any] = {}
    found = []
    for each in layout.inputs:
        counted = each.type if each.role is InputRole.FEATURES else each.relation
        name = f"{'nodes' if each.role is InputRole.FEATURES else 'edges'}{len(sizes)}"
        size = sizes.setdefault(str(counted), torch.export.Dim(name, max=_MOST))
        found.append({} if each.free_axis is None else {each.free_axis: size})
    return tuple(found)


@contextmanager
def _quietly() -> Iterator[None]:
    """The exporters warn of what is no fault of the user's."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "torch.fx", "onnxscript", "onnx_ir")]
    levels = [each.level for each in loggers]
    for each in loggers:
        each.setLevel(logging.CRITICAL)
    try:
        # torch prints the program that it has made so far.
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for each, level in zip(loggers, levels, strict=True):
            each.setLevel(level)


# What cannot be exported


@dataclass(frozen=True, slots=True)
class ExportProblem:
    """A reason by which exports fail, told by the words of torch's message."""

    pattern: str
    problem: str
    remedy: str


_READ_BACK = (
    "the program would read a number back from a tensor to decide what to compute (int(…), .item(), if, or a size that "
    "depends on values)"
)
REASONS = (
    ExportProblem(
        r"GuardOnDataDependent|DataDependentOutput|PendingUnbacked|data-dependent",
        _READ_BACK,
        "decide by tensors in its place: torch.where, masks, torch.zeros(number of classes) and scatter; no .item(), "
        ".tolist(), int() or bool() of a tensor",
    ),
    ExportProblem(
        r"[Ss]parse(CPU|Meta|Csr|_coo|_csr|\.mm)|aten\._?sparse|layout torch\.sparse",
        "it computes with a sparse matrix (torch.sparse_coo_tensor, torch.sparse.mm), which ONNX does not have",
        "sum over edges in its place: torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]]), each row "
        "times its edge's weight where edges have one",
    ),
    ExportProblem(
        r"no fake impl|fake impl|torch_scatter|torch_sparse|pyg_lib|torch_cluster|no meta|Meta",
        "it calls an extension that was compiled, which is no operation of torch",
        "describe it in an environment without that extension (torch_geometric then uses torch alone)",
    ),
    ExportProblem(
        r"proxy|numpy\(\)|Can't call numpy|as_numpy",
        "it leaves torch (numpy, scipy, Python's numbers) while it computes",
        "compute this part by operations of torch",
    ),
)
"""In the order in which they are looked for."""

_LAYERS = {
    "rgcn_conv": "FastRGCNConv has the same weights and computes by tensors alone",
    "hgt_conv": "give every type of nodes and relation its own Linear, as HeteroConv does",
}
"""Ways around by the file of torch_geometric where it fails."""


def _not_exported(error: Exception, fixings: _SeenFixings, loops: Sequence[CodeLine]) -> InputError:
    text = _message(error)
    blame = blame_of(error)
    where = str(blame) or "forward"
    for reason in REASONS:
        if re.search(reason.pattern, text):
            return InputError(where, reason.problem, _way_around(blame) or reason.remedy)
    if "Constraints violated" in text or "inferred to be a constant" in text:
        return _fixed_sizes(text, fixings, loops)
    return InputError(
        where, f"it cannot be exported ({type(error).__name__}: {text.splitlines()[0] if text else ''})",
        "torch.export.export(model, …) of your torch says more; write this line by plain operations of torch",
    )  # fmt: skip


def _way_around(blame: Blame) -> str:
    file = "" if blame.library is None else Path(blame.library.file).stem
    return _LAYERS.get(file, "")


def _message(error: BaseException) -> str:
    """Texts of the error and its causes."""
    return "\n".join(f"{type(each).__name__}: {each}" for each in chain_of(error))


def _fixed_sizes(text: str, fixings: _SeenFixings, loops: Sequence[CodeLine]) -> InputError:
    if loops:
        return InputError(
            str(loops[0]), "it is run once for each node or edge: a loop over data cannot be exported with free sizes",
            "write it as one operation on tensors: index, scatter (torch_geometric.utils.scatter), or a product",
        )  # fmt: skip
    fixed = re.search(r"constant \((\d+)\)", text)
    number = f" ({fixed[1]} of the example)" if fixed else ""
    where = next((str(blame) for blame in (*fixings.lines, *fixings.guards) if str(blame)), "forward")
    if not fixings.lines and fixings.guards:
        return InputError(
            where, "it computes otherwise for graphs of another size, and a program is exported for one of the ways",
            "let sizes decide nothing: compute all graphs alike",
        )  # fmt: skip
    return InputError(
        where, f"a number of nodes or edges is fixed in it{number}, and differs from call to call",
        "take sizes from the tensors where they are used (x.size(0), without int()), and no number from the "
        "time when the module was made",
    )  # fmt: skip


def _not_translated(error: Exception) -> InputError:
    text = _message(error)
    found = re.search(r"(?<=OpOverload\(op=')[\w.]+|(aten|prims|torch_sparse|torch_scatter|pyg)[.:]+[\w.]+", text)
    name = found[0] if found else type(error).__name__
    return InputError(
        "forward", f"ONNX has no translation of {name} in this torch ({torch.__version__})",
        "write this part by other operations of torch, or describe it with a newer torch and onnxscript",
    )  # fmt: skip


def lines_that_repeat(scorer: Scorer, one: GraphTensors, two: GraphTensors) -> list[CodeLine]:
    """Lines of the user's that call torch more often over one of the two graphs, the most frequent first."""
    counts = []
    for graph in (one, two):
        counted = _CountedLines()
        try:
            with counted:
                scorer.scores(graph)
        except Exception:  # noqa: BLE001 - whatever the module raises over another graph is told elsewhere
            return []
        counts.append(counted.counts)
    differing = [line for line in counts[0] if counts[0][line] != counts[1][line]]
    return sorted(differing, key=lambda line: -counts[0][line])


class _SeenFixings(logging.Handler):
    """Within it, lines where the exporter takes a size for a constant, which its log tells while it does so."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[Blame] = []
        self.guards: list[Blame] = []
        """Lines that compare a size with a number."""
        self._logger = logging.getLogger("torch.fx.experimental.symbolic_shapes")
        self._before = (self._logger.level, self._logger.propagate)

    def __enter__(self) -> None:
        self._before = (self._logger.level, self._logger.propagate)
        self._logger.setLevel(logging.INFO)
        self._logger.propagate = False
        self._logger.addHandler(self)

    def __exit__(self, *_: object) -> None:
        self._logger.removeHandler(self)
        self._logger.level, self._logger.propagate = self._before

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if re.search(r"set_replacement \w+ = \d+ ", text):
            self.lines.append(blame_of_caller())
        elif re.search(r"^eval .*\b\d{2,}\b.*\[guard added\]", text):
            self.guards.append(blame_of_caller())


class _CountedLines(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[CodeLine] = Counter()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        blame = blame_of_caller()
        line = blame.own or blame.library
        if line is not None:
            self.counts[line] += 1
        return func(*args, **(kwargs or {}))
