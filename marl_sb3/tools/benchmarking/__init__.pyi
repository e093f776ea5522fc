"""The names of the room, listed once: type checkers read them, and lazy_loader imports each when it is first used."""

from .outcome import HEAD as HEAD
from .outcome import how_it_ended as how_it_ended
from .outcome import rows as rows
from .outcome import write_outcome as write_outcome
from .plan import Benchmark as Benchmark
from .plan import read_benchmark as read_benchmark
from .running import run_benchmark as run_benchmark
from .working import work as work
