"""Clients that step envs over HTTP: `PolicyClient`, the routes, refusals, and clients that vanish."""

from __future__ import annotations

import json
import math
import os
import random
import re
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium
import httpx
import pytest
from clients import agents_of, external
from forked import ForkServer
from gymnasium import spaces
from scraping import scraped
from small_trainings import same_weights
from stable_baselines3.common.callbacks import BaseCallback
from toy_envs import ScriptedEnv
from waiting import wait_for

from marl_sb3 import MultiAgentAlgorithm, PolicyClient, PolicySpec, make_vec_env
from marl_sb3.callbacks import stop
from marl_sb3.core.envs.converted import SingleAgentEnv
from marl_sb3.envs import external_vec_env
from marl_sb3.errors import ConfigError
from marl_sb3.runs.execution import execute
from marl_sb3.runs.run import SavedRun
from marl_sb3.runs.settings import load_config
from marl_sb3.runs.start import prepare
from marl_sb3.tools.serving.client import EpisodeLostError, ServerError
from marl_sb3.tools.serving.external import StepMessage, external_server

EXAMPLES = Path(__file__).parents[3] / "examples"
TOKEN = "a-token-of-tests"
FAST = {"net_arch": [8]}
SCRIPT: Any = {"a": (2, "terminated"), "b": (3, "truncated")}
LONG: Any = {"a": (99, "truncated")}


class Until(BaseCallback):
    """Stops the training when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.is_over = False

    def _on_step(self) -> bool:
        return not self.is_over


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A training without clients looks at once whether it is to stop."""
    monkeypatch.setattr(external_vec_env, "_LONGEST_WAIT_S", 0.02)


@contextmanager
def training(env: Any, n_envs: int = 1, algo: str = "ppo", **how: Any) -> Iterator[tuple[str, MultiAgentAlgorithm]]:
    """A training in a thread that clients step; it ends with the context."""
    vec_env = external(env, n_envs, **how.pop("arguments", {}))
    more = {"n_steps": 16} if algo == "ppo" else {"learning_starts": 10, "buffer_size": 100}
    algorithm = MultiAgentAlgorithm(vec_env, policies={"p": PolicySpec(algo, policy_kwargs=FAST, **more)}, seed=1)
    until = Until()
    thread = threading.Thread(target=lambda: algorithm.learn(10**6, callback=until))
    with external_server(algorithm, **how) as server:
        thread.start()
        try:
            yield server.address, algorithm
        finally:
            until.is_over = True
            thread.join(20)
            vec_env.close()


