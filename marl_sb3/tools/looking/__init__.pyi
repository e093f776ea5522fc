"""The names of the room, listed once: type checkers read them, and lazy_loader imports each when it is first used."""

from .comparison import Comparison as Comparison
from .comparison import compare_groups as compare_groups
from .comparison import summary as summary
from .comparison import tables as tables
from .report import html_page as html_page
from .report import markdown as markdown
from .report import read_runs as read_runs
from .watching import watch as watch
