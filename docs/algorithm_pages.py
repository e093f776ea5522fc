"""The page of each algorithm: what it takes, where it runs fused, its hyperparameters, and what it reached.

`docs/generate.py` writes them. Defaults and accepted values are those of the code, figures those of `presets.md`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from marl_sb3.core.config import AlgorithmInfo, words
from marl_sb3.core.learners import hyperparameter_defaults, is_off_policy
from marl_sb3.extensions.fast import ALGORITHMS

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
        ("ppo", "a2c", "maskable_ppo", "maskable_a2c"), f"{_WHOLE}; also with layers that actor and critic share"
    ),
    **dict.fromkeys(("dqn", "qrdqn", "maskable_dqn", "maskable_qrdqn", "sac", "tqc", "td3", "ddpg"), _WHOLE),
    **dict.fromkeys(("vdn", "qmix"), "rollouts of MLPs, on CPUs; updates are PyTorch's"),
    **dict.fromkeys(
        ("recurrent_ppo", "maskable_recurrent_ppo"),
        "rollouts and updates of MLPs with LSTMs, on CPUs; other updates in PyTorch, over whole sequences",
    ),
    **dict.fromkeys(("trpo", "maskable_trpo"), "rollouts of MLPs, on CPUs; updates are PyTorch's"),
    **dict.fromkeys(("crossq", "recurrent_dqn", "recurrent_sac", "iql"), "nowhere"),
}
# When to take it, in two sentences at most.
ADVICE = {
    "ppo": "The default, and the first one to try: it takes all actions, and is the fastest here.",
    "a2c": "One gradient step for each short rollout, with nothing clipped: each update is cheap, and uses its "
    "experience once.",
    "trpo": "Each update stays within a bound of the KL divergence, for which it searches the length of the step: "
    "slower than PPO.",
    "maskable_ppo": "For games with illegal moves: the env's masks leave only legal ones to choose from, in training "
    "and afterwards.",
    "maskable_a2c": "A2C for games with illegal moves, with the masks and the networks of MaskablePPO.",
    "maskable_trpo": "TRPO for games with illegal moves: the KL divergence that it bounds is that of the choices among "
    "legal ones.",
    "recurrent_ppo": "For agents that have to remember: an LSTM carries what was seen through the episode. Where a few "
    "steps are enough, [stacked frames](../how_to/processing.md) learn sooner.",
    "maskable_recurrent_ppo": "For games with illegal moves in which what was seen before matters: RecurrentPPO "
    "with the masks of MaskablePPO.",
    "dqn": "Learns from a replay buffer, so from each transition many times: for few actions and slow envs.",
    "qrdqn": "DQN that learns quantiles of the return instead of its mean, which costs more arithmetic in each update.",
    "maskable_dqn": "DQN for games with illegal moves: no move that the mask forbids is taken, or counts as the best "
    "next one.",
    "maskable_qrdqn": "The same with quantiles of the return, as QRDQN learns them.",
    "recurrent_dqn": "DQN for agents that have to remember: an LSTM or a GRU learns from [sequences of "
    "transitions](../how_to/replay.md#policies-that-remember). Each update takes longer than DQN's.",
    "vdn": "For a team that is paid together: its reward teaches all agents at once, each of which acts by values of "
    "its own. See [teams](../how_to/teams.md).",
    "qmix": "VDN with a network in the place of the sum, which sees the state of the env: it tells apart what a sum of "
    "values cannot. See [teams](../how_to/teams.md).",
    "sac": "The first one to try where actions are continuous and env steps take long.",
    "recurrent_sac": "SAC for agents that have to remember: actor and critics have an LSTM or a GRU each, and learn "
    "from [sequences of transitions](../how_to/replay.md#policies-that-remember). Each update takes longer than SAC's.",
    "td3": "Like SAC, but with deterministic actors: choose the noise with which they explore (`action_noise`).",
    "ddpg": "TD3 without its three improvements, here for comparisons: prefer TD3.",
    "tqc": "SAC whose critics learn quantiles; the most optimistic ones are left out. An update costs more arithmetic.",
    "crossq": "Its class is sb3-contrib's own, and has no fused path.",
    "iql": "For [recorded episodes](../how_to/learning_from_data.md#offline-by-iql) that are not all good: where "
    "a clone acts as they do, it looks for the best that is in them. Online, it goes on from there.",
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
        f"| | |\n| --- | --- |\n{rows}\n\n## What it reached\n\n{_reached(info.name)}\n"
        f"## Hyperparameters\n\n{_hyperparameters(info)}"
    )


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
        needed = getattr(info.algorithm_class, "needs_masks", True)
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
        arguments = line.split("|")[1].strip()
        if arguments:  # else it is a second row of the command above it
            algo = re.search(r"--algo (\w+)", arguments)
            is_own = name == (algo[1] if algo else "ppo")
        rows += [line] if is_own else []
    more = "[Presets](../presets.md) has the curves, and what stands beside these figures."
    if not rows:
        return f"No preset of it is measured over three seeds. {more}\n"
    return "\n".join([*table[:2], *rows]) + f"\n\n{more}\n"


def _hyperparameters(info: AlgorithmInfo) -> str:
    defaults = hyperparameter_defaults(info.algorithm_class)
    rows = [
        f"| `{name}` | {_default(value)} | {_in_cell(words(info.kinds[name])) if name in info.kinds else ''} |"
        for name, value in defaults.items()
    ]
    whose = "those of SB3's SAC, and of the paper's locomotion tasks" if info.name == "iql" else "those of SB3"
    intro = f"The defaults are {whose}. A [preset](../presets.md) of the env wins over them, and `--set` over both.\n\n"
    return intro + "\n".join(["| name | default | accepted |", "| --- | --- | --- |", *rows]) + "\n"


def _default(value: Any) -> str:
    return "none" if value is None else f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _in_cell(text: str) -> str:
    return text.replace("|", "\\|")
