"""The names of the room, listed once: type checkers read them, and lazy_loader imports each when it is first used."""

from .folder import write_run_folder as write_run_folder
