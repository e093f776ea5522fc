"""The names of the room, listed once: type checkers read them, and lazy_loader imports each when it is first used."""

from .processes.channel import Heartbeat as Heartbeat
from .processes.channel import anonymous_file as anonymous_file
from .processes.fork_server import Forker as Forker
from .processes.fork_server import ForkServer as ForkServer
from .processes.fork_server import fork_server as fork_server
from .processes.messages import Failed as Failed
from .processes.messages import ProcessContext as ProcessContext
from .processes.messages import by_value as by_value
from .processes.messages import known_error as known_error
from .processes.messages import packed_request as packed_request
from .processes.pool import differing as differing
from .processes.pool import versions as versions
from .processes.ray import Connection as Connection
from .processes.serve import Link as Link
from .processes.worker import RestartBudget as RestartBudget
from .processes.worker import Worker as Worker
from .processes.worker import WorkerLostError as WorkerLostError
from .processes.worker import WorkerRefusedError as WorkerRefusedError
from .processes.worker import ending as ending
from .ray import AnyRunners as AnyRunners
from .ray import RaySettings as RaySettings
from .ray import either as either
from .ray import read_runtime_env as read_runtime_env
from .sharded_vec_env import make_sharded_vec_env as make_sharded_vec_env
