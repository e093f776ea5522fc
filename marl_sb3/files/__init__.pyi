"""The names of the room, listed once: type checkers read them, and lazy_loader imports each when it is first used."""

from .atomic import UNFINISHED as UNFINISHED
from .atomic import named_by_user as named_by_user
from .atomic import remove_folder as remove_folder
from .atomic import remove_unfinished as remove_unfinished
from .atomic import replaced_file as replaced_file
from .atomic import replaced_folder as replaced_folder
from .atomic import sync_to_disk as sync_to_disk
from .atomic import temporary_folder as temporary_folder
from .atomic import unfinished_path as unfinished_path
from .atomic import with_filename as with_filename
from .atomic import write_whole as write_whole
from .plain_yaml import parse_value as parse_value
from .plain_yaml import plain_data as plain_data
from .plain_yaml import read_yaml as read_yaml
from .plain_yaml import yaml_text as yaml_text
from .regular import append_text as append_text
from .regular import is_regular as is_regular
from .regular import open_regular as open_regular
from .regular import opened as opened
from .regular import read_bytes as read_bytes
from .regular import read_regular as read_regular
from .regular import require_fits as require_fits
from .regular import require_folder as require_folder
from .regular import require_own as require_own
from .regular import require_readable as require_readable
from .regular import require_regular as require_regular
