"""Example episodes in a report: what the policy read and wrote, and what the verifier said."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from polymath.rl.tracking.report import page
from polymath.rollout.types import OutcomeKind

_FROM_END, _FROM_START = 4, 2
"""How many episodes are shown of the last and of the first step that has some."""
_FAIR = 0.5
"""Rewards from here on are shown in green."""
_LONGEST = 4000
"""Characters of one message that are shown."""

_DETAILS = (
    ("step", "step {}"),
    ("level", "level {}"),
    ("effort", "{} effort"),
    ("turns", "{} turns"),
    ("tokens", "{} tokens"),
)

_ROLE = re.compile(r"<\|(system|user|assistant|tool)\|>")
_THOUGHT = re.compile(r"<\|think\|>(.*?)(?:<\|/think\|>|$)", re.DOTALL)
_CALL = re.compile(r"<\|call\|>(.*?)<\|args\|>(.*?)(?:<\|/call\|>|$)", re.DOTALL)
_MARK = re.compile(r"<\|[^|<>]*\|>")


def episodes_section(rows: Sequence[Mapping[str, Any]]) -> str:
    """A few episodes of the first and the last step that has some."""
    steps = sorted({row.get("step", 0) for row in rows})
    if not steps:
        return ""
    chosen = [row for row in rows if row.get("step", 0) == steps[-1]][:_FROM_END]
    if len(steps) > 1:
        chosen += [row for row in rows if row.get("step", 0) == steps[0]][:_FROM_START]
    note = "Exactly what the model saw and wrote, with what the verifier said. The last ones first."
    return page.section(
        "Example episodes", note, page.card("".join(_episode(row) for row in chosen))
    )


def messages(transcript: str) -> Iterator[tuple[str, str]]:
    """Role and text of each message of a transcript; text without roles comes as one ``text``."""
    parts = _ROLE.split(transcript)
    if parts[0].strip():
        yield "text", parts[0]
    yield from zip(parts[1::2], parts[2::2], strict=True)


def _episode(row: Mapping[str, Any]) -> str:
    details = " · ".join(form.format(row.get(name, "?")) for name, form in _DETAILS)
    transcript = str(row.get("transcript", ""))
    said = "".join(_said(role, _marked(role, text)) for role, text in messages(transcript))
    verdict = _verdict(row.get("verdict"))
    if verdict:
        said += _said("verdict", escape(_cut(verdict)))
    return (
        f"<details><summary>{escape(str(row.get('domain', '')))} {_ending(row)}"
        f'<span class="quiet">{escape(details)}</span></summary>{said}</details>'
    )


def _ending(row: Mapping[str, Any]) -> str:
    """Reward and, unless the episode was simply scored, its outcome."""
    reward, outcome, why = row.get("reward"), row.get("outcome"), row.get("why")
    html = ""
    if isinstance(reward, int | float):
        html = f'<span class="{"good" if reward >= _FAIR else "bad"}">reward {reward:.2f}</span>'
    if outcome != OutcomeKind.SCORED:
        text = f"{outcome}: {why}" if why else str(outcome)
        html += f' <span class="quiet">{escape(text.replace("_", " "))}</span>'
    return html


def _verdict(verdict: Any) -> str:
    """A verdict as indented JSON; it may come as JSON text."""
    if isinstance(verdict, str):
        try:
            verdict = json.loads(verdict)
        except ValueError:
            return str(verdict)
    return json.dumps(verdict, ensure_ascii=False, indent=1) if verdict else ""


def _said(who: str, html: str) -> str:
    return f'<div class="said"><span>{escape(who)}</span><pre>{html}</pre></div>'


def _marked(role: str, text: str) -> str:
    """A message as HTML: thoughts and calls set apart, other special tokens as thin separators."""
    text = _cut(text.replace("<|end|>", "").strip())
    if role == "tool":
        text = text.replace("<|sep|>", "\n", 1)
    html = []
    while match := min(
        (found for found in (_THOUGHT.search(text), _CALL.search(text)) if found),
        key=lambda found: found.start(),
        default=None,
    ):
        html.append(_plain(text[: match.start()]))
        if match.re is _THOUGHT:
            html.append(f'<span class="thought">{_plain(match[1])}</span>\n')
        else:
            html.append(f'<span class="call">{_plain(match[1])} {_plain(match[2])}</span>\n')
        text = text[match.end() :]
    return "".join(html) + _plain(text)


def _plain(text: str) -> str:
    return escape(_MARK.sub(lambda mark: f"\n[{mark[0][2:-2]}] ", text))


def _cut(text: str) -> str:
    return (
        text
        if len(text) <= _LONGEST
        else f"{text[:_LONGEST]} [{len(text) - _LONGEST} more characters]"
    )
