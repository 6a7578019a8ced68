"""Fields of a manifest that name a file or a folder: which forms they take, and where each form is looked for.

`DataPath` is the value of every such field, and `resolve` the one place that turns what is written into a path. What a
relative path is relative to is known to the program that reads the manifest (`PathBase`), which hands it to
`parse_manifest`: the command line names the manifest's folder, a pod the mount of the data volume. The operator names
nothing, since it opens none of the files. docs/extending.md says how a field is declared.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, TypeVar, get_args
from urllib.parse import unquote, urlsplit

from pydantic import BaseModel, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from gnnserve_api.spec.hub import PROGRAM, SCHEME, TENSORS, HubAddress, HubFile
from gnnserve_api.spec.rules import Rule, server_rule, validations

Part = TypeVar("Part", bound=BaseModel)

BASE_CONTEXT = "path_base"
"""Key of pydantic's validation context under which a `PathBase` is given."""
RECIPE_CONTEXT = {"path_form": "recipe"}
"""pydantic's serialization context in which a path is told in one form, however it was written."""
MAX_PATH_LENGTH = 2048
_FILE_URI = r"^file:///[^?#]+$"
_ADDRESS = r"^https?://[^\s/@?#]+(/[^\s?#]*)?$"
_SCHEME = r"^[A-Za-z][A-Za-z0-9+.-]*:"
_ABSOLUTE = r"^(/|file:|https?:|hf:)"
_LEAVES = r"(^|/)[.][.](/|$)"


@dataclass(frozen=True, slots=True)
class ManifestFolder:
    """Paths on the machine of the user who runs `gnnserve`."""

    folder: Path
    """The manifest's folder: what relative paths are relative to."""
    home: Path | None
    """The user's home, `~`; None: the user has none."""


@dataclass(frozen=True, slots=True)
class DataVolume:
    """Paths in a pod."""

    mount_path: Path | None
    """Where the volume of spec.graph.volume is mounted; None: there is none."""


@dataclass(frozen=True, slots=True)
class FetchedFile:
    """A file that was fetched from where a manifest names it."""

    path: Path


PathBase = ManifestFolder | DataVolume | FetchedFile


def resolve(written: str, base: PathBase | None) -> Path:
    """The path that is meant by what a field says. ValueError, in words for the author: it cannot be found from there.

    `base` None: nothing is known of the place, and the path must be absolute.
    """
    if isinstance(base, FetchedFile):
        return base.path
    if written.startswith("file:"):
        return Path(unquote(urlsplit(written).path))
    if written.startswith(SCHEME):
        raise ValueError("is on the Hugging Face Hub, and was not fetched")
    path = Path(written)
    if path.is_absolute():
        return path
    match base:
        case ManifestFolder(folder, home):
            if path.parts[:1] != ("~",):
                return folder / path
            if home is None:
                raise ValueError("must not begin with ~ here, where the user has no home: write the folder's path")
            return home / path.relative_to("~")
        case DataVolume(mount_path):
            if written.startswith("~"):
                raise ValueError(
                    "must not begin with ~ in a cluster, where pods have no home: bring the file to the volume of "
                    "spec.graph.volume, and write its path there"
                )
            if ".." in path.parts:
                raise ValueError("must not have .. in a cluster: a relative path stays on the volume of the data")
            if mount_path is None:
                raise ValueError(
                    "is relative to the volume of the data, and there is none: add spec.graph.volume with the claim "
                    "that has the file"
                )
            return mount_path / path
        case None:
            raise ValueError(f"{written} is relative, and nothing says to which folder")


@dataclass(frozen=True, slots=True)
class DataPath:
    """A file or folder, as a manifest names it; or a web address, or one of the Hugging Face Hub, where the field takes
    it."""

    written: str
    base: PathBase | None = None
    hub_file: str = ""
    """The file that an address of the Hugging Face Hub means where it names none."""

    @property
    def path(self) -> Path:
        """Where it is. ValueError: it is relative, and no base was given."""
        return resolve(self.written, self.base)

    @property
    def is_address(self) -> bool:
        """Whether it is a web address and no path."""
        return re.match(_ADDRESS, self.written) is not None

    @property
    def hub(self) -> HubAddress | None:
        """Where it is on the Hugging Face Hub; None: it is not there."""
        return HubAddress.parse(self.written, self.hub_file)

    @property
    def is_remote(self) -> bool:
        """Whether it is on no file system until it is fetched."""
        return self.is_address or self.hub is not None

    @property
    def is_absolute(self) -> bool:
        """Whether it means the same wherever the manifest is read."""
        return re.match(_ABSOLUTE, self.written) is not None

    @property
    def in_recipes(self) -> str:
        """The form in which recipes have it: URIs as they were written, as ever, and absolute paths as URIs."""
        if self.is_absolute:
            return self.written if not self.written.startswith("/") else PurePosixPath(self.written).as_uri()
        return str(PurePosixPath(self.written))

    def __str__(self) -> str:
        return self.written


