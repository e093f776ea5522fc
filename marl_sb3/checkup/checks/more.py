"""Checks of what an env offers beyond episodes: its state, its pictures, its way through a vectorizer."""

from __future__ import annotations

from collections.abc import Iterator

from marl_sb3.checkup.checks.stops import stop_check
from marl_sb3.checkup.evidence import Evidence
from marl_sb3.checkup.finding import Check, Seen, Severity


def no_film(evidence: Evidence) -> Iterator[Seen]:
    """No video of the env can be made."""
    modes = evidence.metadata.get("render_modes", evidence.metadata.get("render.modes", []))
    if "rgb_array" not in (modes or ()):
        yield Seen(f"render_modes are {modes!r}")


def refused(evidence: Evidence) -> Iterator[Seen]:
    """The vectorizer refuses the env for a reason that no other check has found."""
    return iter(()) if evidence.faulty else evidence.stopped("vectorizer-refuses")


MORE: tuple[Check, ...] = (
    stop_check(
        "state-not-restored", "state", Severity.FAULT, "set_state(get_state()) does not bring the env back",
        "A resumed run goes on from a different state.",
        "Let get_state() return everything that an episode changes, the state of random generators too, as plain "
        "data and arrays, and set_state() put it back, in a new env as well.",
    ),
    stop_check(
        "memory-grows", "memory", Severity.WARNING, "the env keeps more memory with every step",
        "A training takes millions of steps, and ends when the memory is full.",
        "Look for lists, dictionaries and caches that grow with each step, and empty them in reset().",
    ),
    stop_check(
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
    stop_check(
        "no-algorithm", "speed", Severity.FAULT, "no algorithm can learn with these spaces",
        "SB3 takes Box, Discrete, MultiDiscrete and MultiBinary actions, and Dicts of such observations.",
        "Change the space as the message says, or flatten it by a wrapper.",
    ),
)  # fmt: skip
