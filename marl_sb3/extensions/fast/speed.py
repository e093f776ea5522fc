"""What chooses actions, takes steps and computes updates, in a sentence each; why that is slow, and what to set.

The first lines of a run, `-v`, `verbose=1`, `report` and the tables in docs/how_to/speed.md take their words from here.
`coverage`, `compiled_rollouts` and `rollout_processing` find out which reason applies.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

# Reason -> what to set, or to do, so that it does not apply; "": nothing but another network, space or algorithm. The
# first one that fits counts; `{}` stands for any text.

# Why the kernels do not choose the actions of a policy, or do not compute its updates.
OF_POLICIES: Mapping[str, str] = {
    **dict.fromkeys(("features extractor NatureCNN", "features extractor CombinedExtractor"), ""),
    **dict.fromkeys(("policy class {}CnnPolicy", "observation space {}", "action space {}"), ""),
    **dict.fromkeys(("a policy that acts by another network", "a layer whose parameters have another shape"), ""),
    "device {}": "device=cpu",
    "gSDE": "use_sde=false",
    "features extractor {}": "policy_kwargs.features_extractor_class=mlp",
    "features extractors that are not shared": "policy_kwargs.share_features_extractor=true",
    "activation {}": "policy_kwargs.activation_fn=tanh, or relu",
    "optimizer {}": "policy_kwargs.optimizer_class=adam",
    "weight decay": "policy_kwargs.optimizer_kwargs={weight_decay: 0}",
    "momentum": "policy_kwargs.optimizer_kwargs={momentum: 0, centered: false}",
    "amsgrad or maximize": "policy_kwargs.optimizer_kwargs={amsgrad: false, maximize: false}",
    "several parameter groups": "an optimizer with one group",
    "an optimizer of other parameters": "an optimizer of all parameters of the policy, in their order",
    "hooks of {}": "no hooks",
    "replaced methods of {}": "a callback in their place",
    "a replaced {}": "a callback in its place",
    "frozen parameters": "requires_grad=True for all of them",
    "non-float32 or transposed parameters, or those of another device": "contiguous float32 parameters on the CPU",
    "parameters that no layer has": "an optimizer of the parameters of the policy alone",
    "layers that share parameters": "parameters of its own for each layer",
    "a layer without bias": "linear layers with a bias",
    "layers other than linear ones and activations": "policy_kwargs.net_arch alone",
    "policy class Dueling{}": "policy_kwargs.dueling=false",
    "policy class {}MemoryPolicy": "policy_kwargs.cell=lstm",
    "policy class {}": "policy=MlpPolicy, or MlpLstmPolicy for RecurrentPPO",
    "network class {}": "the networks of MlpPolicy",
    "distribution {}": "the distribution of MlpPolicy",
    "rollout buffer {}": "no rollout_buffer_class",
    "imitation_data": "no imitation_data",
    "dropout": "policy_kwargs.lstm_kwargs={dropout: 0}",
    "lstm_kwargs": "policy_kwargs.lstm_kwargs={}",
    "LSTMs of another kind": "the LSTMs of MlpLstmPolicy",
    "a critic of another kind": "the critic of MlpLstmPolicy",
}

# Why not all steps of a rollout are taken in one call. First the reasons that follow from algorithm and env alone,
# or were given for the policy already: only `-v` says them.
OF_ALGORITHMS: Mapping[str, str] = {
    "PyTorch chooses its actions": "",
    "it has memory, or an explorer": "",
    "it does not learn from rollouts": "",
    "the env has no batched version (`make_batched`)": "compiled rules, see docs/how_to/compiled_envs.md",
}
OF_ROLLOUTS: Mapping[str, str] = {
    **OF_ALGORITHMS,
    "a callback watches each step": "sees_steps = False in a callback that may be called once for many steps",
    "more is kept of each step": "no central_critic, curiosity or on_trajectory",
    "the env shows its state": "env_state=false",
    "the env's action masks are not part of its compiled rules": "`allow` in the compiled rules",
    "a space does not count from 0": "spaces with start=0",
    "observations are {}": "float32 observations, or int64 where they are choices",
    "it stacks observations of several axes": "frame_stack=1",
    "team_reward=shared is set": "team_reward=sum, or mean",
    "{} set": "the defaults",
    "it normalises a single number, which NumPy adds up in another order": "normalize_observations=false",
    "NumPy is older than 2.0": "NumPy 2",
    **dict.fromkeys(("it needs action masks", "not every agent acts"), ""),
    "settings of the env change with the next episodes": "",
    "its observations, rewards or actions are processed": "",
    "render_mode is {}": "no render_mode",
}


def remedy_of(reason: str) -> str | None:
    """Return what to set or to do about a reason; "" if there is nothing, None if the reason is in no table."""
    reason = re.sub(r"\Apolicy [^ ]+: ", "", reason)
    for words, remedy in {**OF_POLICIES, **OF_ROLLOUTS}.items():
        if re.fullmatch(re.escape(words).replace(r"\{\}", ".*"), reason, re.DOTALL):
            return remedy
    return None


def because(reason: str) -> str:
    """Return a reason for the end of a sentence, with what to set."""
    remedy = remedy_of(reason)
    return f" ({reason}); faster with {remedy}" if remedy else f" ({reason})"


def of_policy(acts: bool, updates: bool, reason: str | None, wanted: str = "update_path says") -> str:
    """Say what chooses the actions of a policy and computes its updates.

    Args:
        acts: whether the kernels choose the actions.
        updates: whether they compute the updates.
        reason: why they do not do both; None: it is to be so.
        wanted: what says that they are to do neither.
    """
    if acts and updates:
        return "compiled kernels choose the actions and compute the updates"
    torch = "PyTorch computes the updates" if acts else "PyTorch chooses the actions and computes the updates"
    if reason is not None:
        return f"{torch}, not the faster kernels{because(reason)}"
    return f"compiled kernels choose the actions, {torch}" if acts else f"{torch}, as {wanted}"


def of_rollouts(reason: str | None) -> str:
    """Say how the steps of rollouts are taken; the reason is why they are not taken in one call, None if they are."""
    return "rollouts: one compiled call each" if reason is None else f"rollouts: single steps{because(reason)}"