@dataclass(frozen=True, slots=True)
class PathField:
    """The annotation of a field whose value is a `DataPath`."""

    example: str
    """A value, to be shown where another one is refused."""
    suffix: str = ""
    """What the name must end in."""
    how_to_make: str = ""
    """How a file of this kind is written, where another one was given."""
    takes_addresses: bool = False
    """Whether it may be a web address."""
    hub: HubFile | None = None
    """The kind of file that is taken from the Hugging Face Hub; None: none is."""

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_wrap_validator_function(
            self._parse,
            core_schema.str_schema(strict=True, min_length=1, max_length=MAX_PATH_LENGTH),
            serialization=core_schema.plain_serializer_function_ser_schema(
                _written, info_arg=True, return_schema=core_schema.str_schema()
            ),
        )

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        forms = [f"self.matches(r'{_FILE_URI}')", f"!self.matches(r'{_SCHEME}')"]
        if self.takes_addresses:
            forms.insert(0, f"self.matches(r'{_ADDRESS}')")
        form = " || ".join(forms)
        if self.suffix:
            form = f"({form}) && self.endsWith('{self.suffix}')"
        if self.hub is not None:
            form = f"{form} || self.matches(r'{self.hub.pattern}')"
        stays = f"!self.startsWith('~') && (self.matches(r'{_ABSOLUTE}') || !self.matches(r'{_LEAVES}'))"
        return {
            "type": "string",
            "minLength": 1,
            "maxLength": MAX_PATH_LENGTH,
            **validations(
                (form, f"must be {self._requirement}"),
                (stays, "must be without ~ and, where it is relative, without .. in a cluster"),
            ),
        }

    @property
    def _requirement(self) -> str:
        kind = f"the path of a {self.suffix} file" if self.suffix else "a path"
        address = " or an address without a user in it" if self.takes_addresses else ""
        hub = "" if self.hub is None else " or hf://ORG/NAME@COMMIT"
        return f"{kind}{address}, as in {self.example}{hub}"

    def _parse(
        self, value: object, as_text: core_schema.ValidatorFunctionWrapHandler, info: core_schema.ValidationInfo
    ) -> DataPath:
        if isinstance(value, DataPath):
            return value
        context: Mapping[str, Any] = info.context or {}
        hub_file = "" if self.hub is None else self.hub.default
        given = DataPath(as_text(value), context.get(BASE_CONTEXT), hub_file)
        if problem := self._problem(given):
            raise ValueError(problem)
        if given.base is not None and not given.is_remote:
            resolve(given.written, given.base)
        return given

    def _problem(self, given: DataPath) -> str | None:
        written = given.written
        if self.hub is not None and written.startswith(SCHEME):
            return self.hub.problem(written)
        if re.match(_SCHEME, written) and not (given.is_address and self.takes_addresses):
            if written.startswith("file:///") and re.search("[#?]", written):
                return "must have # as %23 and ? as %3F in a URI, whose path they end; a plain path needs neither"
            if re.match("file:(//)?[^/]", written):
                return (
                    "must have an absolute path after file://: a relative path is written without it, as in "
                    f"{self.example}"
                )
            if not re.match(_FILE_URI, written):
                return f"must be {self._requirement}; a path that begins as an address does is written with ./ before"
        if not written.endswith(self.suffix):
            return f"must be {self._requirement}{f'; {self.how_to_make}' if self.how_to_make else ''}"
        return None


def _written(value: DataPath, info: core_schema.SerializationInfo) -> str:
    return value.in_recipes if info.context == RECIPE_CONTEXT else value.written


SourcePath = Annotated[DataPath, PathField("data/graph.npz")]
TablePath = Annotated[DataPath, PathField("data/nodes.parquet")]
FolderPath = Annotated[DataPath, PathField("data/graph")]
MirrorPath = Annotated[DataPath, PathField("https://mirror/ogb or data/ogb", takes_addresses=True)]
ScoresPath = Annotated[DataPath, PathField("data/expected.npz")]
ProgramPath = Annotated[DataPath, PathField("data/model.onnx", hub=PROGRAM)]
HeteroDataPath = Annotated[
    DataPath,
    PathField(
        "data/graph.safetensors",
        suffix=".safetensors",
        how_to_make="docs/data.md has the lines that write a HeteroData",
    ),
]
TensorsPath = Annotated[
    DataPath,
    PathField(
        "data/model.safetensors",
        suffix=".safetensors",
        how_to_make="safetensors.torch.save_file(model.state_dict(), PATH) makes the file",
        hub=TENSORS,
    ),
]


