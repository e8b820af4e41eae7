"""Saved learner state: any number of readers, and nothing taken from a damaged folder."""

import json

import pytest
import torch

from polymath.rl.learner.base import StateError
from polymath.rl.learner.shards import MANIFEST, SavedState, Shard, write_manifest, write_shards

WHOLE = torch.arange(35.0).reshape(7, 5)
STEP = torch.tensor(3.0)


def write(folder, ranks):
    rows = -(-len(WHOLE) // ranks)
    files = []
    for rank in range(ranks):
        start = min(rows * rank, len(WHOLE))
        shards = [Shard("w", WHOLE[start : start + rows], (7, 5), start)]
        if rank == 0:
            shards.append(Shard("step", STEP, ()))
        files.append(write_shards(folder, rank, shards))
    write_manifest(folder, 12, files)


@pytest.mark.parametrize("writers", [1, 2, 3, 5])
@pytest.mark.parametrize("readers", [1, 2, 4])
def test_any_number_of_ranks_reads_what_any_other_wrote(tmp_path, writers, readers):
    write(tmp_path, writers)
    saved = SavedState(tmp_path)
    assert (saved.step, saved.ranks, saved.names) == (12, writers, {"w", "step"})
    rows = -(-len(WHOLE) // readers)
    parts = []
    for rank in range(readers):
        start = min(rows * rank, len(WHOLE))
        part = torch.full((min(rows, len(WHOLE) - start), 5), -1.0)
        saved.read("w", part, start)
        parts.append(part)
    assert torch.equal(torch.cat(parts), WHOLE)
    step = torch.tensor(0.0)
    saved.read("step", step)
    assert step == STEP


def test_a_truncated_file_is_named(tmp_path):
    write(tmp_path, 2)
    file = tmp_path / "rank-00001.safetensors"
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(StateError, match="rank-00001.safetensors is damaged: .* bytes"):
        SavedState(tmp_path)


def test_one_flipped_bit_is_noticed(tmp_path):
    write(tmp_path, 2)
    file = tmp_path / "rank-00000.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(StateError, match="rank-00000.safetensors is damaged: its checksum"):
        SavedState(tmp_path)


def test_a_missing_file_is_named(tmp_path):
    write(tmp_path, 2)
    (tmp_path / "rank-00001.safetensors").unlink()
    with pytest.raises(StateError, match="rank-00001.safetensors cannot be read"):
        SavedState(tmp_path)


def test_without_its_manifest_a_folder_holds_nothing(tmp_path):
    write(tmp_path, 2)
    (tmp_path / MANIFEST).unlink()
    with pytest.raises(StateError, match=f"{MANIFEST} cannot be read"):
        SavedState(tmp_path)


def test_half_a_manifest_is_no_manifest(tmp_path):
    write(tmp_path, 1)
    manifest = tmp_path / MANIFEST
    manifest.write_text(manifest.read_text()[:-10])
    with pytest.raises(StateError, match=f"{MANIFEST} cannot be read"):
        SavedState(tmp_path)


def test_another_format_is_refused(tmp_path):
    write(tmp_path, 1)
    manifest = tmp_path / MANIFEST
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "format": 2}))
    with pytest.raises(StateError, match="has format 2"):
        SavedState(tmp_path)


def test_what_does_not_fit_is_named(tmp_path):
    write(tmp_path, 1)
    saved = SavedState(tmp_path)
    with pytest.raises(StateError, match="no tensor v"):
        saved.require("v", (7, 5))
    with pytest.raises(StateError, match=r"w has shape \[7, 5\], expected \[5, 7\]"):
        saved.require("w", (5, 7))
