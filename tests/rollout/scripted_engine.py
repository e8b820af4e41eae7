"""A stand-in engine for tests of the agent loop: it says what a scripted policy decides.

It sees what a real engine sees, tokens, and reads the newest observation out of them; so a policy
that gets the right answer shows that the loop put the right tokens there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from polymath.envs.contract import Policy
from polymath.envs.types import FinalAnswer, text
from polymath.rollout.engine.base import Generation, SamplingSpec
from polymath.rollout.renderer.base import AssistantMessage
from polymath.rollout.renderer.polymath import ASSISTANT, END, SEP, USER, PolymathRenderer
from polymath.rollout.types import Tokens


class ScriptedEngine:
    """``policy`` makes the policy of an episode, given its id. Version ``n`` samples turn ``n``."""

    def __init__(self, renderer: PolymathRenderer, policy: Callable[[str], Policy]) -> None:
        self.renderer = renderer
        self._make = policy
        self._policies: dict[str, Policy] = {}
        self.contexts: dict[str, list[list[int]]] = {}
        self.aborted: list[str] = []

    async def generate(self, request_id: str, prompt: Tokens, sampling: SamplingSpec) -> Generation:
        episode, turn, _ = request_id.rsplit("/", 2)
        tokens = prompt.tolist()
        assert tokens[-1] == ASSISTANT
        contexts = self.contexts.setdefault(episode, [])
        contexts.append(tokens)
        said = self.say(episode, int(turn), self.newest(tokens))
        finish = "stop" if len(said) <= sampling.max_tokens else "length"
        return generation(said[: sampling.max_tokens], int(turn), finish)

    async def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)

    def say(self, episode: str, turn: int, observation: str) -> list[int]:
        """What the model samples in this turn."""
        if episode not in self._policies:
            self._policies[episode] = self._make(episode)
        decision = self._policies[episode].decide(text(observation))
        action = decision.action
        if isinstance(action, FinalAnswer):
            message = AssistantMessage(decision.thought, action.text, (), complete=True)
        else:
            message = AssistantMessage(decision.thought, "", (action,), complete=True)
        return self.renderer.assistant(message)

    def newest(self, tokens: Sequence[int]) -> str:
        """The text of the last tool result, or of the prompt."""
        body = list(tokens[:-2])
        assert tokens[-2] == END
        start = max(index for index, token in enumerate(body) if token in (SEP, USER))
        return self.renderer.decode(body[start + 1 :])


def generation(tokens: Sequence[int], version: int = 0, finish: str = "stop") -> Generation:
    """A generation with recognisable log-probabilities."""
    size = len(tokens)
    return Generation(
        np.array(tokens, np.int32),
        -np.arange(1, size + 1, dtype=np.float32) / 100,
        np.full(size, version, np.int32),
        finish,
        cached_tokens=0,
    )
