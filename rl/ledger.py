"""The ledger: what became of every sampled token.

A token is *pending* until it is *consumed* by an optimizer step, *dropped* for a reason, or filed
as *not for training* (evaluation, served). Episodes are the accounts, tokens the unit. ``balance``
compares the books with what others counted on their own; a difference stops the run and says where.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from polymath.errors import PolymathError


class LedgerError(PolymathError):
    """The books do not balance; the message names the episode, the counts and the step."""


@dataclass(slots=True)
class Account:
    """One episode's tokens. ``sampled`` is the sum of all the others."""

    sampled: int = 0
    pending: int = 0
    consumed: dict[int, int] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    not_for_training: int = 0


@dataclass(frozen=True, slots=True)
class LedgerTotals:
    """Tokens since the start of the run."""

    sampled: int
    pending: int
    consumed: int
    not_for_training: int
    dropped: Mapping[str, int]


class Ledger:
    """Every method raises ``LedgerError`` before it changes anything."""

    def __init__(self) -> None:
        self._accounts: dict[str, Account] = {}
        self._steps: dict[int, int] = {}

    def sample(self, episode: str, tokens: int) -> None:
        """An episode ended with this many sampled tokens; they are now pending."""
        if tokens < 0:
            raise LedgerError(f"ledger: episode {episode}: {tokens} sampled tokens")
        if episode in self._accounts:
            raise LedgerError(
                f"ledger: episode {episode} was entered twice: "
                f"{self._accounts[episode].sampled} sampled tokens, now {tokens} more"
            )
        self._accounts[episode] = Account(sampled=tokens, pending=tokens)

    def consume(self, tokens: Mapping[str, int], step: int) -> None:
        """Optimizer step ``step`` trained this many tokens of each episode."""
        for episode, count in tokens.items():
            self._check(episode, count, f"consume by step {step}")
        for episode, count in tokens.items():
            account = self._accounts[episode]
            account.pending -= count
            account.consumed[step] = account.consumed.get(step, 0) + count
        self._steps[step] = self._steps.get(step, 0) + sum(tokens.values())

    def drop(self, episode: str, reason: str, tokens: int | None = None) -> None:
        """Tokens (all that are pending, unless a number is given) will not be trained."""
        account = self._check(episode, tokens or 0, f"drop as {reason}")
        count = account.pending if tokens is None else tokens
        account.pending -= count
        account.dropped[reason] = account.dropped.get(reason, 0) + count

    def exclude(self, episode: str) -> None:
        """All that is pending of an episode was never meant for training (evaluation, served)."""
        account = self._check(episode, 0, "exclude")
        account.not_for_training += account.pending
        account.pending = 0

    def balance(
        self,
        held: Mapping[str, int] | None = None,
        trained: Mapping[int, int] | None = None,
        sampled: int | None = None,
    ) -> LedgerTotals:
        """Check the books, and compare them with what others counted, where that is given.

        ``held`` are the pending tokens of all episodes in hand, by id; ``trained`` the loss tokens
        that the learner reports, by step; ``sampled`` the tokens of all episodes so far.
        """
        self._check_accounts()
        if held is not None:
            self._check_held(held)
        for step, count in (trained or {}).items():
            if count != self._steps.get(step, 0):
                raise LedgerError(
                    f"ledger: step {step}: the learner trained {count} tokens, "
                    f"{self._steps.get(step, 0)} are booked"
                )
        totals = self.totals()
        if sampled is not None and sampled != totals.sampled:
            raise LedgerError(f"ledger: {sampled} tokens were sampled, {totals.sampled} are booked")
        return totals

    def _check_accounts(self) -> None:
        steps: dict[int, int] = {}
        for episode, account in self._accounts.items():
            for step, count in account.consumed.items():
                steps[step] = steps.get(step, 0) + count
            parts = account.pending + sum(account.consumed.values())
            parts += sum(account.dropped.values()) + account.not_for_training
            if parts != account.sampled:
                raise LedgerError(
                    f"ledger: episode {episode}: {account.sampled} sampled, {parts} accounted for"
                )
        for step in steps.keys() | self._steps.keys():
            if steps.get(step, 0) != self._steps.get(step, 0):
                raise LedgerError(
                    f"ledger: step {step}: {self._steps.get(step, 0)} tokens are booked, "
                    f"the episodes say {steps.get(step, 0)}"
                )

    def _check_held(self, held: Mapping[str, int]) -> None:
        if unknown := held.keys() - self._accounts.keys():
            raise LedgerError(f"ledger: episode {min(unknown)} is in hand and was never entered")
        for episode, account in self._accounts.items():
            if account.pending != held.get(episode, 0):
                raise LedgerError(
                    f"ledger: episode {episode}: {account.pending} tokens are pending, "
                    f"{held.get(episode, 0)} are in hand"
                )

    def account(self, episode: str) -> Account:
        """One episode's account. Raises ``LedgerError`` if there is none."""
        if episode not in self._accounts:
            raise LedgerError(f"ledger: episode {episode} was never entered")
        return self._accounts[episode]

    def totals(self) -> LedgerTotals:
        """Sums over all episodes since the start of the run."""
        dropped: dict[str, int] = {}
        for account in self._accounts.values():
            for reason, count in account.dropped.items():
                dropped[reason] = dropped.get(reason, 0) + count
        accounts = self._accounts.values()
        return LedgerTotals(
            sampled=sum(account.sampled for account in accounts),
            pending=sum(account.pending for account in accounts),
            consumed=sum(sum(account.consumed.values()) for account in accounts),
            not_for_training=sum(account.not_for_training for account in accounts),
            dropped=dropped,
        )

    def to_json(self) -> dict[str, Any]:
        """A JSON object with all that ``restore`` needs."""
        return {
            name: [
                account.sampled,
                account.pending,
                {str(step): count for step, count in account.consumed.items()},
                dict(account.dropped),
                account.not_for_training,
            ]
            for name, account in self._accounts.items()
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint's state; what was booked here before is forgotten."""
        self._accounts, self._steps = {}, {}
        for name, (sampled, pending, consumed, dropped, excluded) in state.items():
            steps = {int(step): count for step, count in consumed.items()}
            self._accounts[name] = Account(sampled, pending, steps, dict(dropped), excluded)
            for step, count in steps.items():
                self._steps[step] = self._steps.get(step, 0) + count
        self._check_accounts()

    def _check(self, episode: str, tokens: int, what: str) -> Account:
        account = self.account(episode)
        if not 0 <= tokens <= account.pending:
            raise LedgerError(
                f"ledger: episode {episode}: cannot {what}: {tokens} tokens asked for, "
                f"{account.pending} pending of {account.sampled} sampled "
                f"(consumed by step: {account.consumed})"
            )
        return account
