"""The algorithms, an `AlgorithmInfo` each: their names, classes and hyperparameters, with what is accepted for these.

Built-in classes are named as `module:class` and imported on demand: a command line and a configuration take no PyTorch.
The upper bounds of hyperparameters are far above useful values; they refuse absurd values in a damaged or hostile file.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Annotated, Any, Literal, cast

from msgspec import Meta

from marl_sb3.config.values import FiniteFloat, Fraction, NonNegativeFloat, PositiveFloat, shown, takes_integers_only
from marl_sb3.errors import ConfigError

# --- Hyperparameters: SB3's argument names, and what is accepted for them --------------------------------------------

Steps = Annotated[int, Meta(ge=1, le=10**6)]
Epochs = Annotated[int, Meta(ge=1, le=10**6)]
Minibatch = Annotated[int, Meta(ge=2)]

# The forms of schedules, besides numbers; `sb3.schedules` makes them.
_NUMBER = r"([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?"
Decay = Annotated[
    str,
    Meta(
        pattern=rf"^(lin_{_NUMBER}|exp_{_NUMBER}(_{_NUMBER})?)\Z",
        description="lin_X for a line from X down to 0, or exp_X or exp_X_Y for equal factors from X to X/100 or Y",
    ),
]
Points = Annotated[
    Sequence[Annotated[Sequence[FiniteFloat], Meta(min_length=2, max_length=2)]],
    Meta(min_length=1, description="[[ENV_STEPS, X], ...] for lines between points"),
]
# PyTorch computes with 32 bits: a number that these have no room for would end the training run in its first update.
_MOST = 10**6
_Moderate = Annotated[float, Meta(ge=0, le=_MOST)]
Schedule = Annotated[float, Meta(gt=0, le=_MOST)] | Decay | Points
LearningRate = _Moderate | Decay | Points  # 0 as in SB3: the policy acts and is evaluated, and its weights stay

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
    "ent_coef": NonNegativeFloat | Decay | Points,
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
    "exploration_schedule": Fraction | Decay | Points | None,
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
    "target_policy_noise": _Moderate,
    "target_noise_clip": _Moderate,
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

# Settings that SB3's classes do not have as arguments: each belongs to the classes that have the argument beside it.
ADDED: Mapping[str, str] = {"exploration_schedule": "exploration_fraction"}

# --- Algorithms ------------------------------------------------------------------------------------------------------


def parameters_of(algorithm_class: type[Any]) -> dict[str, inspect.Parameter]:
    """Return the arguments of an algorithm; where it hands `**kwargs` on, those of its parent classes as well."""
    found: dict[str, inspect.Parameter] = {}
    for cls in algorithm_class.__mro__:
        own = inspect.signature(cls).parameters
        found = {**{name: each for name, each in own.items() if each.kind is not each.VAR_KEYWORD}, **found}
        if all(each.kind is not each.VAR_KEYWORD for each in own.values()):
            break
    return found


@dataclass(frozen=True)
class AlgorithmInfo:
    """An algorithm: all that marl_sb3 has to know to offer it.

    Attributes:
        name: its name on command lines, in files and in checkpoints.
        algorithm: its class, or the place of it, `module:class`. The class is made and used as SB3's are; see
            `docs/how_to/algorithms.md` for what it must have if it is no subclass of one of SB3's.
        help: what it is, in a line.
        hyperparameters: name -> accepted values: a type such as `float`, or msgspec's `Annotated[float, Meta(ge=0)]`.
            Not needed for arguments that SB3's algorithms have too, and that mean the same.
        learner: the class that trains its policies, a subclass of `Learner`, or its place; None: the learner of the
            class that it is derived from, or else that of algorithms with rollouts.
        metrics: more metrics below `learners/POLICY/` than those of the class that it is derived from, by name -> the
            name under which `train()` records it in SB3's logger. With a minus in front: of the opposite sign. None:
            the learner computes it.
        policy: the policy, by name, that `MlpPolicy` stands for, the default of configurations.
        aliases: other names of it on command lines and in files.
        stock: the place of the class of SB3 that it takes the place of.
        takes_masks: whether its policies need action masks.
        has_memory: whether its policies have a recurrent state.
    """

    name: str
    algorithm: type[Any] | str
    help: str = ""
    hyperparameters: Mapping[str, Any] = field(default_factory=dict, repr=False)
    learner: type[Any] | str | None = None
    metrics: Mapping[str, str | None] = field(default_factory=dict)
    policy: str = "MlpPolicy"
    aliases: Sequence[str] = ()
    stock: str | None = None
    takes_masks: bool = False
    has_memory: bool = False

    @property
    def place(self) -> str:
        """Where its class is: `module:class`."""
        return self.algorithm if isinstance(self.algorithm, str) else place_of(self.algorithm)

    @property
    def class_name(self) -> str:
        """The name of its class."""
        return self.place.partition(":")[2]

    @property
    def algorithm_class(self) -> type[Any]:
        """Its class, which is imported now if it is not yet."""
        return class_at(self.algorithm)

    @cached_property
    def _base(self) -> AlgorithmInfo | None:
        """The algorithm of the first base class that has one; None for those in this file, which need none."""
        if any(self is own for own in (_ON_POLICY, _OFF_POLICY, *_BUILT_IN)):
            return None
        places = [place_of(base) for base in self.algorithm_class.__mro__[1:]]
        known = {_OFF_POLICY.place: _OFF_POLICY, **_by_place}
        return next((known[place] for place in places if place in known), _ON_POLICY)

    @property
    def learner_class(self) -> Any:
        """The class of its learners, which is imported now if it is not yet."""
        if self.learner is None and self._base is not None:
            return self._base.learner_class
        return class_at(cast("str | type[Any]", self.learner))

    @cached_property
    def kinds(self) -> Mapping[str, Any]:
        """Name -> accepted values of its hyperparameters; those that are not in it are not checked."""
        if isinstance(self.algorithm, str) or self._base is None:
            return self.hyperparameters
        names = parameters_of(self.algorithm)
        known = {*names, *(name for name, beside in ADDED.items() if beside in names)}
        return {**{name: kind for name, kind in self._base.kinds.items() if name in known}, **self.hyperparameters}

    @cached_property
    def all_metrics(self) -> Mapping[str, str | None]:
        """Its metrics, as in `metrics`, after those of the class that it is derived from."""
        return {**(self._base.all_metrics if self._base else {}), **self.metrics}

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle a built-in one by its name, and another one without the kinds of its hyperparameters.

        Those are not picklable; what they have to accept was checked in the process that pickles.
        """
        if ALGORITHMS.get(self.name) is self:
            return algorithm_info, (self.name,)
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return AlgorithmInfo, tuple({**values, "hyperparameters": {}}.values())


