"""One HTTP connection of a client in asyncio that sends bytes as they are, and reads one answer for them."""

from __future__ import annotations

import asyncio

import httptools

PATIENCE_S = 30.0


class Answers:
    """Answers as they come: statuses, how many are complete, and the body of the last."""

    def __init__(self) -> None:
        self.statuses: list[int] = []
        self.body = b""
        self.complete = 0
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self.body = b""

    def on_headers_complete(self) -> None:
        self.statuses.append(self._parser.get_status_code())

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.complete += 1

    @property
    def keeps(self) -> bool:
        return bool(self._parser.should_keep_alive())


class KeptConnection:
    """Opened with the first request, and anew where the server has closed it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._open: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, data: bytes) -> Answers:
        """The one answer that is due; none is complete where it did not come."""
        if self._open is None:
            self._open = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._open
        answers = Answers()
        try:
            writer.write(data)
            async with asyncio.timeout(PATIENCE_S):
                while answers.complete < 1 and (came := await reader.read(65_536)):
                    answers.feed(came)
        except (ConnectionError, TimeoutError):
            answers.complete = 0
        if not (answers.complete and answers.keeps):
            writer.transport.abort()
            self._open = None
        return answers

    def close(self) -> None:
        if self._open is not None:
            self._open[1].close()
            self._open = None
