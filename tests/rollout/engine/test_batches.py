"""A step is cut into rectangles that hold each token once."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from polymath.model.vllm.batches import cut

STEPS = st.lists(
    st.tuples(st.integers(0, 70), st.integers(0, 500)), min_size=1, max_size=20
).filter(lambda requests: any(size for size, _ in requests))


def starts_of(requests):
    starts = [0]
    for size, _ in requests:
        starts.append(starts[-1] + size)
    return starts


@given(STEPS)
def test_each_token_is_computed_once_and_padding_is_less_than_half(requests):
    starts = starts_of(requests)
    totals = [size + context for size, context in requests]
    seen = []
    for batch in cut(starts, totals, torch.device("cpu")):
        used = batch.used()
        tokens = batch.tokens if used is None else batch.tokens[used]
        seen += tokens.flatten().tolist()
        assert batch.tokens.numel() < 2 * tokens.numel() or batch.width == 1
        for row, request in enumerate(batch.requests.tolist()):
            size, context = requests[request]
            length = batch.width if batch.lengths is None else int(batch.lengths[row])
            assert (length, int(batch.context[row])) == (size, context)
            own = range(starts[request], starts[request + 1])
            assert batch.tokens[row].tolist()[:size] == list(own)
            assert batch.longest >= totals[request]
    assert sorted(seen) == list(range(starts[-1]))


@given(STEPS)
def test_single_tokens_are_one_batch_of_their_own(requests):
    totals = [size + context for size, context in requests]
    batches = cut(starts_of(requests), totals, torch.device("cpu"))
    singles = [batch for batch in batches if batch.width == 1]
    assert sum(len(batch.requests) for batch in singles) == sum(size == 1 for size, _ in requests)
    assert len(singles) <= 1


@given(STEPS)
def test_scatter_writes_back_what_gather_read(requests):
    starts = starts_of(requests)
    totals = [size + context for size, context in requests]
    x = torch.arange(2.0 * starts[-1]).view(-1, 2)
    out = torch.full_like(x, -1.0)
    for batch in cut(starts, totals, torch.device("cpu")):
        batch.scatter(out, batch.gather(x))
    assert torch.equal(out, x)
