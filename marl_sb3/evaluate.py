"""`python -m marl_sb3.evaluate`: let the policies of a run play, print how well they do, record them."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack, redirect_stdout
from typing import TYPE_CHECKING

from marl_sb3.cli.command import EXIT_DONE, run_command, setup_logging
from marl_sb3.cli.evaluate import build_parser, film_episodes, require_accepted
from marl_sb3.cli.parser import found_run, import_users_modules, named_env
from marl_sb3.startup import without_collections

if TYPE_CHECKING:
    from marl_sb3.display.video import VideoFile
    from marl_sb3.evaluation import EvaluationPlan
    from marl_sb3.policies.mapping import Deterministic
    from marl_sb3.runs.evaluate import EvaluatedRun


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    arguments = build_parser().parse_args(argv)
    return run_command(lambda: _evaluate(arguments), arguments.verbosity)


def _evaluate(arguments: argparse.Namespace) -> int:
    setup_logging(arguments.verbosity)
    import_users_modules(arguments)
    require_accepted(arguments)
    evaluated = _play(arguments)
    actions = _actions(arguments, evaluated.plan)
    if arguments.json:
        print(json.dumps(evaluated.to_plain(actions), allow_nan=False), flush=True)
    else:
        _print(evaluated, actions)
    return EXIT_DONE


def _play(arguments: argparse.Namespace) -> EvaluatedRun:
    with ExitStack() as cleanup:
        if arguments.json:  # what envs print must not be mixed with the JSON object
            cleanup.enter_context(redirect_stdout(sys.stderr))
        video = None if arguments.video is None else cleanup.enter_context(_video_file(arguments))
        folder = found_run(arguments.run)
        with without_collections():  # the imports take seconds: wrong options are refused before
            from marl_sb3.evaluation import EvaluationPlan
            from marl_sb3.runs.evaluate import evaluate_run
            from marl_sb3.runs.run import SavedRun

            run = SavedRun.open(folder, named_env(arguments))
        filmed = film_episodes(arguments)
        plan = EvaluationPlan.of_run(
            run.config, arguments.episodes, _asked(arguments), arguments.seed, arguments.n_envs, film_episodes=filmed
        )
        return evaluate_run(run, plan, arguments.checkpoint, video)


def _video_file(arguments: argparse.Namespace) -> VideoFile:
    from marl_sb3.display.video import VideoFile

    return VideoFile(arguments.video)


def _asked(arguments: argparse.Namespace) -> Deterministic | None:
    """Return the actions that the options ask for; None if there is no such option."""
    if arguments.stochastic_policies is not None:
        return dict.fromkeys(arguments.stochastic_policies, False)
    return arguments.deterministic or (False if arguments.stochastic else None)


def _actions(arguments: argparse.Namespace, plan: EvaluationPlan) -> str:
    """Describe which actions the policies took, and which option or setting decided it."""
    if isinstance(plan.deterministic, bool):
        which = "the most likely actions" if plan.deterministic else "sampled actions"
    else:
        sampling = ", ".join(policy_id for policy_id, likeliest in plan.deterministic.items() if not likeliest)
        which = f"sampled actions of {sampling or 'no policy'}, the most likely ones of all others"
    for option in ("stochastic", "deterministic", "stochastic_policies"):
        if getattr(arguments, option):
            return f"{which} (--{option.replace('_', '-')})"
    return f"{which} (the run has evaluation.deterministic: {json.dumps(plan.deterministic)})"


def _print(evaluated: EvaluatedRun, actions: str) -> None:
    from marl_sb3.display.screen import standard_console

    console = standard_console()
    for line in (evaluated.headline(actions), evaluated.checkpoint_why):
        if line:
            console.print(line, soft_wrap=True)
    console.print(evaluated.table(console.width))
    if evaluated.video is not None:
        console.print(evaluated.video_line(), soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
