"""`PolicyClient`: a simulator asks a server for actions, and reports what came of them; the verbs are RLlib's.

The server is a training, `python -m marl_sb3.train --external SPEC`, which learns from what it is told, or
`python -m marl_sb3.serve RUN`, which acts alone. Python's standard library and NumPy are all that a client needs; one
that computes the actions itself needs PyTorch.
"""

from __future__ import annotations

import http.client
import json
import logging
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

import numpy as np

from marl_sb3.errors import CheckpointError, ConfigError, MarlSb3Error, refuse

if TYPE_CHECKING:
    from marl_sb3.core.acting.by_agent import PolicyBundle

_log = logging.getLogger(__name__)

AgentID = str


class ServerError(MarlSb3Error):
    """The server refused a request, or could not be reached."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status  # its status code; 0: it could not be reached


class EpisodeLostError(ServerError):
    """The server has no such episode, or no longer: it was restarted, or gave the episode up. Begin another one."""


@dataclass
class _Episode:
    """An episode of this client."""

    seed: int | None  # the seed that the simulator should use for it, if the server gave one
    learns: bool
    unsent: dict[str, dict[AgentID, Any]] = field(default_factory=dict)  # what has been logged since the latest report
    # agent -> recurrent state, for servers that do not keep it
    states: Mapping[AgentID, Any] = field(default_factory=dict)
    reports: int = 0  # how many were sent

    def taken(self) -> dict[str, Any]:
        """Return the fields of the next report: what was logged since the latest one, and the number of the report."""
        unsent, self.unsent = self.unsent, {}
        self.reports += 1
        return {**unsent, "number": self.reports} if self.learns else unsent


class PolicyClient:
    """Asks a server for actions of policies, and reports the results to a training.

    An observation, a reward or an action is a mapping by agent. If the env has one agent, it may be the agent's own.
    A client may hold several episodes at a time; it is for one thread.

    Args:
        url: of the server, such as `http://127.0.0.1:8000`.
        token: that the server requires; None: it requires none.
        timeout_s: how long to wait for an answer: a training answers after its update.
        retry_s: for how long to try again while the server cannot be reached, or has no free episode.
        local: whether this process computes the actions, with the weights of a server of `serve`: without a request for
            each of them, but with PyTorch.
        refresh_s: after how long `local` asks for newer weights. While the server cannot be reached, it goes on with
            those it has.
        deterministic: the most likely actions instead of sampled ones; of a server of `serve`.

    Raises:
        ConfigError: the address is none of HTTP or HTTPS.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        timeout_s: float = 600.0,
        retry_s: float = 60.0,
        local: bool = False,
        refresh_s: float = 10.0,
        deterministic: bool = False,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            refuse("url", url, "such as http://127.0.0.1:8000")
        make = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._connection = make(parts.hostname, parts.port, timeout=timeout_s)
        self._path = parts.path.rstrip("/")
        self._headers = {"Content-Type": "application/json"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self._retry_s = retry_s
        self._episodes: dict[str, _Episode] = {}
        self._info: Mapping[str, Any] | None = None
        self._deterministic = deterministic
        self._local = _LocalPolicies(self, refresh_s) if local else None

    # --- Episodes ----------------------------------------------------------------------------------------------------

    def start_episode(self, episode_id: str | None = None, training_enabled: bool = True) -> str:
        """Begin an episode; returns its id, for the other methods.

        Args:
            episode_id: the caller's own id, for a server of `serve`; a training chooses the ids.
            training_enabled: False: nothing is learned from it, which needs a server of `serve`.

        Raises:
            ServerError: all episodes of the training are taken, or the server cannot be reached.
        """
        learns = bool(self.info()["learns"])
        if learns and (self._local is not None or self._deterministic):
            words = "the server is a training, which chooses the actions itself and explores"
            raise ConfigError(f"{words}; accepted: local=False and deterministic=False, or a server of marl_sb3.serve")
        if learns and not (training_enabled and episode_id is None):
            accepted = "episode_id=None and training_enabled=True, or a server of marl_sb3.serve"
            raise ConfigError(f"the server is a training, which learns from every episode; accepted: {accepted}")
        if learns:
            opened = self._request("POST", "/episodes", {}, may_repeat=True)
            episode_id, seed = opened["episode_id"], opened["seed"]
        else:
            episode_id, seed = episode_id or secrets.token_hex(8), None
        self._episodes[episode_id] = _Episode(seed, learns)
        return episode_id

    def seed(self, episode_id: str) -> int | None:
        """Return the seed that the simulator should use for an episode; None: any."""
        return self._episode(episode_id).seed

    def get_action(self, episode_id: str, observation: Any, action_mask: Any = None) -> Any:
        """Ask for the actions of the agents that act next, those in `observation`.

        Args:
            action_mask: True where an action is allowed, as a sequence; by agent, as the observation. None: all are.

        Returns:
            Agent -> action; of a single agent, its action.

        Raises:
            EpisodeLostError: the server no longer has the episode; another one can be started.
            ServerError: the server refused the request, or cannot be reached.
        """
        asked = {episode_id: observation if action_mask is None else _Masked(observation, action_mask)}
        return self.get_actions(asked)[episode_id]

    def get_actions(self, observations: Mapping[str, Any]) -> dict[str, Any]:
        """Ask for the actions in several episodes at once, which takes one request: episode id -> actions.

        Args:
            observations: episode id -> observation, as for `get_action`.

        Raises:
            EpisodeLostError: the server no longer has one of the episodes; the others have their actions in `actions`
                of the error.
        """
        messages, single = {}, {}
        for episode_id, given in observations.items():
            episode = self._episode(episode_id)
            observation, mask = (given.observation, given.mask) if isinstance(given, _Masked) else (given, None)
            single[episode_id] = not self._is_by_agent(observation)
            more = {} if mask is None else {"action_masks": self._by_agent(mask, observation)}
            messages[episode_id] = {"observations": self._by_agent(observation), **more, **episode.taken()}
        answers = self._step(messages)
        return {
            episode_id: next(iter(actions.values())) if single[episode_id] and len(actions) == 1 else actions
            for episode_id, actions in answers.items()
        }

    def log_action(self, episode_id: str, observation: Any, action: Any, log_prob: Any = None) -> None:
        """Tell the training of actions that the simulator has chosen itself, in place of `get_action`.

        Args:
            log_prob: log-probability of the action under the client's copy of the policy, by agent as the action. An
                on-policy algorithm needs it; None: an off-policy one learns without.
        """
        episode = self._episode(episode_id)
        message = {"observations": self._by_agent(observation), "actions": self._by_agent(action, observation)}
        if log_prob is not None:
            message["log_probs"] = self._by_agent(log_prob, observation)
        unsent = episode.taken()
        if episode.learns:
            self._step({episode_id: {**message, **unsent}})

    def log_returns(
        self,
        episode_id: str,
        reward: Any,
        info: Any = None,
        multiagent_done_dict: Mapping[AgentID, bool] | None = None,
    ) -> None:
        """Note rewards since the latest action; they are sent with the next report.

        Args:
            reward: a number, or agent -> number. Several calls add up.
            info: of the env, by agent.
            multiagent_done_dict: agent -> whether it was terminated; its last observation is in the next report.
        """
        unsent = self._episode(episode_id).unsent
        rewards = unsent.setdefault("rewards", {})
        for agent, paid in self._by_agent(reward).items():
            rewards[agent] = rewards.get(agent, 0.0) + float(paid)
        if info is not None:
            unsent.setdefault("infos", {}).update(self._by_agent(info))
        ended = {agent: bool(done) for agent, done in (multiagent_done_dict or {}).items() if agent != "__all__"}
        unsent.setdefault("terminated", {}).update(ended)

    def end_episode(self, episode_id: str, observation: Any, truncated: bool = False) -> None:
        """End an episode.

        Args:
            observation: the last one, by agent.
            truncated: whether the episode was truncated, for example by a time limit, so that returns bootstrap;
                False: the agents have terminated.
        """
        episode = self._episode(episode_id)
        last, unsent = self._by_agent(observation), episode.taken()
        del self._episodes[episode_id]
        if not episode.learns:
            return
        already = {agent for agent, done in unsent.get("terminated", {}).items() if done}
        flags = {agent: True for agent in {**last, **unsent.get("rewards", {})} if agent not in already}
        name = "truncated" if truncated else "terminated"
        message = {"observations": last, **unsent, name: {**unsent.get(name, {}), **flags}}
        self._reported({episode_id: message})

    def give_up_episode(self, episode_id: str) -> None:
        """Give an episode up: nothing more is learned from it."""
        episode = self._episodes.pop(episode_id, None)
        if episode is not None and episode.learns:
            self._request("DELETE", f"/episodes/{episode_id}")

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- Agents ------------------------------------------------------------------------------------------------------

    def info(self) -> Mapping[str, Any]:
        """Return the server's description: `learns`, and its agents with their spaces and policies."""
        if self._info is None:
            self._info = self._request("GET", "/info", may_repeat=True)
        return self._info

    @property
    def _agents(self) -> list[AgentID]:
        return list(self.info()["agents"])

    def _is_by_agent(self, value: Any) -> bool:
        return isinstance(value, Mapping) and bool(value) and set(value) <= {*self._agents, "__all__"}

    def _by_agent(self, value: Any, like: Any = None) -> dict[AgentID, Any]:
        """Return a value by agent; it may be that of the only agent."""
        if self._is_by_agent(value):
            return dict(value)
        if isinstance(value, Mapping) and not value:
            return {}
        if len(self._agents) > 1:
            agents = ", ".join(self._agents)
            raise ConfigError(f"the server has the agents {agents}; accepted: a mapping by agent", key="observation")
        return {self._agents[0]: value}

    def _episode(self, episode_id: str) -> _Episode:
        if episode_id not in self._episodes:
            raise ConfigError(f"there is no episode {episode_id!r}; accepted: an id from start_episode()")
        return self._episodes[episode_id]

    # --- Requests ----------------------------------------------------------------------------------------------------

    def _step(self, messages: Mapping[str, dict[str, Any]]) -> dict[str, dict[AgentID, Any]]:
        """Send reports of episodes; returns the actions of each."""
        if all(self._episodes[episode_id].learns for episode_id in messages):  # all or none: so does the server
            return self._reported(messages)
        return {episode_id: self._predicted(episode_id, message) for episode_id, message in messages.items()}

    def _predicted(self, episode_id: str, message: dict[str, Any]) -> dict[AgentID, Any]:
        """Ask for actions from which nothing is learned."""
        episode = self._episodes[episode_id]
        asked: dict[str, Any] = {name: message[name] for name in ("observations", "action_masks") if name in message}
        asked |= {"deterministic": self._deterministic}
        if self._local is not None:
            actions, episode.states = self._local.act(asked, episode.states)
            return actions
        if episode.states:
            asked["states"] = {
                agent: state for agent, state in episode.states.items() if agent in asked["observations"]
            }
        answer = self._request("POST", "/predict", asked, may_repeat=True)
        episode.states = {**episode.states, **answer.get("states", {})}
        return answer["actions"]  # type: ignore[no-any-return]

    def _reported(self, messages: Mapping[str, dict[str, Any]]) -> dict[str, dict[AgentID, Any]]:
        """Report steps to a training; an episode of which the report is not taken is lost."""
        try:
            answers = self._request("POST", "/steps", {"episodes": messages})["episodes"]
        except ServerError as error:
            for episode_id in messages:
                self._episodes.pop(episode_id, None)
            if error.status:
                raise
            raise EpisodeLostError(f"{error}; the episode is lost", 0) from error
        actions: dict[str, dict[AgentID, Any]] = {}
        errors: list[ServerError] = []
        for episode_id, answer in answers.items():
            if "error" in answer:
                errors.append(_error(answer["error"]["message"], answer["error"]["status"]))
            else:
                actions[episode_id] = dict(answer["actions"])
            if "error" in answer or answer["over"]:  # the latter at the horizon of the run
                self._episodes.pop(episode_id, None)
        if errors:
            errors[0].actions = actions  # type: ignore[attr-defined]
            raise errors[0]
        return actions

    def _request(self, method: str, path: str, content: Any = None, *, may_repeat: bool = False) -> Mapping[str, Any]:
        """Send a request and return the JSON of its answer.

        Args:
            may_repeat: whether it is sent again if the server cannot be reached or asks to wait. A report is not: the
                server may have taken it in.
        """
        body = None if content is None else json.dumps(content, default=_plain, allow_nan=False).encode()
        until_s, wait_s = time.monotonic() + self._retry_s, 0.05
        while True:
            try:
                return self._answer(method, path, body)
            except ServerError as error:
                if not may_repeat or error.status not in (0, 429) or time.monotonic() + wait_s > until_s:
                    raise
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, 2.0)

    def _answer(self, method: str, path: str, body: bytes | None) -> Mapping[str, Any]:
        status, content, _ = self._exchanged(method, path, body)
        try:
            answer = json.loads(content)
        except ValueError as error:
            raise ServerError(f"the server answered {status} with something else than JSON", status) from error
        if status >= 400:
            raise _error(answer.get("error", {}).get("message", f"the server answered {status}"), status)
        return answer  # type: ignore[no-any-return]

    def weights(self, known: str = "") -> tuple[bytes, str] | None:
        """Return the weights of a server of `serve` and their SHA-256; None if that is equal to `known`.

        Raises:
            ServerError: the server refused the request, or cannot be reached.
        """
        headers = {"If-None-Match": f'"{known}"'} if known else {}
        status, content, answered = self._exchanged("GET", "/weights", None, headers)
        if status == 304:
            return None
        if status != 200:
            raise ServerError(f"the server answered {status} to GET /weights: {content[:300]!r}", status)
        return content, answered.get("etag", "").strip('"')

    def _exchanged(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str] = MappingProxyType({})
    ) -> tuple[int, bytes, Mapping[str, str]]:
        """Send a request on the open connection, or on a new one if the server has closed it since the last one."""
        connection = self._connection
        while True:
            is_new = connection.sock is None
            try:
                connection.request(method, self._path + path, body, {**self._headers, **headers})
                response = connection.getresponse()
                return response.status, response.read(), response.headers  # type: ignore[return-value]
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                if is_new or isinstance(error, TimeoutError):
                    where, why = f"{connection.host}:{connection.port}", str(error) or type(error).__name__
                    raise ServerError(f"the server at {where} cannot be reached: {why}", 0) from error


