"""`python -m marl_sb3.match`: let policies play each other, and rate them."""

import json
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated

from marl_sb3 import cli
from marl_sb3.core.config.values import Count, PositiveInt
from marl_sb3.errors import ConfigError
from marl_sb3.output import print_text
from marl_sb3.startup import without_collections

_EPILOG = """\
RUN is a run folder, or a folder of runs, for the newest run in it; one of its
checkpoints; or a member of its league. All players play each other, on all
sides, in the same episodes. The side whose agents have the higher mean return
wins an episode. Ratings are by Bradley and Terry's model, on Elo's scale; there
are some where one side wins what the others lose. Where there are none, and on
the page, are mean returns of each side, with the player's own policies on the
other sides, and with those of others.

examples
  python -m marl_sb3.match runs/a runs/b --out match.html
  python -m marl_sb3.match RUN --checkpoints all --opponent random
  python -m marl_sb3.match RUN RUN/league/main@120 --opponent mine:Minimax

exit codes: 0 done, 1 failed, 2 wrong command line or run, 130 interrupted
"""


@cli.record
class MatchOptions:
    """What `match` takes."""

    players: Annotated[Sequence[str] | None, "RUN", "run folders, folders of runs, checkpoints, members of leagues"]
    checkpoints: Annotated[
        str | None,
        "--checkpoints WHICH",
        "of each run: best, latest, numbers of iterations (4,8), or all, with the members of its league: each is a "
        "player; default: best, or latest where the agents' returns oppose each other",
    ]
    opponent: Annotated[
        Sequence[str],
        "--opponent WHO",
        "one more player: random, one of the package such as minimax2, or MODULE:CLASS of yours; may be repeated; "
        "default: none",
    ]
    agents: Annotated[
        Sequence[list[str]],
        "--agents A,B",
        "agents that one player plays together; may be repeated; default: those of one policy where runs have "
        "several, else each alone",
    ]
    episodes: Annotated[
        PositiveInt, "--episodes N", "episodes of each two players in each order of the sides; default: 100"
    ] = 100
    search: Annotated[Count, cli.SEARCH] = 0
    stochastic: Annotated[bool, cli.STOCHASTIC]
    deterministic: Annotated[bool, "--deterministic", "take the most likely actions; default: the run's setting"]
    seed: Annotated[Count, "--seed S", "seed of the episodes and of sampled actions; default: 0"] = 0
    n_envs: Annotated[
        PositiveInt | None, "--n-envs E", "envs that step together; default: as in the first run, or fewer"
    ]
    out: Annotated[
        Path | None, "--out FILE", "also a page with heat maps, FILE.html, or the result, FILE.json; default: none"
    ]
    verify: Annotated[Path | None, cli.VERIFY]
    env: cli.OfRun
    json: Annotated[bool, "--json", "print one JSON object alone; default: tables"]


@cli.command("match RUN ... [options]", "Let policies play each other, and rate them.", _EPILOG)
def main(options: MatchOptions) -> int:
    """Play the match, print it, and write its page; returns the exit code."""
    if options.stochastic and options.deterministic:
        raise ConfigError("--stochastic and --deterministic are given; accepted: one of them", key="--stochastic")
    with without_collections():
        from marl_sb3.tools.viewing.match_page import require_writable, show_match
        from marl_sb3.tools.viewing.matching import match

    if options.out is not None:
        require_writable(options.out)
    with redirect_stdout(sys.stderr):  # what envs print must not be mixed with the result
        found = match(
            options.players or (),
            opponents=options.opponent,
            checkpoints=options.checkpoints,
            env=options.env.named(),
            sides=options.agents,
            episodes=options.episodes,
            deterministic=options.deterministic or (False if options.stochastic else None),
            seed=options.seed,
            n_envs=options.n_envs,
            search=options.search,
            verify=options.verify,
        )
    if options.out is not None:
        found.write(options.out)
    if options.json:
        print_text(json.dumps(found.to_plain(), allow_nan=False))
        return cli.EXIT_DONE
    show_match(found)
    if options.out is not None:
        print_text(options.out)
    return cli.EXIT_DONE
