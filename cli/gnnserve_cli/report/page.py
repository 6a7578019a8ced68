"""A page that needs nothing else: no script, no font, no picture from anywhere.

Every figure is drawn twice, for wide and for narrow screens, and the style shows one: text in a drawing that was merely
made smaller could not be read on a phone. All text that is not this module's own goes through `escape`; a policy that
allows the page's own style alone would keep even what got past it from doing anything.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterable, Sequence
from html import escape
from importlib import resources

from gnnserve_cli.report.svg import Plot
from gnnserve_cli.report.tables import Cells

_WIDE, _NARROW = 760.0, 360.0
Draw = Callable[[float], Plot | None]


def build_frame(
    title: str, under: str, lead: str, sections: Sequence[tuple[str, str, str]], footer: str, more_style: str = ""
) -> str:
    """`lead`, `footer` and the last of each section (name, heading, content) are markup, the rest texts."""
    style = resources.files("gnnserve_cli.report").joinpath("style.css").read_text(encoding="utf-8") + more_style
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    links = "".join(f'<li><a href="#{name}">{escape(heading)}</a></li>' for name, heading, _ in sections)
    body = "".join(_section(name, heading, content) for name, heading, content in sections)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f"<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'sha256-{digest}'\">\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        f'<header><h1>{escape(title)}</h1><p class="under">{escape(under)}</p></header>\n'
        f'<nav aria-label="Contents"><ol>{links}</ol></nav>\n'
        f"<main>{lead}{body}</main>\n<footer><p>{footer}</p></footer>\n</body>\n</html>\n"
    )


def _section(name: str, heading: str, content: str) -> str:
    return (
        f'<section id="{name}" aria-labelledby="h-{name}"><h2 id="h-{name}">{escape(heading)}</h2>{content}</section>\n'
    )


def says(text: str, class_: str = "") -> str:
    attribute = f' class="{class_}"' if class_ else ""
    # Names of settings stand between backticks in the sentences.
    parts = escape(text).split("`")
    marked = "".join(f"<code>{part}</code>" if index % 2 else part for index, part in enumerate(parts))
    return f"<p{attribute}>{marked}</p>"


def figure(draw: Draw, caption: str = "", keys: str = "") -> str:
    wide, narrow = draw(_WIDE), draw(_NARROW)
    if wide is None or narrow is None:
        return ""
    told = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return f"<figure>{wide.render('wide')}{narrow.render('narrow')}{keys}{told}</figure>"


def keys(entries: Iterable[tuple[str, str]]) -> str:
    listed = "".join(f'<li><i class="{class_}"></i>{escape(text)}</li>' for class_, text in entries)
    return f'<ul class="keys">{listed}</ul>'


def table(cells: Cells | None) -> str:
    if cells is None:
        return ""
    head = "".join(f'<th scope="col">{escape(header)}</th>' for header in cells.headers)
    body = "".join(
        f'<tr><th scope="row">{escape(first)}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in rest)}</tr>'
        for first, *rest in cells.rows
    )
    return (
        f'<div class="scroll" tabindex="0" role="group" aria-label="{escape(cells.label)}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def details(summary: str, content: str) -> str:
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"


def facts(named: Iterable[tuple[str, str]]) -> str:
    listed = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in named)
    return f'<dl class="facts">{listed}</dl>'
