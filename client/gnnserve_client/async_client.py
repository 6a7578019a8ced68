"""The client of event loops: the methods of `Client`, to be awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from numpy.typing import ArrayLike

from gnnserve_api.http.changes import ChangesPage
from gnnserve_api.http.live_accuracy import AccuracyAnswer, LabelsAnswer
from gnnserve_api.http.protocol import VariantsAnswer
from gnnserve_api.pods.routing import Route
from gnnserve_client import telling
from gnnserve_client.arrays import Ids
from gnnserve_client.asking import ClientState
from gnnserve_client.async_exchange import AsyncConnection
from gnnserve_client.changes import Changes
from gnnserve_client.opening import DEFAULT_TIMEOUT_S, batches_of, ignore, open_asking, open_token
from gnnserve_client.overlay import AnyOverlay
from gnnserve_client.predicting import ask, predict
from gnnserve_client.prediction import Prediction
from gnnserve_client.recommending import Recommendation, recommend
from gnnserve_client.sending import Applied, Author, send_batches

if TYPE_CHECKING:
    import httpx


class AsyncClient:
    """A client of one server, for one event loop. Arguments and methods are those of `Client`."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        token_file: str | Path | None = None,
        write_token: str | None = None,
        write_token_file: str | Path | None = None,
        ca_file: str | Path | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        retry: bool = True,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        tokens = open_token(token, token_file, "token")
        write_tokens = open_token(write_token, write_token_file, "write_token")
        self._asking = open_asking(url, tokens, write_tokens, ca_file, timeout_s, retry)
        self._connection = AsyncConnection(self._asking.endpoint, transport)
        self.changes = AsyncChangesClient(self._asking, self._connection)
        """Changes of the graph."""

    async def predict(
        self,
        nodes: ArrayLike,
        *,
        outputs: str | Sequence[str] = "labels",
        latency_ms: float | None = None,
        tolerance_permille: float | None = None,
        strict: bool = False,
        variant: str | None = None,
        seed: int | None = None,
        min_offset: int | None = None,
        overlay: AnyOverlay | Mapping[str, Any] | None = None,
        priority: int | None = None,
        timeout_s: float | None = None,
    ) -> Prediction:
        """Classify nodes. `outputs`: any of labels, scores and embeddings. The other arguments are those of
        docs/http.md; a request with a latency is not sent again behind it."""
        question = ask(
            nodes, outputs, overlay, latency_ms, tolerance_permille, strict, variant, seed, min_offset, priority
        )
        return await self._connection.run(predict(self._asking, question, timeout_s))

    async def predict_pairs(
        self,
        pairs: ArrayLike,
        *,
        outputs: str | Sequence[str] = ("scores", "probabilities"),
        latency_ms: float | None = None,
        tolerance_permille: float | None = None,
        strict: bool = False,
        variant: str | None = None,
        seed: int | None = None,
        overlay: AnyOverlay | Mapping[str, Any] | None = None,
        priority: int | None = None,
        timeout_s: float | None = None,
    ) -> Prediction:
        """Score links: `pairs` of node ids, [pairs, 2]. `outputs`: scores, probabilities or both; one of them alone
        goes as arrays where ids are integers. The other arguments are those of `predict`."""
        question = ask(
            pairs,
            outputs,
            overlay,
            latency_ms,
            tolerance_permille,
            strict,
            variant,
            seed,
            None,
            priority,
            are_pairs=True,
        )
        return await self._connection.run(predict(self._asking, question, timeout_s))

    async def recommend(
        self,
        node: int | str,
        count: int = 10,
        *,
        type_: str | None = None,
        exclude: str = "known",
        among: ArrayLike | None = None,
        labels: Sequence[Any] | None = None,
        where: Mapping[str, Mapping[str, Any]] | None = None,
        overlay: AnyOverlay | Mapping[str, Any] | None = None,
        latency_ms: float | None = None,
        seed: int | None = None,
        min_offset: int | None = None,
        timeout_s: float | None = None,
    ) -> Recommendation:
        """Nodes whose embeddings are nearest to the node's, or that make the best links with it. `type_`: their type,
        in a graph of several. `exclude`: `known` leaves out its neighbours, `nothing` does not. `among`: ids of the
        nodes that may be recommended; `labels`: labels of these; None: of all nodes. `where`: conditions on their
        columns, `{"price": {"below": 20}}`. `overlay`: a mapping is as JSON has it,
        `{"nodes": [{"id": "user/new"}], "edges": [["user/new", "bought", "item/3"]]}`."""
        return await self._connection.run(
            recommend(
                self._asking,
                node,
                count,
                type_,
                exclude,
                among,
                labels,
                where,
                overlay,
                latency_ms,
                seed,
                min_offset,
                timeout_s,
            )
        )

    async def variants(self, *, timeout_s: float | None = None) -> VariantsAnswer:
        """What is served, and what each variant costs and gives."""
        return await self._connection.run(telling.fetch_variants(self._asking, timeout_s))

    async def route(self, *, timeout_s: float | None = None) -> Route:
        """Who answers a request without an objective now, and why."""
        return await self._connection.run(telling.fetch_route(self._asking, timeout_s))

    async def accuracy(self, *, timeout_s: float | None = None) -> AccuracyAnswer:
        """How accurate each variant is in service."""
        return await self._connection.run(telling.fetch_accuracy(self._asking, timeout_s))

    async def nodes(self, start: int = 0, count: int | None = None, *, timeout_s: float | None = None) -> Ids:
        """Node ids in the order of the graph, from the position `start` on; `count`: None takes all."""
        return await self._connection.run(telling.fetch_nodes(self._asking, start, count, timeout_s))

    async def send_labels(
        self,
        nodes: ArrayLike,
        labels: ArrayLike | Sequence[Any],
        times: ArrayLike | Sequence[datetime | str] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> LabelsAnswer:
        """Tell what nodes turned out to be, and when (a time each; numpy's are UTC). Without times a lost answer is an
        error, since labels that are sent again count again."""
        return await self._connection.run(telling.send_labels(self._asking, nodes, labels, times, timeout_s))

    async def is_alive(self, *, timeout_s: float | None = None) -> bool:
        """Whether the process can still answer; False: it must be restarted."""
        return (await self._connection.run(telling.look(self._asking, "/healthz", timeout_s)))[0]

    async def is_ready(self, *, timeout_s: float | None = None) -> bool:
        """Whether requests should be sent now; False while the server loads or stops."""
        return (await self._connection.run(telling.look(self._asking, "/readyz", timeout_s)))[0]

    async def wait_until_ready(self, timeout_s: float = 60.0) -> None:
        """Wait for a server that starts. Raises TimedOutError with what it said last."""
        await self._connection.run(telling.wait_until_ready(self._asking, timeout_s))

    async def close(self) -> None:
        await self._connection.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class AsyncChangesClient:
    """Changes of a graph that is served, as `AsyncClient.changes`."""

    def __init__(self, asking: ClientState, connection: AsyncConnection) -> None:
        self._asking = asking
        self._connection = connection
        self._author = Author()
        self._lock = asyncio.Lock()

    async def apply(
        self,
        changes: Changes | Iterable[Changes],
        *,
        client: str | None = None,
        first_sequence: int = 1,
        batch: int | None = None,
        on_batch: Callable[[Applied], None] = ignore,
        timeout_s: float | None = None,
    ) -> Applied:
        """Apply changes in order, each as a batch of its own, which holds as a whole or not at all; `batch` splits
        those that have more items.

        Under a `client` of your choice, batches are numbered from `first_sequence` on, and those that the server has
        already are recognised: after a failure send the same again. Without one, a name of this object is used.
        `timeout_s` is for each batch.
        """
        batches = batches_of(changes, batch)
        async with self._lock if client is None else nullcontext():
            if client is None:
                client, first_sequence = self._author.name, self._author.last_sequence + 1
                batches = self._author.numbered(batches)
            return await self._connection.run(
                send_batches(self._asking, batches, client, first_sequence, on_batch, timeout_s)
            )

    async def log(
        self,
        after: int | None = None,
        *,
        limit: int = 100,
        content: bool = False,
        wait_s: int = 0,
        timeout_s: float | None = None,
    ) -> ChangesPage:
        """A page of the log, behind the offset `after`; None: from the first record that it still has. `wait_s`: how
        long to wait for a record where there is none yet."""
        return await self._connection.run(telling.fetch_log(self._asking, after, limit, content, wait_s, timeout_s))
