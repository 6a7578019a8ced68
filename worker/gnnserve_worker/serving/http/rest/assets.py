"""Files of a folder, as they lie there: what `/docs` consists of."""

from __future__ import annotations

import asyncio
import mimetypes
from functools import cached_property
from pathlib import Path

from gnnserve_worker.serving.http.asgi_predict import Receive, Scope
from gnnserve_worker.serving.http.question import ErrorCode, RequestError
from gnnserve_worker.serving.http.replies import Reply

_KEPT = "cache-control: max-age=3600"
"""A browser sees an upgrade of the package within an hour."""


class Assets:
    """The files that are in a folder when the first one is asked for; none of a folder in it. What is asked for is
    looked up among their names, so no path leads out of the folder."""

    def __init__(self, path: str, folder: Path) -> None:
        """`path`: the one that their names follow, with its last slash."""
        self._path = path
        self._folder = folder

    @cached_property
    def _files(self) -> dict[str, Path]:
        return {file.name: file for file in self._folder.iterdir() if file.is_file()}

    async def answer(self, scope: Scope, _receive: Receive) -> Reply:
        """A handler for `Routes`."""
        file = self._files.get(scope["path"].removeprefix(self._path))
        if file is None:
            asked = f"{scope['method']} {scope['path']}"
            raise RequestError(ErrorCode.NOT_FOUND, asked, "no such path", "/docs lists what there is")
        kind = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
        charset = "; charset=utf-8" if kind.startswith("text/") else ""
        body = await asyncio.to_thread(file.read_bytes)
        return Reply(200, f"content-type: {kind}{charset}\r\n{_KEPT}\r\n".encode(), body)
