"""One rank of the FSDP2 learner; Ray makes an actor of it, tests may call it as it is.

Every rank holds a shard of the model and sees its own micro-batches. Losses are sums over global
denominators, so gradients are summed over ranks and never averaged. Before the optimizer moves, all
ranks agree that inputs, losses and gradients are finite; if not, all raise the same error and
nothing has changed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import TCPStore
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from polymath.model import checkpoint
from polymath.model.hybrid import HybridForCausalLM, IndexerStage
from polymath.rl.learner.base import NonFiniteError, StateError
from polymath.rl.learner.scorer import Scorer
from polymath.rl.learner.shards import (
    SavedState,
    Shard,
    ShardFile,
    random_state,
    restore_random_state,
    write_shards,
)
from polymath.rl.learner.spec import RankSpec
from polymath.rl.learner.sums import StepSums, first_of, merge
from polymath.rl.losses.base import Denominators, LossTokens, Mean
from polymath.rl.optimizers import Optimizers
from polymath.rl.packing import Collated, RankPlan, collate
from polymath.rollout.types import Floats, Row

LOOPBACK = "127.0.0.1"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StepWork:
    """What the driver hands every rank for one step: global counts, and the rank's own share."""

    plan: RankPlan
    sequence_tokens: Mapping[str, int]
    denominators: Denominators
    context_tokens: int


