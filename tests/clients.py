"""A simulator in a thread: it steps any env as a client does, and asks a vec env or a server for actions."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from typing import Any

from marl_sb3.core.vec_env.make import make_vec_env
from marl_sb3.envs.external import StepReport
from marl_sb3.envs.external_vec_env import Answered, EpisodeRefusedError, ExternalVecEnv
from marl_sb3.tools.serving.spaces_json import describe


def agents_of(env: Any) -> dict[str, Any]:
    """The agents of an env with their spaces, as a file after `--external` has them."""
    spaces = {"observation_space": env.observation_space, "action_space": env.action_space}
    return {agent: {name: describe(space(agent)) for name, space in spaces.items()} for agent in env.possible_agents}


def external(env: Any, n_envs: int = 1, seed: int = 1, **arguments: Any) -> ExternalVecEnv:
    """A vec env for clients that step envs like this one."""
    made = make_vec_env("external", n_envs, seed, agents=agents_of(env), **arguments)
    assert isinstance(made, ExternalVecEnv)
    return made


def answered(vec_env: ExternalVecEnv, episode_id: str, report: StepReport) -> Answered:
    """Report a step and wait for the answer."""
    answers: list[Answered] = []
    is_there = threading.Event()

    def answer(given: Answered) -> None:
        answers.append(given)
        is_there.set()

    vec_env.report(episode_id, report, answer)
    assert is_there.wait(20)
    return answers[0]


class Simulator(threading.Thread):
    """Plays episodes in one env until the training is over.

    Args:
        env: what it steps.
        vec_env: whose clients it is one of.
        before_step: is called with the number of env steps so far; it may take time, or raise to end the thread.
        leaves_at: numbers of its env steps, before which it gives up the episode.
    """

    def __init__(
        self,
        env: Any,
        vec_env: ExternalVecEnv,
        before_step: Callable[[int], None] = lambda steps: None,
        leaves_at: Collection[int] = (),
    ) -> None:
        super().__init__(daemon=True)
        self.env, self.vec_env, self.before_step, self.leaves_at = env, vec_env, before_step, leaves_at
        self.steps = 0
        self.errors: list[str] = []

    def run(self) -> None:
        while True:
            try:
                episode_id, seed = self.vec_env.open_episode()
            except EpisodeRefusedError as error:
                if error.reason == "over":
                    return
                threading.Event().wait(0.002)
                continue
            try:
                self._play(episode_id, *self.env.reset(seed=seed))
            except EpisodeRefusedError as error:
                self.errors.append(error.reason)
            except InterruptedError:
                return

    def _play(self, episode_id: str, observations: Mapping[str, Any], infos: Mapping[str, Any]) -> None:
        present = {agent: observations[agent] for agent in self.env.agents}
        answer = answered(self.vec_env, episode_id, StepReport(present, infos=infos))
        while not answer.over:
            if answer.error is not None:
                raise answer.error
            self.before_step(self.steps)
            self.steps += 1
            if self.steps in self.leaves_at:
                self.vec_env.give_up(episode_id, "it leaves")
                return
            seen, rewards, terminated, truncated, infos = self.env.step(dict(answer.actions))
            shown = {
                agent for agent in seen if agent in self.env.agents or terminated.get(agent) or truncated.get(agent)
            }
            report = StepReport({agent: seen[agent] for agent in shown}, rewards, terminated, truncated, infos)
            answer = answered(self.vec_env, episode_id, report)
