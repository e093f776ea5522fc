"""Mutants of a run folder's `config.yaml`: YAML that wants to run code, to fill the memory, or to be something else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import yaml
from checkpoint_source import Dice
from json_trees import HOSTILE, Raw, leaves, nodes, remove, replace, shown
from mutant_files import Files, Mutant, Odd

CONFIG = "config.yaml"

_TAGS = (
    "!!python/object/apply:os.system ['touch /tmp/marl_sb3_was_here']",
    "!!python/object/new:os.system ['touch /tmp/marl_sb3_was_here']",
    "!!python/object:subprocess.Popen {}",
    "!!python/name:os.system",
    "!!python/module:antigravity",
    "!!python/tuple [1, 2]",
    "!!int x",
    "!!int 9" + "9" * 5000,
    "!!float x",
    "!!bool x",
    "!!null x",
    "!!timestamp x",
    "!!binary x",
    "!!binary ???",
    "!!set {a, b}",
    "!!omap [a: 1, a: 2]",
    "!!pairs [a: 1]",
    "!!str 1",
    "!!map []",
    "!!seq {}",
    "!unknown x",
    "2001-99-99",
    "2001-01-01T99:99:99Z",
    "9" * 5000,
    "0x" + "f" * 5000,
    "0b" + "1" * 20000,
    "1:" * 2000 + "1",
    "1e400",
    ".inf",
    ".nan",
    "{? [a] : b}",
    "{? {a: 1} : b}",
    "{<<: 1}",
    "{<<: [1]}",
    "{<<: {a: 1}}",
    "*nobody",
    "&a [*a]",
    "&a {*a : *a}",
    '"\\ud800"',
    '"\\x1b[31mred"',
    "=",
    "|\n   " + "x" * 20000,
)

# Settings by which a stranger's file could import, write elsewhere, or take more than it should.
_SETTINGS: tuple[tuple[str, Any], ...] = (
    ("n_envs", 10**9), ("n_envs", 0), ("n_threads", 10**6), ("n_threads", 2**31), ("n_parallel_updates", 10**6),
    ("n_steps", 10**9), ("n_steps", 25), ("batch_size", 10**9), ("stats_window_size", 10**9),
    ("stats_window_size", 2**63), ("checkpoints", {"every": 10**9}), ("checkpoints", 1),
    ("checkpoint_every", 1), ("evaluation", {"interval": 1, "duration": 10**9}), ("hyperparameters", {"n_envs": 1}),
    ("evaluation", {"x": {}}), ("seed", 2**32), ("seed", -1), ("device", "cuda"),
    ("device", "meta"), ("device", "cuda:99"), ("device", "cpu:7"), ("device", "os.system"), ("algo", "dqn"),
    ("policy", "os.system"), ("policy", "CnnPolicy"), ("policies", "shared"), ("policies", "other"), ("policies", {}),
    ("policies", {"a": {"agents": ["agent1", "agent2"]}}), ("vectorizer", "sync"), ("vectorizer", "x"),
    ("update_path", "x"), ("checkpoints", {"metric": "x"}), ("stop", {"x": 1}), ("stop", {"iteration": 10**400}),
    ("extensions", [{"until": 40, "n_timesteps": 10**9}]), ("extensions", [{"until": [1]}]), ("extensions", "x"),
    ("init_from", ["/etc/passwd"]), ("init_from", ["../x.zip"]), ("init_layers", ["*" * 2000]),
    ("custom_metrics", {"a": {"key": "x", "agent": "nobody"}}), ("custom_metrics", {"a": {"reduce": "os.system"}}),
    ("env_kwargs", {"height": 10**6, "width": 10**6}), ("env_kwargs", {"height": 10**12}),
    ("env_kwargs", {"max_timesteps": 10**12}), ("env_kwargs", {"render_mode": "human"}), ("env_kwargs", {"x": 1}),
    ("env_kwargs", {"height": -1}), ("env_kwargs", {"height": 10**400}), ("policy_kwargs", {"net_arch": [10**6] * 3}),
    ("policy_kwargs", {"net_arch": [16384] * 3}), ("policy_kwargs", {"features_extractor_class": "os.system"}),
    ("policy_kwargs", {"optimizer_kwargs": {"capturable": True}}), ("policy_kwargs", {"activation_fn": "os.system"}),
    ("learning_rate", 1e308), ("learning_rate", "lin_" + "9" * 5000), ("x" * 20000, 1), ("\x1b[31m", 1),
    ("policies_to_train", ["nobody"]), ("policies_to_train", [["a"]]), ("policy_settings", {"agent1": {"gamma": 9}}),
    ("policy_settings", {"nobody": {}}), ("policy_settings", {"agent1": {"algo": "os.system"}}),
)  # fmt: skip

_ENVS = (
    "os:system", "subprocess:Popen", "antigravity:x", "this:x", "..:x", "a.b:c", "/etc/passwd", "CartPole-v1",
    "unknown", "", "arena ", "module:env-v0", "antigravity:CartPole-v1", "x" * 20000, 1, None, 1.5, True,
)  # fmt: skip


def _dumped(tree: Any) -> str:
    return yaml.safe_dump(_without_raw(tree), sort_keys=False)


def _without_raw(tree: Any) -> Any:
    """`Raw` is a text of JSON: in YAML it stands for itself."""
    if isinstance(tree, dict):
        return {key: _without_raw(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_without_raw(value) for value in tree]
    return str(tree) if isinstance(tree, Raw) else tree


def _leaf(text: str, dice: Dice) -> tuple[str, Any]:
    tree = yaml.safe_load(text)
    path = dice.one_of(leaves(tree))
    value = dice.one_of(HOSTILE)
    replace(tree, path, value)
    return f"{path} = {shown(value)}", _dumped(tree)


def _setting(text: str, dice: Dice) -> tuple[str, Any]:
    tree = yaml.safe_load(text)
    name, value = dice.one_of(_SETTINGS)
    settings = next(iter(tree.values()))
    hyperparameters = settings.get("hyperparameters", {})
    (hyperparameters if name in hyperparameters else settings)[name] = value
    return f"{name[:30]} = {shown(value)}", _dumped(tree)


def _fields(text: str, dice: Dice) -> tuple[str, Any]:
    tree = yaml.safe_load(text)
    path = dice.one_of([path for path, _ in nodes(tree)])
    remove(tree, path)
    return f"without {path}", _dumped(tree)


def _env(text: str, dice: Dice) -> tuple[str, Any]:
    tree = yaml.safe_load(text)
    name = dice.one_of(_ENVS)
    (settings,) = tree.values()
    return f"env {shown(name)}", _dumped({name: settings, **({"arena": settings} if dice.number(4) == 0 else {})})


def _tag(text: str, dice: Dice) -> tuple[str, Any]:
    tag = dice.one_of(_TAGS)
    lines = text.splitlines()
    place = dice.number(len(lines))
    how = dice.number(3)
    if how == 0:
        return f"all of it {tag[:60]!r}", tag
    indent = len(lines[place]) - len(lines[place].lstrip())
    name = lines[place].strip().partition(":")[0] if how == 1 else "more"
    lines[place] = f"{' ' * indent}{name}: {tag}"
    return f"{name}: {tag[:60]!r}", "\n".join(lines)


def _bombs(text: str, dice: Dice) -> tuple[str, Any]:
    laughs = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)
    )
    inside = "arena:\n" + "".join(f"  {line}\n" for line in laughs.splitlines()) + "  stop: *a11\n"
    kwargs = "arena:\n  env_kwargs: {" + laughs.replace("\n", ", ") + "z: *a11}\n"
    bombs: dict[str, Callable[[], str | bytes]] = {
        "aliases": lambda: laughs,
        "aliases in a setting": lambda: inside,
        "aliases in env_kwargs": lambda: kwargs,
        "aliases of the env": lambda: f"{laughs}arena: {{policies: *a11}}\n",
        "900 lists": lambda: "arena: " + "[" * 900 + "]" * 900,
        "100,000 lists": lambda: "arena: " + "[" * 100_000,
        "20,000 mappings": lambda: "arena: " + "{a: " * 20_000,
        "3,000 indents": lambda: "".join(" " * n + "a:\n" for n in range(3000)),
        "a megabyte of words": lambda: "arena: [" + "a, " * 300_000 + "]",
        "100 megabytes": lambda: "#" * 100_000_000,
        "many keys": lambda: "arena:\n" + "".join(f"  k{n}: 1\n" for n in range(20_000)),
        "equal keys": lambda: text + text,
        "documents": lambda: text + "\n---\n" + text,
        "merges": lambda: "a: &a {x: 1}\narena:\n  <<: [" + "*a, " * 5000 + "*a]\n",
        "a zero byte": lambda: text + "\x00",
        "UTF-16": lambda: text.encode("utf-16"),
        "Latin 1": lambda: b"arena: {\xe4: 1}",
        "a byte order mark": lambda: "\ufeff" + text,
        "a directive": lambda: "%YAML 9.9\n---\n" + text,
        "tabs": lambda: text.replace("  ", "\t"),
        "nothing": lambda: "",
        "a word": lambda: "arena",
        "a list": lambda: "- arena",
        "JSON": lambda: '{"arena": {"n_envs": 3}}',
    }
    name = dice.one_of(sorted(bombs))
    return name, bombs[name]()


def _odd(text: str, dice: Dice) -> tuple[str, Any]:
    odd = dice.one_of(
        [
            Odd("link", "/dev/zero"),
            Odd("link", "/etc/passwd"),
            Odd("link", CONFIG),
            Odd("pipe"),
            Odd("folder"),
            Odd("device"),
            Odd("socket"),
            Odd("sparse", 2**32),
            Odd("link", "pipe"),
        ]
    )
    return f"{odd.kind} {odd.target}", odd


_FAMILIES: tuple[Callable[[str, Dice], tuple[str, Any]], ...] = (
    _leaf, _leaf, _leaf, _setting, _setting, _fields, _env, _tag, _tag, _bombs, _bombs, _odd,
)  # fmt: skip


def make_config_mutant(text: str, seed: int, index: int) -> Mutant:
    """The mutant of this number; `files` has `config.yaml` alone."""
    dice = Dice(seed, index)
    family = _FAMILIES[index % len(_FAMILIES)]
    what, content = family(text, dice)
    data = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
    files: Files = {CONFIG: data}
    return Mutant(f"config.yaml: {family.__name__[1:]}", what, files)