# --- all paths of a manifest


@dataclass(frozen=True, slots=True)
class NamedPath:
    field: str
    """The field, as a manifest has it: `spec.graph.source.csv.nodes.uri`."""
    value: DataPath

    @property
    def is_missing(self) -> bool:
        """Whether nothing is there. What is there and cannot be read is for its reader to tell."""
        try:
            self.value.path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return True
        except (OSError, ValueError):  # ValueError: a zero byte in the name
            return False
        return False

    @property
    def place(self) -> str:
        """The path as it is written and, where that is another one, as it was looked for."""
        path = str(self.value.path)
        return path if path == self.value.written else f"{self.value.written} ({path})"


def paths_of(part: BaseModel, field: str = "spec") -> tuple[NamedPath, ...]:
    """Every file and folder that a spec names, or a part of one, the field `field`; without what is fetched."""
    return tuple(one for one in _paths_in(part, field) if not one.value.is_remote)


def hub_paths_of(part: BaseModel, field: str = "spec") -> tuple[NamedPath, ...]:
    """Every file of the Hugging Face Hub that a spec names, or a part of one, the field `field`."""
    return tuple(one for one in _paths_in(part, field) if one.value.hub is not None)


def with_paths(part: Part, replaced: Mapping[DataPath, DataPath]) -> Part:
    """The part with other values in place of some of its paths."""
    changes = {}
    for name in type(part).model_fields:
        value = getattr(part, name)
        if (other := _with_paths(value, replaced)) is not value:
            changes[name] = other
    return part.model_copy(update=changes) if changes else part


def _with_paths(value: Any, replaced: Mapping[DataPath, DataPath]) -> Any:
    """The very value where nothing in it is replaced."""
    if isinstance(value, DataPath):
        return replaced.get(value, value)
    if isinstance(value, BaseModel):
        return with_paths(value, replaced)
    if isinstance(value, tuple):
        members = tuple(_with_paths(member, replaced) for member in value)
        return value if all(one is other for one, other in zip(members, value, strict=True)) else members
    return value


def _paths_in(value: object, name: str) -> Iterator[NamedPath]:
    if isinstance(value, DataPath):
        yield NamedPath(name, value)
    elif isinstance(value, BaseModel):
        for field_name, field in type(value).model_fields.items():
            yield from _paths_in(getattr(value, field_name), f"{name}.{field.alias or field_name}")
    elif isinstance(value, tuple):
        for place, member in enumerate(value):
            yield from _paths_in(member, f"{name}[{place}]")


def relative_paths_have_a_volume(**parts: type[BaseModel]) -> Rule:
    """The API server's rule of a spec with these parts: a relative path needs a volume that it is relative to. On a
    laptop it does not, so that pydantic leaves it out; pods say the same of a manifest that gets past it."""
    absolute = [condition for name, part in parts.items() for condition in _absolute(f"self.{name}", part)]
    return server_rule(
        f"has(self.graph.volume) || ({' && '.join(absolute)})",
        "graph.volume must be given where a path is relative: in a cluster it is relative to the volume of the data",
    )


def _absolute(owner: str, model: type[BaseModel]) -> Iterator[str]:
    """CEL: every path in an object of the type is absolute, a condition for each field with paths."""
    for name, field in model.model_fields.items():
        place = f"{owner}.{field.alias or name}"
        is_list = getattr(field.annotation, "__origin__", None) is tuple
        inside = [*_absolute_in("each" if is_list else place, field.annotation)]
        if inside:
            condition = " && ".join(inside)
            condition = f"{place}.all(each, {condition})" if is_list else condition
            is_there = field.is_required() or isinstance(field.default, BaseModel)
            yield condition if is_there else f"(!has({place}) || ({condition}))"


def _absolute_in(place: str, annotation: object) -> Iterator[str]:
    if isinstance(annotation, type) and not get_args(annotation):
        if issubclass(annotation, DataPath):
            yield f"{place}.matches(r'{_ABSOLUTE}')"
        elif issubclass(annotation, BaseModel):
            yield from _absolute(place, annotation)
        return
    for member in get_args(annotation):
        yield from _absolute_in(place, member)
