"""Read `dict(net_arch=[64, 64], activation_fn=nn.ReLU)`, as rl-baselines3-zoo writes it, without evaluating it."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from marl_sb3.config.networks import IN_PYTHON
from marl_sb3.config.values import shown
from marl_sb3.errors import ConfigError

_LONGEST = 4_000  # characters of a text; Python's own parser fails on what is nested very deeply
_SHOWN = 120  # characters of a text in a message

# A class as Python code writes it -> its name in `policy_kwargs`.
_NAMES: Mapping[str, str] = {text: name for names in IN_PYTHON.values() for text, name in names.items()}
_SHOWN_CLASSES = [text for text in _NAMES if text.startswith("nn.") or "." not in text]
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
    named = f", with {shown(part, _SHOWN)}" if part and part != text.strip() else ""
    return ConfigError(f"{key} is {shown(text, _SHOWN)}{named}; accepted: {_ACCEPTED}", key=key)


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
    if name not in _NAMES:
        raise _NotLiteralError(node)
    return _NAMES[name]


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
