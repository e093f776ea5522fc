"""The names of the room, listed once: type checkers read them, and lazy_loader imports each when it is first used."""

from .api import examine as examine
from .finding import Report as Report
from .show import print_report as print_report
