"""Back-pressure of one connection: we pause reading, for one or two reasons, and the transport pauses our writing."""

from __future__ import annotations

import asyncio


class Flow:
    __slots__ = ("_transport", "_writable", "is_held", "read_paused", "write_paused")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._writable: asyncio.Event | None = None
        """An event that is made when writing is paused for the first time: most clients read what they are sent."""
        self.read_paused = False
        """Requests that were read before are to be answered first."""
        self.is_held = False
        """What arrived before is to be read first (`queued_input.py`)."""
        self.write_paused = False

    def pause_reading(self) -> None:
        if not self.read_paused:
            self.read_paused = True
            if not self.is_held:
                self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self.read_paused:
            self.read_paused = False
            if not self.is_held:
                self._transport.resume_reading()

    def hold_reading(self) -> None:
        if not self.is_held:
            self.is_held = True
            if not self.read_paused:
                self._transport.pause_reading()

    def release_reading(self) -> None:
        if self.is_held:
            self.is_held = False
            if not self.read_paused:
                self._transport.resume_reading()

    def pause_writing(self) -> None:
        self.write_paused = True
        if self._writable is None:
            self._writable = asyncio.Event()
        self._writable.clear()

    def resume_writing(self) -> None:
        self.write_paused = False
        if self._writable is not None:
            self._writable.set()

    async def drain(self) -> None:
        """Wait until writing is possible, or the connection is lost."""
        if self._writable is not None:
            await self._writable.wait()
