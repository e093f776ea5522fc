"""Examine many envs and print what is found as a Markdown table: `python docs/doctor_table.py ENV ...`.

Without ENV: the envs of `docs/how_to/doctor.md`, as far as they are installed.
"""

from __future__ import annotations

import argparse

from marl_sb3.errors import MarlSb3Error
from marl_sb3.tools.examining.api import examine
from marl_sb3.tools.examining.finding import Report, Severity

ENVS = (
    *("arena", "waterworld"),
    *(f"sisl/{name}" for name in ("multiwalker-v9", "pursuit-v5")),
    *(f"butterfly/{name}" for name in ("cooperative_pong-v6", "knights_archers_zombies-v11", "pistonball-v6")),
    *(f"classic/{name}" for name in ("rps-v2", "tictactoe-v3", "connect_four-v3", "chess-v6", "go-v5", "hanabi-v5")),
    *(f"classic/{name}" for name in ("leduc_holdem-v4", "texas_holdem-v4", "texas_holdem_no_limit-v6")),
    *(
        f"mpe2.{name}:parallel_env"
        for name in (
            *(
                "collect_treasure_v1",
                "simple_v3",
                "simple_adversary_v3",
                "simple_crypto_v3",
                "simple_push_v3",
                "simple_reference_v3",
            ),
            *("simple_speaker_listener_v4", "simple_spread_v3", "simple_tag_v3", "simple_world_comm_v3"),
        )
    ),
    *(f"magent2.environments.{name}:parallel_env" for name in ("battle_v4", "adversarial_pursuit_v4", "gather_v5")),
    *("CartPole-v1", "Pendulum-v1", "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0"),
    *("LunarLander-v3", "BipedalWalker-v3", "FrozenLake-v1", "Taxi-v4", "CliffWalking-v1", "Blackjack-v1"),
)
HEADER = ("env", "faults", "warnings", "advice")


def row(report: Report) -> tuple[str, ...]:
    """What was found in an env, see `HEADER`."""
    found = [", ".join(f"`{finding.check}`" for finding in report.of_severity(severity)) for severity in Severity]
    return f"`{report.env}`", *(names or "-" for names in found)


def main() -> None:
    """Print a row for each env, as soon as it has been examined, or why it cannot be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("env", nargs="*", help="env ids; default: those of the page")
    parser.add_argument("--seen", action="store_true", help="print where each finding was seen, too")
    arguments = parser.parse_args()
    for cells in (HEADER, tuple("---" for _ in HEADER)):
        print(f"| {' | '.join(cells)} |")
    for env in arguments.env or ENVS:
        try:
            report = examine(env)
        except MarlSb3Error as error:
            print(f"| `{env}` | not examined: {' '.join(str(error).split())} |", flush=True)
            continue
        print(f"| {' | '.join(row(report))} |", flush=True)
        for finding in report.findings if arguments.seen else ():
            print(f"  {finding.check}: {'; '.join(map(str, finding.seen[:3]))} ({finding.count})", flush=True)


if __name__ == "__main__":
    main()
