"""A training that clients step, over HTTP: episodes are opened, their steps reported, and actions answered.

GET    /health              the server is there
GET    /ready               the training goes on; 503: it is over
GET    /metrics             requests, reports, episodes and env steps, for Prometheus
GET    /info                agents with their spaces and policies, and how many episodes may run at a time
POST   /episodes            open an episode: its id, and the seed that the simulator should use
POST   /episodes/ID/step    report a step; the answer has the actions of the agents that act next
POST   /steps               report steps of several episodes at once
DELETE /episodes/ID         give an episode up
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any

import msgspec
from prometheus_client.core import Metric
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from marl_sb3.core.on_policy.on_policy import OnPolicyLearner
from marl_sb3.core.training.algorithm import MultiAgentAlgorithm
from marl_sb3.envs.external import StepReport
from marl_sb3.envs.external_vec_env import Answered, EpisodeRefusedError, ExternalVecEnv
from marl_sb3.errors import ConfigError
from marl_sb3.tools.serving.guard import DEFAULT_LIMITS, Limits, Listening, RequestError, json_response, read_message
from marl_sb3.tools.serving.http import Server
from marl_sb3.tools.serving.metrics import counters, gauge
from marl_sb3.tools.serving.spaces_json import decode, describe, encode
from marl_sb3.types import AgentID, PolicyID
from marl_sb3.wrappers.observations import policy_actions

_NO_REPORT = "the body is no report of a step"
_STATUS = {"unknown": 404, "full": 429, "over": 410, "wrong": 400}


class StepMessage(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a report; see `StepReport`. Masks are beside the infos: agent -> a list of true and false.

    With a `number`, that of the report in its episode counted from 1, one that comes twice is refused.
    """

    observations: dict[str, Any] = {}
    rewards: dict[str, float] = {}
    terminated: dict[str, bool] = {}
    truncated: dict[str, bool] = {}
    infos: dict[str, dict[str, Any]] = {}
    action_masks: dict[str, list[bool]] = {}
    actions: dict[str, Any] = {}
    log_probs: dict[str, float] = {}
    number: int | None = None


class StepsMessage(msgspec.Struct, forbid_unknown_fields=True):
    """The body of several reports: id of an episode -> its report."""

    episodes: dict[str, StepMessage]


