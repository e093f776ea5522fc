"""The names of the room, listed once: type checkers read them, and lazy_loader imports each when it is first used."""

from .checkpoint_folder import RUN_CONFIG as RUN_CONFIG
from .checkpoint_folder import RUNS as RUNS
from .checkpoint_folder import CheckpointFolder as CheckpointFolder
from .checkpoint_folder import checkpoints_of as checkpoints_of
from .checkpoint_folder import find_checkpoint as find_checkpoint
from .checkpoint_folder import newest_run as newest_run
from .checkpoint_folder import runs_of as runs_of
from .checkpoint_folder import with_checkpoint as with_checkpoint
from .checkpoint_format import MANIFEST as MANIFEST
from .checkpoint_format import parse_json as parse_json
from .checkpoint_format import read_checkpoint as read_checkpoint
from .checkpoint_format import state_from_json as state_from_json
from .checkpoint_format import state_to_json as state_to_json
from .checkpoint_format import write_checkpoint as write_checkpoint
from .load import load_policies as load_policies
from .load import member_policy as member_policy
from .load import read_bundle as read_bundle
