"""Kimi Delta Attention: linear attention with a delta rule and a decay per channel.

Per head, with state S [Dk, Dv], key k (unit length), query q (unit length times Dk^-1/2), value v,
log-decay g (at most 0) and step size b in (0, 1):

    S_t = (I - b_t k_t k_t^T) Diag(exp g_t) S_{t-1} + b_t k_t v_t^T        o_t = S_t^T q_t

Source: Kimi Linear, arXiv 2510.26692, section 3; the lower bound on g is that of Kimi K3, arXiv
2607.24653.

Shapes: q, k, g [B, T, H, Dk]; v, o [B, T, H, Dv]; beta [B, T, H]; states [B, H, Dk, Dv].
States are float32 at least, whatever the inputs are; o has the dtype of v.
A token with ``beta = 0`` and ``g = 0`` leaves the state as it is: so are ragged batches padded.
"""

from polymath.kernels.kda.reference import kda_chunked, kda_recurrent, kda_step

__all__ = ["kda_chunked", "kda_recurrent", "kda_step"]
