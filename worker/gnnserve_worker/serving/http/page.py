"""The pages for people: `/`, which shows what the worker does now, `/explore`, which shows nodes, and `/docs`.

They work without any network but the connection to the worker, and read the worker's own endpoints. The first two are
one file each, without other resources, and show nothing that the endpoints do not.
"""

from __future__ import annotations

import base64
import hashlib
import html
import importlib.resources
import re
from collections.abc import Mapping
from dataclasses import dataclass

from gnnserve_worker.serving.http.replies import Reply

_SERVICE = "{{service}}"
_HEADERS = {
    "cache-control": "no-cache",  # after an upgrade no browser shows the old version's page
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


@dataclass(frozen=True, slots=True)
class Page:
    body: bytes
    headers: Mapping[str, str]

    @property
    def reply(self) -> Reply:
        lines = {"content-type": "text/html; charset=utf-8", **self.headers}
        return Reply(200, "".join(f"{name}: {value}\r\n" for name, value in lines.items()).encode(), self.body)


def build_page(service: str, name: str = "page.html") -> Page:
    """`name`: of the file beside this one."""
    text = _read(name)
    script, style = (_content_of(tag, text) for tag in ("script", "style"))
    # Scripts and styles are allowed by digest: injected markup would not run.
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return Page(_named(text, service), {"content-security-policy": policy, **_HEADERS})


def build_docs(service: str) -> Page:
    """The page `/docs`, whose script and style are those of swagger-ui, in files of their own."""
    return Page(_named(_read("docs.html"), service), _HEADERS)


def _read(name: str) -> str:
    return importlib.resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _named(text: str, service: str) -> bytes:
    return text.replace(_SERVICE, html.escape(service)).encode()


def _content_of(tag: str, text: str) -> str:
    """Content of the only such element: a second one would have no digest, and not run."""
    (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
    return str(content)


def _digest(content: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}"
