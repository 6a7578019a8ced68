"""`gnnserve rollback`: the revision to go back to, written into the text of a manifest."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.generation.repository import publish, repository_in, tiny_graph
from typer.testing import CliRunner

from gnnserve_api.errors import InputError
from gnnserve_api.manifest import parse_manifest
from gnnserve_cli.main import app
from gnnserve_cli.manifest_edit import with_revision

HEAD = "apiVersion: gnnserve.dev/v1alpha1\nkind: GNNService\nmetadata: {name: digits}\n"
BLOCK = HEAD + "spec:\n  # The data.\n  graph: {source: {builtin: Digits}}\n  suspend: false  # for now\n"
FLOW = HEAD + "spec: {graph: {source: {builtin: Digits}}}\n"
JSON = (
    '{"apiVersion": "gnnserve.dev/v1alpha1", "kind": "GNNService", "metadata": {"name": "digits"}, '
    '"spec": {"graph": {"source": {"builtin": "Digits"}}}}'
)
NAME, OTHER = "4d4396dec1c5", "123456789012"


@pytest.mark.parametrize("text", [BLOCK, FLOW, JSON, BLOCK.replace("\n", "\r\n"), BLOCK.rstrip()], ids=str.__len__)
def test_the_field_is_set_replaced_and_taken_away_and_all_else_stays(text: str) -> None:
    named = with_revision(text, NAME, "m")
    assert parse_manifest(named, "m").spec.revision == NAME
    assert set(text.splitlines()) <= set(named.splitlines()) or "\n  #" not in text
    other = with_revision(named, OTHER, "m")
    assert parse_manifest(other, "m").spec.revision == OTHER, "a name of digits is a text"
    assert len(other.splitlines()) == len(named.splitlines())
    assert with_revision(other, None, "m") == with_revision(named, None, "m") == text
    assert with_revision(text, None, "m") == text


def test_it_stands_before_the_other_fields() -> None:
    assert '\nspec:\n  # The data.\n  revision: "4d4396dec1c5"\n  graph:' in with_revision(BLOCK, NAME, "m")
    assert with_revision(FLOW, NAME, "m").endswith(
        'spec: {revision: "4d4396dec1c5", graph: {source: {builtin: Digits}}}\n'
    )


def test_a_last_member_goes_with_the_comma_before_it() -> None:
    text = f"{HEAD}spec: {{graph: {{source: {{builtin: Digits}}}},\n  revision: {NAME}\n  # end\n}}\n"
    assert with_revision(text, None, "m") == f"{HEAD}spec: {{graph: {{source: {{builtin: Digits}}}}\n  # end\n}}\n"


def test_a_text_that_it_does_not_understand_is_refused() -> None:
    with pytest.raises(InputError, match=r"is not written as this command can change it; set spec\.revision"):
        with_revision(f"{FLOW}---\n", NAME, "m")


def test_what_would_be_refused_without_the_field_is_told() -> None:
    text = BLOCK.replace(
        "suspend: false", f"revision: {NAME}\n  routing: {{mode: Static, variant: x3}}\n  suspend: false"
    )
    with pytest.raises(InputError, match=r"(?s)would be refused with no spec\.revision: .*names x3"):
        with_revision(text, None, "m")


def invoke(manifest: Path, root: Path, *options: str) -> str:
    result = CliRunner().invoke(app, ["rollback", str(manifest), "--repository", str(root), *options])
    return f"{result.exit_code} {result.output}"


def test_each_time_it_goes_one_model_further_back(tmp_path: Path) -> None:
    manifest, repository = tmp_path / "digits.yaml", repository_in(tmp_path)
    manifest.write_text(BLOCK)
    own = parse_manifest(BLOCK, "m").spec.recipe()
    first, second, third, _ = [
        publish(repository, recipe, tiny_graph(graph), f"2026-01-0{day}T00:00:00Z")[0].revision
        for day, (recipe, graph) in enumerate([("r1", "aaaa"), ("r2", "aaaa"), (own, "aaaa"), ("r4", "bbbb")], 1)
    ]
    assert f"spec.revision {second}\nServe it by `gnnserve run" in invoke(manifest, tmp_path)
    assert parse_manifest(manifest.read_text(), "m").spec.revision == second
    invoke(manifest, tmp_path)
    assert parse_manifest(manifest.read_text(), "m").spec.revision == first
    assert "no model is older; there are, newest first: " in invoke(manifest, tmp_path)
    assert invoke(manifest, tmp_path, third).startswith("0 ")
    refused = invoke(manifest, tmp_path, "0123456789ab")
    assert refused.startswith("2 ") and "0123456789ab is not published; there are, newest first: " in refused
    assert parse_manifest(manifest.read_text(), "m").spec.revision == third
    assert '"revision": null' in invoke(manifest, tmp_path, "--undo", "--json").replace('":null', '": null')
    assert manifest.read_text() == BLOCK
    assert invoke(manifest, tmp_path, "--undo", first).startswith("2 ")


def test_of_a_cluster_the_name_is_taken_as_it_is(tmp_path: Path) -> None:
    manifest = tmp_path / "digits.yaml"
    manifest.write_text(FLOW)
    assert "holds no revisions; name one: the events of the service" in invoke(manifest, tmp_path)
    assert "the name is not checked here" in invoke(manifest, tmp_path, NAME)
    assert parse_manifest(manifest.read_text(), "m").spec.revision == NAME
    assert "'v2' is no revision's name" in invoke(manifest, tmp_path, "v2")


def test_a_folder_that_cannot_be_written_leaves_the_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = tmp_path / "digits.yaml"
    manifest.write_text(FLOW)

    def fail(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "write_text", fail)
    assert "cannot be written: Read-only file system; it is as it was" in invoke(manifest, tmp_path, NAME)
    assert manifest.read_text() == FLOW
