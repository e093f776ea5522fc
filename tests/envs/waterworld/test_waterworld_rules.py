"""The rules of Waterworld against steps worked by hand."""

from __future__ import annotations

import numpy as np
import pytest
from ponds import OnePond

from marl_sb3.envs.waterworld import WaterworldEnv

FAR = (0.9, 0.9)


# Thrust


def test_a_thrust_adds_to_the_velocity_which_then_moves_the_pursuer():
    pond = OnePond([[0.5, 0.5]], [[0.02, 0.0]], n_pursuers=1, pursuer_max_accel=0.01)
    pond.step([0.6, -0.8])
    assert pond.velocity(0) == pytest.approx([0.026, -0.008])
    assert pond.place(0) == pytest.approx([0.5 + 0.026 / 15, 0.5 - 0.008 / 15])
    pond.step()
    assert pond.velocity(0) == pytest.approx([0.026, -0.008])  # Water does not slow anything down.


def test_a_thrust_that_is_too_long_is_shortened():
    pond = OnePond([[0.5, 0.5]], n_pursuers=1, pursuer_max_accel=0.01)
    pond.step([1.0, 1.0])
    assert pond.velocity(0) == pytest.approx([0.01 / np.sqrt(2)] * 2)


def test_speed_is_limited_along_each_axis():
    pond = OnePond([[0.5, 0.5]], [[0.195, -0.199]], n_pursuers=1, pursuer_max_accel=0.01)
    pond.step([0.6, -0.8])
    assert pond.velocity(0) == pytest.approx([0.2, -0.2])


def test_thrusts_are_paid_for_and_that_of_the_last_pursuer_twice():
    pond = OnePond([[0.2, 0.2], [0.5, 0.5], [0.8, 0.8]], n_pursuers=3, pursuer_max_accel=0.5)
    rewards, _ = pond.step([1.0, 0.0], [1.0, 1.0], [0.0, -0.4])
    assert rewards == pytest.approx([-0.5 * 0.5, -0.5 * 0.5, 2 * -0.5 * 0.2])


# Walls and obstacles


def test_a_wall_turns_back_with_little_loss_and_pushes_out_in_the_next_step():
    # Food, of radius 0.03, moves from 0.035 to 0.025: 0.005 deep.
    pond = OnePond([FAR, [0.035, 0.5]], [[0, 0], [-0.15, 0.1]], n_pursuers=1, n_evaders=1)
    pond.step()
    assert pond.place(1) == pytest.approx([0.025, 0.5 + 0.1 / 15])
    assert pond.velocity(1) == pytest.approx([0.15 * 0.999, 0.1])
    pond.step()
    pushed = (0.005 - 0.1 / 750) * (1 - 0.9**4)
    assert pond.place(1)[0] == pytest.approx(0.025 + 0.15 * 0.999 / 15 + pushed)


@pytest.mark.parametrize(("axis", "side"), [(0, 1), (1, 0), (1, 1)])
def test_every_wall_does_so(axis, side):
    start, speed = [0.5, 0.5], [0.0, 0.0]
    start[axis], speed[axis] = (0.965, 0.15) if side else (0.035, -0.15)
    pond = OnePond([FAR, start], [[0, 0], speed], n_pursuers=1, n_evaders=1)
    pond.step()
    assert pond.velocity(1)[axis] == pytest.approx(-0.999 * speed[axis])
    assert pond.state.pushes[0, axis, 1] == pytest.approx((1 - 2 * side) * (0.005 - 0.1 / 750) * (1 - 0.9**4))


def test_what_leaves_a_wall_is_not_turned_back():
    pond = OnePond([FAR, [0.01, 0.5]], [[0, 0], [0.1, 0.0]], n_pursuers=1, n_evaders=1)
    pond.step()
    assert pond.velocity(1) == [0.1, 0.0]


def test_an_obstacle_mirrors_the_velocity_at_the_line_between_the_centres():
    # The food comes to lie 0.12 from the centre, where 0.13 would touch, on a normal of (0.6, 0.8).
    centre, speed = np.array([0.5, 0.5]), np.array([-0.15, 0.0])
    start = centre + 0.12 * np.array([0.6, 0.8]) - speed / 15
    pond = OnePond([FAR, start], [[0, 0], speed], n_pursuers=1, n_evaders=1, n_obstacles=1, obstacle_coord=[[0.5, 0.5]])
    pond.step()
    # v - 2 (v . n) n, with v . n = -0.09
    assert pond.velocity(1) == pytest.approx([-0.15 + 0.18 * 0.6, 0.18 * 0.8])
    pushed = (0.01 - 0.1 / 750) * (1 - 0.9**4)
    assert pond.state.pushes[0, :, 1] == pytest.approx([pushed * 0.6, pushed * 0.8])


def test_what_starts_in_the_centre_of_an_obstacle_is_pushed_out_of_it():
    pond = OnePond([[0.5, 0.5]], n_pursuers=1, n_obstacles=1, obstacle_coord=[[0.5, 0.5]], pursuer_max_accel=0.0)
    for _ in range(40):
        pond.step()
    x, y = pond.place(0)
    assert x == pytest.approx(0.5 + 0.115, abs=2e-4)
    assert y == 0.5


