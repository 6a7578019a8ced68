"""A service with its reconciler, in memory, step by step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from tests.control.campaign.play import SETTINGS
from tests.control.campaign.sim_operator import RESYNC_S
from tests.control.campaign.trouble import Trouble
from tests.control.campaign.world import KEY, World
from tests.support.kubernetes.api_server import Request, Response

REASONS = {409: "Conflict", 429: "TooManyRequests", 500: "InternalError"}


class Scene(World):
    """A world in which the n-th request of those that match is answered otherwise."""

    def __init__(self, matches: Callable[[Request], bool] = lambda _: False, number: int = 0, fault: str = "") -> None:
        super().__init__(SETTINGS, Trouble())
        self.requests: list[Request] = []
        self.codes: list[int] = []
        self._matches, self._number, self._fault = matches, number, fault
        self.matched = 0

    def _respond(self, request: Request) -> Response:
        self.requests.append(request)
        response = self._respond_or_fail(request)
        self.codes.append(response.code)
        return response

    def _respond_or_fail(self, request: Request) -> Response:
        if not self._matches(request):
            return World._respond(self, request)
        self.matched += 1
        if self.matched - 1 != self._number:
            return World._respond(self, request)
        if self._fault == "late":
            World._respond(self, request)
        if self._fault in {"late", "lost"}:
            raise TimeoutError("no answer in time")
        code = int(self._fault)
        return Response(code, {}, {"kind": "Status", "code": code, "reason": REASONS[code], "message": "injected"})

    def annotate(self, *, condition: bool = False) -> None:
        """As somebody does, and the operator is told of at once."""

        def change(found: Any) -> None:
            found["metadata"].setdefault("annotations", {})["seen"] = str(self.cluster.version)
            if condition:
                found.setdefault("status", {}).setdefault("conditions", []).append(
                    {
                        "type": f"Seen{self.cluster.version}", "status": "True", "reason": "Seen", "message": "",
                        "lastTransitionTime": "2026-01-01T00:00:00Z",
                    }
                )  # fmt: skip

        self.cluster.replace("GNNService", KEY.name, change)
        (operator,) = self.operators
        operator.view.fetch(self.clock.now())
        operator.view.receive(self.clock.now() + 1)

    def told(self) -> Counter[str]:
        return Counter(found["reason"] for found in self.plane.of_kind("Event"))

    def asked(self, method: str, path: str) -> int:
        return sum(request.method == method and path in request.path for request in self.requests)

    async def serve(self) -> None:
        self.create()
        await self.until(lambda: self.condition("Ready").get("status") == "True" and not self._is_behind())
        await self.run_for(RESYNC_S)

    def _is_behind(self) -> bool:
        return any(operator.failures for operator in self.operators)