class _LocalPolicies:
    """The policies of a server of `serve`, in this process.

    Args:
        client: asks the server for them.
        refresh_s: see `PolicyClient`.
    """

    def __init__(self, client: PolicyClient, refresh_s: float) -> None:
        self._client, self._refresh_s = client, refresh_s
        self._bundle: PolicyBundle | None = None
        self._sha256, self._due_s = "", 0.0

    def act(self, asked: Mapping[str, Any], states: Mapping[AgentID, Any]) -> tuple[dict[AgentID, Any], Any]:
        """Choose actions; returns them as the server would, and the states for the next call."""
        from marl_sb3.tools.serving.spaces_json import encode

        bundle = self._policies()
        actions, after = bundle.predict_with_state(**asked, state=states)
        spaces = {agent: bundle.spaces[bundle.policy_of[agent]] for agent in actions}
        return {agent: encode(spaces[agent].action, action) for agent, action in actions.items()}, after

    def _policies(self) -> PolicyBundle:
        """Return the policies, newer ones if it is time to ask for these and there are any."""
        if self._bundle is not None and time.monotonic() < self._due_s:
            return self._bundle
        from marl_sb3.tools.serving.weights import unpack_weights

        try:
            found = self._client.weights(self._sha256)
            if found is not None:
                self._bundle, self._sha256 = unpack_weights(*found), found[1]
        except (ServerError, CheckpointError) as error:
            if self._bundle is None:
                raise
            _log.warning("no newer weights: %s", error)
        self._due_s = time.monotonic() + self._refresh_s
        assert self._bundle is not None
        return self._bundle


@dataclass
class _Masked:
    observation: Any
    mask: Any


def _error(message: str, status: int) -> ServerError:
    return (EpisodeLostError if status == 404 else ServerError)(message, status)


def _plain(value: Any) -> Any:
    """Make NumPy's arrays and numbers JSON."""
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} cannot be sent; accepted: numbers, lists, mappings and NumPy arrays")
