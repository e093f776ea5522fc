"""The names of the room, listed once: type checkers read them, and lazy_loader imports each when it is first used."""

from .comparison import Comparison as Comparison
from .comparison import compare_groups as compare_groups
from .comparison import pair_rows as pair_rows
from .comparison import sample_rows as sample_rows
from .comparison import setting_rows as setting_rows
from .comparison import summary as summary
from .report import html_page as html_page
from .report import markdown as markdown
from .report import read_runs as read_runs
from .watching import watch as watch
