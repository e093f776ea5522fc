"""The names of the room, listed once: type checkers read them, and lazy_loader imports each when it is first used."""

from .comparison import Comparison as Comparison
from .comparison import compare as compare
from .comparison import summary as summary
from .comparison import tables as tables
from .match_page import require_writable as require_writable
from .match_page import show_match as show_match
from .matching import Match as Match
from .matching import match as match
from .report import html_page as html_page
from .report import markdown as markdown
from .report import read_runs as read_runs
from .watching import watch as watch
