"""Sparse attention over a latent: an indexer picks tokens, attention sees only those.

    I[t, s] = sum_j w[t, j] ReLU(q_index[t, j] . k_index[s])         index scores
    S_t     = the top-k visible s by I[t, s]; of equal scores the most recent comes first
    o_t     = sum over s in S_t of softmax(scale q_t . k_s) v_s

The indexer learns from its own loss alone, KL(p_t || softmax I[t, .]), where p_t is the attention
summed over heads and normalised to sum to one, without gradient. In the dense stage the sum is over
all visible tokens, in the sparse stage over S_t.

Source: DeepSeek-V3.2, section 2.1 (arXiv 2512.02556). The latent form is that of multi-head latent
attention, DeepSeek-V2 (arXiv 2405.04434), section 2.1.

Shapes: queries [B, T, H, D], keys and values [B, S, H, D], latent [B, S, R]; index queries
[B, T, J, Di], index keys [B, S, Di], index weights [B, T, J]; masks and index scores [B, T, S].
"""

from polymath.kernels.sparse_attention.reference import (
    attention,
    index_scores,
    indexer_kl,
    latent_attention,
    select,
)

__all__ = ["attention", "index_scores", "indexer_kl", "latent_attention", "select"]
