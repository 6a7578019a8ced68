"""Manifests on the pages are ones that are taken, with the parts that a page leaves out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from tests.support.pages.pages import DOCS, code_blocks, read_page

from gnnserve_api.spec.pool import GNNWorkerPoolSpec
from gnnserve_api.spec.service import API_VERSION, GNNServiceSpec

DIGITS: dict[str, Any] = {"builtin": "Digits"}
TYPED: dict[str, Any] = {"typed": {"npz": {"uri": "file:///data/shop"}}}


def specs(page: str) -> Iterator[tuple[type[GNNServiceSpec | GNNWorkerPoolSpec], dict[str, Any]]]:
    """The spec of each manifest, or part of one, that a page shows, and its kind."""
    for block in code_blocks(read_page(page), "yaml"):
        for shown in yaml.safe_load_all(block.replace("…", "a" * 64)):
            if not shown.get("apiVersion", API_VERSION).startswith("gnnserve.dev/") or "scrape_configs" in shown:
                continue  # a mesh's own, and Prometheus'
            if shown.get("kind") == "GNNWorkerPool":
                yield GNNWorkerPoolSpec, shown["spec"]
            else:
                yield GNNServiceSpec, _completed(shown)


def _completed(shown: dict[str, Any]) -> dict[str, Any]:
    """The spec that a part belongs to: its graph is the digits, or for relations one of several types."""
    if "source" in shown:
        return {"graph": shown}
    if "typed" in shown:
        return {"graph": {"source": shown}}
    spec: dict[str, Any] = shown.get("spec", shown)
    source = TYPED if "relationFanouts" in spec.get("model", {}) else DIGITS
    return {**spec, "graph": {"source": source, **spec.get("graph", {})}}


PAGES = [path.name for path in sorted(DOCS.glob("*.md")) if any(specs(path.name))]


@pytest.mark.parametrize("page", PAGES)
def test_manifests_of_a_page_are_taken(page: str) -> None:
    for kind, spec in specs(page):
        kind.model_validate(spec)


def test_pages_with_manifests_are_found() -> None:
    assert {"data.md", "links.md", "manifest.md", "operator.md", "updates.md", "variants.md"} <= set(PAGES)
