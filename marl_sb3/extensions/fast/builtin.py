"""The algorithms that come with the package: their names, classes and metrics, and what their hyperparameters accept.

Their classes are named as `module:class` and imported on demand: a command line and a configuration take no PyTorch.
The upper bounds of hyperparameters are far above useful values; they refuse absurd values in a damaged or hostile file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta

from marl_sb3.core.config.algorithms import AlgorithmInfo, AlgorithmTable, Decay, Points
from marl_sb3.core.config.values import FiniteFloat, Fraction, NonNegativeFloat, PositiveFloat

# --- Hyperparameters: SB3's argument names, and what is accepted for them --------------------------------------------

Steps = Annotated[int, Meta(ge=1, le=10**6)]
Epochs = Annotated[int, Meta(ge=1, le=10**6)]
Minibatch = Annotated[int, Meta(ge=2)]

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

MASKABLE_A2C: Mapping[str, Any] = {name: kind for name, kind in A2C.items() if name not in GSDE}

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

MASKABLE_TRPO: Mapping[str, Any] = {name: kind for name, kind in TRPO.items() if name not in GSDE}

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

Q_LEARNING: Mapping[str, Any] = {
    **DQN,
    "replay": Literal["uniform", "prioritized"],
    "replay_alpha": Fraction,
    "replay_beta": Fraction,
}
_SEQUENCES: Mapping[str, Any] = {
    "burn_in": Annotated[int, Meta(ge=0, le=10**4)],
    "sequence_length": Annotated[int, Meta(ge=1, le=10**4)],
}
RECURRENT_DQN: Mapping[str, Any] = {**DQN, **_SEQUENCES, "double_dqn": bool}
VDN: Mapping[str, Any] = {**Q_LEARNING, "double_dqn": bool, "td_lambda": Fraction}
_Width = Annotated[int, Meta(ge=1, le=10**5)]
QMIX: Mapping[str, Any] = {**VDN, "mixing_embed_dim": _Width, "hypernet_embed": Annotated[int, Meta(ge=0, le=10**5)]}

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
RECURRENT_SAC: Mapping[str, Any] = {**SAC, **_SEQUENCES}
TQC: Mapping[str, Any] = {**SAC, "top_quantiles_to_drop_per_net": Annotated[int, Meta(ge=0)]}
IQL: Mapping[str, Any] = {
    **_CONTINUOUS,
    "expectile": Annotated[float, Meta(gt=0, lt=1, description="a number above 0 and below 1")],
    "beta": _Moderate,
}
CROSSQ: Mapping[str, Any] = {
    **{name: kind for name, kind in _ENTROPY.items() if name != "tau"},  # there are no target networks
    "policy_delay": _Delay,
}


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
_OF_IQL: Mapping[str, str | None] = {
    "vf_loss": "train/value_loss",
    **_LOSSES,
    "advantage_weight": "train/advantage_weight",
    **_OF_REPLAY,
}
_OF_ENTROPY: Mapping[str, str | None] = {
    **_LOSSES,
    "ent_coef": "train/ent_coef",
    "ent_coef_loss": "train/ent_coef_loss",
    **_OF_REPLAY,
}

# --- The algorithms of marl_sb3 --------------------------------------------------------------------------------------

_OFF_POLICY_LEARNER = "marl_sb3.core.off_policy.off_policy:OffPolicyLearner"
_TEAM_LEARNER = "marl_sb3.extensions.fast.team_replay:TeamLearner"

_ACTOR_CRITIC_LEARNER = "marl_sb3.extensions.fast.replay:ActorCriticLearner"

_BUILT_IN = (
    AlgorithmInfo(
        "ppo",
        "marl_sb3.extensions.fast.ppo:PPO",
        "proximal policy optimization (Schulman et al. 2017)",
        PPO,
        "marl_sb3.extensions.fast.ppo:PPOLearner",
        _OF_PPO,
        stock="stable_baselines3.ppo.ppo:PPO",
    ),
    AlgorithmInfo(
        "a2c",
        "marl_sb3.extensions.fast.ppo:A2C",
        "advantage actor-critic (Mnih et al. 2016)",
        A2C,
        "marl_sb3.extensions.fast.ppo:A2CLearner",
        _OF_ROLLOUTS,
        stock="stable_baselines3.a2c.a2c:A2C",
    ),
    AlgorithmInfo(
        "trpo",
        "marl_sb3.extensions.fast.contrib:TRPO",
        "trust region policy optimization (Schulman et al. 2015)",
        TRPO,
        "marl_sb3.extensions.fast.contrib:TRPOLearner",
        _OF_TRPO,
        stock="sb3_contrib.trpo.trpo:TRPO",
    ),
    AlgorithmInfo(
        "maskable_ppo",
        "marl_sb3.extensions.fast.contrib:MaskablePPO",
        "PPO that chooses among the actions that a mask allows (Huang and Ontanon 2020)",
        MASKABLE_PPO,
        "marl_sb3.extensions.fast.contrib:MaskablePPOLearner",
        _OF_CONTRIB_PPO,
        aliases=("ppo_mask",),
        stock="sb3_contrib.ppo_mask.ppo_mask:MaskablePPO",
        takes_masks=True,
    ),
    AlgorithmInfo(
        "maskable_a2c",
        "marl_sb3.extensions.fast.masked_on_policy:MaskableA2C",
        "A2C that chooses among the actions that a mask allows",
        MASKABLE_A2C,
        "marl_sb3.extensions.fast.masked_on_policy:MaskableA2CLearner",
        _OF_ROLLOUTS,
        takes_masks=True,
    ),
    AlgorithmInfo(
        "maskable_trpo",
        "marl_sb3.extensions.fast.masked_on_policy:MaskableTRPO",
        "TRPO among the actions that a mask allows, also in its KL divergence",
        MASKABLE_TRPO,
        "marl_sb3.extensions.fast.masked_on_policy:MaskableTRPOLearner",
        _OF_TRPO,
        takes_masks=True,
    ),
    AlgorithmInfo(
        "recurrent_ppo",
        "marl_sb3.extensions.fast.contrib:RecurrentPPO",
        "PPO with LSTMs",
        PPO,
        "marl_sb3.extensions.fast.contrib:RecurrentPPOLearner",
        _OF_CONTRIB_PPO,
        policy="MlpLstmPolicy",
        aliases=("ppo_lstm", "ppo_recurrent"),
        stock="sb3_contrib.ppo_recurrent.ppo_recurrent:RecurrentPPO",
        has_memory=True,
    ),
    AlgorithmInfo(
        "maskable_recurrent_ppo",
        "marl_sb3.extensions.fast.masked_on_policy:MaskableRecurrentPPO",
        "PPO with LSTMs that chooses among the actions that a mask allows",
        MASKABLE_PPO,
        "marl_sb3.extensions.fast.masked_on_policy:MaskableRecurrentPPOLearner",
        _OF_CONTRIB_PPO,
        policy="MlpLstmPolicy",
        takes_masks=True,
        has_memory=True,
    ),
    AlgorithmInfo(
        "dqn",
        "marl_sb3.extensions.fast.replay:DQN",
        "deep Q-network (Mnih et al. 2015)",
        Q_LEARNING,
        _OFF_POLICY_LEARNER,
        _OF_Q,
        stock="stable_baselines3.dqn.dqn:DQN",
    ),
    AlgorithmInfo(
        "qrdqn",
        "marl_sb3.extensions.fast.contrib:QRDQN",
        "DQN with quantiles of the return (Dabney et al. 2018)",
        Q_LEARNING,
        _OFF_POLICY_LEARNER,
        _OF_Q,
        stock="sb3_contrib.qrdqn.qrdqn:QRDQN",
    ),
    AlgorithmInfo(
        "maskable_dqn",
        "marl_sb3.extensions.fast.masked_q:MaskableDQN",
        "DQN among the actions that a mask allows, also in its targets",
        Q_LEARNING,
        _OFF_POLICY_LEARNER,
        _OF_Q,
        takes_masks=True,
    ),
    AlgorithmInfo(
        "maskable_qrdqn",
        "marl_sb3.extensions.fast.contrib:MaskableQRDQN",
        "QR-DQN among the actions that a mask allows, also in its targets",
        Q_LEARNING,
        _OFF_POLICY_LEARNER,
        _OF_Q,
        takes_masks=True,
    ),
    AlgorithmInfo(
        "recurrent_dqn",
        "marl_sb3.extensions.memory.algorithms:RecurrentDQN",
        "DQN with an LSTM or a GRU, from sequences with a burn-in (R2D2, Kapturowski et al. 2019)",
        RECURRENT_DQN,
        "marl_sb3.extensions.memory.algorithms:RecurrentLearner",
        _OF_Q,
        aliases=("r2d2", "dqn_lstm", "dqn_recurrent"),
        has_memory=True,
    ),
    AlgorithmInfo(
        "vdn",
        "marl_sb3.extensions.fast.team_q:VDN",
        "DQN for a team: its value is the sum of its agents' (value decomposition networks, Sunehag et al. 2018)",
        VDN,
        _TEAM_LEARNER,
        _OF_Q,
        takes_masks=True,
    ),
    AlgorithmInfo(
        "qmix",
        "marl_sb3.extensions.fast.team_q:QMIX",
        "DQN for a team: a network that sees the env's state mixes the values of its agents (Rashid et al. 2018)",
        QMIX,
        _TEAM_LEARNER,
        _OF_Q,
        takes_masks=True,
    ),
    AlgorithmInfo(
        "sac",
        "marl_sb3.extensions.fast.replay:SAC",
        "soft actor-critic (Haarnoja et al. 2018)",
        SAC,
        _ACTOR_CRITIC_LEARNER,
        _OF_ENTROPY,
        stock="stable_baselines3.sac.sac:SAC",
    ),
    AlgorithmInfo(
        "recurrent_sac",
        "marl_sb3.extensions.memory.sac:RecurrentSAC",
        "SAC with LSTMs or GRUs, from sequences with a burn-in, as R2D2 learns Q values",
        RECURRENT_SAC,
        "marl_sb3.extensions.memory.algorithms:RecurrentLearner",
        _OF_ENTROPY,
        aliases=("sac_lstm", "sac_recurrent"),
        has_memory=True,
    ),
    AlgorithmInfo(
        "td3",
        "marl_sb3.extensions.fast.replay:TD3",
        "twin delayed deep deterministic policy gradient (Fujimoto et al. 2018)",
        TD3,
        _ACTOR_CRITIC_LEARNER,
        _OF_ACTOR_CRITIC,
        stock="stable_baselines3.td3.td3:TD3",
    ),
    AlgorithmInfo(
        "ddpg",
        "marl_sb3.extensions.fast.replay:DDPG",
        "deep deterministic policy gradient (Lillicrap et al. 2016)",
        DDPG,
        _ACTOR_CRITIC_LEARNER,
        _OF_ACTOR_CRITIC,
        stock="stable_baselines3.ddpg.ddpg:DDPG",
    ),
    AlgorithmInfo(
        "tqc",
        "marl_sb3.extensions.fast.contrib:TQC",
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
    AlgorithmInfo(
        "iql",
        "marl_sb3.extensions.data.iql:IQL",
        "implicit Q-learning, from recorded episodes alone or going on online (Kostrikov et al. 2021)",
        IQL,
        _OFF_POLICY_LEARNER,
        _OF_IQL,
    ),
)
ALGORITHMS: Mapping[str, AlgorithmInfo] = {info.name: info for info in _BUILT_IN}

# The classes that other algorithms are derived from, with what SB3's arguments accept that most algorithms have.
_USUAL: Mapping[str, Any] = {**_REPLAY, **PPO}
_ON_POLICY = AlgorithmInfo(
    "on_policy",
    "stable_baselines3.common.on_policy_algorithm:OnPolicyAlgorithm",
    hyperparameters=_USUAL,
    learner="marl_sb3.core.on_policy.on_policy:OnPolicyLearner",
    metrics=_OF_ROLLOUTS,
)
_OFF_POLICY = AlgorithmInfo(
    "off_policy",
    "stable_baselines3.common.off_policy_algorithm:OffPolicyAlgorithm",
    hyperparameters=_USUAL,
    learner=_OFF_POLICY_LEARNER,
    metrics=_OF_REPLAY,
)

TABLE = AlgorithmTable(
    _BUILT_IN,
    (_OFF_POLICY, _ON_POLICY),
    action_form="marl_sb3.extensions.fast.joined_actions:joined_actions",
    policy_files="marl_sb3.extensions.transfer.sb3_files:SB3_FILES",
)
