"""Limits of what a program may be: read from its file before anything runs it, in a process that may take no more
memory than the program (`inspection.py`). Needs onnx, which is of an extra."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

from gnnserve_api.errors import InputError
from gnnserve_api.extras import PROGRAMS
from gnnserve_worker.programs.facts import DYNAMO, FIELD, ProgramFacts, StatedTensor

OLDEST_OPSET, NEWEST_OPSET = 13, 23
MOST_FILE_BYTES = (2 << 30) - 1
"""What a protobuf may have at most."""
MOST_WEIGHT_BYTES = 8 << 30
MOST_OPERATORS = 100_000

_LONGEST_NAME = 255
"""Bytes of a file's name, at most."""

_STANDARD_DOMAINS = ("", "ai.onnx")

OPERATORS = frozenset(
    """
    Abs Acos Acosh Add And ArgMax ArgMin Asin Asinh Atan Atanh AveragePool BatchNormalization BitwiseAnd BitwiseNot
    BitwiseOr BitwiseXor Cast CastLike Ceil Celu Clip Compress Concat Constant ConstantOfShape Conv Cos Cosh CumSum
    DepthToSpace DequantizeLinear Det Div Dropout Einsum Elu Equal Erf Exp Expand EyeLike Flatten Floor GRU Gather
    GatherElements GatherND Gelu Gemm GlobalAveragePool GlobalMaxPool Greater GreaterOrEqual GroupNormalization
    HardSigmoid HardSwish Hardmax Identity If InstanceNormalization IsInf IsNaN LSTM LayerNormalization LeakyRelu Less
    LessOrEqual Log LogSoftmax Loop LpNormalization MatMul Max MaxPool Mean MeanVarianceNormalization Min Mish Mod Mul
    Neg NonZero Not OneHot Or PRelu Pad Pow QuantizeLinear RMSNormalization RNN Range Reciprocal ReduceL1 ReduceL2
    ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu Reshape
    ReverseSequence Round Scan Scatter ScatterElements ScatterND Selu Shape Shrink Sigmoid Sign Sin Sinh Size Slice
    Softmax Softplus Softsign SpaceToDepth Split Sqrt Squeeze Sub Sum Swish Tan Tanh ThresholdedRelu Tile TopK Transpose
    Trilu Unique Unsqueeze Where Xor
    """.split()  # noqa: SIM905 - one a line would take two pages
)
"""Arithmetic on tensors, and control over it. Not among them: what draws, reads files, images or text, or holds lists
of tensors."""
_DRAWING = frozenset(
    {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)


def facts_of(file: Path) -> ProgramFacts:
    """InputError: the file is no program that may be run."""
    model = _read(file)
    _check_operators(model)
    _check_weights(model, file)
    weights = {each.name for each in model.graph.initializer}
    return ProgramFacts(
        tuple(_stated(each) for each in model.graph.input if each.name not in weights),
        tuple(_stated(each) for each in model.graph.output),
        _data_files(model),
    )


def check_size(file: Path) -> None:
    """InputError: the file is larger than a program may be. Before its digest is taken, which reads all of it."""
    try:
        size = file.stat().st_size
    except OSError:
        return  # what reads it says why
    if size > MOST_FILE_BYTES:
        raise InputError(
            f"{FIELD}.uri",
            f"{file.name} has {size:,} bytes, more than the {MOST_FILE_BYTES:,} that a file of ONNX may have",
            "write its weights beside it: onnx.save(…, save_as_external_data=True)",
        )


def may_have_data_files(file: Path) -> bool:
    """Whether it may have weights in files beside it: by the key that names them, so that most programs are told apart
    without being parsed."""
    try:
        with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return content.find(b"location") >= 0
    except (OSError, ValueError):  # ValueError: it is empty
        return False  # what reads it says why


def _data_files(model: Any) -> tuple[str, ...]:
    """Names of the files beside it that have weights of it, which are checked."""
    external = (one for one in _tensors_of(model) if one.data_location == import_onnx().TensorProto.EXTERNAL)
    names = (Path(os.path.normpath(_location_of(tensor))).name for tensor in external)
    return tuple(dict.fromkeys(names))


def _location_of(tensor: Any) -> str:
    return next((str(entry.value) for entry in tensor.external_data if entry.key == "location"), "")


def import_onnx() -> Any:
    """The package onnx. InputError: it is not installed."""
    try:
        import onnx  # noqa: PLC0415 - of an extra
    except ModuleNotFoundError as error:
        raise InputError(
            FIELD, f"a program is read by {error.name}, which is not installed", PROGRAMS.remedy
        ) from error
    return onnx


def _read(file: Path) -> Any:
    onnx = import_onnx()
    try:
        check_size(file)
        model = onnx.load(file, load_external_data=False)
    except (InputError, MemoryError):
        raise
    except OSError as error:
        raise InputError(f"{FIELD}.uri", f"{file} cannot be read: {error.strerror}", "correct the address") from error
    except Exception as error:
        raise InputError(
            f"{FIELD}.uri", f"{file.name} is no file of ONNX", f"write one by {DYNAMO} and save"
        ) from error
    if model.ir_version > onnx.IR_VERSION:
        raise InputError(
            f"{FIELD}.uri", f"{file.name} is of version {model.ir_version} of ONNX's format; up to {onnx.IR_VERSION} "
            "are read", "export it again, or write it by onnx.save with a lower ir_version",
        )  # fmt: skip
    if not model.graph.node:
        raise InputError(f"{FIELD}.uri", f"{file.name} has no operators", f"write it again by {DYNAMO}")
    return model


def _check_operators(model: Any) -> None:
    versions = {each.domain: each.version for each in model.opset_import}
    standard = max((versions[domain] for domain in _STANDARD_DOMAINS if domain in versions), default=0)
    if not OLDEST_OPSET <= standard <= NEWEST_OPSET:
        raise InputError(
            f"{FIELD}.uri", f"the program is of opset {standard}; {OLDEST_OPSET} to {NEWEST_OPSET} are run",
            "export it with opset_version=18, or convert it by onnx.version_converter",
        )  # fmt: skip
    own = {(each.domain, each.name) for each in model.functions}
    if _operator_count(model) > MOST_OPERATORS:
        raise InputError(
            f"{FIELD}.uri", f"the program has more than {MOST_OPERATORS:,} operators",
            "a loop over data was probably unrolled: write it as one operation on tensors",
        )  # fmt: skip
    for node in _nodes_of(model):
        if (node.domain, node.op_type) not in own:
            _check_operator(node)


def _operator_count(model: Any) -> int:
    """Operators where each call of a function of the file stands for those inside, as ONNX Runtime reads them.
    InputError: a function calls itself."""
    bodies = {(each.domain, each.name): list(_nodes_of_graph(each)) for each in model.functions}
    calls = {key: {(node.domain, node.op_type) for node in nodes} & bodies.keys() for key, nodes in bodies.items()}
    counts: dict[tuple[str, str], int] = {}
    try:
        for key in TopologicalSorter(calls).static_order():
            counts[key] = _counted(bodies[key], counts)
    except CycleError as error:
        raise InputError(
            f"{FIELD}.uri", f"function {error.args[1][0][1]} of the program calls itself", "export the module again"
        ) from error
    return _counted(_nodes_of_graph(model.graph), counts)


def _counted(nodes: Iterable[Any], counts: Mapping[tuple[str, str], int]) -> int:
    return sum(counts.get((node.domain, node.op_type), 1) for node in nodes)


def _check_operator(node: Any) -> None:
    where = f"{FIELD}.uri"
    if node.domain not in _STANDARD_DOMAINS:
        raise InputError(
            where, f"operator {node.op_type} is of {node.domain}, and custom operators are not run",
            "write that part of the model by operations of torch alone, and export it again",
        )  # fmt: skip
    if node.op_type in _DRAWING:
        raise InputError(
            where, f"operator {node.op_type} draws random numbers, so that scores would differ from call to call",
            "export the module in evaluation mode (model.eval()), and draw nothing in forward",
        )  # fmt: skip
    if node.op_type not in OPERATORS:
        raise InputError(
            where, f"operator {node.op_type} is not among those that programs may have",
            "write that part of the model by other operations of torch, and export it again",
        )  # fmt: skip


def _graphs_of(model: Any) -> Iterator[Any]:
    """The graph, those of its functions, and those in them."""
    for each in (model.graph, *model.functions):
        yield from _graphs_in(each)


def _graphs_in(outer: Any) -> Iterator[Any]:
    """A graph, or a function, and the graphs in it."""
    left = [outer]
    while left:
        graph = left.pop()
        yield graph
        for node in graph.node:
            for attribute in node.attribute:
                left += [each for each in (attribute.g, *attribute.graphs) if each.ByteSize()]


def _nodes_of(model: Any) -> Iterator[Any]:
    for graph in _graphs_of(model):
        yield from graph.node


def _nodes_of_graph(outer: Any) -> Iterator[Any]:
    for graph in _graphs_in(outer):
        yield from graph.node


def _tensors_of(model: Any) -> Iterator[Any]:
    for graph in _graphs_of(model):
        # Functions have none, and attributes' defaults in their place.
        yield from getattr(graph, "initializer", ())
        yield from _dense(getattr(graph, "sparse_initializer", ()))
        attributes = [attribute for node in graph.node for attribute in node.attribute]
        for attribute in (*attributes, *getattr(graph, "attribute_proto", ())):
            yield from (attribute.t, *attribute.tensors)
            yield from _dense((attribute.sparse_tensor, *attribute.sparse_tensors))


def _dense(tensors: Iterable[Any]) -> Iterator[Any]:
    """What sparse tensors are made of."""
    for each in tensors:
        yield from (each.values, each.indices)


def _check_weights(model: Any, file: Path) -> None:
    onnx = import_onnx()
    total = 0
    folder = file.parent.resolve()
    for tensor in _tensors_of(model):
        if tensor.data_type:
            total += _bytes_of(tensor)
        if total > MOST_WEIGHT_BYTES:
            raise InputError(
                f"{FIELD}.uri", f"weights have more than {MOST_WEIGHT_BYTES:,} bytes",
                "keep tables of embeddings as features of nodes, not in the program",
            )  # fmt: skip
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            _check_external(tensor, folder)


def _bytes_of(tensor: Any) -> int:
    onnx = import_onnx()
    count = 1
    for size in tensor.dims:
        if size < 0:
            raise InputError(f"{FIELD}.uri", f"weights {tensor.name!r} have a size below 0", "write the file again")
        count *= size
    try:
        item = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    except (KeyError, ValueError, TypeError) as error:
        raise InputError(
            f"{FIELD}.uri", f"weights {tensor.name!r} are of an unknown type", "export the program in float32"
        ) from error
    return count * int(item)


def _check_external(tensor: Any, folder: Path) -> None:
    given = {entry.key: entry.value for entry in tensor.external_data}
    location = given.get("location", "")
    data = Path(os.path.normpath(folder / location))
    if len(os.fsencode(location)) > _LONGEST_NAME or "\0" in location:
        raise InputError(
            f"{FIELD}.uri", f"weights {tensor.name!r} are at a name of {len(location):,} letters, which no file has",
            "write the file again",
        )  # fmt: skip
    if not location or Path(location).is_absolute() or data.parent != folder or data.is_symlink():
        raise InputError(
            f"{FIELD}.uri", f"weights {tensor.name!r} are at {location!r}, outside the program's own folder",
            "write them into the program (save(…, external_data=False)), or into a file beside it",
        )  # fmt: skip
    if not data.is_file():
        raise InputError(
            f"{FIELD}.uri", f"weights {tensor.name!r} are at {location!r}, which is not there",
            "copy that file beside the program",
        )  # fmt: skip
    if data.stat().st_size > MOST_WEIGHT_BYTES:
        raise InputError(
            f"{FIELD}.uri", f"{location} has {data.stat().st_size:,} bytes, more than the {MOST_WEIGHT_BYTES:,} that "
            "weights may have", "keep tables of embeddings as features of nodes, not in the program",
        )  # fmt: skip
    wanted = _number(given.get("offset", "0"), tensor) + _number(given.get("length", str(_bytes_of(tensor))), tensor)
    if wanted > data.stat().st_size:
        raise InputError(
            f"{FIELD}.uri", f"{location} has {data.stat().st_size:,} bytes, and weights {tensor.name!r} end at "
            f"{wanted:,}", "copy the whole file beside the program",
        )  # fmt: skip


def _number(text: str, tensor: Any) -> int:
    if not text.isdecimal():
        raise InputError(
            f"{FIELD}.uri", f"weights {tensor.name!r} are at {text!r}, not a number of bytes", "write the file again"
        )
    return int(text)


def _stated(each: Any) -> StatedTensor:
    sizes = each.type.tensor_type.shape.dim
    free = (size.dim_value if size.HasField("dim_value") else None for size in sizes)
    return StatedTensor(each.name, _kind_of(each.type), tuple(free))


def _kind_of(kind: Any) -> str:
    """A tensor's type by its name, for people."""
    known = import_onnx().TensorProto.DataType
    number = kind.tensor_type.elem_type
    if not kind.HasField("tensor_type"):
        return f"a {kind.WhichOneof('value') or 'value of no type'}"
    return str(known.Name(number)).lower() if number in known.values() else f"type {number}"