def place_of(cls: type[Any]) -> str:
    """Return where a class is: `module:class`."""
    return f"{cls.__module__}:{cls.__qualname__}"


def class_at(place: str | type[Any]) -> type[Any]:
    """Import the class at a place, `module:class`; return a class as it is."""
    if isinstance(place, type):
        return place
    module, _, cls = place.partition(":")
    return cast("type[Any]", getattr(importlib.import_module(module), cls))


# --- Metrics, see `AlgorithmInfo.metrics` ----------------------------------------------------------------------------

_COMMON: Mapping[str, str | None] = {
    "curr_lr": "train/learning_rate",
    "num_grad_updates_lifetime": None,
    "num_trainable_parameters": None,
    "num_module_steps_trained": None,
}
_OF_ROLLOUTS: Mapping[str, str | None] = {
    "policy_loss": "train/policy_loss",
    "vf_loss": "train/value_loss",
    "total_loss": None,
    "entropy": "-train/entropy_loss",
    "vf_explained_var": "train/explained_variance",
    **_COMMON,
}
_OF_PPO: Mapping[str, str | None] = {
    "policy_loss": "train/policy_gradient_loss",
    "vf_loss": "train/value_loss",
    "vf_loss_unclipped": None,
    "total_loss": None,
    "entropy": "-train/entropy_loss",
    "mean_kl_loss": "train/approx_kl",
    "vf_explained_var": "train/explained_variance",
    "clip_fraction": "train/clip_fraction",
    "gradients_global_norm": None,
    **_COMMON,
}
_OF_CONTRIB_PPO: Mapping[str, str | None] = {
    name: key for name, key in _OF_PPO.items() if name not in ("vf_loss_unclipped", "gradients_global_norm")
}
_OF_TRPO: Mapping[str, str | None] = {  # actor and critic have losses of their own: there is no total one
    "policy_loss": "-train/policy_objective",
    "vf_loss": "train/value_loss",
    "mean_kl_loss": "train/kl_divergence_loss",
    "line_search_success": "train/is_line_search_success",
    "vf_explained_var": "train/explained_variance",
    **_COMMON,
}
_OF_REPLAY: Mapping[str, str | None] = {"replay_buffer_size": None, **_COMMON}
_OF_Q: Mapping[str, str | None] = {"qf_loss": "train/loss", "exploration_rate": None, **_OF_REPLAY}
_LOSSES: Mapping[str, str | None] = {"actor_loss": "train/actor_loss", "critic_loss": "train/critic_loss"}
_OF_ACTOR_CRITIC: Mapping[str, str | None] = {**_LOSSES, **_OF_REPLAY}
_OF_ENTROPY: Mapping[str, str | None] = {
    **_LOSSES,
    "ent_coef": "train/ent_coef",
    "ent_coef_loss": "train/ent_coef_loss",
    **_OF_REPLAY,
}