def in_thread(function: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    return thread


def test_a_policy_client_trains_the_same_weights_as_the_env_in_process() -> None:
    def trained(env: Any) -> MultiAgentAlgorithm:
        spec = PolicySpec("ppo", n_steps=64, policy_kwargs=FAST)
        algorithm = MultiAgentAlgorithm(env, policies={"p": spec}, seed=1)
        algorithm.learn(128)
        return algorithm

    inside = make_vec_env("CartPole-v1", 1, seed=1)
    expected = trained(inside)
    vec_env = external(SingleAgentEnv(gymnasium.make("CartPole-v1")))
    algorithm = MultiAgentAlgorithm(vec_env, policies={"p": PolicySpec("ppo", n_steps=64, policy_kwargs=FAST)}, seed=1)

    def simulate() -> None:
        env = gymnasium.make("CartPole-v1")
        with PolicyClient(server.address) as client:
            while True:
                episode = client.start_episode()
                observation, _ = env.reset(seed=client.seed(episode))
                terminated = truncated = False
                while not (terminated or truncated):
                    observation, reward, terminated, truncated, _ = env.step(client.get_action(episode, observation))
                    client.log_returns(episode, reward)
                client.end_episode(episode, observation, truncated=truncated)

    with external_server(algorithm) as server:

        def ends_with_the_training() -> None:
            with pytest.raises(ServerError, match="the training is over"):
                simulate()

        thread = in_thread(ends_with_the_training)
        algorithm.learn(128)
        vec_env.close()
        thread.join(10)
    assert same_weights(algorithm, expected)


def test_several_episodes_take_one_request_and_rewards_add_up() -> None:
    with training(ScriptedEnv(SCRIPT), 3) as (url, algorithm), PolicyClient(url) as client:
        assert list(client.info()["agents"]) == ["a", "b"]
        envs = {client.start_episode(): ScriptedEnv(SCRIPT) for _ in "12"}
        seen = {episode: env.reset()[0] for episode, env in envs.items()}
        for _ in range(3):
            actions = client.get_actions(seen)
            assert set(actions) == set(envs)
            for episode, env in envs.items():
                seen[episode], rewards, terminated, truncated, _ = env.step(actions[episode])
                client.log_returns(episode, rewards, multiagent_done_dict=terminated)
                client.log_returns(episode, dict.fromkeys(rewards, 0.5))
            if truncated.get("b"):
                break
        for episode in envs:
            client.end_episode(episode, {"b": seen[episode]["b"]}, truncated=True)
        wait_for(lambda: len(algorithm.tracker.episodes) == 2)
    episodes = list(algorithm.tracker.episodes)
    assert [episode.length for episode in episodes] == [3, 3]
    assert episodes[0].agent_returns == {"a": 2 * 1.5, "b": 3 * 2.5}


def post(url: str, path: str, body: Any) -> tuple[int, Any]:
    answer = httpx.post(url + path, json=body, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=20)
    return answer.status_code, answer.json()


def test_requests_that_break_the_rules_are_refused_in_words() -> None:
    with training(ScriptedEnv(), 1, token=TOKEN) as (url, _):
        assert httpx.get(url + "/info").status_code == 401
        status, opened = post(url, "/episodes", {})
        assert status == 201
        step = f"/episodes/{opened['episode_id']}/step"
        status, full = post(url, "/episodes", {})
        assert (status, "all 1 episodes are taken" in full["error"]["message"]) == (429, True)
        for body, words, more in [
            ({"observations": {"c": [0, 0, 0]}}, "observations has the agent 'c'; accepted: a, b", {"agent": "c"}),
            ({"observations": {"a": [0, 0]}}, "agent 'a': the observation", {"agent": "a"}),
            ({"rewards": {"a": "much"}}, "Expected float", {}),
            ({"actions": {"a": 2}}, "its policy learns on-policy", {"key": "log_probs"}),
            ({"reward": 1}, "unknown field", {}),
        ]:
            status, answer = post(url, step, body)
            assert status == 400
            assert words in answer["error"]["message"]
            assert answer["error"].items() >= more.items()
        assert post(url, "/episodes/0/step", {})[0] == 404
        status, several = post(url, "/steps", {"episodes": {"0": {}}})
        assert (status, several["episodes"]["0"]["error"]["status"]) == (200, 404)
        assert post(url, step, {})[0] == 400  # no agent is live: the episode is given up
        assert post(url, step, {})[0] == 404


def test_metrics_of_a_training_tell_of_its_clients_and_its_progress() -> None:
    with training(ScriptedEnv(SCRIPT), 2) as (url, algorithm), PolicyClient(url) as client:
        env = ScriptedEnv(SCRIPT)
        episode, other = client.start_episode(), client.start_episode()
        seen, _ = env.reset()
        for _ in range(2):
            seen, rewards, terminated, *_ = env.step(client.get_action(episode, seen))
            client.log_returns(episode, rewards, multiagent_done_dict=terminated)
        client.end_episode(episode, seen, truncated=True)
        wait_for(lambda: bool(algorithm.tracker.episodes))
        assert post(url, "/episodes/0/step", {})[0] == 404
        assert post(url, "/steps", {"episodes": {"0": {}, other: {}}})[0] == 200  # in which no agent is live
        found = scraped(url)
        assert found["marl_sb3_env_steps_total"] == algorithm.num_timesteps == 2
        assert found["marl_sb3_episodes_total"] == 1
        assert found["marl_sb3_iterations_total"] == 0
        assert found["marl_sb3_open_episodes"] == found["marl_sb3_queue_reports"] == 0
        assert found["marl_sb3_most_open_episodes"] == 2
        reports = {
            result: found[f'marl_sb3_reports_total{{result="{result}"}}'] for result in ("taken", "unknown", "wrong")
        }
        assert reports == {"taken": 3, "unknown": 2, "wrong": 1}
        assert found['marl_sb3_http_requests_total{route="/episodes/{episode_id}/step",status="404"}'] == 1
        assert httpx.get(f"{url}/ready").status_code == 200
        algorithm.env.close()
        assert httpx.get(f"{url}/ready").status_code == 503


ODD: tuple[Any, ...] = (None, True, -1, 1e308, math.nan, math.inf, 2**80, 10**400, "x" * 1000, "\ud800", [], {}, [[]])
ODD += ([1, 2], ["a"], [None], {"z": 0}, {"": {}}, *({"a": value} for value in (None, 3, math.nan, "0", {"a": [0]})))
FIELDS = StepMessage.__struct_fields__


@pytest.mark.parametrize("n", [400, pytest.param(20_000, marks=pytest.mark.proof)])
def test_no_request_makes_the_server_fail(n: int) -> None:
    draw = random.Random(n)
    seen = Counter[int]()

    def body() -> bytes:
        kind = draw.random()
        if kind < 0.3:  # what is right
            return json.dumps({"observations": {"a": [0, 0, 0], "b": [0, 0, 0]}, "rewards": {"a": 1}}).encode()
        if kind < 0.7:
            return json.dumps({draw.choice(FIELDS): draw.choice(ODD) for _ in range(draw.randint(1, 4))}).encode()
        damaged = bytearray(b'{"observations": {"a": [0, 0, 0], "b": [0, 0, 0]}, "number": 1}')
        for _ in range(draw.randint(1, 5)):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        return bytes(damaged) if kind < 0.9 else b'{"infos":' + b"[" * 10**5

    with training(ScriptedEnv(script=SCRIPT)) as (url, algorithm), httpx.Client(base_url=url) as client:
        episode = None
        for _ in range(n):
            if episode is None:
                answer = client.post("/episodes", content=b"{}")
                episode = answer.json().get("episode_id")
            elif draw.random() < 0.1:
                text = json.dumps({"episodes": {draw.choice([episode, "../x", ""]): draw.choice(ODD)}})
                answer = client.post("/steps", content=text)
            else:
                answer = client.post(f"/episodes/{episode}/step", content=body())
                episode = None if answer.status_code in (404, 410) or answer.json().get("over") else episode
            seen[answer.status_code] += 1
            assert answer.is_success or answer.json()["error"]["message"]
        assert {200, 201, 400} <= set(seen) <= {200, 201, 400, 404, 429}, seen
        assert algorithm.num_timesteps > 0


def test_an_episode_ends_with_the_connection_of_a_client_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    with training(ScriptedEnv()) as (url, algorithm):
        actor = algorithm.parts.learners["p"].actor
        act = actor.act

        def act_late(step: Any) -> Any:
            time.sleep(0.2 if step.to_act.any() else 0)
            return act(step)

        monkeypatch.setattr(actor, "act", act_late)
        _, opened = post(url, "/episodes", {})
        body = json.dumps({"observations": {"a": [1, 1, 0], "b": [2, 1, 0]}}).encode()
        host, port = url.removeprefix("http://").split(":")
        head = f"POST /episodes/{opened['episode_id']}/step HTTP/1.1\r\nHost: {host}:{port}\r\n"
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            time.sleep(0.05)
        with PolicyClient(url, retry_s=5) as client:
            client.start_episode()  # once the slot is free
        assert post(url, f"/episodes/{opened['episode_id']}/step", {})[0] == 404


def test_misuse_of_the_client_is_refused() -> None:
    with pytest.raises(ConfigError, match="accepted: such as http://127"):
        PolicyClient("127.0.0.1:8000")
    with pytest.raises(ServerError, match="cannot be reached"):
        PolicyClient("http://127.0.0.1:1", retry_s=0).info()
    with training(ScriptedEnv()) as (url, _), PolicyClient(url) as client:
        with pytest.raises(ConfigError, match="learns from every episode"):
            client.start_episode(training_enabled=False)
        with pytest.raises(ConfigError, match="there is no episode 'x'"):
            client.get_action("x", {})
        episode = client.start_episode()
        with pytest.raises(ConfigError, match="accepted: a mapping by agent"):
            client.get_action(episode, [1, 2, 3])
        client.give_up_episode(episode)
        episode = client.start_episode()
        httpx.delete(f"{url}/episodes/{episode}")
        seen = {"a": [1, 1, 0], "b": [2, 1, 0]}
        with pytest.raises(EpisodeLostError):
            client.get_action(episode, seen)
        episode = client.start_episode()
    with pytest.raises(EpisodeLostError, match=r"cannot be reached: .*; the episode is lost"):
        client.get_action(episode, seen)


def test_an_off_policy_training_learns_from_actions_that_the_client_has_chosen() -> None:
    with training(ScriptedEnv({"a": (4, "truncated")}), algo="dqn") as (url, algorithm), PolicyClient(url) as client:
        env = ScriptedEnv({"a": (4, "truncated")})
        episode = client.start_episode()
        seen, _ = env.reset()
        for step in range(4):
            client.log_action(episode, seen, {"a": 2})
            seen, rewards, *_ = env.step({"a": 2})
            client.log_returns(episode, rewards)
            assert step < 4
        client.end_episode(episode, seen, truncated=True)
        wait_for(lambda: bool(algorithm.tracker.episodes))
    (learner,) = algorithm.parts.learners.values()
    buffer: Any = learner.algorithm.replay_buffer  # type: ignore[attr-defined]
    assert buffer.actions[:4].reshape(-1).tolist() == [2, 2, 2, 2]


@pytest.mark.parametrize("steps", [0, 5, 16, 21], ids="{} steps".format)
def test_a_signal_ends_a_training_whose_clients_are_silent(
    steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(stop, "_SILENCE_S", 0.1)
    agents = {"agents": agents_of(ScriptedEnv(LONG))}
    settings = {"n_steps": 16, "batch_size": 16, "n_envs": 1, "env_kwargs": agents, "policy_kwargs": FAST}
    run = prepare(load_config("external", None, {"external": settings}, seed=1), tmp_path / "run")

    def play() -> None:
        with PolicyClient(server.address) as client:
            env, episode = ScriptedEnv(LONG), client.start_episode()
            seen, _ = env.reset()
            for _ in range(steps):
                seen, rewards, *_ = env.step(client.get_action(episode, seen))
                client.log_returns(episode, rewards)
            if steps:
                client.get_action(episode, seen)
            wait_for(lambda: signal.getsignal(signal.SIGTERM) is not before)  # else it ends this process
            os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    with external_server(run.algorithm) as server:
        thread = in_thread(play)
        execute(run)
        thread.join(10)
    assert run.interrupted
    iterations, left = divmod(steps, 16)
    assert run.checkpoint == (f"ckpt-{iterations:06}" if iterations else None)
    assert ("inexact" in caplog.text) == (iterations > 0 and left > 0)
    if iterations:
        assert SavedRun.open(run.folder).policies(None, None).checkpoint == run.checkpoint


def test_the_example_runs_against_a_training_that_is_resumed(in_tmp: Path, server: ForkServer) -> None:
    spec = str(EXAMPLES / "policy_client.yaml")
    begins = ["--external", spec, "--port", "0", "--run-dir", "run", "--timesteps", "1024"]
    for arguments in (begins, ["--resume", "run", "--port", "0", "--timesteps", "512", "--quiet"]):
        Path("err").unlink(missing_ok=True)
        training = server.run(["-m", "marl_sb3.train", *arguments], "out", "err")
        while (address := re.search(r"clients connect to (\S+)\n", Path("err").read_text())) is None:
            assert training.poll() is None, Path("err").read_text()
            time.sleep(0.02)
        client = server.run([str(EXAMPLES / "policy_client.py"), address[1]], "client_out", "client_err")
        assert client.wait() == 0, Path("client_err").read_text()
        assert re.search(r"\d+ episodes; mean return of the last \d+: \d+\.\d", Path("client_out").read_text())
        assert training.wait() == 0, Path("err").read_text()
        if arguments is begins:
            assert "\nserve with: python -m marl_sb3.serve run\n" in Path("out").read_text()
    assert Path("run/progress.csv").read_text().splitlines()[-1].startswith("3,1536,")


PARTS = spaces.Dict({"move": spaces.Discrete(3, start=1), "aim": spaces.Tuple([spaces.Box(-1, 1, (2,))])})


class OfParts(ScriptedEnv):
    """Takes actions of several parts."""

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return PARTS


def test_clients_get_and_choose_actions_of_several_parts() -> None:
    with training(OfParts(LONG)) as (url, algorithm), PolicyClient(url) as client:
        episode = client.start_episode()
        for _ in range(20):
            action = client.get_action(episode, {"a": [1.0, 2.0, 3.0]})["a"]
            assert action["move"] in (1, 2, 3)
            assert all(-1 <= number <= 1 for number in action["aim"][0])
            client.log_returns(episode, {"a": 1.0})
        chosen = {"a": {"move": 3, "aim": [[0.5, -0.5]]}}
        client.log_action(episode, {"a": [1.0, 2.0, 3.0]}, chosen, {"a": -1.5})
        client.log_returns(episode, {"a": 1.0})
        with pytest.raises(ServerError, match="the action, move, is 4; accepted"):
            client.log_action(episode, {"a": [1.0, 2.0, 3.0]}, {"a": {"move": 4, "aim": [[0, 0]]}}, {"a": -1.5})
        buffer: Any = algorithm.policies["p"].rollout_buffer
        wait_for(lambda: any(row.tolist() == [0.5, -0.5, 2.0] for row in buffer.actions[:, 0]))
