"""The names of the room, listed once: type checkers read them, and lazy_loader imports each when it is first used."""

from .cloning import Cloning as Cloning
from .cloning import CloningOptions as CloningOptions
from .dataset import RECORDING as RECORDING
from .dataset import PolicyData as PolicyData
from .dataset import RecordedEpisode as RecordedEpisode
from .dataset import joint_episodes as joint_episodes
from .dataset import joint_episodes_of as joint_episodes_of
from .dataset import read_data as read_data
from .dataset import read_policy_data as read_policy_data
from .dataset import recorded_policies as recorded_policies
from .demonstrations import require_episodes as require_episodes
from .estimators import Decisions as Decisions
from .estimators import Estimate as Estimate
from .estimators import Fitting as Fitting
from .estimators import effective_sample_size as effective_sample_size
from .estimators import estimate as estimate
from .estimators import joint_weights as joint_weights
from .estimators import made as made
from .estimators import resamples as resamples
from .estimators import robust_values as robust_values
from .offline import OfflineTraining as OfflineTraining
from .offline import learns_offline as learns_offline
from .recorder import recorder_of as recorder_of
from .settings import DataSettings as DataSettings
from .store import EpisodeStore as EpisodeStore
from .store import require_recordable as require_recordable