class FsdpRank:
    """A rank. ``host`` is called on rank 0 first, then ``start`` on all at once."""

    def __init__(self, spec: RankSpec, rank: int) -> None:
        self._spec = spec
        self._rank = rank
        self._store: TCPStore | None = None
        self._dtype = torch.float64 if spec.compute_dtype == "float64" else torch.float32

    def host(self, address: str) -> int:
        """Open the meeting point of all ranks on a free port of this node; returns the port."""
        self._store = TCPStore(
            address,
            0,
            self._spec.ranks,
            is_master=True,
            wait_for_workers=False,
            timeout=timedelta(seconds=self._spec.start_seconds),
        )
        return self._store.port

    def start(self, address: str, port: int) -> None:
        """Meet the other ranks and hold the model."""
        spec = self._spec
        torch.set_num_threads(spec.threads)
        if address == LOOPBACK:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        if self._store is None:
            self._store = TCPStore(
                address, port, spec.ranks, timeout=timedelta(seconds=spec.start_seconds)
            )
        dist.init_process_group(
            "nccl" if spec.device == "cuda" else "gloo",
            store=self._store,
            rank=self._rank,
            world_size=spec.ranks,
            timeout=timedelta(seconds=spec.step_seconds),
        )
        self._mesh = init_device_mesh(spec.device, (spec.ranks,))
        self._scorer = self._sharded_scorer()
        self._reference = self._sharded_scorer() if spec.loss.needs_reference else None
        self._optimizers = Optimizers(
            self._scorer.model.named_parameters(), spec.optimizer, spec.schedule
        )
        torch.manual_seed(spec.seed + 1 + self._rank)

    def step(self, work: StepWork, rows: Mapping[int, Row]) -> tuple[int, dict[str, float]]:
        """One optimizer step; returns how many were made so far, and the metrics (equal on all
        ranks).

        Raises ``NonFiniteError``, on all ranks alike, before anything moves.
        """
        batches = [
            collate(batch, rows, work.sequence_tokens, self._spec.budget.chunk)
            for batch in work.plan
        ]
        self._agree(_bad_rows(rows))
        dense = self._optimizers.steps < self._spec.dense_steps
        self._model.set_indexer_stage(IndexerStage.DENSE if dense else IndexerStage.SPARSE)
        self._optimizers.zero_grad()
        own, problems = StepSums(), []
        for index, batch in enumerate(batches):
            before = dict(own.terms)
            self._accumulate(batch, work, own, carries_loss=bool(work.plan[index].lanes))
            if (term := first_of(own.terms)) and not first_of(before):
                episodes = ", ".join(sorted({rows[i].episode for i in work.plan[index].rows}))
                problems.append(
                    f"loss term {term} is {own.terms[term]} in micro-batch {index} "
                    f"(episodes {episodes})"
                )
        self._agree(problems)
        norm = self._clip()
        sums = merge(self._gather(own))
        metrics = sums.metrics() | {
            "optimizer/grad_norm": norm,
            "optimizer/learning_rate": self._optimizers.learning_rate,
            "tokens/trained": float(work.denominators.tokens),
        }
        self._optimizers.step()
        self._optimizers.zero_grad()
        if self._spec.router_bias_rate and sums.load is not None:
            self._model.update_router_bias(torch.from_numpy(sums.load), self._spec.router_bias_rate)
        return self._optimizers.steps, metrics

    def gradients(self, work: StepWork, rows: Mapping[int, Row]) -> dict[str, Tensor]:
        """The whole gradient by parameter, on every rank; moves nothing. For comparisons."""
        self._optimizers.zero_grad()
        for index, batch in enumerate(work.plan):
            arrays = collate(batch, rows, work.sequence_tokens, self._spec.budget.chunk)
            self._accumulate(arrays, work, StepSums(), bool(work.plan[index].lanes))
        found = {
            name: _whole(p.grad).clone()
            for name, p in self._model.named_parameters()
            if p.grad is not None
        }
        self._optimizers.zero_grad()
        return found

    def logprobs(
        self, plan: RankPlan, rows: Mapping[int, Row], temperature: float
    ) -> dict[int, Floats]:
        """Log-probabilities of the loss tokens of this rank's rows, by row number."""
        found: dict[int, Floats] = {}
        for batch in plan:
            arrays = collate(batch, rows, _unit_counts(rows), self._spec.budget.chunk)
            with torch.no_grad():
                logprobs, _, _ = self._scorer(*self._inputs(arrays), temperature)
            sizes = [rows[row].loss_tokens for row in batch.rows]
            parts = np.split(logprobs.float().cpu().numpy(), np.cumsum(sizes)[:-1])
            found |= dict(zip(batch.rows, parts, strict=True)) if batch.rows else {}
        self._reshard()
        return found

    def publish(self, path: str) -> str:
        """Gather the weights; rank 0 writes one file and returns the digest, others ''."""
        weights = self._whole_weights()
        if self._rank != 0:
            return ""
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        return checkpoint.save_tensors(path, weights)

    def export(self, folder: str) -> None:
        """Gather the weights; rank 0 writes a checkpoint folder."""
        weights = self._whole_weights()
        if self._rank == 0:
            checkpoint.save(folder, self._spec.model, weights)

    def save(self, folder: str) -> ShardFile:
        """Write this rank's shards of everything that the next step depends on."""
        self._optimizers.prepare_state()
        parts = (self._shard(name, tensor) for name, tensor in self._state())
        shards = [part for part in parts if part is not None]
        random = random_state(self._spec.device)
        shards.append(Shard(f"random:{self._rank}", random, tuple(random.shape)))
        return write_shards(Path(folder), self._rank, shards)

    def load(self, folder: str) -> int:
        """Go on from saved state; returns its step. Checks all of it before it takes any.

        With another number of ranks, the random state is seeded anew from the step.
        """
        saved = SavedState(Path(folder))
        self._optimizers.prepare_state()
        live = dict(self._state())
        known = {name for name in saved.names if not name.startswith("random:")}
        if difference := known ^ live.keys():
            raise StateError(
                f"learner state {folder} is of another model or optimizer: "
                f"{min(difference)} is only on one side"
            )
        for name, tensor in live.items():
            saved.require(name, tuple(tensor.shape))
        with torch.no_grad():
            for name, tensor in live.items():
                local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
                saved.read(name, local, _first_row(tensor))
        self._optimizers.steps = saved.step
        if saved.ranks == self._spec.ranks:
            state = random_state(self._spec.device)
            saved.read(f"random:{self._rank}", state)
            restore_random_state(state, self._spec.device)
        else:
            torch.manual_seed(hash((self._spec.seed, saved.step, self._rank)) % 2**63)
        return saved.step

    def close(self) -> None:
        """Leave the group."""
        if dist.is_initialized():
            dist.destroy_process_group()

    @property
    def _model(self) -> HybridForCausalLM:
        return self._scorer.model  # type: ignore[return-value]

    def _sharded_scorer(self) -> Scorer:
        """The model with its first weights, the same each time, sharded layer by layer."""
        config = self._spec.model
        torch.manual_seed(self._spec.seed)
        model = HybridForCausalLM(config).to(self._dtype)
        if config.path:
            found, weights = checkpoint.load(config.path)
            config.require_same(found, config.path)
            checkpoint.load_into(model, weights, config.path)
        else:
            model.init_weights()
        scorer = Scorer(model.to(self._spec.device), config.vocab_size)
        policy = MixedPrecisionPolicy(reduce_dtype=self._dtype)
        if self._spec.compute_dtype == "bfloat16":
            policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
        for layer in model.model.layers:
            fully_shard(layer, mesh=self._mesh, mp_policy=policy)
        fully_shard(scorer, mesh=self._mesh, mp_policy=policy)
        for module in scorer.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)
                module.set_reduce_scatter_unused_params(True)
        return scorer

    def _inputs(self, batch: Collated) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        arrays = (batch.input_ids, batch.document_ids, batch.positions, batch.targets)
        first, second, third, fourth = (torch.from_numpy(a).to(self._spec.device) for a in arrays)
        return first, second, third, fourth

    def _accumulate(
        self, batch: Collated, work: StepWork, own: StepSums, carries_loss: bool
    ) -> None:
        """Forward and backward of one micro-batch; an empty one only keeps the ranks in step."""
        spec = self._spec
        inputs = self._inputs(batch)
        logprobs, entropy, aux = self._scorer(
            *inputs, spec.temperature, spec.loss.needs_entropy_gradient
        )
        if not carries_loss:
            if self._reference is not None:
                self._reference_logprobs(inputs)
            kl = aux["indexer_kl"][0] if "indexer_kl" in aux else 0.0
            (0.0 * (logprobs.sum() + kl)).backward()
            return
        result = spec.loss(self._loss_tokens(batch, logprobs, entropy, inputs))
        total = logprobs.new_zeros(())
        for term in result.terms:
            value = term.sum / work.denominators.of(term.denominator)
            own.add_term(term.name, float(value.detach()))
            total = total + value
        if "indexer_kl" in aux:
            total = total + self._indexer_term(aux["indexer_kl"], batch, work, own)
        total.backward()
        for name, mean in result.means.items():
            own.add_mean(name, mean)
        for name, value in result.maxima.items():
            own.add_maximum(name, float(value))
        if "expert_load" in aux:
            own.add_load(aux["expert_load"][0].double().cpu().numpy())

    def _loss_tokens(
        self,
        batch: Collated,
        logprobs: Tensor,
        entropy: Tensor,
        inputs: tuple[Tensor, Tensor, Tensor, Tensor],
    ) -> LossTokens:
        def given(array: Floats) -> Tensor:
            return torch.from_numpy(array).to(logprobs)

        reference = None if self._reference is None else self._reference_logprobs(inputs)
        return LossTokens(
            logprobs=logprobs,
            entropy=entropy,
            behaviour=given(batch.behaviour),
            advantages=given(batch.advantages),
            sequence_tokens=given(batch.sequence_tokens),
            reference=reference,
        )

    def _reference_logprobs(self, inputs: tuple[Tensor, Tensor, Tensor, Tensor]) -> Tensor:
        assert self._reference is not None
        with torch.no_grad():
            logprobs: Tensor = self._reference(*inputs, self._spec.temperature)[0]
        return logprobs

    def _indexer_term(
        self, kl: tuple[Tensor, Tensor], batch: Collated, work: StepWork, own: StepSums
    ) -> Tensor:
        """The indexers' loss: over all context tokens of the step, times the indexed layers."""
        total, count = kl
        layers = float(count) / float((batch.document_ids > 0).sum())
        value = total * (self._spec.indexer_coefficient / (work.context_tokens * layers))
        own.add_term("indexer_kl", float(value.detach()))
        own.add_mean("model/indexer_kl", Mean(total.detach(), count))
        return value

    def _clip(self) -> float:
        """Scale gradients to the allowed norm; returns the norm before, which must be finite."""
        named = [(n, p) for n, p in self._model.named_parameters() if p.grad is not None]
        norm = _whole(nn.utils.get_total_norm([p.grad for _, p in named if p.grad is not None]))
        if not torch.isfinite(norm):
            bad = [name for name, p in named if not _local(p.grad).isfinite().all()]
            problems = [f"gradient of {', '.join(bad[:3])} ({len(bad)} parameters)"] if bad else []
            self._agree(problems)
            raise NonFiniteError(f"gradient norm is {float(norm)}; the step was not made")
        nn.utils.clip_grads_with_norm_([p for _, p in named], self._spec.max_grad_norm, norm)
        return float(norm)

    def _agree(self, problems: Sequence[str]) -> None:
        """Raise ``NonFiniteError`` on all ranks if any has a problem."""
        found = [(rank, own) for rank, own in enumerate(self._gather(list(problems))) if own]
        if found:
            self._optimizers.zero_grad()
            self._reshard()
            rank, own = found[0]
            raise NonFiniteError(f"learner rank {rank}: {own[0]}; the step was not made")

    def _gather(self, own: T) -> list[T]:
        parts: list[T] = [own] * self._spec.ranks
        dist.all_gather_object(parts, own)
        return parts

    def _reshard(self) -> None:
        """Give up gathered parameters that a pass without backward leaves behind."""
        for scorer in (self._scorer, self._reference):
            if scorer is not None:
                for module in scorer.modules():
                    if isinstance(module, FSDPModule):
                        module.reshard()

    def _whole_weights(self) -> dict[str, Tensor]:
        self._reshard()
        weights = {}
        for name, tensor in self._model.state_dict().items():
            whole = _whole(tensor)
            if self._rank == 0:
                weights[name] = whole.cpu()
        return weights

    def _state(self) -> Iterator[tuple[str, Tensor]]:
        """Everything that the next step depends on, by name; tensors are live."""
        self._reshard()
        for name, tensor in self._model.state_dict().items():
            yield f"model:{name}", tensor
        for name, tensor in self._optimizers.state():
            yield f"optimizer:{name}", tensor

    def _shard(self, name: str, tensor: Tensor) -> Shard | None:
        """The rank's part of a tensor; what all ranks hold alike is rank 0's."""
        if isinstance(tensor, DTensor):
            return Shard(name, tensor.to_local(), tuple(tensor.shape), _first_row(tensor))
        return Shard(name, tensor, tuple(tensor.shape)) if self._rank == 0 else None


def _whole(tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _local(tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _first_row(tensor: Tensor) -> int:
    """Which row of the whole tensor this rank's shard begins with."""
    if not isinstance(tensor, DTensor):
        return 0
    mesh = tensor.device_mesh
    rows = -(-tensor.shape[0] // mesh.size())
    return min(rows * mesh.get_local_rank(), tensor.shape[0])


def _unit_counts(rows: Mapping[int, Row]) -> dict[str, int]:
    return {row.episode: 1 for row in rows.values()}


def _bad_rows(rows: Mapping[int, Row]) -> list[str]:
    """What is not finite among the inputs of loss tokens."""
    problems = []
    for row in rows.values():
        for what in ("logprobs", "advantages"):
            values = getattr(row, what)[row.loss_mask]
            if not np.isfinite(values).all():
                bad = float(values[~np.isfinite(values)][0])
                problems.append(f"episode {row.episode}: {what} hold {bad}")
    return problems
