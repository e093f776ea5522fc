"""The format of rl-baselines3-zoo's files: their sections, keys that are not settings here, and Python literals."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from marl_sb3.config.networks import IN_PYTHON
from marl_sb3.config.schema import Source
from marl_sb3.config.values import shown
from marl_sb3.errors import ConfigError

# --- Literals such as dict(net_arch=[64, 64], activation_fn=nn.ReLU), which are read without evaluating them ---------


_LONGEST = 4_000  # characters of a text; Python's own parser fails on what is nested very deeply
_SHOWN_TEXT = 120  # characters of a text in a message

# A class as Python code writes it -> its name in `policy_kwargs`.
_CLASS_NAMES: Mapping[str, str] = {text: name for names in IN_PYTHON.values() for text, name in names.items()}
_SHOWN_CLASSES = [text for text in _CLASS_NAMES if text.startswith("nn.") or "." not in text]
_ACCEPTED = (
    "a mapping such as {net_arch: [64, 64]}, or the text dict(net_arch=[64, 64], activation_fn=nn.ReLU) of numbers, "
    f"strings, lists, dict(...) and classes such as {', '.join(_SHOWN_CLASSES)}"
)


def parse_literal(key: str, text: str) -> dict[str, Any]:
    """Read the mapping that a text describes. Classes of networks become names such as `relu`.

    Raises:
        ConfigError: it is something else; nothing in it is evaluated or imported.
    """
    try:
        value = _value(_parsed(text))
    except _NotLiteralError as error:
        part = "" if error.node is None else ast.get_source_segment(text.strip(), error.node)
        raise _refused(key, text, part or "") from None
    if not isinstance(value, dict):
        raise _refused(key, text)
    return value


def _refused(key: str, text: str, part: str = "") -> ConfigError:
    """Make the error of a text; it names the part that is not a literal, if that is known."""
    named = f", with {shown(part, _SHOWN_TEXT)}" if part and part != text.strip() else ""
    return ConfigError(f"{key} is {shown(text, _SHOWN_TEXT)}{named}; accepted: {_ACCEPTED}", key=key)


class _NotLiteralError(Exception):
    """A part of a text is not a literal.

    Attributes:
        node: that part; None: the text is not a Python expression.
    """

    def __init__(self, node: ast.expr | None) -> None:
        super().__init__()
        self.node = node


def _parsed(text: str) -> ast.expr:
    if len(text) > _LONGEST:
        raise _NotLiteralError(None)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the compiler, on style
            return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise _NotLiteralError(None) from None


def _value(node: ast.expr) -> Any:
    read = _READERS.get(type(node))
    if read is None:
        raise _NotLiteralError(node)
    return read(node)


def _constant(node: ast.Constant) -> Any:
    if node.value is None or isinstance(node.value, (str, int, float, bool)):
        return node.value
    raise _NotLiteralError(node)


def _signed(node: ast.UnaryOp) -> Any:
    value = node.operand.value if isinstance(node.operand, ast.Constant) else None
    if not isinstance(value, (int, float)) or not isinstance(node.op, (ast.USub, ast.UAdd)):
        raise _NotLiteralError(node)
    return -value if isinstance(node.op, ast.USub) else value


def _mapping(node: ast.Dict) -> dict[str, Any]:
    keys = [key.value for key in node.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)]
    if len(keys) != len(node.keys):
        raise _NotLiteralError(node)
    return dict(zip(keys, map(_value, node.values), strict=True))


def _dict_call(node: ast.Call) -> dict[str, Any]:
    is_dict = isinstance(node.func, ast.Name) and node.func.id == "dict"
    if not is_dict or node.args or any(keyword.arg is None for keyword in node.keywords):
        raise _NotLiteralError(node)
    return {str(keyword.arg): _value(keyword.value) for keyword in node.keywords}


def _class(node: ast.Attribute) -> str:
    name, inner = node.attr, node.value
    if isinstance(inner, ast.Attribute):  # torch.nn.ReLU
        name, inner = f"{inner.attr}.{name}", inner.value
    name = f"{inner.id}.{name}" if isinstance(inner, ast.Name) else name
    return _known(node, name)


def _known(node: ast.expr, name: str) -> str:
    if name not in _CLASS_NAMES:
        raise _NotLiteralError(node)
    return _CLASS_NAMES[name]


_READERS: Mapping[type[ast.expr], Callable[[Any], Any]] = {
    ast.Constant: _constant,
    ast.UnaryOp: _signed,
    ast.List: lambda node: [_value(item) for item in node.elts],
    ast.Tuple: lambda node: [_value(item) for item in node.elts],
    ast.Dict: _mapping,
    ast.Call: _dict_call,
    ast.Attribute: _class,
    ast.Name: lambda node: _known(node, node.id),
}


# --- Sections and keys -----------------------------------------------------------------------------------------------


# Sections for envs without a section.
DEFAULT, ATARI = "default", "atari"
_ATARI_ID = re.compile(r"^(ALE|atari)/|NoFrameskip-v\d+$|Deterministic-v\d+$")


@dataclass(frozen=True)
class _Key:
    """A key of the zoo that is not supported.

    Attributes:
        what: what it switches on, for messages.
        off: the values that switch it off; messages advise the first.
    """

    what: str
    off: tuple[Any, ...]


_NONE: tuple[Any, ...] = (None, "", [], {}, False)
_KEYS: Mapping[str, _Key] = {
    "vec_env_wrapper": _Key("wrappers around the vectorized env, named by their Python classes", _NONE),
    "callback": _Key("callbacks named by their Python classes; pass marl_sb3.train(callback=[...])", _NONE),
    "monitor_kwargs": _Key("arguments of SB3's Monitor", _NONE),
}
KEYS = frozenset(_KEYS)


# VecNormalize's arguments -> settings.
_NORMALIZE: Mapping[str, str] = {
    "norm_obs": "processing.normalize_observations",
    "norm_reward": "processing.normalize_rewards",
    "norm_obs_keys": "processing.normalize_keys",
    "clip_obs": "processing.clip_observations",
    "clip_reward": "processing.clip_normalized_rewards",
    "epsilon": "processing.normalize_epsilon",
}
_SHOWN = 80  # characters of a value in a message
_ALWAYS_SO = {"training": True}  # arguments that have one value here


# The keys that mean other settings; see `translated_key`.
TRANSLATED = ("normalize", "normalize_kwargs", "processing.frame_stack", "env_wrapper")


def translated_key(key: str, value: Any) -> dict[str, Any]:
    """Return the settings that a key of a file means, by name; most keys mean themselves.

    `normalize` is true, false, or arguments of `VecNormalize`: a mapping, or its text. `normalize_kwargs` has such
    arguments, too. The discount of rewards is always the policy's `gamma`.

    Raises:
        ConfigError: an argument that `VecNormalize` does not have, or that has no counterpart.
    """
    if key in ("normalize", "normalize_kwargs"):
        return _normalize(key, parse_literal(key, value) if isinstance(value, str) and value else value)
    if key == "processing.frame_stack" and value in (None, 0):
        return {key: 1}
    return {key: None} if key == "env_wrapper" and not value else {key: value}


def _normalize(key: str, value: Any) -> dict[str, Any]:
    on = ("norm_obs", "norm_reward")
    if isinstance(value, Mapping):
        arguments = {**(dict.fromkeys(on, True) if key == "normalize" and value else {}), **value}
    elif key == "normalize" and (value is None or isinstance(value, bool)):
        arguments = dict.fromkeys(on, bool(value))
    else:
        raise ConfigError(f"{key} is {shown(value, _SHOWN)}; accepted: {_NORMALIZE_WORDS}", key=key)
    for name, argument in arguments.items():
        if name == "gamma":
            raise ConfigError(f"{key} has gamma {argument!r}; rewards are discounted by the policy's gamma", key=key)
        if name not in _NORMALIZE and _ALWAYS_SO.get(name) != argument:
            raise ConfigError(f"{key} has {name}={shown(argument, _SHOWN)}; accepted: {_NORMALIZE_WORDS}", key=key)
    return {_NORMALIZE[name]: argument for name, argument in arguments.items() if name in _NORMALIZE}


_NORMALIZE_WORDS = f"true, false or a mapping with {', '.join(_NORMALIZE)}"


def section_for(env: str, sections: Mapping[Any, Any]) -> str | None:
    """Return the section that the zoo uses for an env without a section; None if the file does not have it."""
    if _ATARI_ID.search(env) and ATARI in sections:
        return ATARI
    return DEFAULT if DEFAULT in sections else None


def unsupported(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys that switch on something unsupported, each with a value that switches it off."""
    return {key: _KEYS[key].off[0] for key, value in given.items() if key in KEYS and value not in _KEYS[key].off}


