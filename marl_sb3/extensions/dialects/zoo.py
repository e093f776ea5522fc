"""The format of rl-baselines3-zoo's files: their sections, keys that are not settings here, and Python literals."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from marl_sb3.core.config.networks import CLASSES
from marl_sb3.errors import ConfigError, shown
from marl_sb3.extensions.dialects.table import TABLES

# --- Literals such as dict(net_arch=[64, 64], activation_fn=nn.ReLU), which are read without evaluating them ---------


_PREFIXES = {"torch.nn": ("nn.", "th.nn.", "torch.nn."), "torch.optim": ("optim.", "th.optim.", "torch.optim.")}
# Entry -> a class as Python code writes it, such as `nn.ReLU`, the class alone where it is SB3's -> its name here.
IN_PYTHON: Mapping[str, Mapping[str, str]] = {
    entry: {
        f"{prefix}{place.partition(':')[2]}": name
        for name, place in names.items()
        for prefix in _PREFIXES.get(place.partition(":")[0], [""])
    }
    for entry, names in CLASSES.items()
}

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
    part = None  # of the text that is no literal
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the compiler, on style
            value = _literal(ast.parse(text.strip() if len(text) <= _LONGEST else "", mode="eval").body)
        if isinstance(value, dict):
            return value
    except _NotLiteralError as error:
        part = ast.get_source_segment(text.strip(), error.args[0])
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        pass  # it is no expression
    named = f", with {shown(part, _SHOWN_TEXT)}" if part and part != text.strip() else ""
    raise ConfigError(f"{key} is {shown(text, _SHOWN_TEXT)}{named}; accepted: {_ACCEPTED}", key=key)


class _NotLiteralError(Exception):
    """A part of a text, the argument, is not a literal."""


def _literal(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=None | bool() | int() | float() | str()):
            return node.value
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=ast.Constant(value=int() | float() as number)):
            return -number if isinstance(sign, ast.USub) else number
        case ast.List() | ast.Tuple():
            return [_literal(item) for item in node.elts]
        case ast.Dict() if all(isinstance(key, ast.Constant) and isinstance(key.value, str) for key in node.keys):
            return dict(zip(map(ast.literal_eval, filter(None, node.keys)), map(_literal, node.values), strict=True))
        case ast.Call(func=ast.Name(id="dict"), args=[]) if all(keyword.arg for keyword in node.keywords):
            return {keyword.arg: _literal(keyword.value) for keyword in node.keywords}
        case ast.Attribute() | ast.Name() if ast.unparse(node) in _CLASS_NAMES:
            return _CLASS_NAMES[ast.unparse(node)]
    raise _NotLiteralError(node)


# --- Sections and keys -----------------------------------------------------------------------------------------------


# Sections for envs without a section.
DEFAULT, ATARI = "default", "atari"
_ATARI_ID = re.compile(r"^(ALE|atari)/|NoFrameskip-v\d+$|Deterministic-v\d+$")
KEYS: Mapping[str, str] = TABLES["zoo"]["unsupported"]  # keys that are not supported -> what they switch on
_OFF: tuple[Any, ...] = (None, "", [], {}, False)  # values that switch them off
_NORMALIZE: Mapping[str, str] = TABLES["zoo"]["VecNormalize"]  # arguments of `VecNormalize` -> settings
_NORMALIZE_WORDS = f"true, false or a mapping with {', '.join(_NORMALIZE)}"
_SHOWN = 80  # characters of a value in a message


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
        if name not in _NORMALIZE and {"training": True}.get(name) != argument:
            raise ConfigError(f"{key} has {name}={shown(argument, _SHOWN)}; accepted: {_NORMALIZE_WORDS}", key=key)
    return {_NORMALIZE[name]: argument for name, argument in arguments.items() if name in _NORMALIZE}


def section_for(env: str, sections: Mapping[Any, Any]) -> str | None:
    """Return the section that the zoo uses for an env without a section; None if the file does not have it."""
    if _ATARI_ID.search(env) and ATARI in sections:
        return ATARI
    return DEFAULT if DEFAULT in sections else None


def unsupported(given: Mapping[str, Any]) -> dict[str, None]:
    """Return the keys that switch on something unsupported, each with a value that switches it off."""
    return dict.fromkeys(key for key, value in given.items() if key in KEYS and value not in _OFF)


def refuse_unsupported(given: Mapping[str, Any], sources: Mapping[str, object]) -> None:
    """Refuse keys that switch on something unsupported; `sources` say where each was given."""
    if wanted := unsupported(given):
        asked = "; ".join(f"{key} is {shown(given[key], _SHOWN)} ({KEYS[key]})" for key in wanted)
        without = " ".join(f"--set {key}=null" for key in wanted)
        first = next(iter(wanted))
        words = f"{sources[first]}: not supported yet: {asked}; to train without: {without}"
        raise ConfigError(words, key=first)


# --- Action noise ----------------------------------------------------------------------------------------------------


_TYPE, _STD = "noise_type", "noise_std"


def is_noise(name: str) -> bool:
    """Whether the name of a setting is one of the two keys for action noise."""
    return name.rpartition(".")[2] in (_TYPE, _STD) and not name.startswith("env.")


def action_noise(written: str, given: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Yield what one of the two keys means: the key, the name of the setting and its value. Only one of them means it.

    Raises:
        ConfigError: one of the two keys is missing, or the noise is unknown.
    """
    of_policy = written.removesuffix(_TYPE).removesuffix(_STD)
    if f"{of_policy}{_TYPE}" not in given:
        words = "noise_std is given without noise_type; accepted: both, or action_noise={normal: 0.1}"
        raise ConfigError(words, key=written)
    if written.endswith(_STD):
        return
    kind, scale = given[written], given.get(f"{of_policy}{_STD}")
    name = kind.strip().replace("-", "_") if isinstance(kind, str) else kind
    if name is not None and (name not in ("normal", "ornstein_uhlenbeck") or scale is None):
        accepted = "normal, ornstein-uhlenbeck, ornstein_uhlenbeck, and a number"
        words = f"noise_type is {kind!r}, noise_std is {scale!r}; accepted: {accepted}"
        raise ConfigError(words, key=written)
    yield written, f"{of_policy}action_noise", None if name is None else {name: scale}
