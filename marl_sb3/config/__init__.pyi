"""The names of the room, listed once: type checkers read them, and lazy_loader imports each when it is first used."""

from .files import Hparams as Hparams
from .files import entry_of as entry_of
from .files import preset_path as preset_path
from .files import require_named as require_named
from .files import to_yaml as to_yaml
from .plain_yaml import parse_value as parse_value
from .plain_yaml import plain_data as plain_data
from .plain_yaml import read_yaml as read_yaml
from .plain_yaml import yaml_text as yaml_text
from .schema import TrainConfig as TrainConfig
from .settings import load_config as load_config