def test_moving_things_pass_through_each_other():
    pond = OnePond(
        [FAR, [0.5, 0.5], [0.5, 0.5], [0.5, 0.5], [0.5, 0.5]], [[0, 0], *([0.1, 0.0], [-0.1, 0.0]) * 2],
        n_pursuers=1, n_evaders=2, n_poisons=2,
    )  # fmt: skip
    pond.step()
    assert [pond.velocity(thing)[0] for thing in range(1, 5)] == [0.1, -0.1, 0.1, -0.1]


# Food


def touch(pond, pursuer, food):
    """Put a pursuer on the food with this number on the object axis."""
    pond.put(pursuer, *pond.place(food))


def leave(pond, pursuer):
    pond.put(pursuer, *FAR)


def test_food_pays_when_it_is_first_touched_and_again_when_it_is_left():
    pond = OnePond([FAR, [0.3, 0.3]], n_pursuers=1, n_evaders=1)
    assert pond.step()[0] == [0.0]
    touch(pond, 0, 1)
    rewards, events = pond.step()
    assert rewards == pytest.approx([10 + 0.01])
    assert [list(map(int, found[0])) for found in events] == [[1], [1], [0], [0]]
    assert pond.place(1) == [0.3, 0.3]
    rewards, events = pond.step()
    assert rewards == pytest.approx([0.01])
    leave(pond, 0)
    rewards, events = pond.step()
    assert rewards == pytest.approx([10])
    assert [list(map(int, found[0])) for found in events] == [[0], [1], [1], [0]]
    assert pond.place(1) != [0.3, 0.3]
    assert pond.state.counters.tolist() == [[0]]
    touch(pond, 0, 1)
    assert pond.step()[0] == pytest.approx([10.01])


def test_touching_ends_where_the_circles_do():
    for apart, touched in ((0.0449, 1), (0.0451, 0)):  # radii 0.015 and 0.03
        pond = OnePond([[0.3 + apart, 0.3], [0.3, 0.3]], n_pursuers=1, n_evaders=1)
        assert pond.step()[1].food_encounters.tolist() == [[touched]]


def test_two_foods_in_one_step_pay_one_food_reward():
    pond = OnePond([[0.3, 0.3], [0.3, 0.3], [0.3, 0.3]], n_pursuers=1, n_evaders=2)
    rewards, events = pond.step()
    assert rewards == pytest.approx([10.02])
    assert events.food_encounters.tolist() == [[2]]


def test_food_for_two_pays_the_second_pursuer_and_the_first_that_leaves():
    pond = OnePond([FAR, FAR, [0.3, 0.3]], n_pursuers=2, n_evaders=1, n_coop=2)
    touch(pond, 1, 2)
    assert pond.step()[0] == pytest.approx([0, 0.01])
    touch(pond, 0, 2)
    assert pond.step()[0] == pytest.approx([10.01, 0.01])
    leave(pond, 1)
    rewards, events = pond.step()
    assert rewards == pytest.approx([0.01, 10])
    assert events.captures.tolist() == [[0, 1]]
    assert pond.place(2) != [0.3, 0.3]


def test_food_that_others_held_too_needs_one_pursuer_more_the_next_time():
    pond = OnePond([FAR, FAR, [0.3, 0.3]], n_pursuers=2, n_evaders=1)
    touch(pond, 0, 2)
    touch(pond, 1, 2)
    assert pond.step()[0] == pytest.approx([10.01, 10.01])
    leave(pond, 0)
    assert pond.step()[0] == pytest.approx([10, 0.01])
    assert pond.step()[0] == pytest.approx([0, 0])  # The food is gone, and the second pursuer no longer counts.
    assert pond.state.counters.tolist() == [[-1]]
    touch(pond, 1, 2)
    assert pond.step()[0] == pytest.approx([0, 0.01])
    touch(pond, 0, 2)
    assert pond.step()[0] == pytest.approx([10.01, 0.01])


@pytest.mark.parametrize(
    ("counter", "began", "ceased", "n_coop", "paid", "taken", "after"),
    [
        (0, [1, 1, 0], [0, 0, 0], 1, [1, 1, 0], [0, 0, 0], 2),
        (0, [1, 1, 1], [0, 0, 0], 2, [0, 1, 1], [0, 0, 0], 3),
        (1, [0, 0, 0], [0, 1, 0], 2, [0, 0, 0], [0, 0, 0], 0),
        (3, [0, 0, 0], [0, 1, 1], 2, [0, 1, 0], [0, 1, 0], -1),
        (1, [1, 0, 0], [0, 0, 1], 2, [1, 0, 1], [0, 0, 1], 0),
        (-1, [0, 1, 0], [0, 0, 0], 1, [0, 0, 0], [0, 0, 0], 0),
    ],
)
def test_who_is_paid_and_who_takes_the_food(counter, began, ceased, n_coop, paid, taken, after):
    here = [0.3, 0.3]
    places = [here if flag else FAR for flag in began]
    pond = OnePond([*places, here], n_pursuers=3, n_evaders=1, n_coop=n_coop)
    pond.state.counters[0], pond.state.touching[0, :, 0] = counter, ceased
    _, events = pond.step()
    assert events.fed[0].tolist() == paid
    assert events.captures[0].tolist() == taken
    assert pond.state.counters.tolist() == [[after]]


