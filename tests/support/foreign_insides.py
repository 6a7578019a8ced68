"""Uses of what other libraries do not publish, found in source code: private names, stand-ins, replaced attributes.

Whatever is found breaks with a minor release of somebody else, and no type checker tells of it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

OWN = frozenset({"benchmarks", "tests", "tools"})
"""Our packages beside those named gnnserve_*."""
PUBLISHED = frozenset({"asyncio._set_running_loop", "os._exit", "sys._getframe"})
"""Names that look private, and that their library documents or has in its `__all__`."""
SETTINGS = frozenset({
    "sys.argv", "sys.stderr", "sys.stdout", "tempfile.tempdir",
    "torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction", "torch.backends.cuda.matmul.fp32_precision",
})  # fmt: skip
"""Attributes that their library documents to be set."""
_OF_NAMED_TUPLES = frozenset({"_asdict", "_fields", "_field_defaults", "_make", "_replace"})
_FINDERS = frozenset({"meta_path", "path_hooks", "path_importer_cache"})
_CHANGES_OF_DICT = frozenset({"clear", "pop", "popitem", "setdefault", "update", "__setitem__", "__delitem__"})
_SETTERS = frozenset({"setattr", "delattr"})

OF_AN_UNKNOWN_OBJECT = "uses a name that none of our classes here gives"


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    line: int
    what: str
    """The code that was found, such as `torch._dynamo`."""
    problem: str


def find_insides(source: str) -> list[Finding]:
    """Everything in a module that depends on the insides of another library."""
    nodes = _nodes_of(ast.parse(source))
    module = _Module()
    for node in nodes:
        module.learn(node)
    return sorted({finding for node in nodes for finding in module.findings_in(node)})


_LOOKED_AT = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Subscript, ast.Call)


def _nodes_of(tree: ast.AST) -> list[ast.AST]:
    """Nodes that may bind a name or be a finding. A module's other nodes are twenty times as many."""
    found, waiting = list[ast.AST](), [tree]
    while waiting:
        node = waiting.pop()
        match node:
            case ast.Name(ctx=context):
                if isinstance(context, ast.Store):
                    found.append(node)
                continue
            case ast.Attribute(attr=attr, ctx=context):
                if not isinstance(context, ast.Load) or is_private(attr) or attr in _FINDERS:
                    found.append(node)
                waiting.append(node.value)
                continue
            case ast.Constant():
                continue
        if isinstance(node, _LOOKED_AT):
            found.append(node)
        for name in node._fields:
            value = getattr(node, name)
            if isinstance(value, list):
                waiting += [each for each in value if isinstance(each, ast.AST)]
            elif isinstance(value, ast.AST):
                waiting.append(value)
    return found


def is_private(name: str) -> bool:
    """Whether a name is its library's own: neither `__version__` nor `_missing_`, which enums publish."""
    return name.startswith("_") and not name.endswith("_")


