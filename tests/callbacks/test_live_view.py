"""What a training shows: a live view on terminals, plain lines elsewhere."""

from __future__ import annotations

import io
from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from toy_envs import ScriptedEnv

from marl_sb3 import MultiAgentAlgorithm, MultiAgentCallback, make_vec_env
from marl_sb3.callbacks.live_view import (
    LiveView,
    PlainLines,
    duration,
    number,
    plain_line,
    returns_table,
    speed_line,
)

RESULT: dict[str, Any] = {
    "iteration": 3,
    "num_env_steps_sampled_lifetime": 1500,
    "env_runners": {
        "episode_return_mean": 12.5,
        "episode_len_mean": 99.0,
        "agent_episode_returns_mean": {"a": 10.25, "b": 2.25},
        "custom_metrics": {"found_mean": 7.5, "found_min": 1.0, "found_max": 9.0},
    },
    "timers": {"env_runner_sampling_timer": 0.3, "learner_update_timer": 0.1},
    "throughput": {"env_steps_per_s": 1234.5, "agent_steps_per_s": 2469.0},
}


def without_values() -> dict[str, Any]:
    """A result as it is before the first episode, on a clock that stood still."""
    result = deepcopy(RESULT)
    result["env_runners"] = {
        "episode_return_mean": None,
        "episode_len_mean": None,
        "agent_episode_returns_mean": {"a": None, "b": None},
        "custom_metrics": {"found_mean": None, "found_min": None, "found_max": None},
    }
    result["timers"] = {"env_runner_sampling_timer": 0.0, "learner_update_timer": 0.0}
    result["throughput"] = {"env_steps_per_s": None, "agent_steps_per_s": None}
    return result


def begun(lines: PlainLines) -> PlainLines:
    lines.init_callback(SimpleNamespace(num_timesteps=0))
    lines.on_training_start({"total_timesteps": 2000}, {})
    return lines


def rendered(renderable: Any) -> list[str]:
    console = Console(file=io.StringIO(), width=100, record=True)
    console.print(renderable)
    return [" ".join(line.split()) for line in console.export_text().splitlines()]


# Plain lines


def test_plain_line_has_progress_returns_speed_and_remaining_time() -> None:
    assert plain_line(RESULT, 100_000) == (
        "iteration 3: 1,500 of 100,000 env steps, return 12.50 (a 10.25, b 2.25), 1,234 env steps/s, 0:01:20 left"
    )


def test_before_the_first_episode_there_are_dashes() -> None:
    assert plain_line(without_values(), 2000) == (
        "iteration 3: 1,500 of 2,000 env steps, return - (a -, b -), - env steps/s, - left"
    )
    assert rendered(speed_line(without_values())) == ["iteration 3 - env steps/s - agent steps/s rollout 0% update 0%"]
    assert [line for line in rendered(returns_table(without_values())) if line.endswith(" -")] == [
        "return of a -",
        "return of b -",
        "sum of returns -",
        "episode length -",
        "found -",
    ]


def test_more_steps_than_asked_for_leave_no_time() -> None:
    assert plain_line(RESULT, 1000).endswith("0:00:00 left")


def test_lines_come_at_most_once_a_second_and_the_last_always(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr("marl_sb3.callbacks.live_view.time", SimpleNamespace(perf_counter=lambda: now_s))
    console = Console(file=io.StringIO(), width=40, record=True)
    lines = begun(PlainLines(console))
    printed = []
    for iteration, now_s in enumerate([100.0, 100.9, 101.0, 101.1, 101.2], start=1):  # noqa: B007 - the clock
        lines.on_iteration_end({**RESULT, "iteration": iteration})
        printed.append(len(console.export_text(clear=False).splitlines()))
    assert printed == [1, 1, 2, 2, 2]
    lines.on_training_end()
    lines.close()
    iterations = [line.partition(":")[0] for line in console.export_text().splitlines()]
    assert iterations == ["iteration 1", "iteration 3", "iteration 5"]


def test_agents_named_like_markup_are_printed_as_they_are() -> None:
    result = deepcopy(RESULT)
    result["env_runners"]["agent_episode_returns_mean"] = {"[red]a[/x]": 1.0}
    result["env_runners"]["custom_metrics"] = {"[b]m_mean": 2.0}
    console = Console(file=io.StringIO(), record=True)
    lines = begun(PlainLines(console))
    lines.on_iteration_end(result)
    assert "([red]a[/x] 1.00)" in console.export_text()
    table = rendered(returns_table(result))
    assert "return of [red]a[/x] 1.00" in table
    assert "[b]m 2.00" in table


# The live view


def test_speed_line_says_where_the_time_goes() -> None:
    assert rendered(speed_line(RESULT)) == ["iteration 3 1,234 env steps/s 2,469 agent steps/s rollout 75% update 25%"]


def test_table_has_each_agent_their_sum_and_the_custom_means() -> None:
    assert rendered(returns_table(RESULT)) == [
        "mean over the latest episodes value",
        "return of a 10.25",
        "return of b 2.25",
        "sum of returns 12.50",
        "episode length 99.0",
        "found 7.50",
    ]


def test_live_view_draws_on_a_terminal_and_gives_it_back() -> None:
    title = "[toy][/x]"
    output = io.StringIO()
    console = Console(file=output, width=100, force_terminal=True)
    view = LiveView(console, title)
    settings = {"n_steps": 6, "batch_size": 4, "n_epochs": 1, "policy_kwargs": {"net_arch": [2]}}
    algorithm = MultiAgentAlgorithm(make_vec_env(ScriptedEnv), seed=0, device="cpu", **settings)
    algorithm.learn(12, callback=view)
    shown = output.getvalue()
    for text in (title, "12 of 12 env steps", "100%", "return of a", "3.00", "return of b", "6.00", "iteration 2"):
        assert text in shown
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h") == 1  # the cursor, hidden and shown again
    view.close()
    assert output.getvalue() == shown


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_close_gives_the_terminal_back_after_an_error(error: type[BaseException]) -> None:
    class Fails(MultiAgentCallback):
        def _on_step(self) -> bool:
            raise error

    output = io.StringIO()
    view = LiveView(Console(file=output, width=100, force_terminal=True), "toy")
    view.close()
    assert output.getvalue() == ""
    algorithm = MultiAgentAlgorithm(make_vec_env(ScriptedEnv), n_steps=6, batch_size=4, seed=0, device="cpu")
    with pytest.raises(error):
        algorithm.learn(12, callback=[view, Fails()])
    view.close()
    assert output.getvalue().count("\x1b[?25l") == output.getvalue().count("\x1b[?25h") == 1


# Numbers


@pytest.mark.parametrize(
    ("value", "digits", "expected"), [(None, 2, "-"), (0, 2, "0.00"), (-1234.567, 1, "-1,234.6"), (7, 0, "7")]
)
def test_numbers_are_for_people(value: float | None, digits: int, expected: str) -> None:
    assert number(value, digits) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(None, "-"), (0.0, "0:00:00"), (59.6, "0:01:00"), (83, "0:01:23"), (3600, "1:00:00"), (90061, "25:01:01")],
)
def test_durations_are_hours_minutes_and_seconds(seconds: float | None, expected: str) -> None:
    assert duration(seconds) == expected
