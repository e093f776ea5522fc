"""`python -m marl_sb3.watch`: see the policies of a run play, in a window or a terminal."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from marl_sb3 import cli
from marl_sb3.core.config.values import Count, PositiveInt
from marl_sb3.errors import ConfigError
from marl_sb3.output import print_text
from marl_sb3.startup import without_collections

if TYPE_CHECKING:
    from marl_sb3.core.acting.by_agent import PolicyBundle
    from marl_sb3.core.vec_env.interface import MultiAgentVecEnv
    from marl_sb3.evaluation.game import GamePlan
    from marl_sb3.runs.run import SavedRun

_EPILOG = """\
RUN is a run folder, or a folder of runs, for the newest run in it. ENV is the
name of an env: its newest run in runs/ is watched, or with --random the env
itself, which needs no run.

A window needs a display and an env with render mode rgb_array or human. In a
terminal, the arena and Waterworld are drawn with characters, and other envs as
coarse pictures or as the text that they render.

With WHO, two play against each other: their names, the result of each episode
and the score so far are shown. Sides are swapped after each episode.

keys
  space  pause, and go on        n  one step
  +, -   faster, slower          q  quit
They work in the window and in the terminal; an env that has only render mode
human takes them from the terminal.

examples
  python -m marl_sb3.watch arena
  python -m marl_sb3.watch runs/arena/20260101-120000-abcd --checkpoint 12
  python -m marl_sb3.watch CartPole-v1 --random --fps 30
  python -m marl_sb3.watch runs/a runs/b --stochastic
  python -m marl_sb3.watch runs/a runs/a/league/main@120 --keep-sides

exit codes: 0 done, 1 failed, 2 wrong command line or run, 130 interrupted
"""


@cli.record
class WatchOptions:
    """What `watch` takes."""

    run: Annotated[
        str,
        "RUN|ENV",
        "a run folder, a folder of runs, a checkpoint, a member of a league, or the name of an env",
    ]
    against: Annotated[
        str | None,
        "WHO",
        "plays the other agents: a run, a checkpoint, a member of a league, random, a player of the package "
        "such as minimax2, or MODULE:CLASS of yours; default: RUN plays all agents",
    ]
    checkpoint: Annotated[str | None, cli.CHECKPOINT]
    episodes: Annotated[PositiveInt, "--episodes N", "number of episodes; default: 5"] = 5
    fps: Annotated[float | None, "--fps X", "env steps per second; default: as the env says, else 10"]
    random: Annotated[bool, "--random", "take random actions; default: those of the policies"]
    view: Annotated[
        Literal["window", "terminal"] | None,
        "--view PLACE",
        "window or terminal; default: a window if one can be opened, else the terminal",
    ]
    agents: Annotated[
        list[str] | None,
        "--agents A,B",
        "agents that RUN plays first; default: those of the first agent's policy, or the first agent alone if that "
        "policy plays all",
    ]
    keep_sides: Annotated[
        bool, "--keep-sides", "do not swap sides after each episode; default: they swap, if both can play both"
    ]
    search: Annotated[Count, cli.SEARCH] = 0
    stochastic: Annotated[bool, cli.STOCHASTIC]
    seed: Annotated[Count | None, cli.EPISODES_SEED]
    verify: Annotated[Path | None, cli.VERIFY]
    env: cli.OfRun

    def require_accepted(self) -> None:
        """Refuse a speed that is not accepted, and options that do not go together."""
        if self.fps is not None and not 0.1 <= self.fps <= 1000:
            raise ConfigError(f"--fps is {self.fps:g}; accepted: 0.1 to 1000", key="--fps")
        if self.random:
            for name in ("checkpoint", "stochastic", "search", "against"):
                if getattr(self, name):
                    option = "an opponent" if name == "against" else f"--{name}"
                    raise ConfigError(f"--random takes no actions of policies; {option} does not go with it", key=name)
        for name in ("agents", "keep_sides"):
            if self.against is None and getattr(self, name):
                option = f"--{name.replace('_', '-')}"
                raise ConfigError(f"{option} needs an opponent; accepted: with WHO", key=option)


def plan_of(options: WatchOptions) -> "tuple[GamePlan, str]":
    """Return what to watch, and what it is called."""
    from marl_sb3.evaluation.game import GamePlan
    from marl_sb3.extensions.store.checkpoint_folder import runs_of
    from marl_sb3.runs.evaluate import game_plan
    from marl_sb3.runs.folder import find_run_or_env, run_around
    from marl_sb3.runs.rivals import player_at
    from marl_sb3.runs.run import SavedRun

    if options.verify is not None:
        options = replace(options, run=str(cli.found_run(options.run, options.verify)))
    around = run_around(options.run)
    folder = find_run_or_env(options.run) if around is None else around
    if folder is None:
        if not options.random:
            words = f"{options.run!r} is no run folder, and {runs_of(options.run)} has no run of an env of this name"
            raise ConfigError(f"{words}; accepted: a run, or an env with --random", key="run")
        env = options.env.named() or options.run
        return GamePlan(env, {}, None, seed=options.seed), env
    if around is None and folder.as_posix() != options.run.rstrip("/"):
        what = "" if options.run.startswith("hf:") else "newest run of "
        print_text(f"{what}{options.run}: {folder}", stderr=True)
    run = SavedRun.open(folder if around is None else options.run, options.env.named())
    plan = game_plan(run, False if options.stochastic else None, options.seed)
    is_player = run.at is not None and options.against is not None and options.checkpoint is None

    def policies(_: str | None, env: "MultiAgentVecEnv") -> "PolicyBundle":
        return player_at(run, options.run, env) if is_player else run.policies(options.checkpoint, env)

    title = f"{run.config.env}, {run.files.shown if run.at is None else options.run}"
    plan = replace(plan, policies=None if options.random else policies, search=options.search)
    return _with_rival(plan, run, options), title


def _with_rival(plan: "GamePlan", run: "SavedRun", options: WatchOptions) -> "GamePlan":
    """Add the opponent that plays the other agents, if there is one."""
    if options.against is None:
        return plan
    from marl_sb3.runs.rivals import named_apart, rival_of

    copy = cli.verified_rival(options.against, options.verify)
    rivals = named_apart([rival_of(options.against, run, options.env.named(), copy)], plan.name)
    return replace(plan, rivals=rivals, against=rivals[0].name, seat=options.agents, swaps=not options.keep_sides)


@cli.command("watch RUN|ENV [WHO] [options]", "See the policies of a run play, in a window or a terminal.", _EPILOG)
def main(options: WatchOptions) -> int:
    """Show the episodes; returns the exit code."""
    options.require_accepted()
    with without_collections():
        from marl_sb3.tools.viewing.watching import watch
    plan, title = plan_of(options)
    watch(plan, title, options.episodes, fps=options.fps, place=options.view).print(title)
    return cli.EXIT_DONE
