"""Read and write settings as YAML: plain data of limited size. Nothing in a file is evaluated or imported."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import yaml

from marl_sb3.config.schema import ACCEPTED, TrainConfig, value_of
from marl_sb3.errors import ConfigError

_MERGE = "tag:yaml.org,2002:merge"  # `<<`: what it brings may be set anew


class _Loader(yaml.SafeLoader):
    """Load plain data. 3e-4 is a number (in YAML 1.1 only 3.0e-4 is one), and duplicate keys are refused."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Construct a mapping, or refuse duplicate keys: PyYAML would keep the last of them only."""
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != _MERGE:
                if (key.tag, key.value) in seen:
                    raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} is set twice", key.start_mark)
                seen.add((key.tag, key.value))
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Write strings that `_Loader` would read as numbers in quotes."""


for _side in (_Loader, _Dumper):
    _side.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+0123456789.")
    )


# A date is read as a string: no setting is a date.
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in _Loader.yaml_implicit_resolvers.items()
}

_MAX_FILE_BYTES = 2**20
_MAX_NODES = 100_000  # of a file: with aliases, a short file can describe a huge structure
# The errors of PyYAML for files that are invalid or nested too deeply.
_YAML_ERRORS = (yaml.YAMLError, ValueError, TypeError, AttributeError, KeyError, RecursionError, OverflowError)


def _load(text: str) -> Any:
    """Parse a text."""
    data = yaml.load(text, _Loader)
    count, level = 0, [data]
    while level:
        count += len(level)
        if count > _MAX_NODES:
            raise yaml.YAMLError(f"it holds more than {_MAX_NODES} values")
        level = [
            child
            for node in level
            if isinstance(node, (dict, list))
            for child in (node.values() if isinstance(node, dict) else node)
        ]
    return data


def parse_value(text: str) -> Any:
    """Parse one value: `3e-4`, `[64, 64]`, `true`, `lin_1e-3`.

    Raises:
        ConfigError: it is not valid YAML.
    """
    try:
        return _load(text)
    except _YAML_ERRORS as error:
        raise ConfigError(f"cannot read the value {text!r}: {_one_line(error)}") from error


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
        ConfigError: the file is missing or is not valid YAML.
    """
    try:
        if path.is_dir():
            inside = path / "config.yaml"
            hint = f"; did you mean {inside}?" if inside.is_file() else "; accepted: a file"
            raise ConfigError(f"{path} is a folder{hint}", key="hparams")
        if path.stat().st_size > _MAX_FILE_BYTES or not path.is_file():
            raise ConfigError(f"{path} is not a file of at most {_MAX_FILE_BYTES} bytes", key="hparams")
        return _load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", key="hparams") from error
    except ConfigError:
        raise
    except _YAML_ERRORS as error:
        raise ConfigError(f"{path} is not valid YAML: {_one_line(error)}", key="hparams") from error


def to_yaml(config: TrainConfig) -> str:
    """Return the text of a file from which `load_config` reads the same configuration."""
    values: dict[str, Any] = {}
    for name in ACCEPTED:
        section, _, own = name.rpartition(".")
        (values.setdefault(section, {}) if section else values)[own] = plain_data(value_of(config, name))
    return yaml.dump({config.env: values}, Dumper=_Dumper, sort_keys=False)


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