@dataclass(slots=True)
class _Module:
    foreign: dict[str, str] = field(default_factory=dict)
    """Names bound to what other libraries have, and their full names there."""
    own: set[str] = field(default_factory=set)
    """Names bound to what our packages have."""
    defined: set[str] = field(default_factory=set)
    """Private names that this module gives to its objects and itself."""

    def learn(self, node: ast.AST) -> None:
        match node:
            case ast.Import(names=names):
                for each in names:
                    bound = each.asname or each.name.partition(".")[0]
                    self._bind(bound, each.name if each.asname else bound)
            case ast.ImportFrom(module=source, names=names, level=level):
                for each in names:
                    self._bind(each.asname or each.name, f"{'.' * level}{source or ''}.{each.name}")
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                self.defined.add(name)
            case (
                ast.Name(id=name, ctx=ast.Store())
                | ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store())
            ):
                self.defined.add(name)

    def _bind(self, name: str, full: str) -> None:
        if _is_own(full):
            self.own.add(name)
        else:
            self.foreign[name] = full

    def findings_in(self, node: ast.AST) -> Iterator[Finding]:
        match node:
            case ast.Import(names=names):
                for each in names:
                    yield from self._of_import(node, each.name)
            case ast.ImportFrom(module=source, names=names, level=0):
                for each in names:
                    yield from self._of_import(node, f"{source}.{each.name}")
            case ast.Attribute(attr=attr):
                yield from self._of_attribute(node, attr)
            case ast.Subscript(value=value, ctx=ast.Store() | ast.Del()) if self._full(value) == "sys.modules":
                yield Finding(node.lineno, ast.unparse(node), "puts a stand-in among the imported modules")
            case ast.Call(func=ast.Attribute(value=value, attr=attr)) if (
                attr in _CHANGES_OF_DICT and self._full(value) == "sys.modules"
            ):
                yield Finding(node.lineno, ast.unparse(node.func), "changes the imported modules")
            case ast.Call(func=ast.Name(id=name), args=[changed, *_]) if name in _SETTERS:
                if (full := self._full(changed)) is not None:
                    yield Finding(node.lineno, f"{name}({full})", "replaces what another library has")
            case ast.Call(func=ast.Name(id="getattr"), args=[_, ast.Constant(value=str(attr)), *_]):
                if is_private(attr) and attr not in self.defined:
                    yield Finding(node.lineno, ast.unparse(node), OF_AN_UNKNOWN_OBJECT)
            case ast.Call(func=ast.Attribute(attr="setattr"), args=[ast.Constant(value=str(path)), *_]):
                if not _is_own(path) and any(map(is_private, path.split("."))):
                    yield Finding(node.lineno, path, "replaces what its library does not publish")

    def _of_import(self, node: ast.stmt, full: str) -> Iterator[Finding]:
        if not _is_own(full) and full not in PUBLISHED and any(map(is_private, full.split("."))):
            yield Finding(node.lineno, full, "imports what its library does not publish")

    def _of_attribute(self, node: ast.Attribute, attr: str) -> Iterator[Finding]:
        is_written = not isinstance(node.ctx, ast.Load)
        full = self._full(node)
        if full is not None and full.startswith("sys.") and attr in _FINDERS:
            yield Finding(node.lineno, full, "changes how modules are imported")
        if is_written and full is not None and full not in SETTINGS:
            yield Finding(node.lineno, full, "replaces what another library has")
        if not is_private(attr) or full in PUBLISHED or attr in _OF_NAMED_TUPLES:
            return
        if full is not None:
            yield Finding(node.lineno, full, "uses what its library does not publish")
        elif not self._is_of_ours(node, attr):
            yield Finding(node.lineno, ast.unparse(node), OF_AN_UNKNOWN_OBJECT)

    def _is_of_ours(self, node: ast.Attribute, attr: str) -> bool:
        """Whether a private attribute is one of our own objects: of this module, of what one of our packages has, or of
        an object whose class may have inherited it from there."""
        if attr in self.defined:
            return True
        root = _root(node)
        return root in self.own or root in {"self", "cls", "super"}

    def _full(self, node: ast.expr) -> str | None:
        """The full name of what another library has; None: it is not known to be of one."""
        match node:
            case ast.Name(id=name):
                return self.foreign.get(name)
            case ast.Attribute(value=value, attr=attr):
                before = self._full(value)
                return None if before is None else f"{before}.{attr}"
        return None


def _root(node: ast.expr) -> str | None:
    """The name that an expression begins with."""
    while True:
        match node:
            case ast.Name(id=name):
                return name
            case ast.Attribute(value=inner) | ast.Subscript(value=inner) | ast.Call(func=inner):
                node = inner
            case _:
                return None


def _is_own(full: str) -> bool:
    top = full.partition(".")[0]
    return full.startswith(".") or top.startswith("gnnserve_") or top in OWN
