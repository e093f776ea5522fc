"""The hyperparameters of each algorithm: SB3's argument names and what is accepted for them, a table per algorithm.

The upper bounds are far above useful values; they refuse absurd values in a damaged or hostile file. To add an
algorithm, write its table and name it in `TABLES` by the class's name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta

from marl_sb3.config.values import FiniteFloat, Fraction, NonNegativeFloat, PositiveFloat, takes_integers_only

Steps = Annotated[int, Meta(ge=1, le=10**6)]
Epochs = Annotated[int, Meta(ge=1, le=10**6)]
Minibatch = Annotated[int, Meta(ge=2)]

Line = Annotated[
    str,
    Meta(
        pattern=r"^lin_([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?\Z",
        description="lin_X for a line from X down to 0",
    ),
]
Schedule = PositiveFloat | Line
LearningRate = NonNegativeFloat | Line  # 0 as in SB3: the policy acts and is evaluated, and its weights stay

PolicyKwargs = Annotated[Mapping[str, Any], Meta(description="a mapping such as {net_arch: [64, 64]}")] | None

ROLLOUT: Mapping[str, Any] = {
    "learning_rate": LearningRate,
    "n_steps": Steps,
    "gamma": Fraction,
    "gae_lambda": Fraction,
    "normalize_advantage": bool,
    "policy_kwargs": PolicyKwargs,
}
GSDE: Mapping[str, Any] = {"use_sde": bool, "sde_sample_freq": Annotated[int, Meta(ge=-1)]}
ON_POLICY: Mapping[str, Any] = {
    **ROLLOUT,
    **GSDE,
    "ent_coef": NonNegativeFloat,
    "vf_coef": NonNegativeFloat,
    "max_grad_norm": PositiveFloat,
}

PPO: Mapping[str, Any] = {
    **ON_POLICY,
    "batch_size": Minibatch,
    "n_epochs": Epochs,
    "clip_range": Schedule,
    "clip_range_vf": Schedule | None,
    "target_kl": PositiveFloat | None,
}

MASKABLE_PPO: Mapping[str, Any] = {name: kind for name, kind in PPO.items() if name not in GSDE}

A2C: Mapping[str, Any] = {
    **ON_POLICY,
    "rms_prop_eps": PositiveFloat,
    "use_rms_prop": bool,
}

_Iterations = Annotated[int, Meta(ge=1, le=1000)]

TRPO: Mapping[str, Any] = {
    **ROLLOUT,
    **GSDE,
    "batch_size": Minibatch,
    "cg_max_steps": _Iterations,
    "cg_damping": NonNegativeFloat,
    "line_search_shrinking_factor": Annotated[float, Meta(gt=0, lt=1, description="a number above 0 and below 1")],
    "line_search_max_iter": _Iterations,
    "n_critic_updates": Epochs,
    "target_kl": PositiveFloat,
    "sub_sampling_factor": Annotated[int, Meta(ge=1)],
}

# --- With a replay buffer --------------------------------------------------------------------------------------------

_TrainFreq = Annotated[
    Annotated[int, Meta(ge=1)]
    | Annotated[Sequence[Annotated[int, Meta(ge=1)] | Literal["step", "episode"]], Meta(min_length=2, max_length=2)],
    Meta(description="an integer of at least 1, or [N, step], or [N, episode]"),
]
_REPLAY: Mapping[str, Any] = {
    "learning_rate": LearningRate,
    "buffer_size": Annotated[int, Meta(ge=1)],
    "learning_starts": Annotated[int, Meta(ge=0)],
    "batch_size": Annotated[int, Meta(ge=1)],
    "tau": Fraction,
    "gamma": Fraction,
    "train_freq": _TrainFreq,
    "gradient_steps": Annotated[int, Meta(ge=-1)],
    "replay_buffer_class": Literal["HerReplayBuffer", "ReplayBuffer", "DictReplayBuffer"] | None,
    "replay_buffer_kwargs": Annotated[Mapping[str, Any], Meta(description="a mapping")] | None,
    "optimize_memory_usage": bool,
    "n_steps": Steps,
    "policy_kwargs": PolicyKwargs,
}

DQN: Mapping[str, Any] = {
    **_REPLAY,
    "target_update_interval": Annotated[int, Meta(ge=1)],
    "exploration_fraction": Fraction,
    "exploration_initial_eps": Fraction,
    "exploration_final_eps": Fraction,
    "max_grad_norm": PositiveFloat | None,
}

_Delay = Annotated[int, Meta(ge=1)]
_CONTINUOUS: Mapping[str, Any] = {
    **_REPLAY,
    "action_noise": Annotated[
        Mapping[Literal["normal", "ornstein_uhlenbeck"], PositiveFloat],
        Meta(min_length=1, max_length=1, description="{normal: SCALE} or {ornstein_uhlenbeck: SCALE}"),
    ]
    | None,
}
DDPG: Mapping[str, Any] = _CONTINUOUS
TD3: Mapping[str, Any] = {
    **_CONTINUOUS,
    "policy_delay": _Delay,
    "target_policy_noise": NonNegativeFloat,
    "target_noise_clip": NonNegativeFloat,
}
_ENTROPY: Mapping[str, Any] = {
    **_CONTINUOUS,
    **GSDE,
    "use_sde_at_warmup": bool,
    "ent_coef": NonNegativeFloat
    | Annotated[
        str,
        Meta(
            pattern=r"^auto(_([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?)?\Z",
            description="auto, or auto_X to learn it from X on",
        ),
    ],
    "target_entropy": FiniteFloat | Literal["auto"],
}
SAC: Mapping[str, Any] = {**_ENTROPY, "target_update_interval": _Delay}
TQC: Mapping[str, Any] = {**SAC, "top_quantiles_to_drop_per_net": Annotated[int, Meta(ge=0)]}
CROSSQ: Mapping[str, Any] = {
    **{name: kind for name, kind in _ENTROPY.items() if name != "tau"},  # there are no target networks
    "policy_delay": _Delay,
}

TABLES: Mapping[str, Mapping[str, Any]] = {
    "PPO": PPO,
    "A2C": A2C,
    "TRPO": TRPO,
    "MaskablePPO": MASKABLE_PPO,
    "RecurrentPPO": PPO,
    "DQN": DQN,
    "QRDQN": DQN,
    "SAC": SAC,
    "TD3": TD3,
    "DDPG": DDPG,
    "TQC": TQC,
    "CrossQ": CROSSQ,
}

# The names that a file may give as 1e5 for 100000.
INTEGERS = frozenset(name for table in TABLES.values() for name, kind in table.items() if takes_integers_only(kind))


def kinds_of(algorithm: type) -> Mapping[str, Any]:
    """Return the table of an algorithm's class, or of its first base class with a table, or an empty one."""
    return next((TABLES[cls.__name__] for cls in algorithm.__mro__ if cls.__name__ in TABLES), {})


def kinds_by_name(algo: Any) -> Mapping[str, Any]:
    """Return the table of an algorithm by its name, such as `maskable_ppo`; an empty one if there is no such name."""
    return next((table for name, table in TABLES.items() if name.lower() == str(algo).replace("_", "")), {})
