"""Form of a bearer token, and places that it is read from; no message ever shows one.

Tokens come in files: a mounted Secret is a folder with one in each file; on a laptop it is one file with one in each
line. Client and server read the second kind alike, so that one file does for both.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from gnnserve_api.errors import InputError, remedy_of

SHORTEST_TOKEN = 16
"""Characters; of random ones even the alphabet of hexadecimal digits then makes 64 bits."""
LONGEST_TOKEN = 4096
MOST_TOKENS = 64
"""Most tokens of a service, enough for rotation and a handful of clients; each one that is not known yet is compared
with all of them."""
_TOKEN = re.compile(rf"(?=.{{{SHORTEST_TOKEN},{LONGEST_TOKEN}}}\Z)[A-Za-z0-9._~+/-]+=*\Z")
"""RFC 6750's b68token: what an Authorization header can carry without quoting."""
_MOST_FILE_BYTES = MOST_TOKENS * (LONGEST_TOKEN + 2)
TOKEN_FORM = f"{SHORTEST_TOKEN} to {LONGEST_TOKEN} letters, digits and -._~+/ with = at the end"


@dataclass(frozen=True, slots=True)
class FoundTokens:
    """Tokens found in a place, and what is wrong with the rest. A bad value neither takes the good ones with it nor
    keeps alive what was taken out beside it."""

    tokens: tuple[str, ...] = field(repr=False)
    problems: tuple[InputError, ...] = ()


def read_tokens(place: Path) -> FoundTokens:
    """Raises InputError where the place itself cannot be read. No message shows a value.

    More than MOST_TOKENS count as none: every request is refused, rather than some tokens by chance.
    """
    try:
        texts = _of_folder(place) if place.is_dir() else _of_file(place)
    except OSError as error:
        raise _unreadable(str(place), error) from None
    tokens, problems = [], []
    for where, text in texts:
        try:
            if isinstance(text, InputError):
                raise text
            tokens.append(_checked(text, where))
        except InputError as problem:
            problems.append(problem)
    if not tokens and not problems:
        problems.append(
            InputError(str(place), "holds no token, so that every request is refused", f"write {TOKEN_FORM}")
        )
    if len(tokens) > MOST_TOKENS:
        problems.append(InputError(str(place), f"holds {len(tokens):,} tokens", f"keep at most {MOST_TOKENS}"))
        tokens = []
    return FoundTokens(tuple(dict.fromkeys(tokens)), tuple(problems))


def read_client_token(path: Path) -> str:
    """The first of a file: the one that a client shows."""
    found = read_tokens(path)
    if found.problems:
        raise found.problems[0]
    return found.tokens[0]


def check_token(text: str, where: str) -> str:
    """The token, or InputError, which does not show it."""
    return _checked(text.strip(), where)


def _of_folder(folder: Path) -> list[tuple[str, str | InputError]]:
    # The kubelet swaps a link, `..data`, to a folder with all of them: what is behind it now belongs together.
    data = folder / "..data"
    place = data.resolve(strict=True) if data.exists() else folder
    paths = [path for path in sorted(place.iterdir()) if not path.name.startswith("..") and path.is_file()]
    places = [(str(folder / path.name), path) for path in paths]
    return [(where, _read_value(path, where)) for where, path in places]


def _read_value(path: Path, where: str) -> str | InputError:
    """What cannot be read is a problem of its own, and no reason to go on with what was taken out beside it."""
    try:
        return _read_text(path, where).strip()
    except InputError as problem:
        return problem
    except FileNotFoundError:
        raise  # they are being replaced: what the link leads to by now is read next time
    except OSError as error:
        return _unreadable(where, error)


def _of_file(path: Path) -> list[tuple[str, str | InputError]]:
    try:
        text = _read_text(path, str(path))
    except InputError as problem:
        return [(str(path), problem)]
    lines = [line.strip() for line in text.splitlines()]
    return [(f"{path}, line {number}", line) for number, line in enumerate(lines, start=1) if line]


def _checked(text: str, where: str) -> str:
    if _TOKEN.match(text) is None:
        raise InputError(where, _fault(text), f"write {TOKEN_FORM}")
    return text


def _fault(text: str) -> str:
    """The problem of a value, without its length: a value that was put there by mistake may be a password."""
    if not text:
        return "is empty"
    if len(text) < SHORTEST_TOKEN:
        return f"is no token: it has fewer than {SHORTEST_TOKEN} characters"
    if len(text) > LONGEST_TOKEN:
        return f"is no token: it has more than {LONGEST_TOKEN} characters"
    return "is no token: it has a character that none may have"


def _read_text(path: Path, where: str) -> str:
    with path.open("rb") as file:
        content = file.read(_MOST_FILE_BYTES + 1)
    if len(content) > _MOST_FILE_BYTES:
        raise InputError(where, f"has more than {_MOST_FILE_BYTES:,} bytes", "name a file of tokens")
    # What is no ASCII is no token, and is refused as such, without being quoted.
    return content.decode("latin-1")


def _unreadable(where: str, error: OSError) -> InputError:
    return InputError(where, f"cannot be read ({error.strerror})", remedy_of(error, "check the path"))
