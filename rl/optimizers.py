"""Optimizers and schedules, for parameters that may be sharded over ranks.

Muon (https://kellerjordan.github.io/posts/muon/, arXiv 2502.16982) takes the hidden matrices: its
update is the momentum with all singular values pushed towards one. AdamW takes the rest:
embeddings, routers, convolutions, vectors. ``torch.optim.Muon`` is not used because it takes
neither stacked experts nor sharded matrices, and computes in bfloat16, which is slow without
hardware for it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from polymath.errors import UserError

Named = Iterable[tuple[str, torch.nn.Parameter]]

NOT_HIDDEN = re.compile(r"embed|lm_head|conv|(^|\.)gate\.weight|A_log|dt_bias|norm|bias")
"""Parameters of two or more dimensions that are no hidden matrices: tables, routers, filters."""

_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
_NEWTON_SCHULZ_STEPS = 5


@dataclass(frozen=True, slots=True)
class OptimizerSpec:
    """``kind`` is ``adamw`` or ``muon``; see ``LearnerConfig`` for the meaning of the others."""

    kind: str
    learning_rate: float
    muon_learning_rate: float
    weight_decay: float
    betas: tuple[float, float]
    epsilon: float
    momentum: float


@dataclass(frozen=True, slots=True)
class Schedule:
    """Linear warm-up, then ``constant``, or ``linear`` or ``cosine`` decay from ``decay_start_steps`` (at
    the earliest after the warm-up) until ``horizon_steps``.

    Raises ``UserError`` for a decay without a horizon and for an unknown kind.
    """

    kind: str
    warmup_steps: int
    horizon_steps: int
    final_fraction: float
    decay_start_steps: int = 0

    def __post_init__(self) -> None:
        if self.kind not in ("constant", "linear", "cosine"):
            raise UserError(
                f"learner.schedule={self.kind} is not known; it can be constant, linear, cosine"
            )
        start = max(self.warmup_steps, self.decay_start_steps)
        if self.kind != "constant" and self.horizon_steps <= start:
            raise UserError(
                f"learner.schedule={self.kind} needs learner.horizon_steps above learner.warmup_steps "
                f"and learner.decay_start_steps ({start}); it is {self.horizon_steps}"
            )

    def scale(self, step: int) -> float:
        """What the peak rate is multiplied by in the step after ``step`` steps were made."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        if self.kind == "constant":
            return 1.0
        start = max(self.warmup_steps, self.decay_start_steps)
        done = min(1.0, max(0.0, (step - start) / (self.horizon_steps - start)))
        left = 1 - done if self.kind == "linear" else 0.5 * (1 + math.cos(math.pi * done))
        return self.final_fraction + (1 - self.final_fraction) * left


