"""`spec.routing.canary` without a cluster: what is said of it before a server starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.generation.repository import publish, repository_in, tiny_graph

from gnnserve_api.errors import InputError
from gnnserve_api.spec.service import GNNService
from gnnserve_cli.serving import require_second


def service_of(revision: str | None) -> GNNService:
    routing = {} if revision is None else {"canary": {"revision": revision, "percent": 5}}
    return GNNService.model_validate(
        {
            "apiVersion": "gnnserve.dev/v1alpha1",
            "kind": "GNNService",
            "metadata": {"name": "digits"},
            "spec": {"graph": {"source": {"builtin": "Digits"}}, "routing": routing},
        }
    )


def test_a_second_revision_must_be_published(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored = repository_in(tmp_path)
    first, second = (publish(stored, recipe, tiny_graph(), "2026-01-01T00:00:00Z")[0] for recipe in ("a", "b"))
    require_second(service_of(None), stored, first.revision)
    require_second(service_of(second.revision), stored, first.revision)
    assert capsys.readouterr().err == ""
    require_second(service_of(first.revision), stored, first.revision)
    assert capsys.readouterr().err == (
        f"note: spec.routing.canary changes nothing: {first.revision} is the revision that answers\n"
    )
    with pytest.raises(InputError) as raised:
        require_second(service_of("0123456789ab"), stored, first.revision)
    assert str(raised.value) == (
        f"spec.routing.canary.revision: 0123456789ab is not published; there is {first.revision}, which answers "
        f"already, and beside it {second.revision}; name {second.revision}, or take routing.canary away"
    )


def test_where_one_revision_is_published_no_second_one_can_be_named(tmp_path: Path) -> None:
    stored = repository_in(tmp_path)
    only = publish(stored, "a", tiny_graph(), "2026-01-01T00:00:00Z")[0]
    with pytest.raises(InputError) as raised:
        require_second(service_of("0123456789ab"), stored, only.revision)
    assert str(raised.value) == (
        f"spec.routing.canary.revision: 0123456789ab is not published; there is {only.revision}, which answers already "
        "and no other one; generate a second revision and name it, or take routing.canary away"
    )
