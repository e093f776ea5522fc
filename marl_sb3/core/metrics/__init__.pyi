"""The names of the room, listed once: type checkers read them, and lazy_loader imports each when it is first used."""

from .episodes import Episode as Episode
from .episodes import EpisodeTracker as EpisodeTracker
from .episodes import InfoMetric as InfoMetric
from .episodes import info_metrics as info_metrics
from .names import Result as Result
from .names import finite_or_none as finite_or_none
from .names import flatten as flatten
from .names import require_metric as require_metric
from .running_episode import LatestStep as LatestStep
from .running_episode import RunningEpisode as RunningEpisode
