"""Hooks of mkdocs.yml: what pages link to outside of docs/ is part of the site.

So the site is whole offline and needs no address of the repository: `examples/shop/README.md` becomes the page
`repository/examples/shop/README.md`, and a manifest beside it a file there. Pages of docs/ stay as GitHub shows them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).parents[1]
DOCS, OUTSIDE, HISTORY = "docs", "repository", "CHANGELOG.md"
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)\s#]+)")
"""The file of a relative link or image."""
WHOLE_LINK = re.compile(r"\[([^]]+)\]\(([^)\s#]+)(?:#[^)\s]*)?\)")
COMMENT = re.compile(r"^<!--.*?-->$", re.MULTILINE)
"""Marks of generated blocks: a table right below one would not be read as a table."""


def on_config(config: Any) -> Any:
    """Headings get the anchors that GitHub gives them."""
    config.mdx_configs["toc"] = {"slugify": lambda heading, _: slug(heading), "permalink": True}
    return config


def slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def on_files(files: Files, config: Any) -> Files:
    """Add the files that pages lead to, and those that these lead to."""
    to_read = [f"{DOCS}/{page.src_uri}" for page in files.documentation_pages()]
    to_read += [HISTORY, "CONTRIBUTING.md", "SECURITY.md"]
    known = {f"{DOCS}/{file.src_uri}" for file in files}
    while to_read:
        path = to_read.pop()
        if path not in known:
            known.add(path)
            added = File.generated(
                config, site_path(path), abs_src_path=str(ROOT / path), inclusion=InclusionLevel.NOT_IN_NAV
            )
            files.append(added)
        if path.endswith(".md"):
            to_read += [linked for linked in linked_files(path) if linked not in known]
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The page with its links to the places of the site."""
    source = repository_path(page.file.src_uri)
    if source == HISTORY:
        markdown = WHOLE_LINK.sub(_still_there, markdown)

    def place(found: re.Match[str]) -> str:
        target = resolved(source, found[1])
        return os.path.relpath(site_path(target), PurePosixPath(page.file.src_uri).parent) if target else found[1]

    return COMMENT.sub("", LINK.sub(place, markdown))


def _still_there(link: re.Match[str]) -> str:
    """A link of the changelog without its heading, which may have gone since; its words where the file has gone."""
    return f"[{link[1]}]({link[2]})" if resolved(HISTORY, link[2]) else link[1]


def linked_files(path: str) -> Iterator[str]:
    """Files of the repository that a page leads to."""
    for link in LINK.findall((ROOT / path).read_text(encoding="utf-8")):
        if target := resolved(path, link):
            yield target


def resolved(path: str, link: str) -> str:
    """The file that a link of a page leads to, from the root of the repository; empty where there is none."""
    target = os.path.normpath(PurePosixPath(path).parent / link)
    return target if (ROOT / target).is_file() else ""


def site_path(path: str) -> str:
    return path.removeprefix(f"{DOCS}/") if path.startswith(f"{DOCS}/") else f"{OUTSIDE}/{path}"


def repository_path(src_uri: str) -> str:
    return src_uri.removeprefix(f"{OUTSIDE}/") if src_uri.startswith(f"{OUTSIDE}/") else f"{DOCS}/{src_uri}"
