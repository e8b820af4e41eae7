"""The policy as the learner uses it: tokens in, log-probabilities of the loss tokens out.

Kept in one module so that a sharding wrapper sees a single forward pass, logits included.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

LOGITS_AT_ONCE = 1 << 24
"""Elements of the logits that exist at a time; beyond, they are made in pieces and made again in
the backward pass.
"""


class Scorer(nn.Module):
    """Wraps a causal model: ``model(input_ids, document_ids)`` has ``hidden`` [B, T, d] and ``aux``
    (named ``sum`` and ``count``), ``model.logits(hidden)`` the logits.
    """

    def __init__(self, model: nn.Module, vocab_size: int) -> None:
        super().__init__()
        self.model = model
        self._piece = max(1, LOGITS_AT_ONCE // vocab_size)

    def forward(
        self,
        input_ids: Tensor,
        document_ids: Tensor,
        positions: Tensor,
        targets: Tensor,
        temperature: float,
        entropy_gradient: bool = False,
    ) -> tuple[Tensor, Tensor, dict[str, tuple[Tensor, Tensor]]]:
        """Log-probabilities [N] of ``targets`` [N] at ``temperature``, entropies [N], and ``aux``
        as pairs.

        ``positions`` [N] index the flattened [B * T] lanes: the token before each target.
        """
        output = self.model(input_ids, document_ids)
        hidden = output.hidden.flatten(0, 1)[positions]
        scored = []
        pieces = list(
            zip(torch.split(hidden, self._piece), torch.split(targets, self._piece), strict=True)
        )
        for piece in pieces:
            arguments = (*piece, temperature, entropy_gradient)
            if len(pieces) == 1:
                scored.append(self._score(*arguments))
            else:
                scored.append(checkpoint(self._score, *arguments, use_reentrant=False))
        logprobs, entropy = (torch.cat(part) for part in zip(*scored, strict=True))
        aux = {name: (total.sum, total.count) for name, total in output.aux.items()}
        return logprobs, entropy, aux

    def _score(
        self, hidden: Tensor, targets: Tensor, temperature: float, entropy_gradient: bool
    ) -> tuple[Tensor, Tensor]:
        logits = self.model.logits(hidden)  # type: ignore[operator]
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature
        logprobs = logits.log_softmax(-1)
        with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
            entropy = -(logprobs.exp() * logprobs).sum(-1)
        return logprobs.gather(-1, targets[:, None])[:, 0], entropy
