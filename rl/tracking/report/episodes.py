"""Example episodes in a report: what the policy read and wrote, and what the verifier said."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from polymath.rl.tracking.report import page

_FROM_END, _FROM_START = 4, 2
"""How many episodes are shown of the last and of the first step that has some."""
_LONGEST = 4000
"""Characters of one message that are shown."""

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
    return page.section("Example episodes", note, page.card("".join(_episode(row) for row in chosen)))


def messages(transcript: str) -> Iterator[tuple[str, str]]:
    """Role and text of each message of a transcript; text without roles comes as one ``text``."""
    parts = _ROLE.split(transcript)
    if parts[0].strip():
        yield "text", parts[0]
    yield from zip(parts[1::2], parts[2::2], strict=True)


def _episode(row: Mapping[str, Any]) -> str:
    reward = row.get("reward")
    outcome = str(row.get("outcome", ""))
    ending = f"reward {reward:.2f}" if isinstance(reward, int | float) else f"{outcome}: {row.get('why', '')}"
    kind = "quiet" if not isinstance(reward, int | float) else "good" if reward >= 0.5 else "bad"
    details = f"step {row.get('step')} · level {row.get('level')} · {row.get('turns')} turns · {row.get('tokens')} tokens"
    said = "".join(_said(role, _marked(role, text)) for role, text in messages(str(row.get("transcript", ""))))
    verdict = row.get("verdict")
    if verdict:
        text = verdict if isinstance(verdict, str) else json.dumps(verdict, ensure_ascii=False, indent=1)
        said += _said("verdict", escape(_cut(text)))
    return (
        f"<details><summary>{escape(str(row.get('domain', '')))} "
        f'<span class="{kind}">{escape(ending)}</span><span class="quiet">{escape(details)}</span></summary>'
        f"{said}</details>"
    )


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
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} [{len(text) - _LONGEST} more characters]"
