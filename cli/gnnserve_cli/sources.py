"""Reads the argument SOURCE: it names the graph of a manifest, of a file, or of a public data set."""

from __future__ import annotations

import difflib
from pathlib import Path

from gnnserve_api.errors import InputError
from gnnserve_api.manifest import load_manifest
from gnnserve_api.spec.graph import Builtin, GraphSource, GraphSpec, NpzSource
from gnnserve_api.spec.heterogeneous import HeterogeneousSource, NpzFolder
from gnnserve_api.spec.paths import DataPath
from gnnserve_api.spec.published import OgbName, OgbSource, PygName, PygSource
from gnnserve_api.spec.service import GNNServiceSpec

_MANIFEST_SUFFIXES = (".yaml", ".yml", ".json")


def is_manifest(text: str) -> bool:
    """Whether it names a manifest: a file of YAML, or `-` for standard input."""
    return text == "-" or Path(text).suffix in _MANIFEST_SUFFIXES


def parse_spec(text: str) -> GNNServiceSpec:
    """The spec of a manifest, or the default spec for a graph."""
    if is_manifest(text):
        return load_manifest(Path(text)).spec
    return GNNServiceSpec(graph=GraphSpec(source=_parse_source(text)))


def _parse_source(text: str) -> GraphSource:
    path = Path(text)
    if path.suffix == ".npz":
        return GraphSource(npz=NpzSource(uri=DataPath(path.absolute().as_uri())))
    if path.is_dir():
        return GraphSource(typed=HeterogeneousSource(npz=NpzFolder(uri=DataPath(path.absolute().as_uri()))))
    if text in list(Builtin):
        return GraphSource(builtin=Builtin(text))
    if text in list(OgbName):
        return GraphSource(ogb=OgbSource(name=OgbName(text)))
    if text in list(PygName):
        return GraphSource(pyg=PygSource(name=PygName(text)))
    by_lowercase = {name.lower(): str(name) for name in (*Builtin, *OgbName, *PygName)}
    near = difflib.get_close_matches(text.lower(), by_lowercase, n=1)
    meant = f"did you mean {by_lowercase[near[0]]}? " if near else ""
    raise InputError(
        "SOURCE",
        f"{text!r} is neither a manifest (.yaml), nor an .npz file, nor a folder of a typed graph, nor a known name",
        f"{meant}tables of your own are named in a manifest; known names are {', '.join(by_lowercase.values())}",
    )
