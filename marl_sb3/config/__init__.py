"""The configuration of a run: the schema of all settings, and reading them from files and options."""

from marl_sb3.config.files import (
    Hparams,
    entry_of,
    parse_value,
    plain_data,
    preset_path,
    read_yaml,
    require_named,
    to_yaml,
    yaml_text,
)
from marl_sb3.config.schema import TrainConfig
from marl_sb3.config.sources import load_config

__all__ = [
    "Hparams",
    "TrainConfig",
    "entry_of",
    "load_config",
    "parse_value",
    "plain_data",
    "preset_path",
    "read_yaml",
    "require_named",
    "to_yaml",
    "yaml_text",
]
