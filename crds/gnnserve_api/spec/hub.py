"""Files of the Hugging Face Hub, as a manifest names them: `hf://org/name@COMMIT/model.safetensors`.

A commit is named by all of its 40 digits, since a branch moves: the same manifest would mean another file tomorrow.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

SCHEME = "hf://"
_NAME, _STEP = "[A-Za-z0-9][A-Za-z0-9._-]*", "[A-Za-z0-9_-][A-Za-z0-9._-]*"
_COMMIT = "[0-9a-f]{40}"
_ADDRESS = re.compile(rf"{SCHEME}({_NAME})/({_NAME})@({_COMMIT})((?:/{_STEP})*)")
_PARTS = re.compile(rf"{SCHEME}([^@]*)(?:@([^/]*))?(/.*)?", re.DOTALL)
_EXAMPLE = "hf://org/name@0123456789abcdef0123456789abcdef01234567"


@dataclass(frozen=True, slots=True)
class HubAddress:
    """A file of a repository of models, at a commit."""

    owner: str
    name: str
    commit: str
    file: str
    """The file's path in the repository."""

    @property
    def repository(self) -> str:
        return f"{self.owner}/{self.name}"

    @staticmethod
    def parse(written: str, default: str) -> HubAddress | None:
        """`default`: the file that is meant where none is named. None: it is no address of this kind."""
        found = _ADDRESS.fullmatch(written)
        return (
            None if found is None else HubAddress(found[1], found[2], found[3], found[4].removeprefix("/") or default)
        )


@dataclass(frozen=True, slots=True)
class HubFile:
    """The kind of file that a field takes from a repository."""

    default: str
    """The file that is meant where an address names none."""

    @property
    def suffix(self) -> str:
        return f".{self.default.rpartition('.')[2]}"

    @property
    def pattern(self) -> str:
        """Pattern of the addresses that the field takes, for the API server."""
        of_file = rf"(/{_STEP})*/{_STEP}[.]{self.suffix[1:]}"
        return f"^{SCHEME}{_NAME}/{_NAME}@{_COMMIT}({of_file})?$"

    def problem(self, written: str) -> str | None:
        """Why an address that begins as one of this kind is refused; None: it is not."""
        if re.fullmatch(self.pattern, written):
            return None
        parts = _PARTS.fullmatch(written)
        repository, commit, file = ("", "", "") if parts is None else (parts[1], parts[2] or "", parts[3] or "")
        if not re.fullmatch(f"{_NAME}/{_NAME}", repository):
            found = repository or "nothing"
            return f"must name a repository and a commit, as in {_EXAMPLE}, and {found} is no org/name"
        if not re.fullmatch(_COMMIT, commit):
            found = f"{commit} is none" if commit else "none is given"
            ref = "HEAD" if re.fullmatch("[0-9a-fA-F]*", commit) else commit
            return (
                f"must name a commit by its 40 digits, as in {_EXAMPLE}, and {found}: a branch or a tag may mean "
                f"another file tomorrow; `git ls-remote https://huggingface.co/{repository} {ref}` tells the commit"
            )
        return (
            f"must name a {self.suffix} file of the repository, as in {SCHEME}{repository}@{commit}/{self.default}, "
            f"and {file.strip('/') or 'nothing'} is none: other files are not read, or may run code when they are"
        )


TENSORS, PROGRAM = HubFile("model.safetensors"), HubFile("model.onnx")
