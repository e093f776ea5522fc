"""The names of the room, listed once: type checkers read them, and lazy_loader imports each when it is first used."""

from .api import policy_server as policy_server
from .client import EpisodeLostError as EpisodeLostError
from .client import PolicyClient as PolicyClient
from .client import ServerError as ServerError
from .external import external_server as external_server
from .guard import Limits as Limits
from .guard import Listening as Listening
