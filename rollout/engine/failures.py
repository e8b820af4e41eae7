"""One line out of a failure of vLLM, whose own error often only says that another process failed."""

from __future__ import annotations

import re
from pathlib import Path

_TAIL_BYTES = 200_000
# "(EngineCore pid=12) ERROR 11-30 18:01:02 [core.py:1] ValueError: what went wrong"
_ERROR = re.compile(r"(?:^|[\]\s])((?:\w+\.)*\w*(?:Error|Exception|Interrupt)): (.+)$")
_CALL = "Call to collective_rpc method failed: "
_SEE_ELSEWHERE = "Engine core initialization failed"
_PREFIX = re.compile(r"^\(\w+ pid=\d+\)\s*(?:[A-Z]+ [\d-]+ [\d:]+ \[[^\]]*\]\s*)?")


def describe(error: BaseException, log_file: str | None) -> str:
    """What went wrong, in one line: the root cause from the log if vLLM only points there."""
    message = " ".join(str(error).split()).removeprefix(_CALL) or type(error).__name__
    if log_file is not None:
        for line in reversed(_tail(log_file)):
            match = _ERROR.search(line)
            if match and _SEE_ELSEWHERE not in line and "EngineDeadError" not in line:
                return f"{match[1]}: {match[2]} (log: {log_file})"
    return message


def last_line(log_file: str | None) -> str:
    """The last line that vLLM wrote, without its prefix."""
    lines = [line for line in _tail(log_file) if line.strip()] if log_file else []
    return _PREFIX.sub("", lines[-1]).strip() if lines else "none"


def _tail(log_file: str) -> list[str]:
    try:
        with Path(log_file).open("rb") as stream:
            stream.seek(0, 2)
            stream.seek(max(0, stream.tell() - _TAIL_BYTES))
            return stream.read().decode(errors="replace").splitlines()
    except OSError:
        return []