# --- The algorithms of marl_sb3 --------------------------------------------------------------------------------------

_OFF_POLICY_LEARNER = "marl_sb3.learners.off_policy:OffPolicyLearner"

_BUILT_IN = (
    AlgorithmInfo(
        "ppo",
        "marl_sb3.learners.algorithms.ppo:PPO",
        "proximal policy optimization (Schulman et al. 2017)",
        PPO,
        "marl_sb3.learners.algorithms.ppo:PPOLearner",
        _OF_PPO,
        stock="stable_baselines3.ppo.ppo:PPO",
    ),
    AlgorithmInfo(
        "a2c",
        "marl_sb3.learners.algorithms.ppo:A2C",
        "advantage actor-critic (Mnih et al. 2016)",
        A2C,
        "marl_sb3.learners.algorithms.ppo:A2CLearner",
        _OF_ROLLOUTS,
        stock="stable_baselines3.a2c.a2c:A2C",
    ),
    AlgorithmInfo(
        "trpo",
        "marl_sb3.learners.algorithms.contrib:TRPO",
        "trust region policy optimization (Schulman et al. 2015)",
        TRPO,
        "marl_sb3.learners.algorithms.contrib:TRPOLearner",
        _OF_TRPO,
        stock="sb3_contrib.trpo.trpo:TRPO",
    ),
    AlgorithmInfo(
        "maskable_ppo",
        "marl_sb3.learners.algorithms.contrib:MaskablePPO",
        "PPO that chooses among the actions that a mask allows (Huang and Ontanon 2020)",
        MASKABLE_PPO,
        "marl_sb3.learners.algorithms.contrib:MaskablePPOLearner",
        _OF_CONTRIB_PPO,
        aliases=("ppo_mask",),
        stock="sb3_contrib.ppo_mask.ppo_mask:MaskablePPO",
        takes_masks=True,
    ),
    AlgorithmInfo(
        "recurrent_ppo",
        "marl_sb3.learners.algorithms.contrib:RecurrentPPO",
        "PPO with LSTMs",
        PPO,
        "marl_sb3.learners.algorithms.contrib:RecurrentPPOLearner",
        _OF_CONTRIB_PPO,
        policy="MlpLstmPolicy",
        aliases=("ppo_lstm", "ppo_recurrent"),
        stock="sb3_contrib.ppo_recurrent.ppo_recurrent:RecurrentPPO",
        has_memory=True,
    ),
    AlgorithmInfo(
        "dqn",
        "marl_sb3.learners.algorithms.replay:DQN",
        "deep Q-network (Mnih et al. 2015)",
        DQN,
        _OFF_POLICY_LEARNER,
        _OF_Q,
        stock="stable_baselines3.dqn.dqn:DQN",
    ),
    AlgorithmInfo(
        "qrdqn",
        "marl_sb3.learners.algorithms.contrib:QRDQN",
        "DQN with quantiles of the return (Dabney et al. 2018)",
        DQN,
        _OFF_POLICY_LEARNER,
        _OF_Q,
        stock="sb3_contrib.qrdqn.qrdqn:QRDQN",
    ),
    AlgorithmInfo(
        "sac",
        "marl_sb3.learners.algorithms.replay:SAC",
        "soft actor-critic (Haarnoja et al. 2018)",
        SAC,
        _OFF_POLICY_LEARNER,
        _OF_ENTROPY,
        stock="stable_baselines3.sac.sac:SAC",
    ),
    AlgorithmInfo(
        "td3",
        "marl_sb3.learners.algorithms.replay:TD3",
        "twin delayed deep deterministic policy gradient (Fujimoto et al. 2018)",
        TD3,
        _OFF_POLICY_LEARNER,
        _OF_ACTOR_CRITIC,
        stock="stable_baselines3.td3.td3:TD3",
    ),
    AlgorithmInfo(
        "ddpg",
        "marl_sb3.learners.algorithms.replay:DDPG",
        "deep deterministic policy gradient (Lillicrap et al. 2016)",
        DDPG,
        _OFF_POLICY_LEARNER,
        _OF_ACTOR_CRITIC,
        stock="stable_baselines3.ddpg.ddpg:DDPG",
    ),
    AlgorithmInfo(
        "tqc",
        "marl_sb3.learners.algorithms.contrib:TQC",
        "SAC with truncated quantile critics (Kuznetsov et al. 2020)",
        TQC,
        _OFF_POLICY_LEARNER,
        _OF_ENTROPY,
        stock="sb3_contrib.tqc.tqc:TQC",
    ),
    AlgorithmInfo(
        "crossq",
        "sb3_contrib.crossq.crossq:CrossQ",
        "SAC with batch normalization and without target networks (Bhatt et al. 2024)",
        CROSSQ,
        _OFF_POLICY_LEARNER,
        _OF_ENTROPY,
        stock="sb3_contrib.crossq.crossq:CrossQ",
    ),
)
ALGORITHMS: Mapping[str, AlgorithmInfo] = {info.name: info for info in _BUILT_IN}

