"""Train PPO in the envs of many packages; report their spaces, the speed of the training, and what failed.

    python benchmarks/envs.py [--envs ID,ID] [--env-steps 384] [--timeout-s 300] [--json FILE]

The envs are the built-in ones, those of PettingZoo's registries, mpe2 and magent2, and some of Gymnasium's. The row of
an env whose package is not installed says so. This installs the packages:

    pip install 'pettingzoo[classic,butterfly,sisl]' mpe2 magent2 'gymnasium[box2d]'

Each env trains in its own process with two copies. All agents with the same spaces share a PPO policy: CnnPolicy for
images, MultiInputPolicy for dicts, MlpPolicy otherwise. The first of three iterations is not counted. With images, a
sixteenth of the env steps is taken.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from typing import Any

import pettingzoo
from command_line import add_count, parser
from gymnasium import spaces
from measure import Report, Setting, number, print_table, say
from stable_baselines3.common.preprocessing import is_image_space
from trainings import one_torch_thread

from marl_sb3 import MultiAgentAlgorithm, PolicySpec, make_vec_env
from marl_sb3.core.vec_env.observations import AgentGroup
from marl_sb3.errors import MarlSb3Error

MPE2 = """simple-v3 simple_adversary-v3 simple_crypto-v3 simple_push-v3 simple_reference-v3 simple_speaker_listener-v4
simple_spread-v3 simple_tag-v3 simple_world_comm-v3 simple_formation-v1 simple_line-v1 collect_treasure-v1"""
MAGENT2 = "adversarial_pursuit-v4 battle-v4 battlefield-v5 combined_arms-v6 gather-v5 tiger_deer-v4"
GYMNASIUM = "CartPole-v1 Pendulum-v1 Acrobot-v1 MountainCarContinuous-v0 FrozenLake-v1 Blackjack-v1 LunarLander-v3"

SETTING = Setting(
    what="PPO of marl_sb3 in the envs of many packages; two envs, one policy for all agents with the same spaces",
    hyperparameters={"n_epochs": 2, "batch_size": 64},
    threads="1 torch thread; one env after the other",
    changes={"A": "batched envs, where an env has a batched twin", "B": "fused networks, where they fit"},
    packages=("marl_sb3", "stable-baselines3", "torch", "pettingzoo", "gymnasium"),
)
N_ENVS, ITERATIONS = 2, 3


def all_ids() -> list[str]:
    """Return the ids of all envs except Atari's, which need ROMs."""
    zoo = dict.fromkeys([*pettingzoo.parallel_registry, *pettingzoo.aec_registry])
    return [
        "arena",
        "waterworld",
        *(env for env in zoo if not env.startswith(("atari/", "marl_sb3/"))),
        *(f"mpe2/{name}" for name in MPE2.split()),
        *(f"magent2/{name}" for name in MAGENT2.split()),
        *GYMNASIUM.split(),
    ]


@dataclass(frozen=True)
class Trained:
    """The outcome of one env."""

    agents: int = 0  # number of agents
    spaces: str = ""  # observation and action space of each group of agents, in words
    vectorizer: str = ""  # the one that `auto` chose
    raw: Sequence[float] = ()  # env steps per second of each counted iteration, rollout and update together
    failed: str | None = None  # an error message; None: the training succeeded


