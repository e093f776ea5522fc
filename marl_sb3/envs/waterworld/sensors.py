"""What pursuers see: rays in all directions, each with the nearest obstacle, wall, food, poison and pursuer on it.

Only pairs of a pursuer and an object near it are computed, by default one in six, and a ray meets few of these. Nothing
depends on how many ponds are computed together.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from marl_sb3.envs.waterworld.rules import FloatArray, IntArray, Parameters, Pond, PondState
from marl_sb3.types import Array, BoolArray
from marl_sb3.types import FloatArray as Float32Array

BOUND = np.float32(np.sqrt(2))  # of an observation: the speed of two that swim straight at each other along a diagonal
_ALMOST_ONE = 1 - 1e-4  # A wall that is farther away than this part of the range is not sensed.


class _Hits(NamedTuple):
    """H times that a ray meets an object: (H,) arrays, those of one pursuer in the order of the objects."""

    ponds: IntArray  # int64, as the next three; what meets what
    pursuers: IntArray
    objects: IntArray
    sensors: IntArray
    distances: FloatArray  # float64; along the ray, as a part of the range

    def at(self, chosen: Array) -> _Hits:
        """Return some of them."""
        return _Hits._make(array[chosen] for array in self)


class Sensors:
    """The sensors of all pursuers of a pond.

    An observation consists of blocks of `n_sensors` numbers and two flags:

    obstacle distance, wall distance, food distance, food speed, poison distance, poison speed, pursuer distance,
    pursuer speed (no speeds without `speed_features`); 1 where the pursuer touches a food, 1 where it has just touched
    a poison.

    Distances are parts of the range, 1 where nothing is sensed. Speeds are those of the object relative to the
    pursuer, along the ray, as parts of the sum of both maximum speeds; 0 where nothing is sensed.

    Args:
        pond: what the pursuers swim in.
    """

    def __init__(self, pond: Pond) -> None:
        parameters = pond.parameters
        self._n_pursuers, self._n_foods = parameters.n_pursuers, parameters.n_evaders
        self._n_sensors, self._range = parameters.n_sensors, parameters.sensor_range
        angles = np.linspace(0.0, 2.0 * np.pi, parameters.n_sensors, endpoint=False)
        self._x, self._y = np.cos(angles), np.sin(angles)
        self._walls = [_wall_terms(across, parameters.sensor_range) for across in (self._x, self._y)]

        # Obstacles stand behind everything that moves.
        counts = (parameters.n_pursuers, parameters.n_evaders, parameters.n_poisons, parameters.n_obstacles)
        obstacle_radii = np.full(parameters.n_obstacles, parameters.obstacle_radius)
        self._radii = np.concatenate((pond.radii, obstacle_radii))
        self._reaches_squared = (parameters.sensor_range + self._radii) ** 2 + self._radii**2
        self._speed_sums = pond.max_speeds + parameters.pursuer_speed
        self._first_of_kind = _first_of_kind(counts)

        speeds = parameters.speed_features
        self._blocks = np.repeat([6, 2, 4, 0] if speeds else [4, 2, 3, 0], counts)  # of the distances, by object
        self._has_speed = np.repeat([speeds, speeds, speeds, False], counts)
        self._nothing = _nothing_sensed(parameters)
        self.size = len(self._nothing)  # how many numbers an observation has

    def observations(self, state: PondState) -> Float32Array:
        """Return what every pursuer sees: (E, P, size) float32, a new array."""
        seen = np.empty((len(state.positions), self._n_pursuers, self.size), dtype=np.float32)
        seen[:] = self._nothing
        own = state.positions[:, :, : self._n_pursuers, None]
        seen[..., self._n_sensors : 2 * self._n_sensors] = self._wall_distances(own)
        hits = self._hits(state, own)
        self._write(seen, state, _nearest(hits, self._targets(hits)))
        seen[..., -2] = state.touching[..., : self._n_foods].any(axis=2)
        seen[..., -1] = state.poisoned
        return seen

    def _wall_distances(self, own: FloatArray) -> FloatArray:
        """Return how far the walls are, (E, P, S), for pursuers at `own`, (E, 2, P, 1)."""
        along_x, along_y = (
            (wall - own[:, axis]) * factor + offset for axis, (wall, factor, offset) in enumerate(self._walls)
        )
        nearest = np.minimum(along_x, along_y)
        # Negative for a pursuer that has pushed its centre into the wall.
        distances: FloatArray = np.where(nearest < _ALMOST_ONE, np.maximum(nearest, -BOUND), 1)
        return distances

    def _hits(self, state: PondState, own: FloatArray) -> _Hits:
        """Return which rays meet what, for pursuers at `own`, (E, 2, P, 1)."""
        everything = np.concatenate((state.positions, state.obstacles), axis=2)
        apart = everything[:, :, None] - own  # (E, 2, P, objects)
        near = apart[:, 0] ** 2 + apart[:, 1] ** 2 <= self._reaches_squared
        itself = np.arange(self._n_pursuers)
        near[:, itself, itself] = False
        ponds, pursuers, objects = np.nonzero(near)

        right, up = apart[ponds, 0, pursuers, objects, None], apart[ponds, 1, pursuers, objects, None]
        radii = self._radii[objects, None]
        along = right * self._x + up * self._y  # (pairs, S)
        met = (along >= 0) & (np.abs(up * self._x - right * self._y) <= radii)
        # An object of which only the rim is in range reads 1, as if it were not there. `argmin` of `waterworld_v4`
        # then finds the first object of the kind: of the others, no speed is read.
        met &= (along < self._range) | (along <= self._range + radii) & self._first_of_kind[pursuers, objects, None]
        pairs, sensors = np.nonzero(met)
        distances = np.minimum(along[pairs, sensors] / self._range, 1)
        return _Hits(ponds[pairs], pursuers[pairs], objects[pairs], sensors, distances)

    def _targets(self, hits: _Hits) -> IntArray:
        """Return where the distances belong in an array of all observations, (H,)."""
        rows = hits.ponds * self._n_pursuers + hits.pursuers
        targets: IntArray = rows * self.size + self._blocks[hits.objects] * self._n_sensors + hits.sensors
        return targets

    def _write(self, seen: Float32Array, state: PondState, hits: _Hits) -> None:
        """Write distances and speeds into `seen`, (E, P, size)."""
        flat = seen.reshape(-1)
        flat[self._targets(hits)] = hits.distances
        hits = hits.at(self._has_speed[hits.objects])
        ponds, pursuers, objects, sensors, _ = hits
        right, up = (
            state.velocities[ponds, axis, objects] - state.velocities[ponds, axis, pursuers] for axis in (0, 1)
        )
        speeds = (right * self._x[sensors] + up * self._y[sensors]) / self._speed_sums[objects]
        flat[self._targets(hits) + self._n_sensors] = speeds


def _nearest(hits: _Hits, targets: IntArray) -> _Hits:
    """Return the hits that are read: the nearest at each target, of two at one distance the one that comes first."""
    order = np.lexsort((hits.distances, targets))
    ordered = targets[order]
    is_first = np.ones(len(order), dtype=np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=is_first[1:])
    return hits.at(order[is_first])


def _wall_terms(across: FloatArray, sensor_range: float) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return, for one axis, each ray's wall, and what makes the distance to it a part of the range: (S,) each.

    Args:
        across: (S,); the rays' components along the axis.
        sensor_range: length of a ray.
    """
    meets = np.abs(across) > 1e-9  # A ray along the wall never meets it: factor 0, offset 1.
    factors = np.divide(1 / sensor_range, across, out=np.zeros_like(across), where=meets)
    return (across > 0).astype(np.float64), factors, np.where(meets, 0.0, 1.0)


def _first_of_kind(counts: tuple[int, ...]) -> BoolArray:
    """Return whether an object is the first of its kind that a pursuer can see: (P, objects) bool."""
    is_first = np.concatenate([np.arange(count) == 0 for count in counts])
    table = np.tile(is_first, (counts[0], 1))
    table[0, 1 : counts[0]] = np.arange(counts[0] - 1) == 0  # The first pursuer does not see itself.
    return table


def _nothing_sensed(parameters: Parameters) -> Float32Array:
    """Return what is seen where nothing is sensed, (size,). A single pursuer reads 0 for the distance of others."""
    kinds = [(1, 0)] * 2 + [(1.0 if parameters.n_pursuers > 1 else 0.0, 0.0)]
    blocks = [1.0, 1.0, *(value for kind in kinds for value in kind[: 2 if parameters.speed_features else 1])]
    return np.concatenate((np.repeat(blocks, parameters.n_sensors), [0, 0])).astype(np.float32)