# Poison


def test_poison_costs_all_that_touch_it_once_and_is_somewhere_else_then():
    pond = OnePond([[0.3, 0.3], [0.3, 0.3], [0.31, 0.3]], n_pursuers=2, n_poisons=1)
    rewards, events = pond.step()
    assert rewards == pytest.approx([-1, -1])
    assert events.poison_hits.tolist() == [[1, 1]]
    assert pond.state.poisoned.tolist() == [[True, True]]
    assert pond.place(2) != [0.31, 0.3]
    assert pond.step()[0] == [0, 0]
    assert pond.state.poisoned.tolist() == [[False, False]]


def test_poison_that_comes_back_onto_the_same_pursuer_does_not_count_again():
    pond = OnePond([[0.3, 0.3], [0.31, 0.3]], n_pursuers=1, n_poisons=1)
    pond.step()
    pond.put(1, 0.3, 0.31)
    assert pond.step()[0] == [0]


# Shares


def test_what_is_not_local_is_averaged():
    parameters = {"n_pursuers": 2, "n_poisons": 1, "local_ratio": 0.25, "pursuer_max_accel": 0.5}
    pond = OnePond([[0.3, 0.3], [0.7, 0.7], [0.3, 0.3]], **parameters)
    rewards, _ = pond.step([0.0, 0.4], [0.8, 0.0])
    # Penalties of thrust: -0.1 and -0.2. All of them, shared, come to -0.1 * 0.25 - 0.15 * 0.75 = -0.1375 and
    # -0.2 * 0.25 - 0.15 * 0.75 = -0.1625. What happened: -1 and 0, and the last thrust, shared: -0.075 and -0.125.
    # Shared in turn: -1.075 * 0.25 - 0.6 * 0.75 = -0.71875, -0.125 * 0.25 - 0.6 * 0.75 = -0.48125.
    assert rewards == pytest.approx([-0.1375 - 0.71875, -0.1625 - 0.48125])


# New places


def begun(**parameters):
    """The states of 400 ponds in which an episode begins."""
    batch = WaterworldEnv.make_batched(400, **parameters)
    batch.reset(range(400), range(400))
    return batch.states


def test_an_episode_begins_anywhere_with_pursuers_at_rest():
    state = begun(n_pursuers=3, evader_speed=0.1, poison_speed=0.05)
    assert state.positions.min() < 0.001
    assert state.positions.max() > 0.999
    assert state.positions.mean() == pytest.approx(0.5, abs=0.01)
    assert (state.velocities[:, :, :3] == 0).all()
    for things, speed in ((slice(3, 8), 0.1), (slice(8, 18), 0.05)):
        found = state.velocities[:, :, things]
        assert [found.min(), found.max(), found.mean()] == pytest.approx([-speed, speed, 0], abs=0.003)
    assert (state.obstacles == 0.5).all()


def test_obstacles_without_coordinates_are_somewhere_else_in_every_episode():
    state = begun(n_obstacles=2, obstacle_coord=None)
    assert len(np.unique(state.obstacles)) == 400 * 4
    assert ((state.obstacles >= 0) & (state.obstacles <= 1)).all()


def test_a_new_episode_forgets_the_last_one():
    pond = OnePond([[0.3, 0.3], [0.3, 0.3], [0.02, 0.3]], n_pursuers=1, n_evaders=1, n_poisons=1)
    pond.step()
    pond.env.reset(seed=0)
    for name in ("pushes", "touching", "counters", "poisoned", "timesteps"):
        assert not pond.state[name].any()


def test_new_places_are_clear_of_all_obstacles():
    centres = np.array([[0.2, 0.2], [0.6, 0.7]])
    pond = OnePond(
        [[0.9, 0.1]] * 301, n_pursuers=1, n_poisons=300, radius=0.02, n_obstacles=2, obstacle_coord=centres.tolist(),
        obstacle_radius=0.27,
    )  # fmt: skip
    pond.step()
    distances = np.sqrt(((pond.state.positions[0, :, 1:, None] - centres.T[:, None]) ** 2).sum(axis=0))
    assert 0.3 < distances.min() < 0.32


def test_where_no_place_is_clear_any_is_taken():
    pond = OnePond(
        [[0.9, 0.1]] * 2, n_pursuers=1, n_poisons=1, n_obstacles=1, obstacle_coord=[[0.5, 0.5]], obstacle_radius=1.0
    )
    assert pond.step()[1].poison_hits.tolist() == [[1]]
    place = np.array(pond.place(1))
    assert ((place >= 0) & (place <= 1) & (place != [0.9, 0.1])).all()
