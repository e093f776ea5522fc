"""The names of the room, listed once: type checkers read them, and lazy_loader imports each when it is first used."""

from .api import Api as Api
from .api import policy_server as policy_server
from .client import EpisodeLostError as EpisodeLostError
from .client import PolicyClient as PolicyClient
from .client import ServerError as ServerError
from .external import external_server as external_server
from .guard import Limits as Limits
from .guard import Listening as Listening
from .http import Server as Server
from .predictor import Predictor as Predictor
from .spaces_json import describe as describe
from .ui import PAGE_FILES as PAGE_FILES
from .ui import ui_routes as ui_routes