class ExternalApi:
    """The routes for the clients of an `ExternalVecEnv`.

    Args:
        env: what they step.
        policy_of: agent -> id of its policy.
        on_policy: ids of the policies that learn from the log-probabilities of actions.
        limits: `batch` is the most episodes in one request.
    """

    def __init__(
        self,
        env: ExternalVecEnv,
        policy_of: Mapping[AgentID, PolicyID],
        on_policy: Collection[PolicyID],
        limits: Limits,
    ) -> None:
        self._env, self._policy_of, self._limits = env, policy_of, limits
        self._need_log_probs = {agent for agent, policy_id in policy_of.items() if policy_id in on_policy}
        self._spaces: dict[str, tuple[Any, Any]] = {
            agent: (env.envs[0].observation_space(agent), env.envs[0].action_space(agent)) for agent in env.agents
        }
        self._reports: Counter[tuple[str, ...]] = Counter()
        self.routes = [
            Route("/health", self._health),
            Route("/info", self._info),
            Route("/episodes", self._open, methods=["POST"]),
            Route("/episodes/{episode_id}/step", self._step, methods=["POST"]),
            Route("/episodes/{episode_id}", self._give_up, methods=["DELETE"]),
            Route("/steps", self._steps, methods=["POST"]),
        ]

    def families(self) -> list[Metric]:
        """Return the metrics of clients, their episodes and reports."""
        env, words = self._env, "Reports of clients: taken, or why they were refused."
        return [
            counters("marl_sb3_reports_total", words, ("result",), self._reports),
            gauge("marl_sb3_queue_reports", "Reports whose clients wait for an answer.", env.num_waiting),
            gauge("marl_sb3_open_episodes", "Episodes that clients hold.", env.num_episodes),
            gauge("marl_sb3_most_open_episodes", "Episodes that clients may hold.", env.num_envs),
        ]

    def unready(self, _: Request) -> str | None:
        """Return why clients cannot step the env; None: they can."""
        return "the training is over" if self._env.is_over else None

    async def _health(self, _: Request) -> Response:
        return json_response({"status": "ok"})

    async def _info(self, _: Request) -> Response:
        agents = {
            agent: {
                "policy": self._policy_of[agent],
                "observation_space": describe(seen),
                "action_space": describe(done),
            }
            for agent, (seen, done) in self._spaces.items()
        }
        numbers = {"num_episodes": self._env.num_envs, "open_episodes": self._env.num_episodes}
        return json_response({"learns": True, "agents": agents, **numbers})

    async def _open(self, _: Request) -> Response:
        try:
            episode_id, seed = self._env.open_episode()
        except EpisodeRefusedError as error:
            raise _refused(error) from error
        return json_response({"episode_id": episode_id, "seed": seed}, 201)

    async def _give_up(self, request: Request) -> Response:
        self._env.give_up(request.path_params["episode_id"], "its client has given it up")
        return json_response({})

    async def _step(self, request: Request) -> Response:
        message = read_message(await request.body(), StepMessage, _NO_REPORT)
        report = self._report(message)
        (answered,) = await self._answers(request, {request.path_params["episode_id"]: report})
        if answered.error is not None:
            raise _refused(answered.error) from answered.error
        return json_response(self._plain(answered))

    async def _steps(self, request: Request) -> Response:
        message = read_message(await request.body(), StepsMessage, _NO_REPORT)
        if len(message.episodes) > self._limits.batch:
            words = f"the request has {len(message.episodes)} episodes; accepted: at most {self._limits.batch}"
            raise RequestError(words, 413, key="episodes")
        reports = {episode_id: self._report(own, episode_id) for episode_id, own in message.episodes.items()}
        answered = zip(reports, await self._answers(request, reports), strict=True)
        return json_response({"episodes": {episode_id: self._plain(own) for episode_id, own in answered}})

    # --- What clients say --------------------------------------------------------------------------------------------

    def _report(self, message: StepMessage, episode_id: str = "") -> StepReport:
        """Read a report; what an env must not return is refused later, when it is taken in."""
        where = f"episode {episode_id:.40}: " if episode_id else ""
        fields = ("observations", "rewards", "terminated", "truncated", "infos", "action_masks", "actions", "log_probs")
        for name in fields:
            for agent in getattr(message, name):
                if agent not in self._spaces:
                    words = f"{where}{name} has the agent {agent[:60]!r}; accepted: {', '.join(self._spaces)}"
                    raise RequestError(words, key=name, agent=agent[:60])
        if unknown := sorted((self._need_log_probs & message.actions.keys()) - message.log_probs.keys()):
            words = f"{where}agent {unknown[0]!r}: its policy learns on-policy, and the action has no log-probability"
            accepted = "log_probs beside actions, or a report without actions, which are answered then"
            raise RequestError(f"{words}; accepted: {accepted}", agent=unknown[0], key="log_probs")
        infos = {agent: dict(own) for agent, own in message.infos.items()}
        for agent, mask in message.action_masks.items():
            infos.setdefault(agent, {})["action_mask"] = mask
        return StepReport(
            self._values(message.observations, 0, f"{where}the observation"),
            message.rewards,
            message.terminated,
            message.truncated,
            infos,
            self._values(message.actions, 1, f"{where}the action"),
            message.log_probs,
            message.number,
        )

    def _values(self, plain: Mapping[str, Any], which: int, what: str) -> dict[str, Any]:
        return {
            agent: decode(self._spaces[agent][which], value, what, agent=agent, within_bounds=which == 1)
            for agent, value in plain.items()
        }

    # --- What they get -----------------------------------------------------------------------------------------------

    async def _answers(self, request: Request, reports: Mapping[str, StepReport]) -> list[Answered]:
        """Hand reports to the training, and wait for its answers; a client that goes away gives its episodes up."""
        answers = asyncio.gather(*(self._submit(episode_id, report) for episode_id, report in reports.items()))
        gone = asyncio.ensure_future(request.receive())  # after the body, only that the client has gone
        try:
            waited_for: set[asyncio.Future[Any]] = {answers, gone}
            await asyncio.wait(waited_for, return_when=asyncio.FIRST_COMPLETED)
            if not answers.done():
                for episode_id in reports:
                    self._env.give_up(episode_id, "its client has gone")
            answered = await answers
        finally:
            gone.cancel()
            with suppress(asyncio.CancelledError):
                await gone
        self._reports.update(("taken" if own.error is None else own.error.reason,) for own in answered)
        return answered

    def _submit(self, episode_id: str, report: StepReport) -> asyncio.Future[Answered]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answered] = loop.create_future()

        def set_answer(answered: Answered) -> None:
            if not future.done():
                future.set_result(answered)

        def answer(answered: Answered) -> None:  # in the thread of the training
            with suppress(RuntimeError):  # the server has ended
                loop.call_soon_threadsafe(set_answer, answered)

        try:
            self._env.report(episode_id, report, answer)
        except EpisodeRefusedError as error:
            set_answer(Answered(error=error))
        return future

    def _plain(self, answered: Answered) -> dict[str, Any]:
        if answered.error is not None:
            return {"error": {"message": str(answered.error), "status": _STATUS[answered.error.reason]}}
        spaces = {agent: policy_actions(self._spaces[agent][1]) for agent in answered.actions}
        actions = {agent: encode(spaces[agent], action) for agent, action in answered.actions.items()}
        return {"actions": actions, "over": answered.over}


def _refused(error: EpisodeRefusedError) -> RequestError:
    return RequestError(str(error), _STATUS[error.reason])


def external_server(algorithm: MultiAgentAlgorithm, *, limits: Limits = DEFAULT_LIMITS, **listening: Any) -> Server:
    """Make the server for the clients that step the envs of an algorithm; it serves within its context.

    Args:
        algorithm: trains in `marl_sb3.make_vec_env("external", n_envs, agents={...})`.
        limits: of requests.
        listening: `host`, `port`, `token`, `tls_cert` and `tls_key`, see `Listening`.

    Raises:
        ConfigError: the envs are stepped by this process, the port is taken, or others can reach the host without a
            token.
    """
    env = algorithm.env
    if not isinstance(env, ExternalVecEnv):
        words = "the envs are stepped by this process; accepted: envs of make_vec_env('external', ...)"
        raise ConfigError(words, key="env")
    learners = algorithm.parts.learners
    on_policy = [policy_id for policy_id, learner in learners.items() if isinstance(learner, OnPolicyLearner)]
    api = ExternalApi(env, algorithm.policy_of, on_policy, limits)

    def measured() -> list[Metric]:
        done = algorithm.parts.counters  # which a resumed training goes on counting
        numbers = (
            ("env_steps", "Env steps of the training.", done.env_steps),
            ("episodes", "Episodes that have ended.", done.episodes),
            ("iterations", "Iterations that are done; policies learn in each.", done.iteration),
        )
        return [
            *api.families(),
            *(counters(f"marl_sb3_{name}_total", words, [], {(): number}) for name, words, number in numbers),
        ]

    return Server(api.routes, Listening(**listening), limits, measured=measured, unready=api.unready)
