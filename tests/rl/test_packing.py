"""Laws of packing: every loss token once, aligned, within limits, the same number on every rank."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polymath.rl.packing import (
    Budget,
    MicroBatch,
    PackingError,
    RowSize,
    collate,
    plan,
    sequence_tokens,
)
from polymath.rollout.types import Row

CHUNK = 4


def make_row(index, length, mask_bits):
    """A row whose tokens, log-probabilities and advantages all say where they come from."""
    places = np.arange(length)
    mask = np.array([bool(mask_bits >> i & 1) for i in range(length)])
    mask[:1] = False
    return Row(
        episode=f"e{index // 2}",
        group=f"g{index // 4}",
        tokens=(1000 * index + places).astype(np.int32),
        loss_mask=mask,
        logprobs=-(1000.0 * index + places).astype(np.float32),
        advantages=(1000.0 * index + places + 0.5).astype(np.float32),
        versions=np.zeros(length, np.int32),
    )


@st.composite
def batches(draw):
    shapes = draw(
        st.lists(st.tuples(st.integers(1, 40), st.integers(0, 2**40 - 1)), min_size=1, max_size=25)
    )
    rows = [make_row(i, length, bits) for i, (length, bits) in enumerate(shapes)]
    budget = Budget(draw(st.integers(1, 64)), draw(st.integers(40, 160)), CHUNK)
    return rows, budget, draw(st.integers(1, 4))


@settings(max_examples=200, deadline=None)
@given(batches())
def test_laws_of_a_plan(batch):
    rows, budget, ranks = batch
    sizes = [RowSize.of(row) for row in rows]
    plans = plan(sizes, ranks, budget)
    assert len(plans) == ranks
    assert len({len(own) for own in plans}) == 1
    longest = max(budget.padded(size.tokens) for size in sizes)
    placed = []
    for batch in (batch for own in plans for batch in own):
        assert batch.length % CHUNK == 0
        assert len(batch.lanes) * batch.length <= budget.microbatch
        for lane in batch.lanes:
            end = 0
            for placement in lane:
                assert placement.start % CHUNK == 0 and placement.start >= end
                end = placement.start + sizes[placement.row].tokens
                placed.append(placement.row)
            assert end <= batch.length <= max(budget.lane, longest)
    assert sorted(placed) == [i for i, size in enumerate(sizes) if size.loss_tokens]


@settings(max_examples=200, deadline=None)
@given(batches())
def test_every_loss_token_is_scored_once_from_the_token_before_it(batch):
    rows, budget, ranks = batch
    sizes = [RowSize.of(row) for row in rows]
    counts = sequence_tokens(sizes)
    scored = []
    for micro in (micro for own in plan(sizes, ranks, budget) for micro in own):
        arrays = collate(micro, dict(enumerate(rows)), counts, CHUNK)
        ids, documents = arrays.input_ids.reshape(-1), arrays.document_ids.reshape(-1)
        lane = arrays.positions // arrays.input_ids.shape[1]
        for position, target, own_lane in zip(arrays.positions, arrays.targets, lane, strict=True):
            # Tokens count up within a row, so the right predecessor is one less.
            assert ids[position] == target - 1
            assert ids[position + 1] == target
            assert documents[position] == documents[position + 1] > 0
            assert (position + 1) // arrays.input_ids.shape[1] == own_lane
        np.testing.assert_array_equal(arrays.behaviour, -arrays.targets.astype(np.float32))
        np.testing.assert_array_equal(arrays.advantages, arrays.targets.astype(np.float32) + 0.5)
        for target, count in zip(arrays.targets, arrays.sequence_tokens, strict=True):
            assert counts[rows[target // 1000].episode] == count
        scored += arrays.targets.tolist()
    expected = [int(t) for row in rows for t in row.tokens[row.loss_mask]]
    assert sorted(scored) == sorted(expected)


def test_segments_of_one_episode_count_as_one_sequence():
    rows = [make_row(0, 5, 0b11110), make_row(1, 4, 0b0100), make_row(2, 3, 0b000)]
    assert sequence_tokens([RowSize.of(row) for row in rows]) == {"e0": 5}


def test_an_empty_micro_batch_is_one_chunk_without_loss():
    arrays = collate(MicroBatch((), 0), {}, {}, CHUNK)
    assert arrays.input_ids.shape == (1, CHUNK)
    assert (arrays.document_ids == 1).all()
    assert len(arrays.positions) == len(arrays.targets) == len(arrays.advantages) == 0


def test_ranks_without_rows_get_empty_micro_batches():
    plans = plan([RowSize("e", "g", 5, 2)], 3, Budget(8, 16, CHUNK))
    assert [[len(batch.lanes) for batch in own] for own in plans] == [[1], [0], [0]]


def test_a_row_that_is_too_long_is_named():
    with pytest.raises(PackingError, match="episode long has 17 tokens .*tokens_per_microbatch=16"):
        plan([RowSize("short", "g", 3, 1), RowSize("long", "g", 17, 1)], 1, Budget(8, 16, CHUNK))


def test_packing_fills_lanes():
    sizes = [RowSize(f"e{i}", "g", length, 1) for i, length in enumerate([16, 12, 8, 8, 4])]
    ((batch,),) = plan(sizes, 1, Budget(16, 64, CHUNK))
    assert (len(batch.lanes), batch.length) == (3, 16)
