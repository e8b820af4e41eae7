"""The frame of a report: one self-contained HTML page without script or network, light and dark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from polymath.rl.tracking.sinks.jsonl import replace

_STYLE = """
:root { color-scheme: light dark;
  --page: #fbfbfa; --card: #ffffff; --ink: #1c1d20; --quiet: #6c6f76; --rule: #e7e7e4;
  --good: #12805c; --bad: #c0392b;
  --c1: #2f66c8; --c2: #d9822b; --c3: #1f9d7a; --c4: #a4529c; --c5: #8a8f98; --c6: #c2554a;
  --c7: #6d8f2f; }
@media (prefers-color-scheme: dark) { :root {
  --page: #131417; --card: #1b1d21; --ink: #e8e8e6; --quiet: #9a9da5; --rule: #2d3036;
  --good: #4cc38a; --bad: #f0776a;
  --c1: #7aa5f5; --c2: #f0a860; --c3: #58c9a5; --c4: #cf8bc8; --c5: #7f848d; --c6: #e58a80;
  --c7: #a8c96b; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.55 Inter, system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 1040px; margin: 0 auto; padding: 40px 24px 80px; }
h1 { font-size: 26px; line-height: 1.25; margin: 0 0 6px; letter-spacing: -.015em; }
h2 { font-size: 17px; margin: 44px 0 4px; letter-spacing: -.01em; }
h3 { font-size: 13px; font-weight: 600; margin: 0 0 4px; }
p { margin: 4px 0 12px; } .quiet, p.note { color: var(--quiet); }
p.note { font-size: 13.5px; max-width: 76ch; }
p.lead { font-size: 17px; max-width: 64ch; margin: 10px 0 22px; }
.good { color: var(--good); } .bad { color: var(--bad); }
.card { background: var(--card); border: 1px solid var(--rule); border-radius: 10px;
  padding: 14px 16px; margin: 12px 0; overflow-x: auto; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px;
  margin: 18px 0; }
.tiles .card { margin: 0; }
.tiles b { display: block; font-size: 21px; letter-spacing: -.02em; font-weight: 600;
  white-space: nowrap; }
.tiles span { color: var(--quiet); font-size: 12.5px; }
.grid2, .grid3 { display: grid; gap: 12px; }
.grid2 > .card, .grid3 > .card { margin: 0; min-width: 0; }
.grid2 { grid-template-columns: repeat(auto-fill, minmax(400px, 1fr)); }
.grid3 { grid-template-columns: repeat(auto-fill, minmax(290px, 1fr)); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 3px 18px; margin: 0;
  font-size: 13.5px; }
dl.pairs { grid-template-columns: max-content 1fr max-content 1fr; margin-bottom: 3px; }
dt { color: var(--quiet); min-width: 108px; } dd { margin: 0; }
table { border-collapse: collapse; width: 100%; font-size: 13.5px;
  font-variant-numeric: tabular-nums; }
th { text-align: right; color: var(--quiet); font-weight: 500; padding: 4px 10px;
  border-bottom: 1px solid var(--rule); white-space: nowrap; }
td { text-align: right; padding: 5px 10px; border-bottom: 1px solid var(--rule);
  white-space: nowrap; }
tr:last-child td { border-bottom: 0; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
tr.total td { font-weight: 600; } td small { color: var(--quiet); font-weight: 400; }
svg { display: block; width: 100%; height: auto; } svg.dumbbell { width: 180px; }
.grid { stroke: var(--rule); stroke-width: 1; } .tick { fill: var(--quiet); font-size: 11px; }
polyline { fill: none; stroke-linejoin: round; stroke-linecap: round; }
.line { stroke-width: 2; } .faint { stroke-width: 1; opacity: .4; }
.points { stroke-width: 1.25; stroke-dasharray: 2 4; }
.error { stroke-width: 1.5; } .band { opacity: .17; stroke: none; }
.mark { stroke: var(--card); stroke-width: 1.5; }
.touch { fill: transparent; }
.reach { stroke: var(--c1); stroke-width: 2; } .whisker { stroke-width: 6; opacity: .25; }
.whisker.old { stroke: var(--c5); } .whisker.new { stroke: var(--c1); }
circle.old { fill: var(--card); stroke: var(--c5); stroke-width: 2; }
circle.new { fill: var(--c1); }
.key { font-size: 12.5px; color: var(--quiet); margin: 2px 0 6px; display: flex; flex-wrap: wrap;
  gap: 2px 16px; }
.key i { display: inline-block; width: 10px; height: 10px; border-radius: 3px; margin-right: 6px; }
.share { display: block; height: 8px; border-radius: 3px; background: var(--c1);
  vertical-align: middle; min-width: 1px; }
details { border-top: 1px solid var(--rule); padding: 8px 0; }
details:first-child { border-top: 0; }
summary { cursor: pointer; font-size: 13.5px; } summary .quiet { margin-left: 8px; }
.said { margin: 8px 0; display: grid; grid-template-columns: 84px 1fr; gap: 12px; font-size: 13px;
  } .said > span { color: var(--quiet); }
pre { margin: 0; white-space: pre-wrap; overflow-wrap: anywhere;
  font: 12.5px/1.5 ui-monospace, "SF Mono", Menlo, "DejaVu Sans Mono", monospace; }
pre .thought { color: var(--quiet); font-style: italic; } pre .call { color: var(--c1); }
@media (max-width: 640px) { dl.pairs { grid-template-columns: max-content 1fr; }
main { padding: 24px 14px 60px; } .grid2, .grid3 { grid-template-columns: 1fr; }
.said { grid-template-columns: 1fr; gap: 0; } }
"""
_COLOURS = "".join(
    f".s{i} {{ stroke: var(--c{i}); }} .f{i} {{ fill: var(--c{i}); }}\n" for i in range(1, 8)
)


def write_page(path: Path, title: str, body: Iterable[str]) -> None:
    """Write the page whole or not at all. Raises ``TrackingError``."""
    html = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}{_COLOURS}</style></head>\n<body><main>\n"
        + "\n".join(part for part in body if part)
        + "\n</main></body></html>\n"
    )
    replace(path, html.encode("utf-8", "replace"))


def section(title: str, note: str, *parts: str) -> str:
    """A heading, one or two sentences on how to read it, and what there is to see; empty
    without parts.
    """
    content = "".join(parts)
    if not content:
        return ""
    return f'<section><h2>{escape(title)}</h2><p class="note">{escape(note)}</p>{content}</section>'


def card(content: str, title: str = "") -> str:
    """A framed piece of the page."""
    heading = f"<h3>{escape(title)}</h3>" if title else ""
    return f'<div class="card">{heading}{content}</div>'


def grid(columns: int, cards: Sequence[str]) -> str:
    """Cards side by side."""
    return f'<div class="grid{columns}">{"".join(cards)}</div>' if cards else ""


def tiles(pairs: Iterable[tuple[str, str]]) -> str:
    """Figures (HTML) with what they are."""
    cards = (
        f'<div class="card"><b>{value}</b><span>{escape(name)}</span></div>'
        for name, value in pairs
    )
    return f'<div class="tiles">{"".join(cards)}</div>'


def facts(pairs: Iterable[tuple[str, str]], two_columns: bool = False) -> str:
    """Names and values; those without a value are left out."""
    rows = (f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in pairs if value)
    return f"<dl{' class=pairs' if two_columns else ''}>{''.join(rows)}</dl>"


def key(names: Iterable[tuple[int, str]]) -> str:
    """The legend: colours and names."""
    items = (
        f'<span><i style="background:var(--c{c})"></i>{escape(name)}</span>' for c, name in names
    )
    return f'<div class="key">{"".join(items)}</div>'


def table(header: Sequence[str], rows: Iterable[Sequence[str]], total: bool = False) -> str:
    """A table; cells are HTML. With ``total`` the last row stands out."""
    body = [f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows]
    if total and body:
        body[-1] = body[-1].replace("<tr>", '<tr class="total">', 1)
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"
