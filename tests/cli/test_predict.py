"""`gnnserve predict` against a server that answers like ours."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.machine.fake_server import Asked, Told, fake_server, nodes_body, refusal, variants_body
from tests.support.profiles import profile
from typer.testing import CliRunner

from gnnserve_api.errors import InputError
from gnnserve_api.files.repository import NodeIdKind
from gnnserve_cli.commands.predict import parse_pairs
from gnnserve_cli.main import app
from gnnserve_client.address import Endpoint, parse_url
from gnnserve_client.errors import parse_refusal
from gnnserve_client.timing import parse_server_timing


def test_a_table_shows_nodes_labels_variant_and_where_the_time_went() -> None:
    with fake_server() as server:
        result = CliRunner().invoke(app, ["predict", server.url, "--nodes", "3,17"])
    assert result.exit_code == 0, result.stderr
    rows = [line.split() for line in result.output.splitlines()]
    assert ["3", "3"] in rows
    assert ["17", "7"] in rows
    assert "x4 of revision r1" in result.output
    assert re.search(r"round trip  [\d.]+ ms, behind [\d.]+ ms of connecting\n", result.output)
    assert ", wait 0.012, compute 0.213 (sample 0.021, gather 0.064, compute 0.128), client receive " in result.output


def test_only_what_was_stated_is_sent() -> None:
    with fake_server() as server:
        CliRunner().invoke(app, ["predict", server.url, "--nodes", "3"])
        CliRunner().invoke(
            app,
            ["predict", f"{server.url}/", "--nodes", "3, 4", "--latency-ms", "5", "--accuracy-tolerance-permille", "10",
             "--strict", "--return", "labels,embeddings", "--variant", "x4"],
        )  # fmt: skip
    assert [asked.body for asked in server.asked if asked.method == "POST"] == [
        {"nodes": [3], "return": ["labels"]},
        {
            "nodes": [3, 4],
            "objective": {"latencyMs": 5.0, "accuracyTolerancePermille": 10.0},
            "strict": True,
            "return": ["labels", "embeddings"],
            "variant": "x4",
        },
    ]


def test_json_has_the_whole_answer_and_the_times() -> None:
    with fake_server() as server:
        result = CliRunner().invoke(app, ["predict", server.url, "--nodes", "3,7", "--return", "scores", "--json"])
    answer = json.loads(result.output)
    assert answer["nodes"] == [3, 7]
    assert [len(row) for row in answer["scores"]] == [10, 10]
    assert "labels" not in answer
    assert answer["objectiveMet"] is True
    assert answer["serverTimingMs"] == {"queue": 0.012, "sample": 0.021, "gather": 0.064, "compute": 0.128}
    assert answer["roundTripMs"] > 0


def test_labels_of_a_multi_label_graph_are_lists() -> None:
    told = Told(body={"labels": [[1, 3], []], "variant": "x1", "revision": "r1", "objectiveMet": False})
    with fake_server(lambda _: told) as server:
        result = CliRunner().invoke(app, ["predict", server.url, "--nodes", "[0, 1]"])
    assert "1, 3" in result.output
    assert "none" in result.output
    assert "not met: the answer came late" in result.output


@pytest.mark.parametrize(
    ("given", "node_ids", "sent"),
    [
        pytest.param("3, 17", NodeIdKind.POSITIONS, [3, 17], id="digits are integers"),
        pytest.param("3,-17", NodeIdKind.INTEGERS, [3, -17], id="of the source too"),
        pytest.param("3,017", NodeIdKind.STRINGS, ["3", "017"], id="unless the graph's ids are texts"),
        pytest.param("ann, bob b ,7", NodeIdKind.STRINGS, ["ann", "bob b", "7"], id="texts beside them too"),
        pytest.param("user/3, 17", NodeIdKind.POSITIONS, ["user/3", 17], id="those with a type are texts"),
        pytest.param("ann, bob b", None, ["ann", "bob b"], id="anything else is text"),
        pytest.param("1_0,٣", None, ["1_0", "٣"], id="and so is what Python takes for a number"),
        pytest.param('["Doe, J.", " x", ""]', None, ["Doe, J.", " x", ""], id="a list to the letter"),
        pytest.param("[3, 17]", None, [3, 17], id="with integers where they are meant"),
        pytest.param(' ["3"]', None, ["3"], id="or digits as text"),
    ],
)
def test_ids_are_sent_as_the_graph_has_them(
    given: str, node_ids: NodeIdKind | None, sent: list[int] | list[str]
) -> None:
    """Whoever leaves no doubt need not ask."""

    def answer(asked: Asked) -> Told:
        if asked.method == "GET":
            assert node_ids is not None
            return Told(body=nodes_body(asked.path, ["ann"], node_ids))
        rows = [f"label of {node}" for node in asked.body["nodes"]]
        return Told(body={"labels": rows, "variant": "x1", "revision": "r1", "objectiveMet": True})

    with fake_server(answer) as server:
        result = CliRunner().invoke(app, ["predict", server.url, "--nodes", given])
    assert result.exit_code == 0, result.stderr
    assert [(asked.method, asked.path) for asked in server.asked[:-1]] == (
        [] if node_ids is None else [("GET", "/v1/nodes?start=0&count=1")]
    )
    assert server.asked[-1].body == {"nodes": sent, "return": ["labels"]}
    assert f"label of {sent[0]}" in result.output


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (
            "3,abc",
            "error: --nodes: 'abc' is no integer, and the graph's node ids are integers; correct it, or leave it ",
        ),
        ("3,1.5", "--nodes: '1.5' is no integer"),
        (
            "9223372036854775808",
            "--nodes: '9223372036854775808' is beyond 64 bits, and the graph's node ids are integers",
        ),
        ("-" + "9" * 5000, f"--nodes: '-{'9' * 76}...' is beyond 64 bits"),
    ],
)
def test_the_id_that_is_none_is_named_and_not_the_first(given: str, problem: str) -> None:
    with fake_server() as server:
        result = CliRunner().invoke(app, ["predict", server.url, "--nodes", given])
    assert (result.exit_code, result.output.splitlines()[1:]) == (2, [])
    assert problem in result.stderr
    assert [asked.method for asked in server.asked] == ["GET"]


def test_texts_of_the_graph_are_shown_as_they_are_and_obeyed_by_no_terminal() -> None:
    told = Told(body={"labels": ["[red]a", ["b", "\x1b[2J"]], "variant": "x1", "revision": "r1", "objectiveMet": True})
    with fake_server(lambda _: told) as server:
        result = CliRunner().invoke(app, ["predict", server.url, "--nodes", '["[bold]ann", "\\u0007 "]'])
    assert result.exit_code == 0, result.stderr
    rows = [line.split() for line in result.output.splitlines()]
    assert ["[bold]ann", "[red]a"] in rows
    assert ['"\\u0007', '"', "b,", '"\\u001b[2J"'] in rows


@pytest.mark.parametrize(
    ("arguments", "code", "problem"),
    [
        pytest.param(["--nodes", "1,,2"], 2, "--nodes: '1,,2' is not a list of node ids: one is empty", id="no id"),
        pytest.param(["--nodes", ""], 2, "--nodes: '' is not a list of node ids: one is empty", id="nothing"),
        pytest.param(["--nodes", '["a"'], 2, """--nodes: '["a"' is not a list of node ids: Input""", id="half a list"),
        pytest.param(["--nodes", "[1.5]"], 2, "Expected `int | str`, got `float`", id="a list of neither"),
        pytest.param(["--nodes", "\udcff" * 90], 2, "...' is not a list of node ids: 'utf-8' codec", id="no UTF-8"),
        pytest.param(["--nodes", "1", "--return", "logits"], 2, "--return: 'logits' is unknown", id="unknown output"),
        pytest.param(
            ["--nodes", "1", "--latency-ms", "nan"],
            2,
            "nan is not between 0.001 and 3,600,000",
            id="a latency must be a number",
        ),
        pytest.param(
            ["--nodes", "1", "--seed", str(2**63)],
            2,
            "9,223,372,036,854,775,808 is not between 0 and 9,223,372,036,854,775,807",
            id="a seed has 63 bits",
        ),
        pytest.param(["--nodes", "1", "--seed", "1" * 400], 2, "… is not between 0 and 9,223", id="not 400 digits"),
        pytest.param(["--seed", "x"], 2, "for '--seed': 'x' is no whole number. ", id="a seed is an integer"),
        pytest.param(["--latency-ms", "1,5"], 2, "'1,5' is no number. ", id="a latency has a point"),
        pytest.param([], 2, "--nodes", id="nodes must be given"),
    ],
)
def test_wrong_arguments_are_refused_before_asking(arguments: list[str], code: int, problem: str) -> None:
    with fake_server() as server:
        result = CliRunner().invoke(app, ["predict", server.url, *arguments], env={"COLUMNS": "200"})
    assert result.exit_code == code
    assert problem in result.stderr
    assert server.asked == []


def test_a_server_that_is_down_says_how_to_start_one() -> None:
    with fake_server() as server:
        server.stop()
        result = CliRunner().invoke(app, ["predict", server.url, "--nodes", "1"])
    assert result.exit_code == 4
    assert "Connection refused" in result.stderr
    assert "gnnserve run" in result.stderr


def test_imports_of_the_client_are_no_part_of_a_round_trip() -> None:
    code = (
        "import sys\n"
        "from gnnserve_client.address import parse_url\n"
        "from gnnserve_client.errors import NoAnswerError\n"
        "from gnnserve_client.direct import DirectConnection\n"
        "from gnnserve_client.exchange import Call, Send\n"
        "connection = DirectConnection(parse_url('http://127.0.0.1:1'))\n"
        "known = set(sys.modules)\n"
        "try:\n"
        "    connection.exchange(Send(Call('GET', '/'), None, 1))\n"
        "except NoAnswerError:\n"
        "    print([name for name in set(sys.modules) - known if name.startswith('http')])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"


def answered(labels: list[int]) -> Told:
    return Told(body={"labels": labels, "variant": "x1", "revision": "r1", "objectiveMet": True})


@pytest.mark.parametrize(
    ("command", "told", "found"),
    [
        pytest.param("variants URL", Told(body=b"<html>hello</html>"), "malformed", id="no JSON"),
        pytest.param("variants URL", Told(body=b'{"service":"\xff"}'), "utf-8", id="no UTF-8"),
        pytest.param("predict URL --nodes [1,2]", answered([1]), "1 labels for 2 nodes", id="too few labels"),
        pytest.param(
            "predict URL --nodes [1] --return scores",
            answered([1]),
            "0 scores for 1 nodes",
            id="not what was asked for",
        ),
        pytest.param("predict URL --nodes 1", answered([1]), "missing required field `nodes`", id="no list of nodes"),
        pytest.param(
            "load URL", Told(body=variants_body(profile(), nodes=0)), "a graph of 0 nodes", id="a graph without nodes"
        ),
        pytest.param(
            "load URL", Told(body=variants_body(profile()) | {"features": 0}), "a graph of 0 features", id="no features"
        ),
        pytest.param("variants URL", Told(404, b"no\x1b[31m page"), "404 no?[31m page", id="a page that is not there"),
        pytest.param("variants URL", Told(301, b""), "301 without an explanation", id="a redirection"),
    ],
)
def test_another_program_on_the_port_is_recognised(command: str, told: Told, found: str) -> None:
    with fake_server(lambda _: told) as server:
        result = CliRunner().invoke(app, command.replace("URL", server.url).split())
    assert result.exit_code == 4
    assert result.stderr.startswith(f"error: {server.url}: the answer is not gnnserve's: ")
    assert found.lower() in result.stderr.lower()
    assert result.stderr.endswith("; does another program listen on that port?\n")


def test_a_strict_objective_out_of_reach_has_its_own_code() -> None:
    with fake_server(lambda _: refusal(422, "objectiveNotMet", "x16 needs 0.4 ms", "objective.latencyMs")) as server:
        result = CliRunner().invoke(app, ["predict", server.url, "--nodes", "1", "--strict", "--latency-ms", "0.1"])
    assert result.exit_code == 5
    assert "objectiveNotMet (objective.latencyMs): x16 needs 0.4 ms" in result.stderr


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        pytest.param("http://127.0.0.1:8080", Endpoint("127.0.0.1", 8080), id="host and port"),
        pytest.param("http://127.0.0.1:8080/", Endpoint("127.0.0.1", 8080), id="trailing slash"),
        pytest.param("http://digits.default.svc", Endpoint("digits.default.svc", 80), id="default port"),
        pytest.param("http://[::1]:8080", Endpoint("::1", 8080), id="IPv6"),
    ],
)
def test_addresses_that_are_understood(text: str, endpoint: Endpoint) -> None:
    assert parse_url(text) == endpoint


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("localhost:8080", "not the address of a server", id="no scheme"),
        pytest.param("http://", "not the address of a server", id="no host"),
        pytest.param("http://localhost:eighty", "Port could not be cast", id="a port that is no number"),
        pytest.param("http://localhost:8080/v1/predict", "write http://localhost:8080", id="with a path"),
        pytest.param("http://me:pw@localhost:8080", "write http://localhost:8080", id="with a password"),
        pytest.param("http://a b:80", "no valid host name", id="a space in the host"),
        pytest.param(f"http://{'a' * 70}:80", "no valid host name", id="a label longer than DNS has"),
        pytest.param("http://127.0.0.1:0", "has port 0", id="the port that means any"),
        pytest.param("http://[::1", "Invalid IPv6", id="half an IPv6 address"),
    ],
)
def test_addresses_that_are_refused_with_advice(text: str, problem: str) -> None:
    with pytest.raises(InputError, match=r"^URL: ") as caught:
        parse_url(text)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("header", "durations"),
    [
        pytest.param("", {}, id="absent"),
        pytest.param("queue;dur=0.1, sample;dur=2", {"queue": 0.1, "sample": 2.0}, id="two stages"),
        pytest.param('cache;desc="hit", compute;desc=x;dur=3', {"compute": 3.0}, id="descriptions are skipped"),
        pytest.param("queue;dur=fast", {}, id="a duration that is no number"),
    ],
)
def test_server_timing_is_read(header: str, durations: dict[str, float]) -> None:
    assert parse_server_timing(header) == durations


def test_a_proxys_refusal_that_is_not_json_is_shown_as_it_is() -> None:
    assert (
        str(parse_refusal(Endpoint("h", 80), 502, {}, b"Bad Gateway\n")) == "the server answered 502 error: Bad Gateway"
    )


OVERLAY = {
    "nodes": [{"id": 9000, "features": {"amount": 12.5}}, {"id": 9001, "features": [0.1, 2]}],
    "edges": [[3, 9000], [9001, 9000]],
}


def test_an_overlay_is_read_from_a_file_and_its_new_nodes_are_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "order.json"
    file.write_text(json.dumps(OVERLAY))
    with fake_server() as server:
        for more in ([], ["--nodes", "3,9000", "--seed", "7"]):
            result = CliRunner().invoke(app, ["predict", server.url, "--overlay", str(file), *more])
            assert result.exit_code == 0, result.stderr
    assert [asked.body for asked in server.asked if asked.method == "POST"] == [
        {"nodes": [9000, 9001], "return": ["labels"], "overlay": OVERLAY},
        {"nodes": [3, 9000], "return": ["labels"], "overlay": OVERLAY, "seed": 7},
    ]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        pytest.param('{"nodes": 3}', "is not an overlay: Expected `array`, got `int` - at `$.nodes`", id="no list"),
        pytest.param('{"node": []}', "is not an overlay: Object contains unknown field `node`", id="another field"),
        pytest.param("{", "is not an overlay: Input data was truncated", id="no JSON"),
        pytest.param('{"edges": [[1, 2]]}', "--nodes: it is missing, and the overlay has no nodes to", id="no nodes"),
        pytest.param(None, "cannot be read: No such file or directory", id="no file"),
    ],
)
def test_an_overlay_that_is_none_is_refused_before_anything_is_sent(
    tmp_path: Path, content: str | None, problem: str
) -> None:
    file = tmp_path / "order.json"
    if content is not None:
        file.write_text(content)
    with fake_server() as server:
        result = CliRunner().invoke(app, ["predict", server.url, "--overlay", str(file)])
    assert result.exit_code == 2
    assert problem in result.stderr
    assert server.asked == []


def test_nodes_are_needed_without_an_overlay() -> None:
    result = CliRunner().invoke(app, ["predict", "http://127.0.0.1:1"])
    assert result.exit_code == 2
    assert "--nodes: it is missing; write 1,2,3 or ann,bob, or a JSON list, or give --overlay" in result.stderr


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("1:2, 3 : 4", ["1", "2", "3", "4"]),
        ("user/1:item/2", ["user/1", "item/2"]),
        ("user/1 item/2, user/a:3 item/4", ["user/1", "item/2", "user/a:3", "item/4"]),
        ("3 :4, 5: 6, user/1: item/2, user/3 :item/4", ["3", "4", "5", "6", "user/1", "item/2", "user/3", "item/4"]),
        ("New York:Paris, user/Ann Lee:item/7", ["New York", "Paris", "user/Ann Lee", "item/7"]),
        ("a/b:c d, a:1 b:2", ["a/b", "c d", "a:1", "b:2"]),
        ('[["a:1", "b"], [3, 4]]', (("a:1", "b"), (3, 4))),
        ('[[{"type": "user", "id": 1}, "item/2"]]', (("user/1", "item/2"),)),
    ],
)
def test_pairs_are_parsed(text: str, parsed: object) -> None:
    assert parse_pairs(text) == parsed


@pytest.mark.parametrize(
    "text", ["1", "1:2,3", "1:", "1:2:3", "1 2 3", '[[{"type": "user"}, 1]]', "[[1]]", '[["a", 1, 2]]', ""]
)
def test_what_are_no_pairs_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"--pairs: .*write 1:2,3:4 or user/3:item/7, or a JSON list of pairs"):
        parse_pairs(text)


def test_a_pair_that_may_be_read_both_ways_is_refused() -> None:
    with pytest.raises(InputError, match=r"may be 'user/a b/x' with 'item/7' or 'user/a' with 'b/x:item/7'.*JSON list"):
        parse_pairs("user/a b/x:item/7")


def test_nodes_and_pairs_are_not_asked_about_together() -> None:
    result = CliRunner().invoke(app, ["predict", "http://127.0.0.1:9", "--nodes", "3", "--pairs", "1:2"])
    assert result.exit_code != 0
