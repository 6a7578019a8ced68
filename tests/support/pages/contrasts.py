"""Contrast of every text that a page shows, against what lies behind it, as WCAG 2 counts it."""

from __future__ import annotations

CONTRASTS = """(() => {
  const parse = (color) => color.match(/[\\d.]+/g).map(Number);
  const light = (color) => parse(color).slice(0, 3).map((part) => part / 255)
    .map((part) => part <= .03928 ? part / 12.92 : ((part + .055) / 1.055) ** 2.4)
    .reduce((sum, part, index) => sum + part * [.2126, .7152, .0722][index], 0);
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const color = getComputedStyle(at).backgroundColor;
      if (color !== "rgba(0, 0, 0, 0)") return color;
    }
    return "rgb(255, 255, 255)";
  };
  const found = [];
  for (const element of document.querySelectorAll("h1, h2, p, a, dt, dd, li, th, td, label, footer, text")) {
    if (!element.textContent.trim() || !element.getClientRects().length) continue;
    const style = getComputedStyle(element);
    const [one, other] = [light(element instanceof SVGElement ? style.fill : style.color), light(behind(element))];
    const ratio = (Math.max(one, other) + .05) / (Math.min(one, other) + .05);
    found.push({text: element.textContent.slice(0, 30), ratio});
  }
  return found;
})()"""
