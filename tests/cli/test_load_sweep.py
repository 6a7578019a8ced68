"""`gnnserve load --sweep`: closed loops with ever more connections."""

from __future__ import annotations

import json

import pytest
from tests.support.machine.fake_server import Asked, Told, answer_like_gnnserve, fake_server, refusal
from typer.testing import CliRunner

from gnnserve_api.errors import InputError
from gnnserve_cli.loadgen.sweep import parse_sweep
from gnnserve_cli.main import app

MOST = 4096


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        pytest.param("8", (8,), id="one"),
        pytest.param("1, 3,10", (1, 3, 10), id="a list"),
        pytest.param("1,2,4,…,64", (1, 2, 4, 8, 16, 32, 64), id="dots double"),
        pytest.param("1,...,6,7", (1, 2, 4, 6, 7), id="up to any number"),
        pytest.param("3,…,4096", (3, 6, 12, 24, 48, 96, 192, 384, 768, 1536, 3072, 4096), id="to the most"),
    ],
)
def test_lists_that_are_understood(text: str, numbers: tuple[int, ...]) -> None:
    assert parse_sweep(text, MOST) == numbers


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("", "'' is none of ascending numbers", id="empty"),
        pytest.param("1,,2", "'' is none of", id="a gap"),
        pytest.param("2,1", "'1' is none of", id="descending"),
        pytest.param("1,1", "'1' is none of", id="twice"),
        pytest.param("…,8", "'…' is none of", id="dots first"),
        pytest.param("1,…", "'…' is none of", id="dots last"),
        pytest.param("1,…,…,8", "'…' is none of", id="dots twice"),
        pytest.param("0,1", "out of range", id="none"),
        pytest.param("1,5000", "out of range", id="too many"),
        pytest.param("1,…,99999999999", "out of range", id="far too many"),
        pytest.param("one", "'one' is none of", id="a word"),
        pytest.param("²", "'²' is none of", id="no digit"),
        pytest.param(",".join(map(str, range(1, 102))), "101 are more than 100 numbers", id="too long"),
    ],
)
def test_lists_that_are_refused(text: str, problem: str) -> None:
    with pytest.raises(InputError, match="--sweep: ") as refused:
        parse_sweep(text, MOST)
    assert problem in str(refused.value)
    assert "such as 1,2,4,…,64" in str(refused.value)


def test_a_sweep_reports_each_concurrency() -> None:
    with fake_server() as server:
        result = CliRunner().invoke(app, ["load", server.url, "--sweep", "1,2,4", "--duration", "0.1", "--json"])
    assert result.exit_code == 0, result.stderr
    points = json.loads(result.output)["points"]
    assert [point["connections"] for point in points] == [1, 2, 4]
    assert all(point["answers"] == point["requests"] > 0 and point["parts"]["sumMs"] > 0 for point in points)


def test_a_sweep_is_a_table() -> None:
    with fake_server() as server:
        result = CliRunner().invoke(app, ["load", server.url, "--sweep", "1,…,4", "--duration", "0.1"])
    assert result.exit_code == 0, result.stderr
    lines = result.output.splitlines()
    assert lines[0].split("  ")[0] == "Connections"
    assert [line.split()[0] for line in lines[2:]] == ["1", "2", "4"]
    assert len({len(line.split()) for line in lines[2:]}) == 1


@pytest.mark.parametrize(
    ("arguments", "option"),
    [(["--rate", "5"], "--rate"), (["--concurrency", "3"], "--concurrency"), (["--retries", "1"], "--retries")],
)
def test_a_sweep_is_of_closed_loops(arguments: list[str], option: str) -> None:
    result = CliRunner().invoke(app, ["load", "http://localhost:1", "--sweep", "1,2", *arguments])
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {option}: ")


def test_a_server_that_refuses_all_decides_the_exit_code() -> None:
    def refuse(asked: Asked) -> Told:
        return refusal(429, "QueueFull", "full") if asked.method == "POST" else answer_like_gnnserve(asked)

    with fake_server(refuse) as server:
        result = CliRunner().invoke(app, ["load", server.url, "--sweep", "1,2", "--duration", "0.05"])
    assert result.exit_code == 6
    assert result.output.splitlines()[2].split()[2:11] == ["-"] * 9
