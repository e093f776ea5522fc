"""The names of the room, listed once: type checkers read them, and lazy_loader imports each when it is first used."""

from .export import FORMATS as FORMATS
from .export import Exported as Exported
from .export import export_policies as export_policies
from .initial_weights import init_from as init_from
from .initial_weights import parse_init_from as parse_init_from
from .onnx_check import open_session as open_session
from .onnx_graph import by_input as by_input
from .onnx_graph import graph_of as graph_of
