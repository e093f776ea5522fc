"""`python -m marl_sb3.evaluate`: let the policies of a run play, print how well they do, record them."""

import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from marl_sb3 import cli
from marl_sb3.core.config.values import Count, PositiveInt
from marl_sb3.errors import ConfigError
from marl_sb3.output import print_text
from marl_sb3.startup import without_collections

if TYPE_CHECKING:
    from marl_sb3.core.mapping import Deterministic
    from marl_sb3.evaluation.playing import EvaluationPlan
    from marl_sb3.runs.evaluate import EvaluatedRun


_EPILOG = """\
Without --stochastic, --deterministic or --stochastic-policies, the run's
setting evaluation.deterministic decides; the first line of the output says
which.

The episodes are not those of the training run. The same command plays the same
episodes again; another --seed plays others. The number of episodes of each env
is fixed beforehand, so that short episodes are not favoured.

examples
  python -m marl_sb3.evaluate runs/arena/20260101-120000-abcd
  python -m marl_sb3.evaluate RUN --episodes 100 --stochastic --seed 7
  python -m marl_sb3.evaluate RUN --checkpoint 12 --video games.gif
  python -m marl_sb3.evaluate RUN --against random --episodes 200
  python -m marl_sb3.evaluate RUN --nash-conv

exit codes: 0 done, 1 failed, 2 wrong command line or run, 130 interrupted
"""


_ACTIONS = ("--stochastic", "--deterministic", "--stochastic-policies")


@cli.record
class EvaluateOptions:
    """What `evaluate` takes."""

    run: Annotated[str, cli.RUN]
    checkpoint: Annotated[str | None, cli.CHECKPOINT]
    episodes: Annotated[PositiveInt, "--episodes N", "number of complete episodes; default: 20"] = 20
    stochastic: Annotated[bool, cli.STOCHASTIC]
    deterministic: Annotated[bool, "--deterministic", "take the most likely actions; default: the run's setting"]
    stochastic_policies: Annotated[
        list[str] | None,
        "--stochastic-policies A,B",
        "sample the actions of these policies, and take the most likely ones of all others; default: the run's setting",
    ]
    against: Annotated[
        str | None,
        "--against WHO",
        "random, a player of the package such as minimax2, or MODULE:CLASS of yours: plays all agents but one, which "
        "its policy plays; each agent in turn; default: all agents are played by their policies",
    ]
    agents: Annotated[
        Sequence[list[str]],
        "--agents A,B",
        "with --against: the agents that are played by their policies, together; may be repeated; default: each alone",
    ]
    video: Annotated[
        Path | None, "--video FILE", "write a video of the first episode of env 0, as .gif or .mp4; default: none"
    ]
    record: Annotated[
        str | None,
        "--record DIR",
        "record the episodes, as one Minari dataset for each policy, in a new or empty folder; default: nothing "
        "is recorded",
    ]
    video_episodes: Annotated[
        PositiveInt | None, "--video-episodes N", "number of episodes of env 0 in the video; default: 1"
    ]
    seed: Annotated[Count | None, cli.EPISODES_SEED]
    n_envs: Annotated[
        PositiveInt | None, "--n-envs E", "envs that step together; default: as in the run, but no more than episodes"
    ]
    on: Annotated[
        str | None,
        "--on DATA",
        "play nothing: estimate the policies, which sample their actions, from the recorded episodes of others; "
        "default: none",
    ]
    gamma: Annotated[float | None, "--gamma G", "discount factor of the estimates; default: 1"]
    nash_conv: Annotated[
        bool,
        "--nash-conv",
        "play nothing: compute how much more best responses to the policies would win, and to the pool of their "
        "league, in a game of OpenSpiel such as open_spiel/leduc_poker; default: no",
    ]
    verify: Annotated[Path | None, cli.VERIFY]
    env: cli.OfRun
    json: Annotated[bool, "--json", "print one JSON object alone; default: a table"]

    def require_accepted(self) -> None:
        """Refuse options that do not go together."""
        given = [option for option in _ACTIONS if getattr(self, option.strip("-").replace("-", "_"))]
        if len(given) > 1:
            raise ConfigError(f"{' and '.join(given)} are given; accepted: one of them", key=given[1])
        if self.on is None and self.gamma is not None:
            raise ConfigError("--gamma needs --on DATA: returns of played episodes are not discounted", key="--gamma")
        if self.video is None and self.video_episodes is not None:
            raise ConfigError("--video-episodes needs --video FILE", key="--video-episodes")
        if self.against is None and self.agents:
            raise ConfigError("--agents needs --against WHO", key="--agents")
        if self.against is not None and self.record is not None:
            words = "--record does not go with --against: the actions of opponents are those of no policy"
            raise ConfigError(f"{words}; accepted: one of them", key="--record")
        if (self.video_episodes or 0) > self.episodes:
            words = f"--video-episodes is {self.video_episodes}; accepted: 1 to --episodes, {self.episodes}"
            raise ConfigError(words, key="--video-episodes")


