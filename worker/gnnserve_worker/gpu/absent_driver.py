"""A driver of a card that is not there, for which Triton compiles.

It needs Triton alone: what is compiled for such a card is known by the few files that launch it (`compile_ahead.py`,
and the tests of what every kernel is compiled to).
"""

from __future__ import annotations

from typing import Any, Final

_WARP: Final = 32


def use_absent_card(architecture: int) -> None:
    """Make Triton compile for a card that is not there, from now on in this process."""
    from triton.runtime import driver  # noqa: PLC0415  (as late as what looks for a card)

    driver.set_active(_AbsentDriver(architecture))


class _AbsentDriver:
    """A driver with as much of Triton's as its compiler asks for."""

    def __init__(self, architecture: int) -> None:
        from triton.backends.compiler import GPUTarget  # noqa: PLC0415

        self.target = GPUTarget("cuda", architecture, _WARP)
        self.utils = self

    def get_current_target(self) -> Any:
        return self.target

    def get_current_device(self) -> int:
        return int(self.target.arch)

    def get_current_stream(self, _device: int) -> int:
        return 0

    def get_device_properties(self, _device: int) -> dict[str, int]:
        return {"max_shared_mem": 164 * 1024}