# The classes that other algorithms are derived from, with what SB3's arguments accept that most algorithms have.
_USUAL: Mapping[str, Any] = {**_REPLAY, **PPO}
_ON_POLICY = AlgorithmInfo(
    "on_policy",
    "stable_baselines3.common.on_policy_algorithm:OnPolicyAlgorithm",
    hyperparameters=_USUAL,
    learner="marl_sb3.learners.on_policy:OnPolicyLearner",
    metrics=_OF_ROLLOUTS,
)
_OFF_POLICY = AlgorithmInfo(
    "off_policy",
    "stable_baselines3.common.off_policy_algorithm:OffPolicyAlgorithm",
    hyperparameters=_USUAL,
    learner=_OFF_POLICY_LEARNER,
    metrics=_OF_REPLAY,
)

_known: dict[str, AlgorithmInfo] = {}  # by all names but aliases: those above, and the user's own
_by_place: dict[str, AlgorithmInfo] = {}
_names: dict[str, str] = {}  # any name or alias, in lower case without `_` and `-` -> the name
_integers: set[str] = set()  # hyperparameters of some algorithm that are integers: a file may have 1e5 for 100000


def add_algorithm(info: AlgorithmInfo, name: str | None = None) -> None:
    """Make an algorithm known; a later one of the same name takes the place of an earlier one.

    Args:
        name: None: that of `info`; else `module:NAME`, by which it was named.
    """
    name = name or info.name
    _known[name] = info
    _by_place.update(dict.fromkeys(filter(None, (info.place, info.stock)), info))
    _names.update({_plain(each): name for each in (name, *info.aliases)})
    _integers.update(each for each, kind in info.kinds.items() if takes_integers_only(kind))


