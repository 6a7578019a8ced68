"""examples/spam keeps working: its reviews, tables and manifest fit each other, and its figures are what they say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from examples.spam import play, reviews
from tests.support.pages.pages import ROOT

from gnnserve_api.manifest import load_manifest
from gnnserve_api.spec.paths import paths_of
from gnnserve_worker.graph.sources.load import load_source

FOLDER = ROOT / "examples" / "spam"


def test_reviews_are_the_same_each_time_and_joined_to_earlier_ones() -> None:
    made = reviews.make_reviews()
    assert made == reviews.make_reviews()
    assert len(made) == reviews.STORED + reviews.STREAMED
    places = {review.id: place for place, review in enumerate(made)}
    assert all(places[other] < places[review.id] for review in made for other in review.links)
    assert 0.17 < np.mean([review.is_spam for review in made]) < 0.23
    assert all(len(review.figures) == len(reviews.FIGURES) for review in made)


def test_the_manifest_reads_the_tables_and_what_arrives_fits_them(tmp_path: Path) -> None:
    made = reviews.make_reviews()
    reviews.write_tables(made[: reviews.STORED], tmp_path)
    play.write_inputs(tmp_path)
    service = load_manifest(tmp_path / "spam.yaml")
    assert service.spec.updates is not None
    assert service.spec.embeddings is not None
    graph = load_source(service.spec.graph.source, tmp_path)
    assert graph.graph.nodes == reviews.STORED
    assert graph.classes == ("genuine", "spam")
    assert graph.features.shape[1] == len(reviews.FIGURES)
    overlay = play.overlay_of(made[reviews.STORED])
    (node,) = overlay.to_builtins(np.array([made[reviews.STORED].id]))["nodes"]
    assert node["features"] == pytest.approx(made[reviews.STORED].figures)


def test_roc_auc_is_how_often_spam_comes_first() -> None:
    spam = np.array([True, True, False, False])
    assert play.roc_auc([3, 2, 1, 0], spam) == 1
    assert play.roc_auc([0, 1, 2, 3], spam) == 0
    assert play.roc_auc([1, 1, 1, 1], spam) == 0.5


def test_tables_are_found_beside_the_manifest_whatever_the_folder_is_called(tmp_path: Path) -> None:
    folder = tmp_path / "reviews of März #1"
    folder.mkdir()
    play.write_inputs(folder)
    paths = [one.value.path for one in paths_of(load_manifest(folder / "spam.yaml").spec)]
    assert paths == [folder / "nodes.csv", folder / "edges.csv"]


def test_what_could_not_work_is_refused_before_anything_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / ".gnnserve").mkdir()
    for arguments, problem in (
        (["--picture", "spam.txt"], "'spam.txt' ends neither in .svg nor in .png"),
        (["--folder", str(tmp_path)], f"{tmp_path} has an earlier run; name a new folder, or remove "),
    ):
        with pytest.raises(SystemExit):
            play.main(arguments)
        assert problem in capsys.readouterr().err
