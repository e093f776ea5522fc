"""JSON with hostile values, and changes at a path of a tree."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any


class Raw(str):
    """JSON text that stands in a tree as it is."""

    __slots__ = ()


def to_json(tree: Any) -> bytes:
    """JSON, with `Raw` texts as they are."""
    raws: list[str] = []

    def plain(node: Any) -> Any:
        if isinstance(node, Raw):
            raws.append(str(node))
            return f"@raw{len(raws) - 1}@"
        if isinstance(node, dict):
            return {key: plain(value) for key, value in node.items()}
        return [plain(value) for value in node] if isinstance(node, list) else node

    text = json.dumps(plain(tree))
    for number, raw in enumerate(raws):
        text = text.replace(f'"@raw{number}@"', raw)
    return text.encode("utf-8", "surrogatepass")


_NUMBERS: tuple[Any, ...] = (
    0, 1, -1, 2, 3, 7, 255, 623, 624, 625, 2**14, 2**14 + 1, 2**31 - 1, 2**31, 2**32, 2**53, 2**53 + 1, 2**62,
    2**63 - 1, 2**63, 2**64, 2**127, 2**128, -(2**63), -(2**63) - 1, 0.5, -0.5, -0.0, 1e-320, 1e38, 1e39, 1e308, -1e308,
    Raw("1" + "0" * 400), Raw("-1" + "0" * 400), Raw("1" + "0" * 5000), Raw("-" + "9" * 4299), Raw("1e999"),
    Raw("-1e999"), Raw("NaN"), Raw("Infinity"), Raw("-Infinity"), Raw("1E400"), Raw("0.1e-999"),
)  # fmt: skip
TEXTS: tuple[Any, ...] = (
    "", "a", "shared", "agent1", "PCG64", "MT19937", "Philox", "ppo", "dqn", "MlpPolicy", "CnnPolicy", "lin_1e999",
    "lin_nan", "os:system", "__import__('os').system('id')", "cos\nsystem\n(S'id'\ntR.", "../../etc/passwd",
    "/etc/passwd", "\x00", "\x1b[31mred\x1b]0;title\x07", "line\nline", "\u202egnp.exe", "\u0660", "x" * 20000,
    Raw('"\\ud800"'), "$array", "True", "1", "float64", "torch.nn.Linear",
)  # fmt: skip
_TREES: tuple[Any, ...] = (
    None, True, False, [], {}, [0], [None], [[]], [[], {}], {"a": 1}, {"": {}}, {"$array": "/nowhere"}, {"$array": 1},
    {"$array": ["x"]}, {"$array": {"$array": "x"}}, {"$array": "/random/torch"}, {"$array": "/counters/agent_steps"},
    {"$array": "/random/torch", "more": 1}, [{"$array": "/random/torch"}], [0] * 2000, [1.5, "a", None, {}],
    {"__class__": "os.system"}, {"__reduce__": ["os.system", "id"]}, {"py/object": "os.system"},
    Raw("[" * 900 + "]" * 900), Raw('{"a":' * 900 + "1" + "}" * 900), Raw('{"a":1,"a":2}'), Raw("[" * 70 + "]" * 70),
)  # fmt: skip
HOSTILE = (*_NUMBERS, *TEXTS, *_TREES)


def nodes(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every node below the root, with its path."""
    children = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in children:
        yield (*path, key), value
        yield from nodes(value, (*path, key))


def leaves(tree: Any) -> list[tuple[Any, ...]]:
    """The paths of what holds nothing further."""
    return [path for path, value in nodes(tree) if not isinstance(value, (dict, list)) or not value]


def replace(tree: Any, path: Sequence[Any], value: Any) -> None:
    """Put something else in a place."""
    for key in path[:-1]:
        tree = tree[key]
    tree[path[-1]] = value


def remove(tree: Any, path: Sequence[Any]) -> None:
    """Take something out."""
    for key in path[:-1]:
        tree = tree[key]
    del tree[path[-1]]


def at(tree: Any, path: Sequence[Any]) -> Any:
    """What stands in a place."""
    for key in path:
        tree = tree[key]
    return tree


def shown(value: Any) -> str:
    """A value for a report."""
    text = f"raw {str(value)!r}" if isinstance(value, Raw) else repr(value)
    return text if len(text) < 60 else f"{text[:50]}... ({len(text)} characters)"


def path_text(path: Sequence[Any]) -> str:
    return "/".join(map(str, path))