def refuse_unsupported(given: Mapping[str, Any], sources: Mapping[str, Source]) -> None:
    """Refuse keys that switch on something unsupported."""
    wanted = unsupported(given)
    if not wanted:
        return
    first = next(iter(wanted))
    asked = "; ".join(f"{key} is {shown(given[key], _SHOWN)} ({_KEYS[key].what})" for key in wanted)
    without = " ".join(f"--set {key}={_text(off)}" for key, off in wanted.items())
    words = f"not supported yet: {asked}; to train without: {without}"
    raise ConfigError(f"{sources[first]}: {words}" if first in sources else words, key=first)


def _text(value: Any) -> str:
    return {False: "false", None: "null"}.get(value, str(value))


# --- Action noise ----------------------------------------------------------------------------------------------------


_TYPE, _STD = "noise_type", "noise_std"
_NOISES = {"normal": "normal", "ornstein-uhlenbeck": "ornstein_uhlenbeck", "ornstein_uhlenbeck": "ornstein_uhlenbeck"}


def names_noise(given: Iterable[str]) -> bool:
    """Whether one of the two keys is among the names of settings."""
    return any(name.endswith((_TYPE, _STD)) for name in given)


def with_action_noise(given: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Yield the name that the source uses, the name and the value of each setting; the two keys become one setting.

    Raises:
        ConfigError: one of the two keys is missing, or the noise is unknown.
    """
    for written, value in given.items():
        prefix, dot, own = written.rpartition(".")
        is_noise = own in (_TYPE, _STD) and prefix.partition(".")[0] != "env"
        if is_noise and own == _TYPE:
            yield written, f"{prefix}{dot}action_noise", _noise(written, value, given.get(f"{prefix}{dot}{_STD}"))
        elif not is_noise:
            yield written, written, value
        elif f"{prefix}{dot}{_TYPE}" not in given:
            words = "noise_std is given without noise_type; accepted: both, or action_noise={normal: 0.1}"
            raise ConfigError(words, key=written)


def _noise(written: str, kind: Any, scale: Any) -> Any:
    if kind is None:
        return None
    if not isinstance(kind, str) or kind.strip() not in _NOISES or scale is None:
        words = f"noise_type is {kind!r}, noise_std is {scale!r}; accepted: {', '.join(_NOISES)}, and a number"
        raise ConfigError(words, key=written)
    return {_NOISES[kind.strip()]: scale}
