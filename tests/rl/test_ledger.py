"""Laws of the ledger: no token is lost, none is used twice, and differences are named."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from polymath.rl.ledger import Ledger, LedgerError


class LedgerMachine(RuleBasedStateMachine):
    """Random bookings beside a model that keeps one entry per token."""

    def __init__(self):
        super().__init__()
        self.ledger = Ledger()
        self.fates = {}

    def pending(self, episode):
        return [i for i, fate in enumerate(self.fates[episode]) if fate == "pending"]

    def settle(self, episode, count, fate):
        for i in self.pending(episode)[:count]:
            self.fates[episode][i] = fate

    @rule(tokens=st.integers(0, 20))
    def sample(self, tokens):
        episode = f"e{len(self.fates)}"
        self.fates[episode] = ["pending"] * tokens
        self.ledger.sample(episode, tokens)

    @precondition(lambda self: self.fates)
    @rule(data=st.data(), step=st.integers(1, 4))
    def consume(self, data, step):
        episode = data.draw(st.sampled_from(sorted(self.fates)))
        count = data.draw(st.integers(0, len(self.pending(episode))))
        self.ledger.consume({episode: count}, step)
        self.settle(episode, count, ("consumed", step))

    @precondition(lambda self: self.fates)
    @rule(data=st.data(), reason=st.sampled_from(["stale", "zero_spread"]), whole=st.booleans())
    def drop(self, data, reason, whole):
        episode = data.draw(st.sampled_from(sorted(self.fates)))
        left = len(self.pending(episode))
        count = left if whole else data.draw(st.integers(0, left))
        self.ledger.drop(episode, reason, None if whole else count)
        self.settle(episode, count, ("dropped", reason))

    @precondition(lambda self: self.fates)
    @rule(data=st.data())
    def exclude(self, data):
        episode = data.draw(st.sampled_from(sorted(self.fates)))
        self.ledger.exclude(episode)
        self.settle(episode, len(self.pending(episode)), "excluded")

    @precondition(lambda self: self.fates)
    @rule(data=st.data(), step=st.integers(1, 4))
    def using_a_token_twice_is_refused_and_changes_nothing(self, data, step):
        episode = data.draw(st.sampled_from(sorted(self.fates)))
        before = self.ledger.to_json()
        tokens = {episode: len(self.pending(episode)) + 1}
        with pytest.raises(LedgerError, match=f"episode {episode}: .*step {step}"):
            self.ledger.consume({**tokens}, step)
        assert self.ledger.to_json() == before

    @rule()
    def survive_a_restart(self):
        restored = Ledger()
        restored.restore(json.loads(json.dumps(self.ledger.to_json())))
        assert restored.totals() == self.ledger.totals()
        self.ledger = restored

    @invariant()
    def books_agree_with_the_model(self):
        fates = [fate for own in self.fates.values() for fate in own]
        steps = {fate[1] for fate in fates if fate[0] == "consumed"}
        totals = self.ledger.balance(
            held={episode: len(self.pending(episode)) for episode in self.fates},
            trained={step: fates.count(("consumed", step)) for step in steps},
            sampled=len(fates),
        )
        assert totals.pending == fates.count("pending")
        assert totals.not_for_training == fates.count("excluded")
        assert totals.consumed == sum(fate[0] == "consumed" for fate in fates)
        dropped = {reason: count for reason, count in totals.dropped.items() if count}
        reasons = {fate[1] for fate in fates if fate[0] == "dropped"}
        assert dropped == {reason: fates.count(("dropped", reason)) for reason in reasons}


TestLedgerMachine = LedgerMachine.TestCase


@pytest.fixture
def ledger():
    ledger = Ledger()
    ledger.sample("a", 10)
    ledger.sample("b", 5)
    return ledger


def test_a_token_trains_once(ledger):
    ledger.consume({"a": 10}, 1)
    with pytest.raises(LedgerError, match=r"episode a: cannot consume by step 2.*\{1: 10\}"):
        ledger.consume({"a": 10}, 2)


def test_a_bad_booking_leaves_the_good_ones_of_the_same_step_undone(ledger):
    with pytest.raises(LedgerError, match="episode b"):
        ledger.consume({"a": 10, "b": 6}, 1)
    assert ledger.account("a").pending == 10
    assert ledger.balance(trained={1: 0}).consumed == 0


def test_an_episode_enters_once(ledger):
    with pytest.raises(LedgerError, match="episode a was entered twice"):
        ledger.sample("a", 10)


def test_nothing_trains_that_was_never_sampled(ledger):
    with pytest.raises(LedgerError, match="episode ghost was never entered"):
        ledger.consume({"ghost": 1}, 1)


@pytest.mark.parametrize(
    ("counted", "message"),
    [
        ({"held": {"a": 10}}, "episode b: 5 tokens are pending, 0 are in hand"),
        ({"held": {"a": 10, "b": 5, "c": 0}}, "episode c is in hand and was never entered"),
        ({"trained": {1: 3}}, "step 1: the learner trained 3 tokens, 0 are booked"),
        ({"sampled": 16}, "16 tokens were sampled, 15 are booked"),
    ],
)
def test_a_difference_says_where(ledger, counted, message):
    with pytest.raises(LedgerError, match=message):
        ledger.balance(**counted)


def test_books_that_were_tampered_with_do_not_balance(ledger):
    state = ledger.to_json()
    state["b"][1] -= 1
    with pytest.raises(LedgerError, match="episode b: 5 sampled, 4 accounted for"):
        Ledger().restore(state)


@given(st.integers(max_value=-1))
def test_negative_counts_are_refused(tokens):
    with pytest.raises(LedgerError, match="episode a"):
        Ledger().sample("a", tokens)
    ledger = Ledger()
    ledger.sample("a", 1)
    with pytest.raises(LedgerError, match="episode a"):
        ledger.consume({"a": tokens}, 1)
