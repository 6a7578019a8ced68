"""`gnnserve recommend` against a server, and what `gnnserve generate` says of embeddings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.serving.real_worker import RealWorker, publish
from tests.support.serving.secured_worker import started
from typer.testing import CliRunner

from gnnserve_api.errors import InputError
from gnnserve_api.spec.service import GNNService
from gnnserve_cli.embedding import check_sinks, publish_visibly
from gnnserve_cli.exits import ExitCode
from gnnserve_cli.main import app
from gnnserve_client import Client, Overlay
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.serving.security.credentials import Credentials


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    return publish(tmp_path_factory.mktemp("repository"))


@pytest.fixture(scope="module")
def url(repository: Repository) -> Iterator[str]:
    with started(Credentials(), of=RealWorker(repository)) as served:  # type: ignore[arg-type]
        yield f"http://127.0.0.1:{served.port}"


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["recommend", *arguments])
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.stderr


def test_it_shows_nodes_cosines_and_the_index(url: str) -> None:
    lines = run(url, "17", "--count", "3").splitlines()
    assert lines[0].split() == ["Node", "Cosine"]
    facts = "\n".join(lines[5:])
    assert "index       120 nodes, exact, recall 1.000, " in facts
    assert "objective   met" in facts


def test_json_has_all_of_it(url: str, tmp_path: Path) -> None:
    overlay = tmp_path / "overlay.json"
    overlay.write_text(json.dumps({"nodes": [{"id": 900, "features": [1] * 7}], "edges": [[3, 900]]}))
    told = json.loads(
        run(url, "900", "--overlay", str(overlay), "--labels", "0,2", "--count", "4", "--include-known", "--json")
    )
    assert (told["node"], len(told["items"]), told["index"]["kind"]) == (900, 4, "Exact")
    among = json.loads(run(url, "17", "--among", "3,4", "--include-known", "--json"))
    assert {item["id"] for item in among["items"]} == {3, 4}


def test_columns_filter(url: str) -> None:
    found = [
        {item["id"] for item in json.loads(run(url, "17", "--count", "1000", "--json", *options))["items"]}
        for options in ([], ["--where", "2<0"], ["--where", "2>=0"], ["--where", "2>=0", "--where", "2<1"])
    ]
    assert found[1] | found[2] == found[0]
    assert not found[1] & found[2]
    assert set() < found[3] < found[2]
    with Client(url) as client:
        asked = client.recommend(17, 1000, where={"2": {"atLeast": 0, "below": 1}})
    assert {*asked.nodes.tolist()} == found[3]
    assert "No node is recommended: " in run(url, "17", "--where", "2=5,6")
    for wrong in ("price", "<3", "2<a", "2<1,2"):
        told = run(url, "17", "--where", wrong, code=ExitCode.BAD_INPUT)
        assert f"--where: '{wrong}' is no condition on a column; write price<20" in told


def test_what_is_wrong_is_told(url: str) -> None:
    assert "node 4000 is not in the graph" in run(url, "4000", code=ExitCode.BAD_INPUT)
    assert "NODE: '1,2' are 2 nodes" in run(url, "1,2", code=ExitCode.BAD_INPUT)
    assert "error: NODE: '' is not a list of node ids" in run(url, "", code=ExitCode.BAD_INPUT)
    assert "error: --among: '3,' is not a list of node ids" in run(url, "1", "--among", "3,", code=ExitCode.BAD_INPUT)


@pytest.mark.parametrize(
    ("labels", "problem"),
    [
        ("--5", '"--5" is none of the graph\'s classes'),
        ('["0"]', '"0" is none of the graph\'s classes'),
        ("0,,2", "--labels: '0,,2' is not a list of labels: one is empty"),
        ("[0", "--labels: '[0' is not a list of labels: "),
    ],
)
def test_labels_that_are_none_are_told(url: str, labels: str, problem: str) -> None:
    assert problem in run(url, "17", f"--labels={labels}", code=ExitCode.BAD_INPUT)


def test_no_recommendations_are_said(url: str) -> None:
    shown = run(url, "17", "--among", "17")
    assert shown.startswith("No node is recommended: neighbours of the node are left out without --include-known; ")


def test_the_client_recommends(url: str) -> None:
    with Client(url) as client:
        like = client.recommend(17, 5, exclude="nothing", among=[3, 4, 5])
        assert sorted(like.nodes.tolist()) == [3, 4, 5]
        assert (like.cosines[:-1] >= like.cosines[1:]).all()
        assert (like.index.nodes, like.offset) == (120, None)
        new = client.recommend(-1, overlay=Overlay(features=[[1] * 7], edges=[[3, -1]]))
        assert len(new.nodes) == 10


def service(sinks: int) -> GNNService:
    embeddings = {"sinks": [{"postgres": {"secretName": f"vectors-{number}"}} for number in range(sinks)]}
    return GNNService.model_validate(
        {
            "apiVersion": "gnnserve.dev/v1alpha1",
            "kind": "GNNService",
            "metadata": {"name": "digits"},
            "spec": {"graph": {"source": {"builtin": "Digits"}}, "embeddings": embeddings},
        }
    )


def test_a_sink_without_an_address_and_one_that_is_away_are_told(
    repository: Repository, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    uri = tmp_path / "uri"
    uri.write_text("postgresql://u:secret@127.0.0.1:1/d")
    (revision,) = repository.revisions()
    assert not publish_visibly(service(2), repository, revision, [uri])
    told = capsys.readouterr().err
    assert "no embeddings are written to spec.embeddings.sinks[1], which name Secrets of a cluster" in told
    assert "warning: spec.embeddings.sinks[0] has no embeddings of revision" in told
    assert "`gnnserve generate` tries it again" in told
    assert "secret" not in told.replace("Secret", "")


def test_more_addresses_than_sinks_are_refused(tmp_path: Path) -> None:
    uri = tmp_path / "uri"
    uri.write_text("postgresql://u@127.0.0.1/d")
    with pytest.raises(InputError, match=r"is given 2 times, and the manifests have 1 of spec\.embeddings\.sinks"):
        check_sinks([service(1)], [uri, uri])
