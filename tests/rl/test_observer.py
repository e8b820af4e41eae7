import asyncio

import pytest

from polymath.rl import observer


def test_what_is_only_shown_is_left_out_when_it_fails_or_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(observer, "_ANSWER_SECONDS", 0.05)

    async def answer(kind: str) -> str:
        if kind == "fails":
            raise RuntimeError(kind)
        if kind == "hangs":
            await asyncio.Event().wait()
        return kind

    async def ask() -> list[str | None]:
        return await observer._answers(answer(kind) for kind in ("fails", "well", "hangs"))

    assert asyncio.run(ask()) == [None, "well", None]
