"""The names of the room, listed once: type checkers read them, and lazy_loader imports each when it is first used."""

from .command import EXIT_DONE as EXIT_DONE
from .command import EXIT_FAILED as EXIT_FAILED
from .command import EXIT_INTERRUPTED as EXIT_INTERRUPTED
from .command import run_command as run_command
from .parser import CommandParser as CommandParser
from .parser import add_checkpoint as add_checkpoint
from .parser import add_device_options as add_device_options
from .parser import add_env_option as add_env_option
from .parser import add_hparams as add_hparams
from .parser import add_ray_options as add_ray_options
from .parser import add_run as add_run
from .parser import add_server_options as add_server_options
from .parser import add_setting as add_setting
from .parser import add_setup_options as add_setup_options
from .parser import add_verbosity as add_verbosity
from .parser import assignments as assignments
from .parser import found_run as found_run
from .parser import integer as integer
from .parser import named_env as named_env
from .parser import number_of_workers as number_of_workers
from .parser import ray_settings as ray_settings
from .parser import require_no_server_options as require_no_server_options
from .parser import runner_settings as runner_settings
from .parser import server_settings as server_settings
from .parser import stop_conditions as stop_conditions
