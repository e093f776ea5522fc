"""Mutants with another tree in `state.json`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from checkpoint_source import Dice, Source
from json_trees import HOSTILE, TEXTS, at, leaves, nodes, path_text, remove, replace, shown
from mutant_files import ARRAYS, MANIFEST, STATE, Files, Mutant, as_bytes


def state_leaf(source: Source, dice: Dice) -> Mutant:
    """A hostile value in the place of any leaf."""
    state = source.state
    path = dice.one_of(leaves(state))
    return leaf_mutant(source, path, dice.one_of(HOSTILE))


def leaf_mutant(source: Source, path: Sequence[Any], value: Any) -> Mutant:
    """This value in this place of `state.json`."""
    state = source.state
    replace(state, path, value)
    return Mutant("state leaf", f"{path_text(path)} = {shown(value)}", source.with_state(state))


def state_neighbour(source: Source, dice: Dice) -> Mutant:
    """A number that is almost right."""
    state = source.state
    numbers = [path for path in leaves(state) if isinstance(at(state, path), (int, float))]
    path = dice.one_of(numbers)
    value = at(state, path)
    other = dice.one_of([value + 1, value - 1, -value, value * 2, float(value), value * 10**6, bool(value), str(value)])
    return Mutant("state neighbour", *_changed(source, path, other))


def _changed(source: Source, path: Sequence[Any], value: Any) -> tuple[str, Files]:
    state = source.state
    replace(state, path, value)
    return f"{path_text(path)} = {shown(value)}", source.with_state(state)


def state_node(source: Source, dice: Dice) -> Mutant:
    """A hostile value in the place of a whole branch."""
    branches = [path for path, value in nodes(source.state) if isinstance(value, (dict, list))]
    return Mutant("state branch", *_changed(source, dice.one_of(branches), dice.one_of(HOSTILE)))


def state_fields(source: Source, dice: Dice) -> Mutant:
    """A field or an item less or more, at any node."""
    state = source.state
    how = dice.number(3)
    if how == 0:
        path = dice.one_of([path for path, _ in nodes(state)])
        remove(state, path)
        return Mutant("state fields", f"without {path_text(path)}", source.with_state(state))
    branches = [(), *(path for path, value in nodes(state) if isinstance(value, (dict, list)))]
    path = dice.one_of(branches)
    node, value = at(state, path), dice.one_of(HOSTILE)
    if isinstance(node, dict):
        name = dice.one_of([*map(str, TEXTS), *(str(p[-1]) for p, _ in nodes(state))])
        node[name] = value
    else:
        node.insert(dice.number(len(node) + 1), value if how == 1 or not node else node[0])
    return Mutant("state fields", f"more in {path_text(path)}: {shown(value)}", source.with_state(state))


def state_text(source: Source, dice: Dice) -> Mutant:
    """JSON that is wrong, or right and monstrous, as a text."""
    text = as_bytes(source.files[STATE])
    body = text[1:-1]
    big = dice.one_of([2**19, 2**20 - 100, 2**20 + 1, 2**22 - 100, 2**22 + 1, 2**25])
    texts: list[tuple[str, Callable[[], bytes]]] = [
        ("100,000 lists", lambda: b"[" * 100_000 + b"]" * 100_000),
        ("100,000 mappings", lambda: b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
        ("100,000 lists in a field", lambda: b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"," + body + b"}"),
        ("980 lists in a field", lambda: b'{"x":' + b"[" * 980 + b"]" * 980 + b"," + body + b"}"),
        ("digits", lambda: b'{"x":' + b"9" * dice.one_of([4300, 4301, 10**6]) + b"," + body + b"}"),
        ("many huge numbers", lambda: b'{"x":[' + b",".join([b"9" * 4299] * 200) + b"]," + body + b"}"),
        ("a byte order mark", lambda: b"\xef\xbb\xbf" + text),
        ("UTF-16", lambda: text.decode().encode("utf-16")),
        ("UTF-32", lambda: text.decode().encode("utf-32")),
        ("Latin 1", lambda: b'{"\xe4":1,' + body + b"}"),
        ("zero bytes", lambda: b"\x00" * 1000 + text),
        ("two documents", lambda: text + text),
        ("a comment", lambda: b"/* */" + text),
        ("single quotes", lambda: text.replace(b'"', b"'")),
        ("every key twice", lambda: b"{" + body + b"," + body + b"}"),
        ("another num_envs first", lambda: b'{"num_envs":999,' + body + b"}"),
        ("lone surrogates", lambda: b'{"\\ud800":"\\udfff",' + body + b"}"),
        (f"{big} bytes of lists", lambda: b'{"x":[' + b"[]," * ((big - len(text) - 20) // 3) + b"0]," + body + b"}"),
        (
            f"{big} bytes of deep lists",
            lambda: b'{"x":[' + b"[[[[[[[[]]]]]]]]," * ((big - len(text) - 20) // 17) + b"0]," + body + b"}",
        ),
        (f"{big} bytes of mappings", lambda: b'{"x":[' + b"{}," * ((big - len(text) - 20) // 3) + b"0]," + body + b"}"),
        (f"{big} bytes of spaces", lambda: text + b" " * (big - len(text))),
        (f"{big} bytes of text", lambda: b'{"x":"' + b"a" * (big - len(text) - 20) + b'",' + body + b"}"),
        (f"{big} bytes of numbers", lambda: b'{"x":[' + b"1e5," * ((big - len(text) - 20) // 4) + b"0]," + body + b"}"),
        ("a list", lambda: b"[" + text + b"]"),
        ("null", lambda: b"null"),
        ("only spaces", lambda: b"   "),
        ("NaN", lambda: b"NaN"),
    ]
    what, make = dice.one_of(texts)
    name = STATE if dice.number(5) else MANIFEST
    files = source.with_file(STATE, make()) if name == STATE else {**source.files, MANIFEST: make()}
    return Mutant("JSON text", f"{name}: {what}", files)


def array_reference(source: Source, dice: Dice) -> Mutant:
    """`$array` that names another array, or none, or is where no array belongs."""
    state = source.state
    names = [name for file, name in source.arrays if file == ARRAYS]
    references = [path for path, value in nodes(state) if isinstance(value, dict) and "$array" in value]
    places = references if dice.number(2) else [path for path, _ in nodes(state)]
    path = dice.one_of(places)
    target = dice.one_of([*names, *names, "/nowhere", "", "..", 0, None, ["x"], {"$array": "x"}, "x" * 10_000])
    value: Any = {"$array": target}
    if dice.number(6) == 0:
        value["more"] = 1
    replace(state, path, value)
    return Mutant("array reference", f"{path_text(path)} -> {shown(target)}", source.with_state(state))
