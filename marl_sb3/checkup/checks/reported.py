"""Checks whose findings the probes report themselves, and those from outside the process of the env."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from marl_sb3.checkup.evidence import Evidence, Seen
from marl_sb3.checkup.finding import Check, Severity


def reported_check(name: str, after: str, severity: Severity, title: str, why: str, remedy: str) -> Check:
    """Make a check that finds what the probes have reported under its id."""
    return Check(name, severity, title, why, remedy, lambda evidence: evidence.reported(name), after)


INTERFACE: tuple[Check, ...] = (
    reported_check(
        "interface", "interface", Severity.FAULT, "the env lacks a part of the ParallelEnv interface",
        "All commands refuse such an env.",
        "Add what the message asks for.",
    ),
    reported_check(
        "space-changes", "interface", Severity.FAULT, "two calls for a space return different spaces",
        "Networks are built once for the spaces; later observations or actions do not fit them.",
        "Create each space once, in the constructor, and return that object.",
    ),
    reported_check(
        "raises", "episodes", Severity.FAULT, "the env raises an exception",
        "Training stops with this error.",
        "Look at the line that the message names; -v shows the whole traceback.",
    ),
    reported_check(
        "bad-return", "episodes", Severity.FAULT, "reset() or step() does not return what it should",
        "Training stops with an error.",
        "Return (observations, infos) from reset() and (observations, rewards, terminated, truncated, infos) from "
        "step(), each a dictionary by agent.",
    ),
    reported_check(
        "no-agents", "episodes", Severity.FAULT, "no agent is live when an episode begins",
        "Without live agents the episode cannot be played.",
        "Set `agents` in reset() to a list of the agents that act first.",
    ),
    reported_check(
        "close-raises", "end", Severity.WARNING, "close() raises an exception",
        "Training logs the error and continues, but the env may not have released its resources.",
        "Make close() work at any time, also before the first reset().",
    ),
    reported_check(
        "left-running", "end", Severity.WARNING, "a thread or a process of the env runs on after close()",
        "Python waits for it, so that a finished training run does not end.",
        "End it in close(), or start it with daemon=True.",
    ),
)  # fmt: skip


_SEEDING = "Make a generator in reset(): self.rng = np.random.default_rng(seed); draw from it alone."

SEEDS: tuple[Check, ...] = (
    reported_check(
        "global-rng", "seeds", Severity.FAULT, "the env uses a global random generator",
        "All envs and SB3 itself draw from that generator: no episode can be repeated, and an env that seeds it "
        "makes the exploration of all policies repeat itself.",
        _SEEDING,
    ),
    reported_check(
        "unseeded", "seeds", Severity.FAULT, "the same seed gives different episodes",
        "No run can be repeated or resumed exactly, and comparisons between settings are noisier.",
        f"{_SEEDING} Seed spaces too if the env samples from them.",
    ),
    reported_check(
        "seed-ignored", "seeds", Severity.FAULT, "reset(seed=...) does not seed the env",
        "All envs of a vectorizer play the same episodes, so more envs bring no more experience.",
        _SEEDING,
    ),
    reported_check(
        "state-leaks", "seeds", Severity.FAULT, "an episode depends on the episodes before it",
        "No episode can be repeated from its seed, as exact resumes and evaluations do.",
        "Set everything that an episode changes anew in reset().",
    ),
    reported_check(
        "shared-state", "seeds", Severity.FAULT, "two envs influence each other",
        "The envs of a vectorizer run in turns in one process, and change each other's episodes.",
        "Keep everything that changes in the instance: no class attributes, module globals or default arguments that "
        "are changed.",
    ),
    reported_check(
        "same-for-every-seed", "replays", Severity.ADVICE, "the env's seed has changed nothing",
        "If the env should be random, its seed is not used, or its randomness is rare.",
        f"Nothing if the env is meant to be deterministic. {_SEEDING}",
    ),
)  # fmt: skip


def no_film(evidence: Evidence) -> Iterator[Seen]:
    """Find envs of which no video can be made."""
    if "rgb_array" not in evidence.render_modes():
        yield Seen(f"render_modes are {evidence.render_modes()!r}")


def refused(evidence: Evidence) -> Iterable[Seen]:
    """Find envs that the vectorizer refuses for a reason that no other check has found."""
    return () if evidence.faulty else evidence.reported("vectorizer-refuses")


MORE: tuple[Check, ...] = (
    reported_check(
        "state-not-restored", "state", Severity.FAULT, "set_state(get_state()) does not bring the env back",
        "A resumed run goes on from a different state.",
        "Let get_state() return everything that an episode changes, the state of random generators too, as plain "
        "data and arrays, and set_state() put it back, in a new env as well.",
    ),
    reported_check(
        "memory-grows", "memory", Severity.WARNING, "the env keeps more memory with every step",
        "A training run takes millions of steps, and ends when the memory is full.",
        "Look for lists, dictionaries and caches that grow with each step, and empty them in reset().",
    ),
    reported_check(
        "render-fails", "render", Severity.WARNING, "a render mode does not work",
        "`evaluate --video` fails, or shows something else.",
        "Return an array (height, width, 3) of uint8 for rgb_array and a string for ansi, or remove the mode from "
        "metadata['render_modes'].",
    ),
    Check(
        "no-film", Severity.ADVICE, "the env has no render mode rgb_array",
        "`evaluate --video` cannot show it.",
        "List 'rgb_array' in metadata['render_modes'], take an argument render_mode, and return an array (height, "
        "width, 3) of uint8 from render().", no_film, "render",
    ),
    Check(
        "vectorizer-refuses", Severity.FAULT, "the vectorizer refuses the env",
        "Training cannot start.",
        "Do what the message says.", refused, "speed",
    ),
    reported_check(
        "no-algorithm", "speed", Severity.FAULT, "no algorithm can learn with these spaces",
        "SB3 takes Box, Discrete, MultiDiscrete and MultiBinary actions, and Dicts of such observations.",
        "Change the space as the message says, or flatten it by a wrapper.",
    ),
)  # fmt: skip

PROCESSES: tuple[Check, ...] = (
    reported_check(
        "differs-between-processes", "processes", Severity.FAULT,
        "the same seed gives another episode in another process",
        "No run can be repeated or resumed exactly.",
        "Look for the order of sets, which differs between processes: iterate over sorted(the_set). Look also for "
        "hash(), id(), the time and the process id.",
    ),
    reported_check(
        "hangs", "processes", Severity.FAULT, "a call of the env does not return",
        "Training would wait for it forever.",
        "Look at the line that was running. If the env is that slow, --timeout gives it more time.",
    ),
    reported_check(
        "crashes", "processes", Severity.FAULT, "the env ends the process",
        "Training ends without a checkpoint.",
        "Look at the line that was running: C code may have a bug, memory may have run out, or os._exit was called.",
    ),
)  # fmt: skip
