"""What the pursuers of Waterworld see, against observations worked by hand."""

from __future__ import annotations

import numpy as np
import pytest
from ponds import OnePond

BLOCKS = ("obstacle", "wall", "food", "food speed", "poison", "poison speed", "pursuer", "pursuer speed")
MIDDLE = [0.5, 0.5]
NOTHING = [1, 1, 1, 1]
RIGHT, UP, LEFT, DOWN = range(4)


def seen(positions, velocities=None, agent=0, **parameters):
    """What an agent with four sensors sees: by block; and its flags."""
    pond = OnePond(positions, velocities, **{"n_pursuers": 1, "n_sensors": 4, **parameters})
    return by_block(pond.seen(agent))


def by_block(numbers):
    blocks = dict(zip(BLOCKS, numbers[:-2].reshape(-1, 4).tolist(), strict=True))
    return {**blocks, "flags": numbers[-2:].tolist()}


def test_nothing_in_range_reads_ones_and_speeds_of_zero():
    found = seen([MIDDLE, [0.1, 0.1], [0.1, 0.9], [0.9, 0.1]], n_pursuers=2, n_evaders=1, n_poisons=1)
    for block in BLOCKS:
        assert found[block] == ([0] * 4 if "speed" in block else NOTHING)
    assert found["flags"] == [0, 0]


@pytest.mark.parametrize(
    ("block", "counts", "max_speed"),
    [
        ("food", {"n_evaders": 1}, 0.1),
        ("poison", {"n_poisons": 1}, 0.1),
        ("pursuer", {"n_pursuers": 2}, 0.2),
    ],
)
def test_distance_and_speed_of_what_lies_on_a_ray(block, counts, max_speed):
    found = seen([MIDDLE, [0.5, 0.4]], [[0.02, 0.1], [0.05, -0.05]], **counts)
    assert found[block] == pytest.approx([1, 1, 1, 0.1 / 0.2])
    assert found[f"{block} speed"] == pytest.approx([0, 0, 0, (0.05 + 0.1) / (max_speed + 0.2)])  # downwards
    for other in {"food", "poison", "pursuer"} - {block}:
        assert found[other] == NOTHING or (other == "pursuer" and found[other] == [0] * 4)


def test_an_obstacle_is_read_to_its_centre():
    found = seen([MIDDLE], n_obstacles=1, obstacle_coord=[[0.65, 0.5]])
    assert found["obstacle"] == pytest.approx([0.75, 1, 1, 1])


def test_a_ray_meets_a_disc_up_to_its_rim_and_reads_the_distance_along_itself():
    for beside, met in ((0.0299, True), (0.0301, False)):  # a food's radius is 0.03
        found = seen([MIDDLE, [0.6, 0.5 + beside]], n_evaders=1)
        assert found["food"] == pytest.approx([0.5 if met else 1, 1, 1, 1])


def test_what_lies_behind_is_not_met_and_what_lies_on_the_pursuer_is_met_by_all_rays_that_it_is_not_behind():
    assert seen([MIDDLE, [0.5, 0.5]], n_evaders=1)["food"] == pytest.approx([0, 0, 0, 0], abs=1e-9)
    assert seen([MIDDLE, [0.51, 0.52]], n_evaders=1)["food"] == pytest.approx([0.05, 0.1, 1, 1])


def test_of_two_the_nearer_one_is_read():
    positions = [MIDDLE, [0.6, 0.5], [0.55, 0.5], [0.5, 0.55]]
    found = seen(positions, [[0, 0], [0.03, 0], [0.06, 0], [0, 0.09]], n_evaders=3)
    assert found["food"] == pytest.approx([0.25, 0.25, 1, 1])
    assert found["food speed"] == pytest.approx([0.2, 0.3, 0, 0])


def test_of_what_reaches_into_the_range_with_its_rim_only_the_first_of_its_kind_shows_its_speed():
    for first, speed in ((True, 0.2), (False, 0.0)):
        positions, velocities = [[0.72, 0.5], [0.1, 0.1]], [[0.06, 0.0], [0.0, 0.0]]
        order = slice(None, None, 1 if first else -1)
        found = seen([MIDDLE, *positions[order]], [[0, 0], *velocities[order]], n_evaders=2)
        assert found["food"] == NOTHING
        assert found["food speed"] == pytest.approx([speed, 0, 0, 0])


def test_a_pursuer_is_not_first_among_what_it_sees_itself():
    positions = [[0.71, 0.5], MIDDLE, [0.1, 0.1]]
    velocities = [[0.08, 0.0], [0.0, 0.0], [0.0, 0.0]]
    assert seen(positions, velocities, agent=1, n_pursuers=3)["pursuer speed"] == pytest.approx([0.2, 0, 0, 0])
    swapped = [positions[1], positions[0], positions[2]], [velocities[1], velocities[0], velocities[2]]
    assert seen(*swapped, n_pursuers=3)["pursuer speed"] == pytest.approx([0.2, 0, 0, 0])


def test_walls_are_read_along_the_rays():
    found = seen([[0.05, 0.9]])
    assert found["wall"] == pytest.approx([1, 0.5, 0.25, 1])
    pond = OnePond([[0.1, 0.5]], n_pursuers=1, n_sensors=8)
    walls = pond.seen()[8:16]
    assert walls == pytest.approx([1, 1, 1, 0.5 * np.sqrt(2), 0.5, 0.5 * np.sqrt(2), 1, 1])


def test_a_pursuer_whose_centre_is_in_a_wall_reads_negative_distances_within_the_space():
    assert seen([[-0.01, 0.5]])["wall"] == pytest.approx([1, 1, -0.05, 1])
    assert seen([[-0.5, 0.5]])["wall"] == [1, 1, -np.float32(np.sqrt(2)), 1]


def test_flags_say_what_is_touched_after_a_step():
    pond = OnePond([MIDDLE, MIDDLE, MIDDLE], n_pursuers=1, n_sensors=4, n_evaders=1, n_poisons=1)
    flags = []
    for _ in range(2):
        pond.step()
        flags.append(by_block(pond.seen())["flags"])
    assert flags == [[1, 1], [1, 0]]


def test_without_speeds_the_blocks_are_distances():
    pond = OnePond(
        [MIDDLE, [0.5, 0.6], [0.6, 0.5], [0.4, 0.5], [0.5, 0.35]], n_pursuers=2, n_evaders=1, n_poisons=2,
        n_obstacles=1, obstacle_coord=[[0.35, 0.5]], n_sensors=4, speed_features=False,
    )  # fmt: skip
    numbers = pond.seen()
    assert numbers.reshape(-1)[:-2].reshape(5, 4) == pytest.approx(
        np.array([[1, 1, 0.75, 1], NOTHING, [0.5, 1, 1, 1], [1, 1, 0.5, 0.75], [1, 0.5, 1, 1]])
    )
    assert numbers.dtype == np.float32


def test_a_single_pursuer_reads_zeros_for_others():
    found = seen([MIDDLE])
    assert found["pursuer"] == found["pursuer speed"] == [0] * 4
