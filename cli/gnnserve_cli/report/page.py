"""Pages by jinja2: a value that is not `Markup` is escaped, and a name in a template without a value is an error."""

from __future__ import annotations

import base64
import hashlib
from importlib import resources

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from gnnserve_cli.report.words import ms, nodes, percent


def render_page(template: str, **values: object) -> str:
    """`values` have at least `title`, `under` and `headings`: the heading of each section by its name."""
    style = resources.files("gnnserve_cli.report").joinpath("style.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return _environment().get_template(template).render(style=Markup(style), style_digest=digest, **values)  # noqa: S704 - our own


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("gnnserve_cli.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"with_code": _with_code, "ms": ms, "nodes": nodes, "percent": percent}
    return environment


def _with_code(text: str) -> Markup:
    """Names of settings stand between backticks in the sentences."""
    parts = [escape(part) for part in text.split("`")]
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if index % 2 else part for index, part in enumerate(parts)
    )
