"""`policy_kwargs`: the kinds of its entries, and the names of the classes that files and command lines may give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from marl_sb3.core.config.values import Count, FiniteFloat, Named, PositiveInt

# --- Names of classes ------------------------------------------------------------------------------------------------

_EXTRACTORS, _OWN_EXTRACTORS = "stable_baselines3.common.torch_layers", "marl_sb3.core.extractors"

# Entry of `policy_kwargs` -> name -> where the class is: `module:class`. Nothing else is imported by name;
# `register_network` adds the classes of a user.
CLASSES: Mapping[str, Mapping[str, str]] = {
    "activation_fn": {
        "tanh": "torch.nn:Tanh",
        "relu": "torch.nn:ReLU",
        "elu": "torch.nn:ELU",
        "gelu": "torch.nn:GELU",
        "silu": "torch.nn:SiLU",
        "leaky_relu": "torch.nn:LeakyReLU",
        "mish": "torch.nn:Mish",
        "selu": "torch.nn:SELU",
        "softplus": "torch.nn:Softplus",
        "sigmoid": "torch.nn:Sigmoid",
        "identity": "torch.nn:Identity",
    },
    "optimizer_class": {
        "adam": "torch.optim:Adam",
        "adamw": "torch.optim:AdamW",
        "nadam": "torch.optim:NAdam",
        "radam": "torch.optim:RAdam",
        "rmsprop": "torch.optim:RMSprop",
        "rmsprop_tf_like": "stable_baselines3.common.sb2_compat.rmsprop_tf_like:RMSpropTFLike",
        "sgd": "torch.optim:SGD",
    },
    "features_extractor_class": {
        "FlattenExtractor": f"{_EXTRACTORS}:FlattenExtractor",
        "NatureCNN": f"{_EXTRACTORS}:NatureCNN",
        "CombinedExtractor": f"{_EXTRACTORS}:CombinedExtractor",
        "mlp": "marl_sb3.core.policies:MlpFeatures",
        "image_cnn": f"{_OWN_EXTRACTORS}.images:ImageFeatures",
        "attention": f"{_OWN_EXTRACTORS}.attention:AttentionFeatures",
        "deep_sets": f"{_OWN_EXTRACTORS}.sets:DeepSetsFeatures",
        "set_attention": f"{_OWN_EXTRACTORS}.sets:SetAttentionFeatures",
    },
}

# --- Kinds of entries ------------------------------------------------------------------------------------------------

Width = Annotated[int, Meta(ge=1, le=2**20)]
_AtMost1000 = Meta(max_length=1000)
Layers = Annotated[Sequence[Width], _AtMost1000]
Networks = Annotated[
    Annotated[Sequence[Width | Mapping[str, Layers]], _AtMost1000] | Mapping[str, Layers] | None,
    Meta(
        description="a list of layer widths such as [64, 64], or {pi: [64, 64], vf: [64, 64]}, or null; "
        "widths from 1 to 1048576"
    ),
]

_Widths = Annotated[Sequence[Width], Meta(max_length=100)]
_OneOrMore = Annotated[Sequence[Width], Meta(min_length=1, max_length=100)]
_Heads = Annotated[int, Meta(ge=1, le=1000)]
_LayerCount = Annotated[int, Meta(ge=1, le=100)]
_POOLED: Mapping[str, Any] = {"pooling": Literal["mean", "max", "sum"], "pooled_arch": _Widths}

# Name of a features extractor of marl_sb3 -> entry of `features_extractor_kwargs` -> kind.
EXTRACTOR_KWARGS: Mapping[str, Mapping[str, Any]] = {
    "mlp": {"net_arch": _OneOrMore, "activation_fn": str},
    "image_cnn": {"features_dim": Width},
    "attention": {
        "embed_dim": Width,
        "num_layers": _LayerCount,
        "num_heads": _Heads,
        "head_dim": Width | None,
        "feedforward_dim": Width,
        "positions": Literal["learned", "sinusoidal"],
        "gate_bias": FiniteFloat,
        "net_arch": _Widths,
        "activation_fn": str,
    },
    "deep_sets": {"net_arch": _OneOrMore, **_POOLED, "activation_fn": str},
    "set_attention": {
        "embed_dim": Width,
        "num_layers": _LayerCount,
        "num_heads": _Heads,
        "head_dim": Width | None,
        "feedforward_dim": Width,
        "net_arch": _Widths,
        **_POOLED,
        "activation_fn": str,
    },
}

# Entry -> kind. The classes of a user may take others.
POLICY_KWARGS: Mapping[str, Any] = {
    "net_arch": Networks,
    **dict.fromkeys(CLASSES, str),
    **dict.fromkeys(("features_extractor_kwargs", "optimizer_kwargs", "lstm_kwargs"), Named | None),
    **dict.fromkeys(("ortho_init", "full_std", "use_expln", "squash_output", "batch_norm", "dueling"), bool),
    **dict.fromkeys(("share_features_extractor", "normalize_images", "shared_lstm", "enable_critic_lstm"), bool),
    **dict.fromkeys(("log_std_init", "clip_mean", "batch_norm_momentum", "batch_norm_eps"), FiniteFloat),
    **dict.fromkeys(("n_critics", "n_quantiles"), _Heads),
    "renorm_warmup_steps": Count,
    "lstm_hidden_size": PositiveInt,
    "n_lstm_layers": _LayerCount,
    "cell": Literal["lstm", "gru"],
}

# --- In a checkpoint, which is untrusted -----------------------------------------------------------------------------


def _mapping(name: str, **kinds: Any) -> Any:
    """Return the kind of mappings that may have these entries and no others."""
    # Not a class: msgspec would evaluate the text of its annotations while a checkpoint is read.
    entries = [(own, kind | msgspec.UnsetType, msgspec.UNSET) for own, kind in kinds.items()]
    return msgspec.defstruct(name, entries, forbid_unknown_fields=True)


_StoredWidths = Annotated[list[PositiveInt], Meta(max_length=100)]
_Betas = Annotated[list[FiniteFloat], Meta(min_length=2, max_length=2)]
STORED_POLICY_KWARGS: Mapping[str, Any] = {
    **POLICY_KWARGS,
    "net_arch": _StoredWidths | Mapping[Literal["pi", "vf", "qf"], _StoredWidths],
    "features_extractor_kwargs": _mapping(
        "FeaturesExtractorKwargs",
        features_dim=PositiveInt,
        cnn_output_dim=PositiveInt,
        normalized_image=bool,
        **EXTRACTOR_KWARGS["attention"],
        **_POOLED,
    ),
    # Arguments of the optimizers, without those that choose PyTorch's implementation (`foreach`, `fused`, ...).
    "optimizer_kwargs": _mapping(
        "OptimizerKwargs",
        **dict.fromkeys(("eps", "weight_decay", "alpha", "momentum", "dampening", "momentum_decay"), FiniteFloat),
        **dict.fromkeys(("amsgrad", "centered", "nesterov", "decoupled_weight_decay"), bool),
        betas=_Betas,
    ),
    "lstm_kwargs": _mapping("LstmKwargs", dropout=FiniteFloat),
}
