"""The gRPC listener: tokens, limits, clients that leave or say nothing, health, reflection, certificates, its end."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest, ServerReflectionResponse
from tests.support.kubernetes.mounted import mount
from tests.support.machine import fork_server
from tests.support.machine.waiting import WAIT_S
from tests.support.serving.certificates import make_key_pair
from tests.support.serving.grpc_worker import MESSAGES, Ended, GrpcClient, listening
from tests.support.serving.malformed_messages import send_messages
from tests.support.serving.secured_worker import started
from tests.support.serving.serving import CLASSES, HELD_NODE, NODES, Client, FakeWorker, held, running

from gnnserve_api.errors import ResourceError
from gnnserve_client.timing import parse_server_timing
from gnnserve_worker.graph.ids import lay_out, string_ids
from gnnserve_worker.serving.grpc.limits import DEFAULT_GRPC_LIMITS, GrpcLimits
from gnnserve_worker.serving.grpc.listener import GrpcListener
from gnnserve_worker.serving.grpc.messages import HEALTH, INFERENCE, HealthCheckRequest, HealthCheckResponse
from gnnserve_worker.serving.http.predict import MAX_BODY_BYTES
from gnnserve_worker.serving.listening_socket import bind
from gnnserve_worker.serving.security import credentials as credentials_module
from gnnserve_worker.serving.security.access import Access
from gnnserve_worker.serving.security.credentials import Credentials
from gnnserve_worker.serving.security.tls import KeyPairFiles

INFER, STREAM = f"/{INFERENCE}/ModelInfer", f"/{INFERENCE}/ModelStreamInfer"
CHECK, WATCH = f"/{HEALTH}/Check", f"/{HEALTH}/Watch"
REFLECT = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
A, B = "alpha-0123456789abcdef", "beta-0123456789abcdef"
Code = grpc.StatusCode


def asked(*ids: int, **fields: Any) -> dict[str, Any]:
    tensor = {"name": "nodes", "datatype": "INT64", "shape": [len(ids)]}
    return {
        "model_name": "digits",
        "inputs": [tensor],
        "raw_input_contents": [np.array(ids, "<i8").tobytes()],
        **fields,
    }


def message(*ids: int, **fields: Any) -> bytes:
    encoded: bytes = MESSAGES["ModelInfer"][0](**asked(*ids, **fields)).SerializeToString()
    return encoded


def on_worker(
    scenario: Callable[[Client, GrpcClient], Awaitable[None]],
    worker: FakeWorker | None = None,
    limits: GrpcLimits = DEFAULT_GRPC_LIMITS,
    access: Access | None = None,
) -> None:
    async def run() -> None:
        async with running(worker or FakeWorker(), access=access) as client, listening(client, limits) as rpc:
            await scenario(client, rpc)

    asyncio.run(run())


def counted(client: Client, reason: str) -> int:
    for line in client.metrics.render().decode().splitlines():
        if line.startswith(f'gnnserve_errors_total{{reason="{reason}"'):
            return int(float(line.rpartition(" ")[2]))
    return 0


async def ending(call: Any) -> Ended:
    """How a call of many messages ended."""
    return Ended(await call.code(), await call.details() or "", dict(await call.trailing_metadata()))


# Calls


def test_labels_that_are_texts_come_as_texts_in_either_form() -> None:
    names = ["ann", "bob", "cid", "eve", "flo", "gus"]
    worker = FakeWorker(nodes=len(names), ids=string_ids(*lay_out(names)), classes=("a", "b", "ç", "d"))
    tensor = {"name": "nodes", "datatype": "BYTES", "shape": [2]}

    async def scenario(_client: Client, rpc: GrpcClient) -> None:
        listed = await rpc.call(
            "ModelInfer", model_name="digits", inputs=[tensor | {"contents": {"bytes_contents": [b"cid", b"ann"]}}]
        )
        (labels, scores) = listed.answer.outputs
        assert (labels.datatype, list(labels.contents.bytes_contents)) == ("BYTES", ["ç".encode(), b"a"])
        assert list(scores.contents.fp32_contents) == [-1, -1, 1, -1, 1, -1, -1, -1]
        raw = await rpc.call(
            "ModelInfer", model_name="digits", inputs=[tensor], raw_input_contents=[b"\3\0\0\0cid\3\0\0\0ann"]
        )
        assert raw.answer.raw_output_contents[0] == b"\2\0\0\0" + "ç".encode() + b"\1\0\0\0a"

    on_worker(scenario, worker)


def test_several_labels_of_a_node_come_as_truths() -> None:
    async def scenario(_client: Client, rpc: GrpcClient) -> None:
        tensor = {"name": "nodes", "datatype": "INT64", "shape": [1], "contents": {"int64_contents": [2]}}
        ended = await rpc.call("ModelInfer", model_name="digits", inputs=[tensor], outputs=[{"name": "labels"}])
        (labels,) = ended.answer.outputs
        assert (labels.datatype, list(labels.shape)) == ("BOOL", [1, 4])
        assert list(labels.contents.bool_contents) == [False, False, True, False]

    on_worker(scenario, FakeWorker(multi_label=True))


def test_a_parameter_chooses_the_form_of_the_answer() -> None:
    async def scenario(_client: Client, rpc: GrpcClient) -> None:
        wanted = {"binary_data_output": {"bool_param": False}}
        ended = await rpc.call("ModelInfer", **asked(3), parameters=wanted)
        assert not ended.answer.raw_output_contents
        assert list(ended.answer.outputs[0].contents.int64_contents) == [40]

    on_worker(scenario)


def test_where_the_time_went_is_told_to_calls_that_ask_for_it() -> None:
    wanted, stages = {"gnnserve-timing": "all"}, ["receive", "queue", "sample", "gather", "compute", "send"]

    async def scenario(_client: Client, rpc: GrpcClient) -> None:
        ended = await rpc.call("ModelInfer", **asked(3))
        assert (ended.status, ended.metadata) == (Code.OK, {})
        ended = await rpc.call("ModelInfer", wanted, **asked(3))
        assert list(parse_server_timing(ended.metadata["server-timing"])) == stages
        (told,) = await rpc.stream(asked(3))
        assert "server_timing" not in told.infer_response.parameters
        for told in await rpc.stream(asked(3), asked(4, id="q2"), metadata=wanted):
            parameters = told.infer_response.parameters
            assert list(parse_server_timing(parameters["server_timing"].string_param)) == stages
            assert parameters["objective_met"].bool_param
        assert told.infer_response.id == "q2"
        ended = await rpc.call("ModelInfer", {"gnnserve-timing": "perhaps"}, **asked(3))
        assert (ended.status, ended.sentence) == (
            Code.INVALID_ARGUMENT, "gnnserve-timing: 'perhaps' is not possible here; give all, or leave the header out",
        )  # fmt: skip

    on_worker(scenario)


def test_an_internal_error_tells_nothing_but_its_number() -> None:
    def fail(_variant: str, _seeds: np.ndarray) -> None:
        raise ValueError("a secret")

    async def scenario(_client: Client, rpc: GrpcClient) -> None:
        ended = await rpc.call("ModelInfer", **asked(3))
        assert (ended.status, ended.metadata["gnnserve-error"]) == (Code.INTERNAL, "InternalError")
        assert "an error of the worker; its log has the details under" in ended.sentence
        assert "secret" not in ended.sentence

    on_worker(scenario, FakeWorker(fail=fail))


def test_a_worker_that_loads_says_when_to_come_back() -> None:
    async def scenario(_client: Client, rpc: GrpcClient) -> None:
        for name, fields in (("ModelInfer", asked(3)), ("ModelMetadata", {"name": "digits"})):
            ended = await rpc.call(name, **fields)
            assert ended.status is Code.UNAVAILABLE
            assert ended.sentence == "the worker has no revision to answer from yet; send again in a moment"
            assert ended.metadata["retry-after"] == "1"
            assert ended.metadata["grpc-retry-pushback-ms"] == "1000"
        for name, field in (("ServerLive", "live"), ("ServerReady", "ready")):
            assert getattr((await rpc.call(name)).answer, field) == (field == "live")
        assert not (await rpc.call("ModelReady", name="digits")).answer.ready
        (model,) = (await rpc.call("RepositoryIndex")).answer.models
        assert (model.state, model.reason) == ("UNAVAILABLE", "the worker is loading")
        assert not (await rpc.call("RepositoryIndex", ready=True)).answer.models

    on_worker(scenario, FakeWorker(loaded=False))


# Clients that do not behave


@pytest.mark.parametrize("path", [INFER, f"/{INFERENCE}/ServerLive", CHECK])
def test_a_call_without_its_message_is_refused(path: str) -> None:
    async def scenario(client: Client, rpc: GrpcClient) -> None:
        closed = rpc.channel.stream_stream(path)()
        await closed.done_writing()
        ended = await ending(closed)
        assert (ended.status, ended.sentence) == (
            Code.INVALID_ARGUMENT, "message: there is none; send one with each call",
        )  # fmt: skip
        assert counted(client, "InvalidBinary") == 1

    on_worker(scenario)


def test_a_client_that_sends_nothing_is_not_waited_for() -> None:
    async def scenario(client: Client, rpc: GrpcClient) -> None:
        ended = await ending(rpc.channel.stream_stream(INFER)())
        assert (ended.status, ended.sentence) == (
            Code.INVALID_ARGUMENT, "message: there is none; send one with each call",
        )  # fmt: skip
        assert (await rpc.call("ModelInfer", **asked(3))).status is Code.OK

    on_worker(scenario, limits=GrpcLimits(message_s=0.05))


@pytest.mark.parametrize("name", [name for name in MESSAGES if name not in {"ModelStreamInfer", "ServerLive"}])
def test_bytes_that_are_no_message_are_refused(name: str) -> None:
    async def scenario(_client: Client, rpc: GrpcClient) -> None:
        ended = await rpc.send(f"/{INFERENCE}/{name}", b"\x0a\xff\xff")
        assert ended.status is Code.INVALID_ARGUMENT
        assert ended.sentence == (
            f"message: it is no {name}Request; send what the protocol's .proto file describes"
        )  # fmt: skip

    on_worker(scenario)


def test_a_message_that_is_too_large_is_refused() -> None:
    async def scenario(client: Client, rpc: GrpcClient) -> None:
        large = message(*range(3)) + bytes(MAX_BODY_BYTES)
        ended = await rpc.send(INFER, large)
        assert (ended.status, ended.metadata["gnnserve-error"]) == (Code.INVALID_ARGUMENT, "BodyTooLarge")
        assert ended.sentence == (
            "message: over the limit of 16,777,216 bytes; split the nodes over several requests"
        )  # fmt: skip
        (streamed,) = await rpc.stream(asked(3, id="x" * MAX_BODY_BYTES))
        assert streamed.error_message == ended.sentence
        for compression in (grpc.Compression.NoCompression, grpc.Compression.Gzip):
            ended = await rpc.send(INFER, bytes(3 * MAX_BODY_BYTES), compression=compression)
            assert (ended.status, "larger than max" in ended.sentence) == (Code.RESOURCE_EXHAUSTED, True)
        assert (await rpc.call("ModelInfer", **asked(3))).status is Code.OK

    on_worker(scenario)


@pytest.mark.parametrize("path", ["/inference.GRPCInferenceService/TraceSetting", "/x/" + "y" * 300, "/a.B/c"])
def test_a_call_that_there_is_not_is_named(path: str) -> None:
    async def scenario(_client: Client, rpc: GrpcClient) -> None:
        ended = await rpc.send(path, b"")
        assert ended.status is Code.UNIMPLEMENTED
        assert ended.sentence.startswith(path[:60])
        assert ended.sentence.endswith(": there is no such call; docs/open-inference.md lists what there is")

    on_worker(scenario)


def test_metadata_that_is_too_long_is_refused_before_the_call() -> None:
    async def scenario(_client: Client, rpc: GrpcClient) -> None:
        ended = await rpc.call("ModelInfer", {"x": "y" * 20_000}, **asked(3))
        assert ended.status is Code.RESOURCE_EXHAUSTED
        assert (await rpc.call("ModelInfer", **asked(3))).status is Code.OK

    on_worker(scenario)


def test_what_is_not_grpc_is_hung_up_on() -> None:
    async def scenario(_client: Client, rpc: GrpcClient) -> None:
        for sent in (b"POST /v1/predict HTTP/1.1\r\nhost: a\r\n\r\n", b"\x16\x03\x01\x02\x00\x01", bytes(100)):
            reader, writer = await asyncio.open_connection("127.0.0.1", rpc.port)
            writer.write(sent)
            writer.write_eof()
            async with asyncio.timeout(WAIT_S):
                assert b"HTTP/1.1 200" not in await reader.read()
            writer.close()
        assert (await rpc.call("ModelInfer", **asked(3))).status is Code.OK

    on_worker(scenario)


def test_a_client_that_leaves_takes_its_requests_along() -> None:
    worker = FakeWorker()

    async def scenario(client: Client, rpc: GrpcClient) -> None:
        await held(worker, client)
        waiting = rpc.channel.unary_unary(INFER)(message(5))
        stream = rpc.channel.stream_stream(STREAM)()
        for node in (6, 7):
            await stream.write(message(node))
        while client.engine.queued_seeds != 3:
            await asyncio.sleep(0)
        timeout_s, gone = 0.05, 0.0
        while client.engine.queued_seeds != 4:  # where the machine is busy, a deadline passes before the server knows
            gone, timeout_s = counted(client, "ClientGone"), 2 * timeout_s
            late = rpc.channel.unary_unary(INFER)(message(8), timeout=timeout_s)
            while client.engine.queued_seeds != 4 and not late.done():
                await asyncio.sleep(0)
        assert (await ending(late)).status is Code.DEADLINE_EXCEEDED
        waiting.cancel()
        stream.cancel()
        while counted(client, "ClientGone") < gone + 4:
            await asyncio.sleep(0)
        assert (client.engine.queued_seeds, client.app.predict.in_flight) == (0, 0)
        worker.gate.set()
        assert (await rpc.call("ModelInfer", **asked(9))).status is Code.OK
        assert [seeds for _, seeds in worker.batches] == [[0], [9]]

    on_worker(scenario, worker)


def test_calls_and_streams_beyond_the_limits_are_refused_but_not_those_of_health() -> None:
    worker = FakeWorker()

    async def scenario(client: Client, rpc: GrpcClient) -> None:
        await held(worker, client)
        waiting = rpc.channel.unary_unary(INFER)(message(5))
        stream = rpc.channel.stream_stream(STREAM)()
        await stream.write(message(6))
        while client.engine.queued_seeds != 2:
            await asyncio.sleep(0)
        ended = await rpc.call("ModelInfer", **asked(3))
        assert (ended.status, ended.sentence) == (
            Code.UNAVAILABLE,
            "calls: there are 1 already, as many as a worker keeps; use fewer, or send again later",
        )
        refused = await ending(rpc.channel.stream_stream(STREAM)())
        assert (refused.status, refused.sentence[:24]) == (Code.UNAVAILABLE, "streams: there are 1 alr")
        assert (await rpc.call("ServerReady")).answer.ready
        assert (await rpc.send(CHECK, b"")).status is Code.OK
        worker.gate.set()
        assert await waiting
        assert await stream.read()
        stream.cancel()

    on_worker(scenario, worker, GrpcLimits(calls=1, streams=1))


def test_connections_beyond_the_limit_are_closed() -> None:
    async def scenario(_client: Client, rpc: GrpcClient) -> None:
        assert (await rpc.call("ServerLive")).answer.live
        reader, writer = await asyncio.open_connection("127.0.0.1", rpc.port)
        async with asyncio.timeout(WAIT_S):
            assert await reader.read() == b""
        writer.close()

    on_worker(scenario, limits=GrpcLimits(connections=1))


# Tokens


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def test_every_call_needs_a_token_but_those_of_health() -> None:
    async def scenario(client: Client, rpc: GrpcClient) -> None:
        paths = [f"/{INFERENCE}/{name}" for name in MESSAGES] + [REFLECT, "/a.B/c"]
        for path in paths:
            if path.endswith(("/ServerLive", "/ServerReady")):
                assert (await rpc.send(path, b"")).status is Code.OK
                continue
            for metadata in ({}, bearer(B), {"authorization": A}):
                ended = await rpc.send(path, b"", metadata)
                assert (ended.status, ended.metadata["gnnserve-error"]) == (Code.UNAUTHENTICATED, "Unauthorized")
                assert ended.sentence == (
                    "Authorization: this needs a token that the service accepts; "
                    "send `Authorization: Bearer` and the token"
                )
        assert (await rpc.send(CHECK, b"")).status is Code.OK
        watching = rpc.channel.unary_stream(WATCH)(b"")
        assert await watching.read() == b"\x08\1"
        watching.cancel()
        assert (await rpc.call("ModelInfer", bearer(A), **asked(3))).status is Code.OK
        assert counted(client, "Unauthorized") == 3 * (len(paths) - 2)

    on_worker(scenario, access=Access([A]))


def test_a_token_that_is_withdrawn_ends_its_stream() -> None:
    access = Access([A])

    async def scenario(_client: Client, rpc: GrpcClient) -> None:
        stream = rpc.channel.stream_stream(STREAM)(metadata=tuple(bearer(A).items()))
        await stream.write(message(3))
        assert await stream.read()
        access.replace([B])
        await stream.write(message(4))
        ended = await ending(stream)
        assert (ended.status, ended.metadata["gnnserve-error"]) == (Code.UNAUTHENTICATED, "Unauthorized")

    on_worker(scenario, access=access)


# Health and reflection


def test_health_is_that_of_the_server_and_of_its_service() -> None:
    async def scenario(client: Client, rpc: GrpcClient) -> None:
        async def check(service: str) -> Any:
            ended = await rpc.send(CHECK, HealthCheckRequest(service=service).SerializeToString())
            return ended if ended.answer is None else HealthCheckResponse.FromString(ended.answer).status

        assert [await check(service) for service in ("", INFERENCE, HEALTH)] == [1, 1, 1]
        assert (await check("nope")).status is Code.NOT_FOUND
        assert (await rpc.send(CHECK, b"\xff")).status is Code.INVALID_ARGUMENT
        watching = rpc.channel.unary_stream(WATCH)(b"")
        unknown = rpc.channel.unary_stream(WATCH)(HealthCheckRequest(service="nope").SerializeToString())
        assert [await watching.read(), await unknown.read()] == [b"\x08\1", b"\x08\3"]
        client.app.leaving = True
        assert await check("") == 2
        assert await watching.read() == b"\x08\2"
        unknown.cancel()

    on_worker(scenario)


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_reflection_describes_the_services(version: str) -> None:
    async def scenario(_client: Client, rpc: GrpcClient) -> None:
        stream = rpc.channel.stream_stream(f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo")()

        async def ask(**fields: Any) -> Any:
            await stream.write(ServerReflectionRequest(**fields).SerializeToString())
            return ServerReflectionResponse.FromString(await stream.read())

        listed = await ask(list_services="")
        assert [service.name for service in listed.list_services_response.service] == [HEALTH, INFERENCE]
        for symbol in (INFERENCE, "inference.ModelInferRequest", HEALTH):
            described = await ask(file_containing_symbol=symbol)
            assert described.file_descriptor_response.file_descriptor_proto
        assert (await ask(file_containing_symbol="a.B")).error_response.error_code == Code.NOT_FOUND.value[0]
        await stream.write(b"\xff")
        ended = await ending(stream)
        assert (ended.status, ended.sentence[:44]) == (
            Code.INVALID_ARGUMENT, "message: it is no ServerReflectionRequest; s",
        )  # fmt: skip

    on_worker(scenario)


# Certificates


def test_certificates_are_followed_and_open_connections_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials_module, "LOOK_EVERY_S", 0.02)
    one, other = make_key_pair(tmp_path / "one"), make_key_pair(tmp_path / "other")
    tls = tmp_path / "tls"

    def put(files: KeyPairFiles) -> None:
        mount(tls, {"tls.crt": files.certificate.read_bytes(), "tls.key": files.key.read_bytes()})

    @contextmanager
    def connected(trusted: Path | None) -> Iterator[Callable[[], Code]]:
        address = f"localhost:{worker.grpc_port}"
        credentials = None if trusted is None else grpc.ssl_channel_credentials(trusted.read_bytes())
        channel = grpc.insecure_channel(address) if credentials is None else grpc.secure_channel(address, credentials)

        def call() -> Code:
            try:
                channel.unary_unary(INFER)(message(3), timeout=WAIT_S)
            except grpc.RpcError as error:
                return error.code()  # type: ignore[attr-defined,no-any-return]
            return Code.OK

        with channel:
            yield call

    put(one)
    with started(Credentials(KeyPairFiles(tls / "tls.crt", tls / "tls.key")), with_grpc=True) as worker:
        with connected(one.certificate) as kept, connected(None) as plain:
            assert (kept(), plain()) == (Code.OK, Code.UNAVAILABLE)
            put(other)
            while True:
                with connected(other.certificate) as fresh:
                    if fresh() is Code.OK:
                        break
            assert kept() is Code.OK
        with connected(one.certificate) as late:
            assert late() is Code.UNAVAILABLE


# Its end


@dataclass(frozen=True, slots=True)
class Process:
    process: fork_server.Process
    http_port: int
    port: int

    def queued_seeds(self) -> int:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}/metrics", timeout=WAIT_S) as told:
            (found,) = re.findall(rb"^gnnserve_queue_seeds\S+ (\d+)", told.read(), re.MULTILINE)
        return int(found)

    def say(self, words: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(words)
        self.process.stdin.flush()


@contextmanager
def process() -> Iterator[Process]:
    with fork_server.started("tests.support.serving.grpc_worker", stdin=True, stdout=True, stderr=True) as started_one:
        assert started_one.stdout is not None
        try:
            ports = [int(started_one.stdout.readline()) for _ in range(2)]
            yield Process(started_one, *ports)
        finally:
            started_one.kill()


def test_a_stopping_worker_answers_what_it_accepted_and_ends_streams() -> None:
    async def scenario(worker: Process) -> None:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{worker.port}") as channel:
            stream, watching = channel.stream_stream(STREAM)(), channel.unary_stream(WATCH)(b"")
            await stream.write(message(3))
            assert await stream.read()
            assert await watching.read() == b"\x08\1"
            computed = channel.unary_unary(INFER)(message(HELD_NODE))
            assert worker.process.stdout is not None
            assert await asyncio.to_thread(worker.process.stdout.readline) == "held\n"
            await stream.write(message(5))
            while await asyncio.to_thread(worker.queued_seeds) != 1:
                pass
            worker.process.send_signal(signal.SIGTERM)
            assert await watching.read() in {b"\x08\2", grpc.aio.EOF}
            worker.say("\n")
            assert await computed
            answer = MESSAGES["ModelStreamInfer"][1].FromString(await stream.read())
            assert answer.infer_response.model_version == "x1"
            ended = await ending(stream)
            assert (ended.status, ended.sentence) == (
                Code.UNAVAILABLE, "the worker is stopping; send again, to another worker if there is one",
            )  # fmt: skip
            assert (await ending(watching)).status is Code.OK

    with process() as worker:
        asyncio.run(scenario(worker))
        assert worker.process.wait(timeout=WAIT_S) == 0
        assert worker.process.stderr is not None
        assert worker.process.stderr.read() == ""


def test_a_second_interrupt_does_not_wait() -> None:
    async def scenario(worker: Process) -> None:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{worker.port}") as channel:
            computed = channel.unary_unary(INFER)(message(HELD_NODE))
            assert worker.process.stdout is not None
            assert await asyncio.to_thread(worker.process.stdout.readline) == "held\n"
            watching = channel.unary_stream(WATCH)(b"")
            await watching.read()
            worker.process.send_signal(signal.SIGINT)
            while await watching.read() is not grpc.aio.EOF:
                pass
            worker.process.send_signal(signal.SIGINT)
            ended = await ending(computed)
            assert ended.status in {Code.CANCELLED, Code.UNAVAILABLE}

    with process() as worker:
        asyncio.run(scenario(worker))
        assert worker.process.wait(timeout=WAIT_S) == 0


def test_a_port_that_is_taken_meanwhile_is_named() -> None:
    async def scenario() -> None:
        async with running(FakeWorker()) as client:
            kept = bind("127.0.0.1", 0)
            host, port = kept.getsockname()
            words = f"{port}: the port is in use; .* or choose --grpc-port"
            with socket.create_server((host, port)), pytest.raises(ResourceError, match=words):
                await GrpcListener(client.app, kept, None).open()
            kept.close()

    asyncio.run(scenario())


def test_messages_that_were_read_before_are_read_with_what_is_new_in_them() -> None:
    async def scenario(client: Client, rpc: GrpcClient) -> None:
        for ids, request_id in (((3, 8), "a"), ((4, 9), "b"), ((4, 9), ""), ((5,), "c")):
            answer = (await rpc.call("ModelInfer", **asked(*ids, id=request_id))).answer
            assert answer.id == request_id
            labels = dict(zip([output.name for output in answer.outputs], answer.raw_output_contents, strict=True))
            assert np.frombuffer(labels["labels"], "<i8").tolist() == [CLASSES[node % 4] for node in ids]
        ended = await rpc.call("ModelInfer", **asked(3, 1000))
        assert (ended.status, ended.sentence[:9]) == (Code.INVALID_ARGUMENT, "nodes[1]:")
        fewer = await rpc.call("ModelInfer", **{**asked(3, 8), "raw_input_contents": [bytes(8)]})
        assert fewer.status is Code.INVALID_ARGUMENT
        told = {**asked(3, 8), "inputs": [{**asked(3, 8)["inputs"][0], "parameters": {
            "binary_data_size": {"int64_param": 16}
        }}]}  # fmt: skip
        assert (await rpc.call("ModelInfer", **told)).status is Code.OK
        assert (await rpc.call("ModelInfer", **{**told, "raw_input_contents": [bytes(8)]})).sentence.startswith(
            "nodes.parameters.binary_data_size: 16, where raw_input_contents has 8 bytes for it"
        )
        names = [f"user-{node}" for node in range(NODES)]
        client.switch(FakeWorker(name="texts", ids=string_ids(*lay_out(names))).revision())
        ended = await rpc.call("ModelInfer", **asked(3, 8))
        assert ended.sentence == "nodes: datatype INT64, where BYTES is expected; send it as BYTES"

    on_worker(scenario)


def test_a_message_is_recognized_by_what_stands_before_the_bytes_of_its_tensor() -> None:
    async def scenario(_client: Client, rpc: GrpcClient) -> None:
        async def label_of(raw: bytes) -> int:
            answer = (await rpc.send(INFER, raw)).answer
            (label,) = np.frombuffer(answer.raw_output_contents[0], "<i8").tolist()
            return int(label)

        for node in (3, 4, 5, 3):
            assert await label_of(message(node)) == CLASSES[node % 4]
            assert await label_of(message(node, outputs=[{"name": "labels"}])) == CLASSES[node % 4]
        assert (await rpc.call("ModelInfer", **asked(1000))).sentence.startswith("nodes[0]: node 1000 is not in")
        # A field that there is not, behind the tensor's, and in it what a tensor's field would be.
        for node in (3, 4):
            data = node.to_bytes(8, "little")
            assert await label_of(message(3) + b"\x7a\x0a\x3a\x08" + data) == CLASSES[3]

    on_worker(scenario)


def test_messages_that_are_wrong_in_some_way_are_refused_in_a_sentence(caplog: pytest.LogCaptureFixture) -> None:
    def is_right(nodes: list[int], labels: list[int]) -> bool:
        return labels == [CLASSES[node % 4] for node in nodes]

    async def scenario(_client: Client, rpc: GrpcClient) -> None:
        noted = await send_messages(rpc.port, range(600), NODES, is_right)
        assert noted.wrong == []
        assert noted.statuses["OK"] > 60
        assert noted.statuses["INVALID_ARGUMENT"] > 200

    on_worker(scenario)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
