"""The rooms of the package in layers, and the commands: who may import whom, for the tests that ask."""

from __future__ import annotations

GROUND = (
    *(("types",), ("errors",), ("doors",), ("systems",)),
    ("output", "signals", "stacks", "startup", "files", "fingerprints"),
    ("linking",),
    ("compiling",),
)

CORE = (
    ("core.config",),
    ("core.state",),
    ("core.envs",),
    ("wrappers",),
    ("core.vec_env",),
    ("core.mapping",),
    ("core.metrics",),
    ("core.policies",),
    ("core.processing",),
    ("core.extractors",),
    ("core.sb3",),
    ("core.acting",),
    ("core.experience",),
    ("core.learners",),
    ("core.on_policy", "core.off_policy"),
    ("core.training",),
    ("core",),
)

EXTENSIONS = (
    "envs",
    "extensions.assignment",
    "extensions.central",
    "extensions.curiosity",
    "extensions.data",
    "extensions.dialects",
    "extensions.exploration",
    "extensions.fast",
    "extensions.hooks",
    "extensions.hub",
    "extensions.memory",
    "extensions.remote",
    "extensions.store",
    "extensions.transfer",
)

TOOLS = (
    "tools.benchmarking",
    "tools.examining",
    "tools.viewing",
    "tools.publishing",
    "tools.serving",
    "tools.scaffolding",
    "tools.tuning",
)

COMMANDS = (
    *("train", "benchmark", "evaluate", "watch", "plot", "compare", "match", "report"),
    *("export", "imitate", "serve", "tune", "doctor", "new", "completions"),
)

# From the bottom up: a module imports from the layers below its own and from its own room, not from others beside it.
LAYERS = (
    *GROUND,
    *CORE,
    ("extensions.display", "extensions.settings"),
    EXTENSIONS,
    ("extensions",),
    ("evaluation",),
    ("callbacks",),
    ("results",),
    ("league",),
    ("runs",),
    ("cli",),
    TOOLS,
    ("tools", "commands", *(f"commands.{each}" for each in COMMANDS)),
    COMMANDS,
    ("__main__",),
)

RANK = {room: rank for rank, rooms in enumerate(LAYERS) for room in rooms}
