"""A start for an env of one's own: copies of the files in `templates`, under the names that the user wants."""

from __future__ import annotations

import keyword
import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path

from marl_sb3.errors import ConfigError, refuse
from marl_sb3.files.paths import path_is_usable, require_file_name

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
        ConfigError: no module can have this name, another module has it already, there is such a folder, or it cannot
            be made.
    """
    if not name.isidentifier() or keyword.iskeyword(name):
        refuse("NAME", name, "a name for a module of Python, such as my_env")
    require_file_name("NAME", name, "NAME")
    found = None if name in sys.modules else find_spec(name)
    if name in sys.modules or name in sys.stdlib_module_names or (found is not None and found.origin is not None):
        raise ConfigError(f"NAME is {name!r}, which Python imports already; accepted: a name of no module", key="NAME")
    words = "".join(part[:1].upper() + part[1:] for part in name.split("_"))
    new = {f"{__package__}.templates.{kind}": name, _CLASS: words if words.endswith("Env") else f"{words}Env"}
    files = {f"{name}.py": ".py", f"test_{name}.py": "_test.py", "settings.yml": ".yml", "README.md": ".md"}
    with path_is_usable("--out: cannot write to", folder, "--out"):
        if os.path.lexists(folder):
            raise ConfigError(f"{folder} exists; accepted: a folder that does not exist yet, after --out", key="--out")
        folder.mkdir(parents=True)
        for file, template in files.items():
            text = (_TEMPLATES / f"{kind}{template}").read_text(encoding="utf-8")
            # All at once: the new name of the module may hold that of the class.
            text = re.sub("|".join(map(re.escape, new)), lambda found: new[found[0]], text)
            (folder / file).write_text(text, encoding="utf-8")
    return [folder / file for file in files]