_OF_PLAYING = ("stochastic_policies", "against", "video", "record", "seed", "n_envs")


def _require_without(options: EvaluateOptions, option: str, names: Sequence[str], accepted: str) -> None:
    """Refuse the options of other ways to evaluate."""
    for name in names:
        if getattr(options, name):
            other = f"--{name.replace('_', '-')}"
            words = f"{option} plays no episode: {other} does not go with it; accepted: {accepted}"
            raise ConfigError(words, key=other)


def _nash_conv(options: EvaluateOptions) -> int:
    _require_without(options, "--nash-conv", ("on", *_OF_PLAYING), "--deterministic")
    with without_collections():
        from marl_sb3.evaluation.playing import actions_in_words
        from marl_sb3.runs.equilibrium import nash_conv

        run, env = cli.found_run(options.run, options.verify), options.env.named()
        found = nash_conv(run, env, options.checkpoint, options.deterministic)
    if options.json:
        print_text(json.dumps(found, allow_nan=False))
        return cli.EXIT_DONE
    actions = actions_in_words(options.deterministic)
    for each in (found, found["pool"]) if "pool" in found else (found,):
        number = max(each.get("snapshots", {}).values(), default=0)
        who = f"; one of {number} snapshots in the pool, drawn for each game" if number else ""
        print_text(f"NashConv {each['nash_conv']:.4f}, exploitability {each['exploitability']:.4f}: {actions}{who}")
        for agent, gain in each["gains"].items():
            print_text(f"{agent}: wins {each['returns'][agent]:.4f} on average, a best response {gain:.4f} more")
    return cli.EXIT_DONE


def _estimate(options: EvaluateOptions, data: str) -> int:
    _require_without(options, "--on", ("deterministic", *_OF_PLAYING), "--gamma")
    folder = cli.found_run(options.run, options.verify)
    with without_collections():
        from marl_sb3.runs.estimates import estimate_policies
        from marl_sb3.runs.run import SavedRun

        run = SavedRun.open(folder, options.env.named())
    gamma = 1.0 if options.gamma is None else options.gamma
    found = estimate_policies(run.policies(options.checkpoint), data, gamma)
    if options.json:
        print_text(json.dumps(found.to_plain(), allow_nan=False))
    else:
        found.print()
    return cli.EXIT_DONE


def _play(options: EvaluateOptions) -> "EvaluatedRun":
    with ExitStack() as cleanup:
        if options.json:  # what envs print must not be mixed with the JSON object
            cleanup.enter_context(redirect_stdout(sys.stderr))
        video = None
        if options.video is not None:
            from marl_sb3.extensions.display.video import VideoFile

            video = cleanup.enter_context(VideoFile(options.video))
        folder = cli.found_run(options.run, options.verify)
        with without_collections():  # the imports take seconds: wrong options are refused before
            from marl_sb3.evaluation.playing import EvaluationPlan
            from marl_sb3.runs.evaluate import evaluate_run
            from marl_sb3.runs.run import SavedRun

            run = SavedRun.open(folder, options.env.named())
        filmed = 0 if video is None else options.video_episodes or 1
        asked: Deterministic | None = options.deterministic or (False if options.stochastic else None)
        if options.stochastic_policies is not None:
            asked = dict.fromkeys(options.stochastic_policies, False)
        plan = EvaluationPlan.of_run(
            run.config, options.episodes, asked, options.seed, options.n_envs, film_episodes=filmed
        )
        plan = replace(plan, against=options.against, seats=options.agents or None)
        return evaluate_run(run, plan, options.checkpoint, video, options.record)


def _actions(options: EvaluateOptions, plan: "EvaluationPlan") -> str:
    """Describe which actions the policies took, and which option or setting decided it."""
    from marl_sb3.evaluation.playing import actions_in_words

    which = actions_in_words(plan.deterministic)
    for option in ("stochastic", "deterministic", "stochastic_policies"):
        if getattr(options, option):
            return f"{which} (--{option.replace('_', '-')})"
    return f"{which} (the run has evaluation.deterministic: {json.dumps(plan.deterministic)})"


@cli.command("evaluate RUN [options]", "Let the policies of a run play episodes, and print their returns.", _EPILOG)
def main(options: EvaluateOptions) -> int:
    """Print the metrics of the episodes, or the estimates; returns the exit code."""
    options.require_accepted()
    if options.nash_conv:
        return _nash_conv(options)
    if options.on is not None:
        return _estimate(options, options.on)
    evaluated = _play(options)
    actions = _actions(options, evaluated.plan)
    if options.json:
        print_text(json.dumps(evaluated.to_plain(actions), allow_nan=False))
    else:
        evaluated.print(actions)
    return cli.EXIT_DONE
