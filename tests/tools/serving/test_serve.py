"""`serve RUN`: its routes, what they refuse, newer checkpoints, and the command."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from forked import ForkServer
from gymnasium import spaces
from scraping import scraped
from toy_envs import SampledEnv
from waiting import wait_for

import marl_sb3
from marl_sb3 import PolicyClient, load_policies
from marl_sb3.core.acting.asked_agent import AgentInputs, RequestedOutputs
from marl_sb3.errors import CheckpointError, ConfigError
from marl_sb3.runs.run import SavedRun
from marl_sb3.serve import main
from marl_sb3.tools.serving import predictor as predictor_module
from marl_sb3.tools.serving.api import openapi, policy_server
from marl_sb3.tools.serving.guard import Limits
from marl_sb3.tools.serving.predictor import Batcher, DecodedRequest, Predictor
from marl_sb3.tools.serving.weights import unpack_weights

SEEN = {"a": [1.0, 2.0, 3.0], "b": [-5.0, 0.25, 1000.0]}
VALUES_TOO = RequestedOutputs(actions=True, deterministic=True, values=True)
VERSION = marl_sb3.__version__
SMALL = {"n_steps": 6, "batch_size": 6, "policy_kwargs": {"net_arch": [8]}}


def trained(folder: Path, timesteps: int = 24, **more: Any) -> Path:
    settings = {**SMALL, "checkpoints.every": 1, **more.pop("settings", {})}
    marl_sb3.train(
        more.pop("env", "toy_envs:ScriptedEnv"),
        timesteps=timesteps,
        n_envs=2,
        seed=1,
        settings=settings,
        run_dir=folder,
        **more,
    )
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("served") / "run", policies="per_agent")


@pytest.fixture(scope="module")
def recurrent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    network = {"policy_kwargs": {"net_arch": [4], "lstm_hidden_size": 4}}
    return trained(tmp_path_factory.mktemp("served") / "lstm", algo="recurrent_ppo", settings=network)


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    arguments = {"settings": {"env.masked": True}, "algo": "maskable_ppo"}
    return trained(tmp_path_factory.mktemp("served") / "masked", **arguments)


@pytest.fixture(scope="module")
def client(run: Path) -> Iterator[httpx.Client]:
    limits = Limits(body_bytes=20_000, batch=8)
    with (
        policy_server(run, reload_s=0, limits=limits) as server,
        httpx.Client(base_url=server.address) as made,
    ):
        yield made


def asked(client: httpx.Client, **request: Any) -> dict[str, Any]:
    answer = client.post("/predict", json=request)
    assert answer.status_code == 200, answer.text
    return answer.json()


def refused(client: httpx.Client, request: Any) -> dict[str, Any]:
    answer = client.post("/predict", json=request)
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]


# --- Answers ---------------------------------------------------------------------------------------------------------


def test_the_answers_are_those_of_the_policies(run: Path, client: httpx.Client) -> None:
    bundle = load_policies(run)
    seen = {agent: np.float32(value) for agent, value in SEEN.items()}
    expected = bundle.predict(seen, deterministic=True)
    answer = asked(client, observations=SEEN, return_values=True, return_log_probs=True)
    assert answer["actions"] == {agent: int(action) for agent, action in expected.items()}
    assert "states" not in answer
    assert answer["values"] == pytest.approx({agent: float(each) for agent, each in bundle.value(seen).items()})
    log_probs = bundle.log_prob(seen, expected)
    assert answer["log_probs"] == pytest.approx({agent: float(each) for agent, each in log_probs.items()})


def test_a_batch_is_answered_row_by_row(client: httpx.Client) -> None:
    rows = [[float(row), 0.5, -row] for row in range(8)]
    single = [asked(client, observations={"a": row})["actions"]["a"] for row in rows]
    answer = asked(client, observations={"a": rows, "b": rows}, batch=8, return_values=True)
    assert answer["actions"]["a"] == single
    assert len(answer["values"]["b"]) == 8


def test_sampled_actions_vary(client: httpx.Client) -> None:
    rows = [SEEN["a"]] * 8
    found = {
        action
        for _ in range(20)
        for action in asked(client, observations={"a": rows}, batch=8, deterministic=False)["actions"]["a"]
    }
    assert found == {0, 1, 2}


def test_states_of_recurrent_policies_go_to_the_client_and_come_back(recurrent: Path) -> None:
    bundle, states, state = load_policies(recurrent), {}, None
    with policy_server(recurrent, reload_s=0) as server, httpx.Client(base_url=server.address) as http:
        for step in range(3):
            seen = {"a": [1.0, 1.0, float(step)]}
            answer = asked(http, observations=seen, states=states, return_log_probs=True)
            array = {"a": np.float32(seen["a"])}
            log_prob = bundle.log_prob(array, answer["actions"], state=state)["a"]
            assert answer["log_probs"]["a"] == pytest.approx(float(log_prob), rel=1e-5)
            _, state = bundle.predict_with_state(array, state=state, deterministic=True)
            states = answer["states"]
        fresh = asked(http, observations=seen)["states"]
        assert fresh != asked(http, observations=seen, states=states)["states"]
        assert fresh == asked(http, observations=seen, states=states, episode_starts={"a": True})["states"]
        assert (
            "an LSTM of its own"
            in refused(http, {"observations": seen, "states": states, "return_values": True})["message"]
        )
        assert "states" not in asked(http, observations=seen, return_states=False)
        assert refused(http, {"observations": seen, "states": {"a": [[1]]}})["key"] == "states"


def test_masks_forbid_actions(masked: Path) -> None:
    with policy_server(masked, reload_s=0) as server, httpx.Client(base_url=server.address) as http:
        for only in range(3):
            mask = [choice == only for choice in range(3)]
            assert asked(http, observations={"a": SEEN["a"]}, action_masks={"a": mask})["actions"] == {"a": only}
        in_it = {"observation": SEEN["a"], "action_mask": [0, 1, 0]}
        assert asked(http, observations={"a": in_it})["actions"] == {"a": 1}
        assert "action_mask" in refused(http, {"observations": {"a": SEEN["a"]}})["message"]
        wrong = refused(http, {"observations": {"a": SEEN["a"]}, "action_masks": {"a": [1, 1]}})
        assert wrong["agent"] == "a"
        assert "shape (3,)" in wrong["accepted"]


def test_info_names_policies_agents_spaces_and_checkpoint(client: httpx.Client) -> None:
    info = client.get("/info").json()
    assert info["learns"] is False
    assert info["checkpoint"] == client.get("/health").json()["checkpoint"]
    assert info["agents"]["a"] == {
        "policy": "a",
        "observation_space": {"kind": "Box", "shape": [3], "dtype": "float32", "low": -1000.0, "high": 1000.0},
        "action_space": {"kind": "Discrete", "n": 3, "start": 0},
    }
    assert info["policies"]["b"]["algorithm"] == "PPO"
    assert info["limits"]["batch"] == 8


def test_openapi_describes_every_route(client: httpx.Client) -> None:
    described = client.get("/openapi.json").json()
    assert described == json.loads(json.dumps(openapi()))
    assert set(described["paths"]) == {
        "/health",
        "/ready",
        "/metrics",
        "/info",
        "/predict",
        "/weights",
        "/openapi.json",
    }
    schema = described["components"]["schemas"]["PredictRequest"]["properties"]
    assert set(schema) >= {"observations", "batch", "action_masks", "states", "deterministic"}


# --- Refusals --------------------------------------------------------------------------------------------------------


def test_an_observation_outside_its_space_is_refused_with_what_is_accepted(client: httpx.Client) -> None:
    assert refused(client, {"observations": {"a": [0, 0, 1001]}}) == {
        "message": "agent 'a': the observation, [2], is 1001.0; accepted: numbers of shape (3,), -1000 to 1000",
        "agent": "a",
        "key": "[2]",
        "accepted": "numbers of shape (3,), -1000 to 1000",
    }


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ({"observations": {"a": [0, 0]}}, "shape (3,)"),
        ({"observations": {"a": [[0, 0, 0]]}}, "shape (3,)"),
        ({"observations": {"a": "0"}}, "is '0'"),
        ({"observations": {"a": None}}, "is null"),
        ({"observations": {"c": [0, 0, 0]}}, "unknown agent 'c'; accepted: a, b"),
        ({"observations": {}}, "no agent"),
        ({}, "observations"),
        ([], "Expected object"),
        ({"observations": SEEN, "batch": 9}, "accepted: 1 to 8"),
        ({"observations": SEEN, "batch": 0}, ">= 1"),
        ({"observations": {"a": [[0, 0, 0]]}, "batch": 2}, "shape (2, 3)"),
        ({"observations": SEEN, "actoin_masks": {}}, "actoin_masks"),
        ({"observations": SEEN, "action_masks": {"a": [1, 1, 1]}}, "takes none"),
        ({"observations": SEEN, "states": {"a": [1]}}, "0 arrays"),
        ({"observations": {"a": [0, 0, 0]}, "rewards": {"b": 1}}, "those with an observation"),
    ],
)
def test_wrong_requests_are_refused(client: httpx.Client, request_: Any, words: str) -> None:
    assert words in refused(client, request_)["message"]


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b'{"observations": {"a": [NaN, 0, 0]}}', b"[" * 9000, b"null"])
def test_bodies_that_are_no_request_are_refused(client: httpx.Client, body: bytes) -> None:
    answer = client.post("/predict", content=body, headers={"Content-Type": "application/json"})
    assert (answer.status_code, "message" in answer.json()["error"]) == (400, True)


def test_the_content_type_does_not_matter_but_the_page_that_asks_does(client: httpx.Client) -> None:
    body = json.dumps({"observations": SEEN})  # as `curl -d` and a bare `fetch` send it
    for kind in ("application/x-www-form-urlencoded", "text/plain;charset=UTF-8"):
        assert "actions" in client.post("/predict", content=body, headers={"Content-Type": kind}).json()
    headers = {"Content-Type": "text/plain", "Origin": "http://evil.example"}
    assert client.post("/predict", content=body, headers=headers).status_code == 403


# --- Clients ---------------------------------------------------------------------------------------------------------


def test_a_client_acts_by_itself_with_the_weights_of_the_server(
    recurrent: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def played(client: PolicyClient, steps: range) -> list[Any]:
        seen = [{"a": [1, 1, step], "b": [2, 1, step]} for step in steps]
        return [client.get_action("mine", each) for each in seen]

    how: dict[str, Any] = {"deterministic": True, "retry_s": 0}
    with (
        policy_server(recurrent, reload_s=0) as server,
        PolicyClient(server.address, **how) as remote,
        PolicyClient(server.address, local=True, **how) as local,
    ):
        assert remote.start_episode("mine", training_enabled=False) == local.start_episode("mine")
        remote.log_returns("mine", {"a": 1.0})
        assert played(remote, range(5)) == played(local, range(5))
        remote.end_episode("mine", {"a": [1, 1, 5]})
        requests = remote._request("GET", "/info")["requests"]
        assert requests == 5  # the local client has sent none
        (own := local._local)._due_s = 0.0
        before = own._bundle
        played(local, range(1))
        assert own._bundle is before  # the server has nothing newer
    own._due_s = 0.0
    assert len(played(local, range(2))) == 2  # the server has gone
    assert "no newer weights" in caplog.text


def test_damaged_and_forged_weights_are_refused_or_harmless(client: httpx.Client) -> None:
    answer, rng = client.get("/weights"), random.Random(0)
    content, end = answer.content, 8 + int.from_bytes(answer.content[:8], "little")
    with pytest.raises(CheckpointError, match="SHA-256"):
        unpack_weights(content[:-1] + b"?", json.loads(answer.headers["etag"]))
    for wrong in (b"", b"\xff" * 100, content[:50]):
        with pytest.raises(CheckpointError):
            unpack_weights(wrong, hashlib.sha256(wrong).hexdigest())
    refused = 0
    for _ in range(100):
        forged = bytearray(content)
        for _ in range(rng.randint(1, 4)):
            forged[rng.randrange(8, end)] = rng.choice(b'0123456789abcxyz"{}[],:-.')
        try:
            unpack_weights(bytes(forged), hashlib.sha256(forged).hexdigest())
        except (CheckpointError, ConfigError):
            refused += 1
    assert refused > 50


# --- Newer checkpoints and weights -----------------------------------------------------------------------------------


def test_requests_are_answered_while_checkpoints_come_and_a_damaged_one_is_passed_over(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    copied = shutil.copytree(run, tmp_path / "run")
    folder, kept = copied / "checkpoints", tmp_path / "kept"
    sources = sorted(folder.rename(kept).iterdir())
    values = [load_policies(source).value({"a": np.float32(SEEN["a"])})["a"] for source in sources]
    assert values[0] != pytest.approx(values[-1], abs=1e-4)

    def publish(number: int, damaged: bool = False) -> None:
        fresh = shutil.copytree(sources[number % len(sources)], tmp_path / "fresh")
        if damaged:
            (fresh / "state.json").write_bytes(b"{}")
        folder.mkdir(exist_ok=True)
        fresh.rename(folder / f"ckpt-{number:06}")

    answers: list[dict[str, Any]] = []
    is_over = threading.Event()

    def ask(address: str) -> None:
        with httpx.Client(base_url=address) as http:
            while not is_over.is_set():
                answers.append(asked(http, observations={"a": SEEN["a"]}, return_values=True))

    def wait_for_answer_of(number: int) -> None:
        wait_for(lambda: bool(answers) and answers[-1]["checkpoint"] == f"ckpt-{number:06}")

    monkeypatch.setattr(predictor_module, "_AGAIN_S", 0.1)
    publish(0)
    with policy_server(copied, "latest", reload_s=0.02) as server, ThreadPoolExecutor() as clients:
        asking = [clients.submit(ask, server.address) for _ in "123"]
        with ExitStack() as ends:
            ends.callback(is_over.set)
            for number in (1, 2, 3):
                publish(number)
                wait_for_answer_of(number)
            assert httpx.get(f"{server.address}/ready?newest").status_code == 200
            publish(4, damaged=True)
            wait_for(lambda: scraped(server.address)["marl_sb3_reload_failing"] == 1)
            assert answers[-1]["checkpoint"] == "ckpt-000003"
            assert httpx.get(f"{server.address}/ready").status_code == 200  # the policies answer
            assert httpx.get(f"{server.address}/ready?newest").status_code == 503
            shutil.copy(sources[4 % len(sources)] / "state.json", folder / "ckpt-000004")  # it was the disk
            wait_for_answer_of(4)
        for each in asking:
            each.result()  # raises if a request was not answered
        found = scraped(server.address)
    for each in answers:
        number = int(each["checkpoint"].removeprefix("ckpt-"))
        assert each["values"]["a"] == pytest.approx(float(values[number % len(sources)]), rel=1e-5)
    assert "ckpt-000004 is damaged; ckpt-000003 is served further" in caplog.text
    of_predict = [name for name in found if 'route="/predict"' in name and "status=" in name]
    assert of_predict == ['marl_sb3_http_requests_total{route="/predict",status="200"}']
    expected = {
        of_predict[0]: len(answers),
        "marl_sb3_batch_rows_sum": len(answers),
        "marl_sb3_batch_requests_sum": len(answers),
        "marl_sb3_batch_seconds_count": found["marl_sb3_batch_requests_count"],
        "marl_sb3_queue_requests": 0,
        'marl_sb3_reloads_total{result="done"}': 4,
        "marl_sb3_reload_failing": 0,
        f'marl_sb3_policy_info{{checkpoint="ckpt-000004",env="toy_envs:ScriptedEnv",version="{VERSION}"}}': 1,
        "marl_sb3_policy_env_steps": 12,
    }
    assert {name: found[name] for name in expected} == expected
    assert found['marl_sb3_reloads_total{result="failed"}'] >= 1
    loaded_s, written_s = (found[f'marl_sb3_policy_age_seconds{{since="{since}"}}'] for since in ("loaded", "written"))
    assert 0 <= loaded_s < written_s < 3600


def test_whatever_fails_in_a_reload_the_policies_that_are_served_stay(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    predictor = Predictor(SavedRun.open(shutil.copytree(run, tmp_path / "run"), makes_env=False), "latest")
    before = predictor.served
    newest = max((tmp_path / "run/checkpoints").iterdir())
    shutil.copytree(newest, newest.with_name("ckpt-000900"))
    with monkeypatch.context() as broken:
        broken.setattr(predictor, "_load", lambda: 1 / 0)
        assert [predictor.reload() for _ in "12"] == [False, False]
        assert (predictor.served, predictor.failing) == (before, True)
    assert caplog.text.count(f"ZeroDivisionError: division by zero; {before.checkpoint} is served further") == 1
    assert not predictor.reload()  # not before a minute
    monkeypatch.setattr(predictor_module, "_AGAIN_S", 0.0)
    assert predictor.reload()
    assert (predictor.served.checkpoint, predictor.failing) == ("ckpt-000900", False)


def test_weights_make_the_same_policies_elsewhere_and_are_sent_once(run: Path, client: httpx.Client) -> None:
    answer = client.get("/weights")
    bundle = unpack_weights(answer.content, json.loads(answer.headers["etag"]))
    seen = {agent: np.float32(value) for agent, value in SEEN.items()}
    assert bundle.value(seen) == load_policies(run).value(seen)
    assert bundle.checkpoint == client.get("/info").json()["checkpoint"]
    again = client.get("/weights", headers={"If-None-Match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


# --- Batches --------------------------------------------------------------------------------------------


def test_requests_that_arrive_together_are_one_batch_and_errors_stay_apart() -> None:
    batches = []

    def answer(requests: Any) -> list[Any]:
        batches.append(list(requests))
        return [ValueError(each) if each == 3 else each * 10 for each in requests]

    async def run() -> list[Any]:
        batcher: Batcher[int, int] = Batcher(answer, lambda _: 1, max_rows=4)
        return await asyncio.gather(*(batcher.submit(each) for each in range(6)), return_exceptions=True)

    answers = asyncio.run(run())
    assert batches == [[0, 1, 2, 3], [4, 5]]
    assert [each for each in answers if not isinstance(each, ValueError)] == [0, 10, 20, 40, 50]


def test_a_batch_of_requests_has_the_answers_of_each_alone(run: Path) -> None:
    predictor = Predictor(SavedRun.open(run, makes_env=False))
    rng = np.random.default_rng(0)
    requests = [
        DecodedRequest(
            AgentInputs({agent: rng.uniform(-9, 9, (rows, 3)).astype(np.float32) for agent in agents}), rows=rows
        )
        for agents, rows in (("ab", 1), ("a", 3), ("b", 2), ("ab", 4))
    ]
    for together, request in zip(predictor.answer(requests), requests, strict=True):
        (alone,) = predictor.answer([request])
        for agent in request.inputs.observations:
            np.testing.assert_array_equal(together.answer.actions[agent], alone.answer.actions[agent])


def test_what_is_wrong_with_a_request_is_its_own_answer(masked: Path) -> None:
    predictor = Predictor(SavedRun.open(masked, makes_env=False))
    seen = {"a": np.float32([SEEN["a"]])}
    right = DecodedRequest(AgentInputs(seen, action_masks={"a": np.array([[False, False, True]])}))
    first, wrong, last = predictor.answer([right, DecodedRequest(AgentInputs(seen)), right])
    assert isinstance(wrong, ConfigError)
    assert [predicted.answer.actions["a"].tolist() for predicted in (first, last)] == [[2], [2]]


# --- The command -----------------------------------------------------------------------------------------------------


def test_the_command_prints_its_address_and_ends_on_sigterm(server: ForkServer, run: Path, tmp_path: Path) -> None:
    arguments = ["-m", "marl_sb3.serve", str(run), "--port", "0", "--drain-s", "0.5"]
    process = server.run(arguments, tmp_path / "out")
    try:
        address = ""
        while not address and process.poll() is None:
            address = process.output.read_text().partition("serving on ")[2].partition("\n")[0]
        assert httpx.post(f"{address}/predict", json={"observations": SEEN}).status_code == 200
        process.terminate()
        wait_for(lambda: httpx.get(f"{address}/ready").status_code == 503)
        assert httpx.post(f"{address}/predict", json={"observations": SEEN}).status_code == 200
    finally:
        process.terminate()
    assert process.wait(10) == 130


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--host", "0.0.0.0"], "with --token TOKEN"),
        (["--max-batch", "0"], "--max-batch"),
        (["--port", "65536"], "--port is 65536; accepted: 0 to 65535"),
        (["--checkpoint", "77"], "no checkpoint '77'"),
        (["--against", "random"], "--against is for the page; accepted: with --ui"),
        (
            ["--against", "nobody", "--ui", "--env", "toy_envs:ScriptedEnv"],
            "there is no such path; accepted: a run folder, a checkpoint, a member of a",
        ),
    ],
)
def test_wrong_command_lines_are_refused(
    run: Path, options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(run), "--port", "0", *options]) == 2
    assert words in capsys.readouterr().err


def test_a_run_without_checkpoints_and_a_taken_port_are_refused(
    run: Path, client: httpx.Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copied = shutil.copytree(run, tmp_path / "run")
    shutil.rmtree(copied / "checkpoints")
    assert main([str(copied)]) == 2
    assert "holds no valid checkpoint" in capsys.readouterr().err
    assert main([str(run), "--port", str(client.base_url.port)]) == 2
    assert "--port 0 for any free one" in capsys.readouterr().err


class OfParts(SampledEnv):
    """One agent with actions of several parts."""

    def __init__(self) -> None:
        super().__init__(spaces.Box(-1, 1, (2,)), PARTS, {"a": (3, "terminated")})


PARTS = spaces.Dict({"move": spaces.Discrete(3, start=1), "aim": spaces.Tuple([spaces.Box(-1, 1, (2,))])})


def test_actions_of_several_parts_are_answered_as_the_env_has_them(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", timesteps=12, env=OfParts)
    action = load_policies(run).predict({"a": np.zeros(2, np.float32)}, deterministic=True)["a"]
    asked = {"observations": {"a": [[0.0, 0.0]] * 2}, "batch": 2}
    with policy_server(run, reload_s=0) as server, httpx.Client(base_url=server.address) as client:
        described = client.get("/info").json()["agents"]["a"]["action_space"]
        answers = [client.post("/predict", json=body).json() for body in (asked, {"observations": {"a": [0.0, 0.0]}})]
    assert described["spaces"]["move"] == {"kind": "Discrete", "n": 3, "start": 1}
    many, one = (answer["actions"]["a"] for answer in answers)
    assert one == {"aim": [pytest.approx(action["aim"][0].tolist(), abs=1e-6)], "move": int(action["move"])}
    assert many == [one, one]
