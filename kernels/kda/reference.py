"""KDA in plain torch: the recurrence itself, one step of it, and the chunked form for training."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def kda_recurrent(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor | None = None,
    resets: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The definition, token by token. Slow, and the truth for all other forms.

    Args:
        resets: [B, T] bool, True where the state is zeroed before the token.

    Returns:
        o [B, T, H, Dv] and the state after the last token [B, H, Dk, Dv].
    """
    state = _initial_state(q, k, v, initial_state)
    outputs = []
    for t in range(q.shape[1]):
        if resets is not None:
            state = state.masked_fill(resets[:, t, None, None, None], 0.0)
        o, state = kda_step(q[:, t], k[:, t], v[:, t], g[:, t], beta[:, t], state)
        outputs.append(o)
    return torch.stack(outputs, 1), state


def kda_step(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """One token of each of B sequences: q, k, g [B, H, Dk], v [B, H, Dv], beta [B, H].

    Returns:
        o [B, H, Dv] and the new state; the old one is not changed.
    """
    dtype = state.dtype
    q, k, x, g, beta = (tensor.to(dtype) for tensor in (q, k, v, g, beta))
    state = state * g.exp().unsqueeze(-1)
    recalled = (k.unsqueeze(-2) @ state).squeeze(-2)
    update = beta.unsqueeze(-1) * (x - recalled)
    state = state + k.unsqueeze(-1) * update.unsqueeze(-2)
    return (q.unsqueeze(-2) @ state).squeeze(-2).to(v.dtype), state


def kda_chunked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor | None = None,
    resets: Tensor | None = None,
    chunk_size: int = 16,
) -> tuple[Tensor, Tensor]:
    """The same function in chunks of C tokens: dense products inside, one per chunk between them.

    Decay inside a chunk is measured from its middle, so that exp() meets half of it at most:
    ``chunk_size / 2 * max(-g)`` must stay below about 80 in float32.

    Args:
        resets: [B, ceil(T / C)] bool, True where the state is zeroed before the chunk.

    Returns:
        o [B, T, H, Dv] and the state after the last token [B, H, Dk, Dv].
    """
    state = _initial_state(q, k, v, initial_state)
    length, value_dim, out_dtype = q.shape[1], v.shape[-1], v.dtype
    q, k, v, g = (_chunks(tensor.to(state.dtype), chunk_size) for tensor in (q, k, v, g))
    b = _chunks(beta.to(state.dtype).unsqueeze(-1), chunk_size)

    total = g.cumsum(-2)
    last = total[..., -1:, :]
    middle = total[..., chunk_size // 2 - 1 : chunk_size // 2, :]
    rise, fall = (total - middle).exp(), (middle - total).exp()
    decay = total.exp()
    faded = k * fall
    bk = b * k
    # Row t of A: how much of each earlier update token t reads back, times its step size.
    read_back = torch.tril((bk * rise) @ faded.transpose(-1, -2), -1)
    scores = torch.tril((q * rise) @ faded.transpose(-1, -2))
    # (I + A)^-1 turns wanted values into updates; `unitriangular` supplies the identity.
    solved = torch.linalg.solve_triangular(
        read_back, torch.cat([b * v, bk * decay], -1), upper=False, unitriangular=True
    )
    values, keys = solved.split([value_dim, q.shape[-1]], -1)
    carried = (k * (last - total).exp()).transpose(-1, -2)
    # Across a chunk the state is S' = M S + N.
    matrix = torch.diag_embed(last.exp().squeeze(-2)) - carried @ keys
    offset = carried @ values
    states, final = _scan(matrix, offset, state, resets)
    # What the chunk adds, given the state it starts from.
    updates = values - keys @ states
    o = (q * decay) @ states + scores @ updates
    batch, heads, count = o.shape[:3]
    o = o.permute(0, 2, 3, 1, 4).reshape(batch, count * chunk_size, heads, value_dim)
    return o[:, :length].to(out_dtype), final


def _initial_state(q: Tensor, k: Tensor, v: Tensor, given: Tensor | None) -> Tensor:
    dtype = torch.promote_types(v.dtype, torch.float32)
    if given is not None:
        return given.to(dtype)
    return torch.zeros(
        q.shape[0], q.shape[2], k.shape[-1], v.shape[-1], dtype=dtype, device=v.device
    )


def _chunks(x: Tensor, size: int) -> Tensor:
    """[B, T, H, D] to [B, H, N, C, D], padded with zeros, which leave the state alone."""
    batch, length, heads, width = x.shape
    if length % size:
        x = F.pad(x, (0, 0, 0, 0, 0, -length % size))
    return x.reshape(batch, -1, size, heads, width).permute(0, 3, 1, 2, 4).contiguous()


def _scan(
    matrix: Tensor, offset: Tensor, initial: Tensor, resets: Tensor | None
) -> tuple[Tensor, Tensor]:
    """States before each chunk [B, H, N, Dk, Dv], and after the last one."""
    if resets is not None:
        keep = ~resets
        initial = initial * keep[:, 0, None, None, None]
        # A reset before chunk n + 1 wipes out what chunk n leaves behind.
        keep = F.pad(keep[:, 1:], (0, 1), value=True).to(matrix.dtype)[:, None, :, None, None]
        matrix, offset = matrix * keep, offset * keep
    states, final = _Scan.apply(matrix, offset, initial)  # type: ignore[no-untyped-call]
    return states, final


class _Scan(torch.autograd.Function):
    """S_{n+1} = M_n S_n + N_n over n; by hand, because autograd would pay for each small slice."""

    @staticmethod
    def forward(ctx, matrix: Tensor, offset: Tensor, initial: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[no-untyped-def]
        m, n = _chunks_first(matrix), _chunks_first(offset)
        states = n.new_empty(n.shape[0] + 1, *n.shape[1:])
        states[0] = initial.reshape(states.shape[1:])
        for i in range(n.shape[0]):
            torch.baddbmm(n[i], m[i], states[i], out=states[i + 1])
        ctx.save_for_backward(m, states)
        return _chunks_third(states[:-1], matrix), states[-1].reshape(initial.shape)

    @staticmethod
    def backward(ctx, grad: Tensor, grad_final: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # type: ignore[no-untyped-def]
        m, states = ctx.saved_tensors
        total = torch.empty_like(states)
        total[:-1] = _chunks_first(grad)
        total[-1] = grad_final.reshape(states.shape[1:])
        for i in range(m.shape[0] - 1, -1, -1):
            total[i].baddbmm_(m[i].transpose(-1, -2), total[i + 1])
        d_matrix = total[1:] @ states[:-1].transpose(-1, -2)
        return (
            _chunks_third(d_matrix, grad),
            _chunks_third(total[1:], grad),
            total[0].reshape(grad_final.shape),
        )


def _chunks_first(x: Tensor) -> Tensor:
    """[B, H, N, ...] to [N, B H, ...]: each step of the scan then works on one contiguous block."""
    return x.movedim(2, 0).flatten(1, 2)


def _chunks_third(x: Tensor, like: Tensor) -> Tensor:
    """[N, B H, ...] to [B, H, N, ...]."""
    return x.view(-1, *like.shape[:2], *x.shape[2:]).movedim(0, 2)
