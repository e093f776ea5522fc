"""Read and write YAML as plain data of limited size, with the numbers of YAML 1.2."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from marl_sb3.errors import ConfigError

_MERGE = "tag:yaml.org,2002:merge"  # `<<`: what it brings may be set anew
_INT, _FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"

_MAX_FILE_BYTES = 2**20
_MAX_VALUES = 100_000  # in a file: by aliases, a short file can describe a huge structure
# The errors of PyYAML for files that are invalid or nested too deeply.
_YAML_ERRORS = (yaml.YAMLError, ValueError, TypeError, AttributeError, KeyError, RecursionError, OverflowError)


class _Loader(yaml.SafeLoader):
    """Load plain data, with the numbers of YAML 1.2; duplicate keys are refused."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Construct a mapping, or refuse duplicate keys: PyYAML would keep the last of them only."""
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != _MERGE:
                if (key.tag, key.value) in seen:
                    raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} is set twice", key.start_mark)
                seen.add((key.tag, key.value))
        return super().construct_mapping(node, deep)

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Merge the mappings after `<<`, unless they are too large: merges of merges grow exponentially."""
        size = 0
        for _, merged in [pair for pair in node.value if pair[0].tag == _MERGE]:
            for part in merged.value if isinstance(merged, yaml.SequenceNode) else [merged]:
                if isinstance(part, yaml.MappingNode):
                    self.flatten_mapping(part)
                    size += len(part.value)
                    _require_few(size)
        super().flatten_mapping(node)


class _Dumper(yaml.SafeDumper):
    """Write strings that `_Loader` would read as numbers in quotes."""


# PyYAML reads YAML 1.1: there, 3e-4 and 0o17 are strings, but 010 is 8, 12:30 is 750, and 2026-01-01 is a date.
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in (_INT, _FLOAT, "tag:yaml.org,2002:timestamp")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_NUMBERS = {
    _INT: r"[-+]?(0|[1-9][0-9_]*|0b[01_]+|0o[0-7_]+|0x[0-9a-fA-F_]+)",
    _FLOAT: r"[-+]?([0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)([eE][-+]?[0-9]+)?|[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+"
    r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
}
for _tag, _pattern in _NUMBERS.items():
    for _side in (_Loader, _Dumper):
        _side.add_implicit_resolver(_tag, re.compile(f"^({_pattern})$"), list("-+0123456789."))


def _quoted_breaks(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    """Write a string; in double quotes if it has line breaks that PyYAML would not read back otherwise."""
    style = '"' if any(character in text for character in "\x85\u2028\u2029") else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)


_Dumper.add_representer(str, _quoted_breaks)


def _load(text: str) -> Any:
    data = yaml.load(text, _Loader)
    if isinstance(data, (dict, list)):
        require_few_values(data)
    return data


def require_few_values(data: Any) -> None:
    """Refuse data with more values than a file may have; a value counts once for each alias of it.

    Raises:
        YAMLError: there are too many.
    """
    count = 0
    for container in _containers(data):
        count += len(container)
        _require_few(count)


def _containers(data: Any) -> Iterator[dict[Any, Any] | list[Any]]:
    """Yield all dictionaries and lists within data; one with several aliases as often."""
    waiting = [data]
    while waiting:
        container = waiting.pop()
        if isinstance(container, (dict, list)):
            yield container
            waiting += container.values() if isinstance(container, dict) else container


def _require_few(count: int) -> None:
    if count > _MAX_VALUES:
        raise yaml.YAMLError(f"it holds more than {_MAX_VALUES} values")


def parse_value(text: str) -> Any:
    """Parse one value: `3e-4`, `[64, 64]`, `true`, `lin_1e-3`.

    Raises:
        ConfigError: it is not valid YAML.
    """
    try:
        value = _load(text)
    except _YAML_ERRORS as error:
        raise ConfigError(f"cannot read the value {text!r}: {_one_line(error)}") from error
    for container in _containers(value) if isinstance(value, (dict, list)) else ():
        entries = container.items() if isinstance(container, dict) else ()
        for key, inner in entries:
            if isinstance(key, str) and ":" in key and inner is None:  # YAML reads `{a:1}` as `{"a:1": null}`
                name, _, rest = key.partition(":")
                raise ConfigError(f"the value {text!r} has no space after a colon; accepted: {{{name}: {rest}}}")
    return value


def _one_line(error: Exception) -> str:
    """Say in one line what is wrong and where, without PyYAML's excerpt of the file."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        context = f"{error.context}: " if error.context else ""
        mark = error.problem_mark
        return f"line {mark.line + 1}, column {mark.column + 1}: {context}{error.problem}"
    return " ".join(str(error).split())


def read_yaml(path: Path) -> Any:
    """Read a YAML file.

    Raises:
        ConfigError: the file cannot be read or is not valid YAML.
    """
    inside, fault, text = path / "config.yaml", "", ""
    try:
        if path.is_dir():
            fault = f" is a folder; {f'did you mean {inside}?' if inside.is_file() else 'accepted: a file'}"
        elif path.stat().st_size > _MAX_FILE_BYTES or not path.is_file():
            fault = f" is not a file of at most {_MAX_FILE_BYTES} bytes"
        else:
            text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:  # ValueError: it is not UTF-8, or its name has a null byte
        raise ConfigError(f"cannot read {path}: {getattr(error, 'strerror', error)}", key="hparams") from error
    if fault:
        raise ConfigError(f"{path}{fault}", key="hparams")
    try:
        return _load(text)
    except _YAML_ERRORS as error:
        raise ConfigError(f"{path} is not valid YAML: {_one_line(error)}", key="hparams") from error


def yaml_text(data: Any) -> str:
    """Return the text of a file from which `read_yaml` reads the same plain data."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def plain_data(value: Any) -> Any:
    """Convert a value to dictionaries, lists, strings and numbers, which YAML can hold.

    Raises:
        ConfigError: a file cannot hold the value, such as a function.
    """
    if isinstance(value, Mapping):
        return {str(key): plain_data(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_data(item) for item in value]
    if isinstance(value, str):
        return str(value)  # of a subclass, such as NumPy's
    if value is None or isinstance(value, (int, float, bool)):
        return value
    raise ConfigError(f"a setting is {value!r}; config.yaml holds numbers, strings, lists and mappings only")
