"""`python -m marl_sb3.doctor`: play an env, and say what would go wrong in training.

The function `marl_sb3.examine(...)` of the library does the same.
"""

import json
from collections.abc import Sequence
from typing import Annotated, Any

from marl_sb3.cli import EXIT_DONE, EXIT_FAILED, BesideENV, Verbosity, assignments, command
from marl_sb3.errors import ConfigError, refuse
from marl_sb3.output import print_text

_WRAPPERS = ("env_wrapper", "reward_weights")  # settings of runs that wrap the env
_EPILOG = """\
With a fault, training fails, learns from wrong data, or cannot be repeated. A
warning is a possible fault. Advice is optional. Only faults change the exit
code. docs/reference/checks.md lists all checks.

The env is played in separate processes, so that a hang or a crash of the env is
reported too. The last line of the output is the verdict.

examples
  python -m marl_sb3.doctor arena
  python -m marl_sb3.doctor my_module:MyEnv --set env.size=8 --steps 10000
  python -m marl_sb3.doctor sisl/pursuit-v5 --json

exit codes: 0 no faults, 1 faults were found, 2 wrong command line, 130
interrupted
"""


@command("doctor [ENV] [options]", "Play an env, and report mistakes that would harm a training.", _EPILOG)
def main(
    env: Annotated[str | None, "ENV", "the env to check, as for train"],
    *,
    env_option: BesideENV,
    episodes: Annotated[int | None, "--episodes N", "episodes to record; default: 10, in 3 seconds at most"],
    steps: Annotated[int | None, "--steps N", "env steps to record; default: 2000, in 3 seconds at most"],
    seed: Annotated[int, "--seed S", "seed of all episodes and actions; default: 0"] = 0,
    timeout: Annotated[int, "--timeout S", "seconds that a call of the env may take; default: 30"] = 30,
    settings: Annotated[
        Sequence[str],
        "--set KEY=VALUE",
        "set env.NAME, an argument of the env, or its env_wrapper or reward_weights; may be repeated; default: none",
    ],
    as_json: Annotated[bool, "--json", "print one JSON object alone; default: text"],
    verbosity: Verbosity,
) -> int:
    """Play the env, and print the report; returns the exit code."""
    named, given = env_option.named(env), _given(settings)
    if named is None:
        raise ConfigError("ENV is missing; accepted: an env id, such as arena or my_module:MyEnv", key="env")
    from marl_sb3.extensions.display.screen import standard_console
    from marl_sb3.tools.examining.api import examine

    with standard_console(stderr=True).status("playing") as status:  # shows nothing but in a terminal
        report = examine(
            named,
            {name.removeprefix("env."): value for name, value in given.items() if name not in _WRAPPERS},
            env_wrapper=given.get("env_wrapper"),
            reward_weights=given.get("reward_weights"),
            episodes=episodes,
            steps=steps,
            seed=seed,
            timeout_s=timeout,
            on_call=lambda call: status.update(f"playing: {call}"),
        )
    if as_json:
        print_text(json.dumps(report.to_plain(), allow_nan=False))
    else:
        from marl_sb3.tools.examining.show import print_report

        print_report(standard_console(), report, given, verbose=bool(verbosity))
    return EXIT_DONE if report.is_healthy else EXIT_FAILED


def _given(texts: Sequence[str]) -> dict[str, Any]:
    """Return what `--set` gives, by name.

    Raises:
        ConfigError: one of them is neither `env.KEY=VALUE` nor one of the settings that wrap an env.
    """
    accepted = "env.KEY=VALUE, an argument of the env, env_wrapper=VALUE or reward_weights=[NUMBER, ...]"
    found = assignments("--set", texts, accepted)
    for name in found:
        if not name.startswith("env.") and name not in _WRAPPERS:
            refuse("--set", name, accepted, name)
    return found
