"""The page of each algorithm: what it takes, where it runs fused, its hyperparameters, and what it reached.

`docs/generate.py` writes them. Defaults and accepted values are those of the code, figures those of `presets.md`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from marl_sb3.core.config.algorithms import AlgorithmInfo, Decay, Points
from marl_sb3.core.config.values import words
from marl_sb3.core.learners.building import is_off_policy
from marl_sb3.core.learners.spec import hyperparameter_defaults
from marl_sb3.core.sb3.traits import trait
from marl_sb3.extensions.fast.builtin import ALGORITHMS

HERE = Path(__file__).parent

_DISCRETE, _BOX = "Discrete", "Box"
_ALL, _NOT_BOX = "Box, Discrete, MultiDiscrete, MultiBinary", "Discrete, MultiDiscrete, MultiBinary"
ACTIONS = {
    **dict.fromkeys(("ppo", "a2c", "trpo", "recurrent_ppo"), _ALL),
    **dict.fromkeys(("maskable_ppo", "maskable_a2c", "maskable_trpo", "maskable_recurrent_ppo"), _NOT_BOX),
    **dict.fromkeys(("dqn", "qrdqn", "maskable_dqn", "maskable_qrdqn", "recurrent_dqn", "vdn", "qmix"), _DISCRETE),
    **dict.fromkeys(("sac", "recurrent_sac", "td3", "ddpg", "tqc", "crossq"), _BOX),
    "iql": f"{_BOX}, {_DISCRETE}",
}
_WHOLE = "rollouts and updates of MLPs, on CPUs"
FUSED = {
    **dict.fromkeys(
        ("ppo", "a2c", "trpo", "maskable_ppo", "maskable_a2c", "maskable_trpo"),
        f"{_WHOLE}; also with layers that actor and critic share",
    ),
    **dict.fromkeys(("dqn", "qrdqn", "maskable_dqn", "maskable_qrdqn", "sac", "tqc", "td3", "ddpg"), _WHOLE),
    **dict.fromkeys(("vdn", "qmix"), "rollouts of MLPs, on CPUs; updates are PyTorch's"),
    **dict.fromkeys(
        ("recurrent_ppo", "maskable_recurrent_ppo"),
        "rollouts and updates of MLPs with LSTMs, on CPUs; other updates in PyTorch, over whole sequences",
    ),
    **dict.fromkeys(("crossq", "recurrent_dqn", "recurrent_sac", "iql"), "neither rollouts nor updates"),
}
# When to take it: the sentence after its name.
ADVICE = {
    "ppo": "The default, and the first one to try: it takes all kinds of actions, and trains fastest here.",
    "a2c": "One gradient step after each short rollout, without PPO's clipping: each update is cheap, and uses "
    "its rollout once.",
    "trpo": "Each update searches for the largest step within a bound of the KL divergence. It is slower than PPO.",
    "maskable_ppo": "For games with illegal moves: the env's masks leave only legal ones to choose from, in training "
    "and afterwards.",
    "maskable_a2c": "A2C for games with illegal moves, with the masks and the networks of MaskablePPO.",
    "maskable_trpo": "TRPO for games with illegal moves: the KL divergence that it bounds is that of the choices among "
    "legal ones.",
    "recurrent_ppo": "For agents that have to remember: an LSTM carries what was seen through the episode. Where a few "
    "steps are enough, [stacked frames](../how_to/processing.md) learn sooner.",
    "maskable_recurrent_ppo": "For games with illegal moves in which what was seen before matters: RecurrentPPO "
    "with the masks of MaskablePPO.",
    "dqn": "For envs with few actions and slow steps: it learns from each transition many times.",
    "qrdqn": "DQN that learns quantiles of the return instead of its mean, which costs more arithmetic in each update.",
    "maskable_dqn": "DQN for games with illegal moves: it takes none that the mask forbids, and its targets go on "
    "with the best legal move.",
    "maskable_qrdqn": "MaskableDQN that learns quantiles of the return, as QRDQN does.",
    "recurrent_dqn": "DQN for agents that have to remember: an LSTM or a GRU learns from [sequences of "
    "transitions](../how_to/replay.md#policies-that-remember). Each update takes longer than DQN's.",
    "vdn": "For agents that earn a reward together: it trains all of them at once, and each acts by Q values of its "
    "own. See [teams](../how_to/teams.md).",
    "qmix": "VDN with a network in place of the sum. It sees the state of the env, and represents values of joint "
    "actions that are no sum of the agents' values. See [teams](../how_to/teams.md).",
    "sac": "The first one to try where actions are continuous and env steps take long.",
    "recurrent_sac": "SAC for agents that have to remember: actor and critics have an LSTM or a GRU each, and learn "
    "from [sequences of transitions](../how_to/replay.md#policies-that-remember). Each update takes longer than SAC's.",
    "td3": "Like SAC, but with deterministic actors: choose the noise with which they explore (`action_noise`).",
    "ddpg": "TD3 without its three improvements, here for comparisons: prefer TD3.",
    "tqc": "SAC whose critics learn quantiles; the most optimistic ones are left out. An update costs more arithmetic.",
    "crossq": "The class is sb3-contrib's own: PyTorch computes its updates, and none is fused.",
    "iql": "For [recorded episodes](../how_to/learning_from_data.md#offline-by-iql) of mixed quality: where a "
    "clone repeats them, IQL prefers the actions that earned more. It can train on in the env afterwards.",
}

# The command at the head of a page; for the others: `train` with the first env that the algorithm has a preset for.
COMMANDS = {
    "iql": "python -m marl_sb3.train arena --timesteps 20000 --seed 0 --record recorded\n"
    "python -m marl_sb3.imitate recorded --env arena --algo iql --epochs 3 --seed 0",
}
OF_TEAMS = "teams"  # stands for a hyperparameter that only algorithms for teams have
# What each hyperparameter does, of the algorithms that also have the hyperparameter before the table. Later tables win.
MEANINGS: dict[str, dict[str, str]] = {
    "policy_kwargs": {
        "learning_rate": "step size of the optimizer",
        "batch_size": "transitions in a minibatch; each minibatch is one gradient step",
        "gamma": "discount factor of a reward that comes one agent step later",
        "max_grad_norm": "gradients of a larger norm are scaled down to it",
        "use_sde": "explores by noise that depends on the state (gSDE), for actions in a Box",
        "sde_sample_freq": "steps after which the noise of gSDE is drawn anew; -1: once for each rollout",
        "policy_kwargs": "arguments of the policy class, such as the [network](../how_to/networks.md)",
    },
    "gae_lambda": {
        "n_steps": "env steps of each env in a rollout, after which the policy is updated",
        "gae_lambda": "weight of later rewards in advantages (GAE): 0 takes one reward and the critic's value, "
        "1 all rewards of the rollout",
        "normalize_advantage": "scales advantages to mean 0 and standard deviation 1",
        "ent_coef": "weight of the entropy in the loss: a larger one keeps actions more random",
        "vf_coef": "weight of the critic's loss",
    },
    "clip_range": {
        "n_epochs": "passes over a rollout in each update",
        "clip_range": "range around 1 outside of which the loss does not reward a change of the probability ratio",
        "clip_range_vf": "the same for the critic's values, in units of the return; null: not clipped",
        "target_kl": "ends an update once the KL divergence from the old policy exceeds 1.5 times this; null: never",
    },
    "use_rms_prop": {
        "use_rms_prop": "optimizer: RMSprop, or Adam if false",
        "rms_prop_eps": "constant in the denominator of RMSprop",
    },
    "cg_max_steps": {
        "learning_rate": "step size of the critic's optimizer; the actor's steps follow from `target_kl`",
        "batch_size": "transitions in a minibatch of the critic; the actor learns from the whole rollout at once",
        "n_critic_updates": "passes of the critic over a rollout",
        "target_kl": "bound of the KL divergence between the policies before and after an update",
        "cg_max_steps": "maximum number of conjugate gradient iterations, which find the direction of a step",
        "cg_damping": "added to the diagonal of the Hessian, which keeps these iterations stable",
        "line_search_shrinking_factor": "factor by which a step is shortened that exceeds `target_kl` "
        "or does not improve the policy",
        "line_search_max_iter": "maximum number of times that a step is shortened; then the actor keeps its weights",
        "sub_sampling_factor": "K: the actor learns from every K-th transition",
    },
    "buffer_size": {
        "buffer_size": "capacity of the replay buffer in transitions, over all agents of the policy",
        "learning_starts": "agent steps with random actions, before anything is learned",
        "tau": "share of the trained weights in each update of a target network; 1 copies them",
        "train_freq": "env steps of each env between two updates; `[N, episode]`: N episodes, with one env",
        "gradient_steps": "gradient steps in an update; -1: as many as agent steps were taken",
        "replay_buffer_class": "null: by the observations; `HerReplayBuffer` [for goals](../how_to/replay.md#goals)",
        "replay_buffer_kwargs": "arguments of this class",
        "optimize_memory_usage": "stores each observation once instead of twice; see "
        "[memory](../how_to/replay.md#memory)",
        "n_steps": "rewards that are added up before the value of the next observation (n-step returns)",
    },
    "exploration_fraction": {
        "exploration_initial_eps": "probability of a random action at the start",
        "exploration_final_eps": "probability of a random action from the end of `exploration_fraction` on",
        "exploration_fraction": "share of the training in which the probability falls, on a line",
        "exploration_schedule": "probability of a random action as a schedule; it replaces the other three",
        "target_update_interval": "agent steps between two updates of the target network",
    },
    "action_noise": {"action_noise": "noise on actions between -1 and 1: kind and standard deviation; null: none"},
    "target_entropy": {
        "ent_coef": "weight of the entropy; `auto` learns it, so that the entropy stays at `target_entropy`",
        "target_entropy": "entropy that `ent_coef: auto` aims at; `auto`: minus the number of action dimensions",
        "use_sde_at_warmup": "takes the actions of gSDE instead of random ones until `learning_starts`",
        "target_update_interval": "gradient steps between two updates of the target networks",
    },
    "policy_delay": {"policy_delay": "gradient steps of the critics for one of the actor"},
    "target_policy_noise": {
        "target_policy_noise": "standard deviation of the noise on the next actions in targets",
        "target_noise_clip": "bound of the absolute value of this noise",
    },
    "top_quantiles_to_drop_per_net": {
        "top_quantiles_to_drop_per_net": "highest quantiles of each critic that targets leave out",
    },
    "expectile": {
        "expectile": "0.5 makes the value the mean over the actions of the data; near 1, that of the best of them",
        "beta": "how much the policy prefers actions of higher advantage; 0 clones all alike",
    },
    "burn_in": {
        "batch_size": "sequences in a minibatch; each minibatch is one gradient step",
        "burn_in": "maximum number of transitions before a sequence; they bring its stored state up to date",
        "sequence_length": "maximum number of transitions of a sequence that are learned from",
        **dict.fromkeys(("optimize_memory_usage", "use_sde"), "cannot be changed with sequences"),
    },
    "replay": {
        "replay": "`prioritized`: transitions with larger TD errors are drawn more often, see "
        "[replay buffers](../how_to/replay.md#prioritized-replay)",
        "replay_alpha": "with `replay: prioritized`: power of the errors; 0: all are drawn as often",
        "replay_beta": "the same: power of the importance weights at the beginning; it grows to 1 until the end",
    },
    "double_dqn": {"double_dqn": "the trained network chooses the next action, and the target network gives its value"},
    OF_TEAMS: {
        "batch_size": "transitions of the team in a minibatch; each minibatch is one gradient step",
        "optimize_memory_usage": "cannot be changed with teams",
        "td_lambda": "with n_steps above 1: how much later values count, as in TD(lambda); 1: the last one alone",
        "replay_buffer_class": "null: by the observations; goals (`HerReplayBuffer`) do not go with teams",
    },
    "mixing_embed_dim": {
        "mixing_embed_dim": "width of the mixing network's hidden layer",
        "hypernet_embed": "width of the hidden layer of the networks that compute its weights; 0: these have none",
    },
}


def algorithm_pages() -> dict[str, str]:
    """All pages, by their file names below `docs/`."""
    pages = {f"algorithms/{name}.md": _page(info) for name, info in ALGORITHMS.items()}
    return {"algorithms/index.md": _overview(), **pages}


def _overview() -> str:
    rows = [
        f"| [`{name}`]({name}.md) | {info.help} | {ACTIONS[name]} | {_experience(info)} |"
        for name, info in ALGORITHMS.items()
    ]
    entries = "\n".join(ALGORITHMS)
    return (
        "# Algorithms\n\n"
        "`--algo NAME` chooses one for all policies, and `--set POLICY.algo=NAME` for one of them; [choose the\n"
        "algorithm](../how_to/algorithms.md) also says how to add one of your own. The classes are those of SB3\n"
        "and sb3-contrib, or subclasses of these, and their files are SB3's.\n\n"
        "| name | algorithm | actions | learns from |\n| --- | --- | --- | --- |\n" + "\n".join(rows) + "\n\n"
        f"```{{toctree}}\n:hidden:\n\n{entries}\n```\n"
    )


def _page(info: AlgorithmInfo) -> str:
    facts = {
        "class": _class(info),
        "actions": ACTIONS[info.name],
        "learns from": _experience(info),
        "action masks": _masks(info),
        "memory": "an LSTM, or a GRU"
        if info.has_memory
        else "none; attention over the latest frames is a [network](../how_to/networks.md)",
        "fused": f"{FUSED[info.name]}; see [speed](../how_to/speed.md#fused-updates)",
    }
    if info.aliases:
        facts["also called"] = ", ".join(f"`{alias}`" for alias in info.aliases)
    rows = "\n".join(f"| {name} | {_in_cell(text)} |" for name, text in facts.items())
    return (
        f"# {info.class_name}\n\n`--algo {info.name}`: {info.help}. {ADVICE[info.name]}\n\n"
        f"```bash\n{_command(info.name)}\n```\n\n| | |\n| --- | --- |\n{rows}\n\n"
        f"## Hyperparameters\n\n{_hyperparameters(info)}\n## What it reached\n\n{_reached(info.name)}"
    )


def _command(algo: str) -> str:
    presets = yaml.safe_load((HERE.parent / "hparams" / f"{algo}.yml").read_text(encoding="utf-8"))
    return COMMANDS.get(algo, f"python -m marl_sb3.train {next(iter(presets))} --algo {algo} --seed 0")


def _class(info: AlgorithmInfo) -> str:
    if info.stock is None:
        package = "stable_baselines3" if info.has_memory else "marl_sb3"
        base = info.class_name.removeprefix("Maskable").removeprefix("Recurrent")
        if info.learner is not None and "team" in str(info.learner):
            base = "DQN"
        if info.name == "iql":
            return "`marl_sb3.IQL`, a subclass of SB3's `OffPolicyAlgorithm`"
        return f"`marl_sb3.{info.class_name}`, a subclass of `{package}.{base}`"
    stock = str(info.stock).partition(":")[0].split(".")[0]
    if info.stock == info.place:
        return f"`{stock}.{info.class_name}`"
    return f"`marl_sb3.{info.class_name}`, a subclass of `{stock}.{info.class_name}`"


def _masks(info: AlgorithmInfo) -> str:
    if info.takes_masks:
        needed = trait(info.algorithm_class, "needs_masks")
        return "needed, from the env" if needed else "used where the env gives them"
    if ACTIONS[info.name] == _BOX:
        return "not used: actions are continuous"
    using = f"maskable_{info.name}" if f"maskable_{info.name}" in ALGORITHMS else "maskable_ppo"
    return f"not used; `{using}` uses them"


def _experience(info: AlgorithmInfo) -> str:
    return "a replay buffer" if is_off_policy(info.algorithm_class) else "rollouts"


def _reached(name: str) -> str:
    """The rows of the table of presets that are of an algorithm."""
    lines = (HERE / "presets.md").read_text(encoding="utf-8").splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("| arguments | env steps | CPU"))
    table = lines[start : next(number for number in range(start, len(lines)) if not lines[number])]
    rows, is_own = [], False
    for line in table[2:]:
        arguments, *cells = (cell.strip() for cell in line.split("|")[1:-1])
        if arguments:  # else it is a second row of the command above it
            algo = re.search(r"--algo (\w+)", arguments)
            is_own = name == (algo[1] if algo else "ppo")
        env_steps, cpu_seconds, measured, *seeds, random = cells[:7]
        env = re.sub(r" --algo \w+", "", arguments)
        values = env, env_steps, cpu_seconds, measured, ", ".join(seeds), random
        rows += [f"| {' | '.join(values)} |"] if is_own else []
    more = "[Presets](../presets.md) says how it was measured, and has curves and references."
    if not rows:
        return "No preset of it is measured over three seeds; [presets](../presets.md) has those that are.\n"
    head = [
        "| env | env steps | CPU seconds | measured | seeds 0, 1, 2 | random policy |",
        "| --- | ---: | ---: | --- | ---: | ---: |",
    ]
    return "\n".join([*head, *rows]) + f"\n\n{more}\n"


def _hyperparameters(info: AlgorithmInfo) -> str:
    defaults = hyperparameter_defaults(info.algorithm_class)
    known = {*defaults, OF_TEAMS} if "team" in str(info.learner) else {*defaults}
    meanings = {key: text for needed, texts in MEANINGS.items() if needed in known for key, text in texts.items()}
    rows = [
        f"| `{name}` | {_default(value)} | {meanings[name]} | {_accepted(info.kinds[name])} |"
        for name, value in defaults.items()
    ]
    whose = "those of SB3's SAC and of the paper's locomotion tasks" if info.name == "iql" else _whose(info, defaults)
    intro = (
        f"`--set NAME=VALUE` sets one. Without it, the [preset](../presets.md) of the env counts, else the default.\n"
        f"The defaults are {whose}. A *schedule* changes a value during the training: `lin_X`,\n"
        "`exp_X`, `exp_X_Y` or `[[ENV_STEPS, X], ...]`, see [schedules](../how_to/settings.md#schedules).\n\n"
    )
    head = ["| name | default | what it does | accepted |", "| --- | --- | --- | --- |"]
    return intro + "\n".join([*head, *rows]) + "\n"


def _whose(info: AlgorithmInfo, defaults: Mapping[str, Any]) -> str:
    """Whose the defaults are, in words."""
    own = inspect.signature(next(cls for cls in info.algorithm_class.__mro__ if _is_of_sb3(cls))).parameters
    others = [f"`{name}`" for name, value in defaults.items() if name in own and own[name].default != value]
    return "those of SB3" + (f", but for {' and '.join(others)}" if others else "")


def _is_of_sb3(cls: type) -> bool:
    return cls.__module__.partition(".")[0] in ("stable_baselines3", "sb3_contrib")


def _accepted(kind: Any) -> str:
    return _in_cell(words(kind)).replace(f"{words(Decay)}, or {words(Points)}", "a schedule")


def _default(value: Any) -> str:
    return "none" if value is None else f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _in_cell(text: str) -> str:
    return text.replace("|", "\\|")
