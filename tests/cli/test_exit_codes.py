"""What scripts see: one code per kind of error, the same wherever the error arises."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.machine.fake_server import fake_server, refusal
from typer.testing import CliRunner

from gnnserve_api.errors import DeviceError, DeviceLostError, InputError, RepositoryError, ResourceError
from gnnserve_cli.exits import MEANINGS, ExitCode, exit_code_of, sentence_of
from gnnserve_cli.main import app
from gnnserve_client.errors import RefusedError

PROGRAM = [sys.executable, "-m", "gnnserve_cli"]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        pytest.param(InputError("nodes[1]", "unknown"), 2, id="what the user must correct"),
        pytest.param(RepositoryError("revision.json", "altered", "restore it"), 3, id="a repository that is not whole"),
        pytest.param(ResourceError("port 8080 is taken"), 4, id="a busy port"),
        pytest.param(DeviceError("there is none", "add one"), 4, id="no GPU where there has to be one"),
        pytest.param(DeviceLostError("it fell off the bus", "start anew"), 7, id="a GPU that was lost"),
        pytest.param(OSError(28, "No space left on device"), 4, id="a full disk that nobody foresaw"),
        pytest.param(MemoryError(), 4, id="no memory left"),
        pytest.param(
            ImportError("libtorch_cpu.so: failed to map segment from shared object"), 4, id="no memory for a library"
        ),
        pytest.param(RuntimeError("DefaultCPUAllocator: can't allocate memory"), 4, id="no memory for torch"),
        pytest.param(ImportError("No module named 'torch'"), None, id="a library that is not there"),
        pytest.param(BrokenPipeError(), 141, id="a reader that left"),
        pytest.param(RefusedError(400, "unknownNode", "nodes[1]", "…"), 2, id="a request refused as wrong"),
        pytest.param(RefusedError(422, "objectiveNotMet", None, "…"), 5, id="a strict objective out of reach"),
        pytest.param(RefusedError(429, "queueFull", None, "…"), 6, id="a full queue"),
        pytest.param(RefusedError(503, "draining", None, "…"), 6, id="a server that drains"),
        pytest.param(RefusedError(500, "internal", None, "…"), 1, id="a server that failed"),
        pytest.param(KeyError("x"), None, id="a defect keeps its stack trace"),
    ],
)
def test_every_kind_of_error_has_its_exit_code(error: Exception, code: int | None) -> None:
    assert exit_code_of(error) == code


def test_lack_of_memory_is_one_sentence_with_the_allocators_words() -> None:
    for error, found in [
        (MemoryError(), "(out of memory)"),
        (ImportError("libtorch_cpu.so: failed to map segment from shared object"), "(libtorch_cpu.so: failed to map"),
        (RuntimeError("can't allocate memory: you tried\nand more"), "(can't allocate memory: you tried)"),
    ]:
        assert sentence_of(error).startswith(f"there is not enough memory {found}")
    assert sentence_of(ResourceError("the GPU is out of memory")) == "the GPU is out of memory"


def test_help_lists_every_exit_code() -> None:
    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "100"})
    assert shown.exit_code == 0
    for code, meaning in MEANINGS.items():
        assert f"{int(code)}  {meaning}" in shown.output


@pytest.mark.parametrize("command", ["run", "generate", "serve", "predict", "variants", "load", "validate"])
def test_help_of_every_command_has_an_example_and_whole_option_names(command: str) -> None:
    shown = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "80"})
    assert shown.exit_code == 0
    assert f"Example: gnnserve {command} " in shown.output
    assert "…" not in shown.output


def test_a_refused_request_says_why_in_one_line() -> None:
    with fake_server(lambda _: refusal(429, "queueFull", "65,536 nodes wait already", Retry_After="2")) as server:
        result = CliRunner().invoke(app, ["predict", server.url, "--nodes", "1"])
    assert result.exit_code == ExitCode.OVERLOADED
    assert result.stderr == "error: the server answered 429 queueFull: 65,536 nodes wait already; retry after 2 s\n"


def test_a_reader_that_leaves_early_is_no_failure_worth_a_trace() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [*PROGRAM, "validate", str(Path(__file__).parents[2] / "examples/digits.yaml")],
            stdout=writing, stderr=subprocess.PIPE, check=False,
        )  # fmt: skip
    finally:
        os.close(writing)
    assert done.stderr == b""
    assert done.returncode == ExitCode.BROKEN_PIPE


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("command", "code"),
    [
        pytest.param("validate examples/digits.yaml >&-", 0, id="a result that nobody wants"),
        pytest.param("validate examples/digits.yaml --json >&- 2>&-", 0, id="no stream at all"),
        pytest.param("validate nowhere.yaml 2>&-", 2, id="no stream for errors"),
        pytest.param("validate nowhere.yaml 2>/dev/full", 2, id="errors on a full disk"),
        pytest.param("validate examples/digits.yaml >/dev/full", 4, id="a result on a full disk"),
        pytest.param("--version >/dev/full", 4, id="the version on a full disk"),
        pytest.param("--help >/dev/full", 4, id="help on a full disk"),
    ],
)
def test_streams_that_take_nothing_cost_no_trace(command: str, code: int) -> None:
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m gnnserve_cli {command}"],
        capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.returncode == code
    assert done.stderr == ("error: [Errno 28] No space left on device\n" if code == 4 else "")


HEAVY = "numpy", "scipy", "numba", "torch", "sklearn", "fastapi"


@pytest.mark.parametrize(
    "command",
    [
        pytest.param("--help", id="help of the program"),
        pytest.param("validate examples/digits.yaml", id="validate"),
        pytest.param("predict URL --nodes 1,2", id="predict"),
        pytest.param("variants URL", id="variants of a server"),
        pytest.param("load URL --duration 0.05", id="load"),
    ],
)
def test_light_commands_import_nothing_heavy(command: str) -> None:
    script = (
        "import sys; from gnnserve_cli.main import app\n"
        "try: app(sys.argv[1:])\n"
        f"finally: sys.stderr.write(' '.join(m for m in {HEAVY!r} if m in sys.modules))"
    )
    with fake_server() as server:
        done = subprocess.run(
            [sys.executable, "-c", script, *command.replace("URL", server.url).split()],
            capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2],
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_the_program_starts_without_what_connects() -> None:
    script = (
        "import sys, typer.main; from gnnserve_cli.main import app\n"
        "assert 'gnnserve_cli.commands.load' not in sys.modules\n"
        "assert len([*typer.main.get_command(app).commands.values()]) > 15\n"
        "print([m for m in ('asyncio', 'httpx', 'numpy', 'gnnserve_client.exchange') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
