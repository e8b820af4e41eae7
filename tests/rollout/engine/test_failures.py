"""What cannot run is refused in one line that names it, before anything is started."""

import asyncio
import json
import struct

import pytest
import torch
from tests.rollout.engine.conftest import POLICY

from polymath.model import checkpoint
from polymath.model.hybrid import HybridForCausalLM
from polymath.rollout.engine.base import EngineError
from polymath.rollout.engine.failures import describe, last_line
from polymath.rollout.engine.vllm import VllmEngine
from polymath.rollout.schema import EngineConfig


@pytest.fixture
def folder(tmp_path):
    model = HybridForCausalLM(POLICY)
    model.init_weights()
    checkpoint.save(tmp_path / "policy", POLICY, model.state_dict())
    return tmp_path / "policy"


def start_failure(folder):
    engine = VllmEngine(EngineConfig(start_seconds=5.0), str(folder), "e9")
    with pytest.raises(EngineError) as caught:
        asyncio.run(engine.start())
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 400
    return message


def test_a_folder_that_is_not_there(tmp_path):
    assert "nowhere" in start_failure(tmp_path / "nowhere")


def test_an_unknown_architecture(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "mystery"}))
    assert "'mystery'" in start_failure(folder)


def test_no_weights(folder):
    (folder / "model.safetensors").unlink()
    assert "no .safetensors file" in start_failure(folder)


@pytest.mark.parametrize("kept", [0, 5, 100, 5000, -1])
def test_truncated_weights(folder, kept):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:kept])
    assert "model.safetensors" in start_failure(folder)


def test_a_header_that_is_no_header(folder):
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 1 << 60) + b"x" * 100)
    assert "not a safetensors file" in start_failure(folder)


def test_a_whole_folder_passes(folder):
    from polymath.rollout.engine.preflight import check_folder

    assert check_folder(str(folder)).vocab_size == POLICY.vocab_size


def test_an_engine_that_has_not_started_serves_nothing(folder):
    from polymath.rollout.engine.base import SamplingSpec

    engine = VllmEngine(EngineConfig(), str(folder), "e9")
    with pytest.raises(EngineError, match="e9 has not started"):
        asyncio.run(engine.generate("x", torch.arange(4).numpy(), SamplingSpec(4)))
    asyncio.run(engine.close())
    asyncio.run(engine.close())
    with pytest.raises(EngineError, match="e9 is closed"):
        asyncio.run(engine.generate("x", torch.arange(4).numpy(), SamplingSpec(4)))


LOG = """\
(EngineCore pid=12) INFO 11-30 18:01:02 [core.py:11] Initializing
(EngineCore pid=12) ERROR 11-30 18:01:02 [core.py:99] EngineCore failed to start.
(EngineCore pid=12) ERROR 11-30 18:01:02 [core.py:99] Traceback (most recent call last):
(EngineCore pid=12) ERROR 11-30 18:01:02 [core.py:99] ValueError: Available memory is 3 GiB
(EngineCore pid=12) INFO 11-30 18:01:03 [core.py:12] leaving now
RuntimeError: Engine core initialization failed. See root cause above.
"""


def test_the_root_cause_is_read_from_the_log(tmp_path):
    log = tmp_path / "e.log"
    log.write_text(LOG)
    cause = describe(RuntimeError("Engine core initialization failed. See above."), str(log))
    assert cause.startswith("ValueError: Available memory is 3 GiB")
    assert str(log) in cause


def test_without_a_log_the_error_speaks_for_itself(tmp_path):
    error = RuntimeError("one\n  two")
    assert describe(error, None) == "one two"
    assert describe(error, str(tmp_path / "absent.log")) == "one two"


def test_the_last_line_is_shown_without_its_prefix(tmp_path):
    log = tmp_path / "e.log"
    log.write_text("\n".join(LOG.splitlines()[:5]) + "\n\n")
    assert last_line(str(log)) == "leaving now"
    assert last_line(None) == "none"
