"""The names of the room, listed once: type checkers read them, and lazy_loader imports each when it is first used."""

from .episodes import Episode as Episode
from .episodes import EpisodeTracker as EpisodeTracker
from .episodes import InfoMetric as InfoMetric
from .episodes import info_metrics as info_metrics
from .names import Result as Result
from .names import finite_or_none as finite_or_none
from .names import flatten as flatten
from .names import require_metric as require_metric
from .opposition import Opposition as Opposition
from .statistics import SampleStats as SampleStats
from .statistics import bootstrap_interval as bootstrap_interval
from .statistics import difference_interval as difference_interval
from .statistics import interquartile_mean as interquartile_mean
from .statistics import mean as mean
from .statistics import performance_profile as performance_profile
from .statistics import probability_of_improvement as probability_of_improvement
from .statistics import sample_stats as sample_stats
from .statistics import share_stats as share_stats
from .statistics import table as table
