"""The page at `/`: what the worker does now, for people.

One file without any other resource: it works where there is no network but the way to the worker. It asks the
worker's own endpoints, so it shows nothing that they do not tell.
"""

from __future__ import annotations

import base64
import hashlib
import html
import importlib.resources
import re
from dataclasses import dataclass

_SERVICE = "{{service}}"


@dataclass(frozen=True, slots=True)
class Page:
    body: bytes
    headers: dict[str, str]


def build_page(service: str) -> Page:
    text = importlib.resources.files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    script, style = (_content_of(tag, text) for tag in ("script", "style"))
    # By their digests: a name that found its way into the page as markup would still not run.
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    headers = {
        "content-security-policy": policy,
        "cache-control": "no-cache",  # after an upgrade nobody looks at the page of the old version
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
    }
    return Page(text.replace(_SERVICE, html.escape(service)).encode(), headers)


def _content_of(tag: str, text: str) -> str:
    """Of the only one: a second would be without a digest, and not run."""
    (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
    return str(content)


def _digest(content: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}"
