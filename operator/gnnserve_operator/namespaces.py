"""The namespaces that the operator watches: those of its settings in which it has its rights.

A watch that is refused ends kopf, and with it the work in every other namespace. So each namespace is tried before it
is watched, and one where a list is refused is left out until it is not: its owner may not have bound the operator's
role yet, or it was deleted with the Role in it. Where the watched namespaces change, the operator begins anew, since
kopf is told of them once.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Iterable

from gnnserve_operator.clock import Clock
from gnnserve_operator.cluster import Cluster
from gnnserve_operator.desired.children import WATCHED_CHILDREN
from gnnserve_operator.errors import OperatorError
from gnnserve_operator.kinds import RECONCILED, ResourceKind
from gnnserve_operator.settings import Settings

_LOOK_S = 30.0
"""Interval in which closed namespaces are tried again."""
_FIRST_LOOK_S = 5.0
"""Interval while no namespace is open: nothing else is done."""

logger = logging.getLogger(__name__)


class Namespaces:
    """The namespaces of the settings; none named: all of them, whose rights are not looked into."""

    def __init__(self, named: Iterable[str] = ()) -> None:
        self.named = tuple(named)
        self.refusals: dict[str, str] = {}
        """Refusals of the API server, by namespace without rights."""
        self.are_known = False
        """Whether it has been looked in which of them the operator has its rights."""

    @property
    def open(self) -> tuple[str, ...]:
        """Namespaces of the settings in which the operator has its rights."""
        return tuple(name for name in self.named if name not in self.refusals)

    @property
    def watched(self) -> tuple[str | None, ...]:
        """The open ones; None stands for all of the cluster."""
        return self.open if self.named else (None,)

    def by_watched(self) -> dict[str, bool]:
        """Whether it is watched, for each namespace of the settings; empty before that is known: an operator that
        stands by must not contradict the one that leads."""
        return {name: name not in self.refusals for name in self.named} if self.are_known else {}

    @property
    def remark(self) -> str:
        """Note for people who look at the operator; empty: all is watched."""
        return f"not watched for lack of rights: {', '.join(self.refusals)}" if self.refusals else ""


class NamespaceRights:
    """Looks in which namespaces the operator has its rights."""

    def __init__(self, namespaces: Namespaces, settings: Settings, cluster: Cluster, clock: Clock) -> None:
        self._namespaces = namespaces
        self._settings = settings
        self._cluster = cluster
        self._clock = clock

    async def look(self) -> bool:
        """Try every namespace, and return whether others than before are open. Raises OperatorError where the API
        server does not answer."""
        found = {
            name: refusal
            for name in self._namespaces.named
            if (refusal := await self._refusal(name)) is not None
        }  # fmt: skip
        before, self._namespaces.refusals = self._namespaces.refusals, found
        self._namespaces.are_known = True
        for name in [name for name in found if name not in before]:
            logger.warning(
                "namespace %s is not watched: %s. %s", name, found[name], self._remedy(name), extra={"namespace": name}
            )
        return before.keys() != found.keys()

    async def wait_for_one(self, stop: asyncio.Event) -> bool:
        """Wait until a namespace may be watched; False: told to stop meanwhile."""
        while not stop.is_set():
            try:
                await self.look()
                if self._namespaces.watched:
                    return True
            except OperatorError as error:
                logger.warning("waiting: %s", error)
            await self._clock.wait(stop, _FIRST_LOOK_S)
        return False

    async def have_changed(self) -> bool:
        """Whether others than are watched are open now; False where that cannot be told."""
        try:
            return await self.look()
        except OperatorError:
            return False

    async def wait_for_another(self) -> None:
        """Wait until a closed namespace is open, or an open one is closed. One open namespace is tried at a time: its
        watches tell too, less orderly."""
        never = asyncio.Event()
        if not self._namespaces.named:
            await never.wait()
        for turn in itertools.count():
            await self._clock.wait(never, _LOOK_S)
            try:
                for name in self._namespaces.refusals:
                    if await self._refusal(name) is None:
                        logger.info("namespace %s may be watched now", name, extra={"namespace": name})
                        return
                watched = self._namespaces.open
                if await self._refusal(watched[turn % len(watched)], RECONCILED[:1]) is not None:
                    return
            except OperatorError as error:
                logger.warning("cannot tell whether a namespace may be watched: %s", error)

    async def _refusal(
        self, namespace: str, kinds: Iterable[ResourceKind] = (*RECONCILED, *WATCHED_CHILDREN)
    ) -> str | None:
        """Refusal of the first list that the API server refuses; None: it refuses none."""
        for kind in kinds:
            if (refusal := await self._cluster.refusal_of_list(kind, namespace)) is not None:
                return refusal
        return None

    def _remedy(self, namespace: str) -> str:
        grant = self._settings.namespace_grant
        if grant is None:
            return (
                "Give the operator its rights there, or take it out of the chart's watchNamespaces (docs/operator.md)"
            )
        return (
            f"An administrator of it gives the operator its rights by `kubectl create rolebinding gnnserve --namespace "
            f"{namespace} --clusterrole={grant.cluster_role} --serviceaccount={grant.service_account}`"
        )
