"""`Server-Timing`: where the time of an answer went, as a line of the reply's head.

Times are in milliseconds; docs/http.md says what each entry means. What is told of whom is decided in `predict.py`.
"""

from __future__ import annotations

from gnnserve_worker.inference.batch import StageTimes


class ServerTiming:
    """Writes the line. The stages of a batch are written once for all of its requests."""

    def __init__(self) -> None:
        self._times: StageTimes | None = None
        self._stages = b""
        """`_times`, encoded."""

    def tell(self, times: StageTimes, queue_ms: float, overlay_ms: float) -> bytes:
        return b"server-timing: queue;dur=%.3f%b\r\n" % (queue_ms, self._stages_of(times, overlay_ms))

    def tell_all(
        self, times: StageTimes, receive_ms: float, queue_ms: float, overlay_ms: float, send_ms: float | None
    ) -> bytes:
        """The line of `tell`, and beside it the times of reading the request and of writing its answer. `send_ms` is
        None where the answer is not written yet."""
        send = b"" if send_ms is None else b", send;dur=%.3f" % send_ms
        return b"server-timing: receive;dur=%.3f, queue;dur=%.3f%b%b\r\n" % (
            receive_ms, queue_ms, self._stages_of(times, overlay_ms), send
        )  # fmt: skip

    def _stages_of(self, times: StageTimes, overlay_ms: float) -> bytes:
        if times is not self._times:
            self._times = times
            self._stages = b", sample;dur=%.3f, gather;dur=%.3f, compute;dur=%.3f" % (
                times.sample_ms, times.gather_ms, times.compute_ms
            )  # fmt: skip
        return b", overlay;dur=%.3f%b" % (overlay_ms, self._stages) if overlay_ms else self._stages