def _plain(name: str) -> str:
    return name if ":" in name else name.lower().replace("_", "").replace("-", "")


for _info in _BUILT_IN:
    add_algorithm(_info)


def canonical_algorithm(value: Any) -> Any:
    """Convert `RecurrentPPO` or `ppo_lstm` to `recurrent_ppo`. Unknown names are returned unchanged."""
    return _names.get(_plain(value), value) if isinstance(value, str) else value


def algorithm_info(name: str) -> AlgorithmInfo:
    """Return the algorithm of a name: a built-in one, one that was registered, or `module:NAME`.

    Nothing is imported by the name, which a file may hold: the user has imported the module.

    Raises:
        ConfigError: there is none of this name.
    """
    if name not in _known and ":" in name:
        add_algorithm(_imported(name), name)
    if name not in _known:
        accepted = f"{', '.join(_known)}, or package.module:NAME of an AlgorithmInfo"
        raise ConfigError(f"unknown algorithm {shown(name)}; accepted: {accepted}", key="algo")
    return _known[name]


def _imported(name: str) -> AlgorithmInfo:
    module, _, attribute = name.partition(":")
    if module not in sys.modules:
        trust = f"--import {module}, or --algo with this name" if module.isprintable() else "a module's name"
        words = f"algorithm {shown(name)} is in a module that is not imported; accepted, if you trust its code: {trust}"
        words += "; train and imitate also take --trust-file (trust_file=True), for all that a file names"
        raise ConfigError(words, key="algo")
    found = getattr(sys.modules[module], attribute, None)
    if not isinstance(found, AlgorithmInfo):
        raise ConfigError(f"algorithm {shown(name)} is {shown(found)}; accepted: an AlgorithmInfo", key="algo")
    return found


def known_name(info: AlgorithmInfo) -> str | None:
    """Return the name under which an algorithm is known; None if it is not registered."""
    return next((name for name, known in _known.items() if known is info), None)


def kinds_of(algo: Any) -> Mapping[str, Any]:
    """Return the kinds of the hyperparameters of the algorithm of a name; none if there is no such algorithm."""
    info = _known.get(algo) if isinstance(algo, str) else None
    return {} if info is None else info.kinds


def info_of(algorithm: type[Any]) -> AlgorithmInfo | None:
    """Return the algorithm of a class, or of its first base class with one; None if it has none."""
    return next((_by_place[place] for place in map(place_of, algorithm.__mro__) if place in _by_place), None)


def takes_integers(name: str) -> bool:
    """Whether a hyperparameter of some algorithm takes integers only."""
    return name in _integers


# --- Names in checkpoints --------------------------------------------------------------------------------------------


def saved_name(algorithm: type[Any]) -> str | None:
    """Return the name of a class in checkpoints, such as `ppo` or `stable_baselines3.PPO`; None if it has none."""
    place, info = place_of(algorithm), info_of(algorithm)
    if info is None or place not in (info.place, info.stock):
        return None
    if place == info.place:
        return known_name(info)
    return _name_of_stock(place)


def saved_class(name: str) -> type[Any]:
    """Return the class of a name in a checkpoint.

    Raises:
        ConfigError: there is none of this name.
    """
    stock = next((info.stock for info in _BUILT_IN if info.stock and _name_of_stock(info.stock) == name), None)
    return algorithm_info(name).algorithm_class if stock is None else class_at(stock)


def _name_of_stock(place: str) -> str:
    """Return the name of a class of SB3 in checkpoints: `stable_baselines3.PPO`."""
    module, _, cls = place.partition(":")
    return f"{module.partition('.')[0]}.{cls}"
