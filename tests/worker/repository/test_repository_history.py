"""How many models are kept (`spec.repository.history`), and which of them go."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.generation.repository import load_fake, publish, repository_in, tiny_graph

from gnnserve_api.files.repository import RevisionManifest
from gnnserve_worker.repository.history import keep_history
from gnnserve_worker.repository.repository import Repository


def published(
    repository: Repository, *recipes: str, graph: str = "aaaa", first_day: int = 1
) -> list[RevisionManifest]:  # fmt: skip
    """A revision of each recipe, a day after the one before."""
    return [
        publish(repository, recipe, tiny_graph(graph), f"2026-01-{day:02}T00:00:00Z")[0]
        for day, recipe in enumerate(recipes, first_day)
    ]


def left(repository: Repository) -> set[str]:
    return {manifest.recipe for manifest in repository.revisions()}


def test_without_a_number_all_are_kept_and_nothing_is_noted(tmp_path: Path) -> None:
    repository = repository_in(tmp_path)
    *_, last = published(repository, *map(str, range(5)))
    assert keep_history(repository, last, None) == ()
    assert len(repository.revisions()) == 5
    assert not (repository.folder / "history.json").exists()


def test_the_oldest_go_and_the_graph_that_others_have_stays(tmp_path: Path) -> None:
    repository = repository_in(tmp_path)
    first, second, _, last = published(repository, "a", "b", "c", "d")
    assert set(keep_history(repository, last, 2)) == {first.revision, second.revision}
    assert left(repository) == {"c", "d"}
    assert load_fake(repository, last.revision).manifest == last
    assert keep_history(repository, last, 2) == ()


def test_what_answered_last_is_kept_however_old_it_is(tmp_path: Path) -> None:
    repository = repository_in(tmp_path)
    a, _, c, d = published(repository, "a", "b", "c", "d")
    for answering in (d, a, c):
        keep_history(repository, answering, 4)
    keep_history(repository, c, 3)
    assert left(repository) == {"a", "c", "d"}, "b never answered"
    keep_history(repository, c, 2)
    assert left(repository) == {"a", "c"}
    (repository.folder / "history.json").chmod(0o644)
    (repository.folder / "history.json").write_text("[1, ")
    keep_history(repository, a, 2)
    assert left(repository) == {"a", "c"}


def test_a_second_revision_that_answers_beside_the_first_is_kept_beside_those_that_answered(tmp_path: Path) -> None:
    repository = repository_in(tmp_path)
    a, _, c, d = published(repository, "a", "b", "c", "d")
    for answering in (c, d):
        keep_history(repository, answering, 2, a.revision)
    assert left(repository) == {"a", "c", "d"}
    (e,) = published(repository, "e", first_day=5)
    keep_history(repository, e, 2, a.revision)
    assert left(repository) == {"a", "d", "e"}, "workers answer from d until e is loaded"
    keep_history(repository, e, 2)
    assert left(repository) == {"d", "e"}


def test_a_graph_that_no_revision_is_left_of_goes_with_it(tmp_path: Path) -> None:
    repository = repository_in(tmp_path)
    published(repository, "a", graph="bbbb")
    *_, last = published(repository, "b", "c", first_day=2)
    keep_history(repository, last, 2)
    assert {path.name for path in (repository.folder / "graphs").iterdir()} == {"aaaa"}


def test_while_another_process_writes_it_is_left_to_that_one(tmp_path: Path) -> None:
    repository, other = repository_in(tmp_path), repository_in(tmp_path)
    *_, last = published(repository, "a", "b", "c")
    with other.locked():
        assert keep_history(repository, last, 2) == ()
    assert left(repository) == {"a", "b", "c"}
    with repository.locked():
        assert len(keep_history(repository, last, 2)) == 1


def test_where_a_revision_cannot_be_read_everything_stays(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    repository = repository_in(tmp_path)
    first, *_, last = published(repository, "a", "b", "c")
    commit = repository.folder / "revisions" / first.revision / "revision.json"
    commit.chmod(0o644)
    commit.write_text("{")
    assert keep_history(repository, last, 2) == ()
    assert "older revisions stay" in caplog.text
    assert len([*(repository.folder / "revisions").iterdir()]) == 3
