"""The pages for people: `/`, which shows what the worker does now, and `/explore`, which shows nodes.

Each is one file without other resources, so it works without any network but the connection to the worker. It reads the
worker's own endpoints, and shows nothing that they do not.
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


def build_page(service: str, name: str = "page.html") -> Page:
    """`name`: of the file beside this one."""
    text = importlib.resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
    script, style = (_content_of(tag, text) for tag in ("script", "style"))
    # Scripts and styles are allowed by digest: injected markup would not run.
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    headers = {
        "content-security-policy": policy,
        "cache-control": "no-cache",  # after an upgrade no browser shows the old version's page
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
    }
    return Page(text.replace(_SERVICE, html.escape(service)).encode(), headers)


def _content_of(tag: str, text: str) -> str:
    """Content of the only such element: a second one would have no digest, and not run."""
    (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
    return str(content)


def _digest(content: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}"