class Muon(torch.optim.Optimizer):
    """Muon with Nesterov momentum over the last two dimensions, so that every expert of a stack is
    a matrix of its own. A sharded momentum is gathered, and every rank keeps its part of the
    update.
    """

    def __init__(
        self, params: Iterable[Any], lr: float, momentum: float, weight_decay: float
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update of every parameter that has a gradient."""
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    self._update(param, group)

    def _update(self, param: Tensor, group: dict[str, Any]) -> None:
        state = self.state[param]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(param)
        buffer: Tensor = state["momentum_buffer"]
        buffer.lerp_(param.grad, 1 - group["momentum"])  # type: ignore[arg-type]
        direction = orthogonalise(_whole(param.grad.lerp(buffer, group["momentum"])))  # type: ignore[union-attr]
        direction *= math.sqrt(max(1.0, param.shape[-2] / param.shape[-1]))
        param.mul_(1 - group["lr"] * group["weight_decay"])
        _local(param).add_(_own_part(direction, param), alpha=-group["lr"])


def orthogonalise(matrix: Tensor) -> Tensor:
    """Singular values of [..., m, n] pushed to about one by five Newton-Schulz steps."""
    a, b, c = _NEWTON_SCHULZ
    wide = matrix.mT if matrix.shape[-2] > matrix.shape[-1] else matrix
    x: Tensor = wide / wide.norm(dim=(-2, -1), keepdim=True).clamp_min(1e-7)
    for _ in range(_NEWTON_SCHULZ_STEPS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if matrix.shape[-2] > matrix.shape[-1] else x


def _whole(tensor: Tensor) -> Tensor:
    whole: Tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return whole


def _local(tensor: Tensor) -> Tensor:
    local: Tensor = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local


def _own_part(whole: Tensor, like: Tensor) -> Tensor:
    """The rows of a full tensor that this rank's shard of ``like`` holds (sharded along rows)."""
    if not isinstance(like, DTensor):
        return whole
    mesh = like.device_mesh
    parts = whole.chunk(mesh.size(), dim=0)
    rank = mesh.get_local_rank()
    return parts[rank] if rank < len(parts) else whole[:0]


class Optimizers:
    """AdamW, and Muon if asked for, as one; ``step`` numbers how many updates were made."""

    def __init__(self, named: Named, spec: OptimizerSpec, schedule: Schedule) -> None:
        self._schedule = schedule
        self._names: dict[Tensor, str] = {}
        hidden, tables, vectors = [], [], []
        for name, param in named:
            if not param.requires_grad:
                continue
            self._names[param] = name
            if param.ndim >= 2 and not NOT_HIDDEN.search(name):
                hidden.append(param)
            elif param.ndim >= 2:
                tables.append(param)
            else:
                vectors.append(param)
        decay = spec.weight_decay
        rest = [{"params": tables, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}]
        self._parts: list[tuple[torch.optim.Optimizer, float]] = []
        match spec.kind:
            case "adamw":
                rest.insert(0, {"params": hidden, "weight_decay": decay})
            case "muon":
                muon = Muon(hidden, spec.muon_learning_rate, spec.momentum, decay)
                self._parts.append((muon, spec.muon_learning_rate))
            case _:
                raise UserError(
                    f"learner.optimizer={spec.kind} is not known; it can be adamw, muon"
                )
        adamw = torch.optim.AdamW(
            [group for group in rest if group["params"]],
            lr=spec.learning_rate,
            betas=spec.betas,
            eps=spec.epsilon,
            foreach=False,
        )
        self._parts.append((adamw, spec.learning_rate))
        self.steps = 0

    @property
    def learning_rate(self) -> float:
        """The rate of the next step: Muon's if it is there, else AdamW's."""
        return self._parts[0][1] * self._schedule.scale(self.steps)

    def step(self) -> None:
        """Move every parameter once, at the rate that the schedule gives."""
        scale = self._schedule.scale(self.steps)
        for optimizer, peak in self._parts:
            for group in optimizer.param_groups:
                group["lr"] = peak * scale
            optimizer.step()
        self.steps += 1

    def zero_grad(self) -> None:
        """Let go of all gradients."""
        for optimizer, _ in self._parts:
            optimizer.zero_grad(set_to_none=True)

    def state(self) -> Iterator[tuple[str, Tensor]]:
        """Named state tensors, ``<parameter>:<moment>``, in a stable order; they are live."""
        for optimizer, _ in self._parts:
            for group in optimizer.param_groups:
                for param in group["params"]:
                    for key, value in sorted(optimizer.state[param].items()):
                        yield f"{self._names[param]}:{key}", value

    def prepare_state(self) -> None:
        """Make the state tensors exist, as zeros, without moving a parameter (before a load)."""
        for optimizer, _ in self._parts:
            for group in optimizer.param_groups:
                for param in group["params"]:
                    _empty_state(optimizer, param)


def _empty_state(optimizer: torch.optim.Optimizer, param: Tensor) -> None:
    names = ("momentum_buffer",) if isinstance(optimizer, Muon) else ("exp_avg", "exp_avg_sq")
    state = optimizer.state[param]
    for name in names:
        state.setdefault(name, torch.zeros_like(param))
    if not isinstance(optimizer, Muon):
        state.setdefault("step", torch.tensor(0.0))
