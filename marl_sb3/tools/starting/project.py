"""Write the files of a new env: copies of those in `templates`, under the names that the user wants."""

from __future__ import annotations

import keyword
import sys
from importlib.util import find_spec
from pathlib import Path

from marl_sb3.errors import ConfigError

KINDS = ("parallel", "turns")
_TEMPLATES = Path(__file__).parent / "templates"
_CLASS = "ExampleEnv"  # of the envs in `templates`


def write_project(name: str, kind: str, folder: Path) -> list[Path]:
    """Write a module with an env, its test, its settings and a page with the commands; returns their paths.

    Args:
        name: of the module; the class is `MyGame` or `MyGameEnv` by this name.
        kind: "parallel" for agents that act at the same time, "turns" for agents that take turns.
        folder: a new folder.

    Raises:
        ConfigError: no module can have this name, another module has it already, or there is such a folder.
    """
    _require_free(name)
    words = "".join(part[:1].upper() + part[1:] for part in name.split("_"))
    new = {f"{__package__}.templates.{kind}": name, _CLASS: words if words.endswith("Env") else f"{words}Env"}
    files = {f"{name}.py": ".py", f"test_{name}.py": "_test.py", "settings.yml": ".yml", "README.md": ".md"}
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise ConfigError(f"{folder} exists; accepted: a folder that does not exist yet, after --out") from None
    for file, template in files.items():
        text = (_TEMPLATES / f"{kind}{template}").read_text(encoding="utf-8")
        for old, its_new in new.items():
            text = text.replace(old, its_new)
        (folder / file).write_text(text, encoding="utf-8")
    return [folder / file for file in files]


def _require_free(name: str) -> None:
    """Refuse a name under which Python would not import the new module."""
    if not name.isidentifier() or keyword.iskeyword(name):
        raise ConfigError(f"NAME is {name!r}; accepted: a name for a module of Python, such as my_env", key="NAME")
    found = None if name in sys.modules else find_spec(name)
    if name in sys.modules or name in sys.stdlib_module_names or (found is not None and found.origin is not None):
        raise ConfigError(f"NAME is {name!r}, which Python imports already; accepted: a name of no module", key="NAME")