def train(env_id: str, env_steps: int) -> Trained:
    """Train in one env."""
    env = make_vec_env(env_id, n_envs=N_ENVS, seed=0)
    try:
        policies = {f"pol{number}": policy_for(group) for number, group in enumerate(env.groups)}
        policy_of = {agent: f"pol{number}" for number, group in enumerate(env.groups) for agent in group.agents}
        with_images = any(spec.policy == "CnnPolicy" for spec in policies.values())
        n_steps = max(2, env_steps // (N_ENVS * ITERATIONS * (16 if with_images else 1)))
        defaults = SETTING.hyperparameters
        algorithm = MultiAgentAlgorithm(env, policies, policy_of.__getitem__, n_steps=n_steps, seed=0, **defaults)
        rates = [iteration_rate(algorithm, n_steps * N_ENVS) for _ in range(ITERATIONS)]
        kinds = "; ".join(dict.fromkeys(map(words_for, env.groups)))
        return Trained(len(env.agents), kinds, type(env).__name__.removesuffix("VecEnv").lower(), rates[1:])
    finally:
        env.close()


def iteration_rate(algorithm: MultiAgentAlgorithm, env_steps: int) -> float:
    """Return the env steps per second of one iteration."""
    started_s = time.perf_counter()
    algorithm.train_iteration()
    return env_steps / (time.perf_counter() - started_s)


def policy_for(group: AgentGroup) -> PolicySpec:
    """Choose the policy class that fits the observations of a group."""
    space = group.observation_space
    if isinstance(space, spaces.Dict):
        return PolicySpec(policy="MultiInputPolicy")
    return PolicySpec(policy="CnnPolicy" if is_image_space(space) and min(space.shape[:2]) >= 36 else "MlpPolicy")


def words_for(group: AgentGroup) -> str:
    """Describe the spaces of a group."""
    return f"{short(group.observation_space)} -> {short(group.action_space)}"


def short(space: spaces.Space[Any]) -> str:
    """Describe a space without its bounds."""
    if isinstance(space, spaces.Box):
        return f"Box{list(space.shape)} {space.dtype}"
    if isinstance(space, spaces.Dict):
        return f"Dict({', '.join(f'{key}: {short(part)}' for key, part in space.spaces.items())})"
    return str(space)


def train_and_send(env_id: str, env_steps: int, answer: Connection) -> None:
    """Train without showing what the env prints, and send the outcome; runs in a process of its own."""
    one_torch_thread()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            trained = train(env_id, env_steps)
        except MarlSb3Error as error:
            trained = Trained(failed=" ".join(str(error).split()))
        except Exception as error:  # a fault in marl_sb3
            trained = Trained(failed=f"{type(error).__name__}: {error}")
    answer.send(trained)


def trained_apart(env_id: str, env_steps: int, timeout_s: float) -> Trained:
    """Train in another process, since an env may crash or hang."""
    here, there = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=train_and_send, args=(env_id, env_steps, there))
    process.start()
    there.close()
    try:
        return here.recv() if here.poll(timeout_s) else Trained(failed=f"not done after {timeout_s:g} s")
    except EOFError:
        process.join()
        return Trained(failed=f"its process died with exit code {process.exitcode}")
    finally:
        process.kill()
        process.join()


def row(env_id: str, trained: Trained) -> list[str]:
    """Return the table row of an env."""
    if trained.failed is not None:
        return [env_id, "", trained.failed[:160], "", ""]
    rate = number(sum(trained.raw) / len(trained.raw))
    return [env_id, str(trained.agents), trained.spaces, trained.vectorizer, rate]


def main(argv: Sequence[str] | None = None) -> None:
    """Train in the envs and print a table with a row for each."""
    options = parser(__doc__, repeats=None)
    options.add_argument("--envs", metavar="ID,ID", help="only these; default: all")
    add_count(options, "--env-steps", 384, "env steps in each env")
    options.add_argument(
        "--timeout-s", type=float, default=300.0, metavar="S", help="seconds for each env; default: 300"
    )
    arguments = options.parse_args(argv)
    trained: dict[str, Trained] = {}
    for env_id in arguments.envs.split(",") if arguments.envs else all_ids():
        say(env_id)
        trained[env_id] = trained_apart(env_id, arguments.env_steps, arguments.timeout_s)
    SETTING.print()
    head = ["env", "agents", "observation -> action", "vectorizer", "env steps/s"]
    print_table(head, [row(env_id, outcome) for env_id, outcome in trained.items()])
    failed = sum(outcome.failed is not None for outcome in trained.values())
    print(f"{len(trained) - failed} of {len(trained)} envs train")
    Report("envs", SETTING, {env_id: asdict(outcome) for env_id, outcome in trained.items()}).write(arguments.json)


if __name__ == "__main__":
    main()
