"""The layers import only downwards: the picture in docs/how_it_is_built.md, as a test."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import sb3_contrib
import stable_baselines3

PACKAGE = Path(__file__).parent.parent / "marl_sb3"

# From the bottom up; a module may import from layers below its own, and from its own.
LAYERS = (
    ("types", "errors", "doors"),
    ("output", "signals", "stacks", "startup"),
    ("storage",),
    ("config",),
    ("envs",),
    ("wrappers",),
    ("processes",),
    ("vec_env",),
    ("metrics",),
    ("display",),
    ("policies",),
    ("processing",),
    ("sb3",),
    ("kernels",),
    ("acting",),
    ("data",),
    ("experience",),
    ("learners",),
    ("runners",),
    ("training",),
    ("evaluation",),
    ("transfer",),
    ("callbacks",),
    ("analysis",),
    ("runs", "checkup"),
    ("serving",),
    ("cli",),
    ("tuning",),
    ("train", "evaluate", "watch", "plot", "compare", "report", "export", "imitate", "serve", "tune", "doctor"),
    ("extensions", "__main__"),
)
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}


def layer_of(module: str) -> str:
    """`marl_sb3.envs.arena` -> `envs`."""
    return module.split(".")[1]


def module_name(path: Path) -> str:
    relative = path.relative_to(PACKAGE.parent).with_suffix("")
    return ".".join(part for part in relative.parts if part != "__init__")


def _source_of(module: str, name: str) -> str:
    """The module that `from module import name` needs: the submodule where `name` is one."""
    path = PACKAGE.parent.joinpath(*module.split("."), name)
    is_submodule = path.is_dir() or path.with_suffix(".py").exists()
    return f"{module}.{name}" if is_submodule or module == "marl_sb3" else module


def imported_modules(source: str) -> list[str]:
    """All modules of the package that a file imports, anywhere in it; those for type checkers alone are free."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            node.body = []
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [_source_of(node.module, alias.name) for alias in node.names]
    return [name for name in found if name.startswith("marl_sb3.")]


def upward_imports(module: str, imports: list[str]) -> list[str]:
    own = RANK[layer_of(module)]
    return [name for name in imports if RANK[layer_of(name)] > own]


MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


@pytest.fixture(scope="module")
def imports() -> dict[str, list[str]]:
    """What each module imports."""
    return {module_name(path): imported_modules(path.read_text(encoding="utf-8")) for path in MODULES}


def test_modules_import_only_from_layers_below(imports: dict[str, list[str]]) -> None:
    found = {module: upward_imports(module, names) for module, names in imports.items()}
    assert {module: upward for module, upward in found.items() if upward} == {}


def test_every_module_has_a_layer() -> None:
    assert {layer_of(module_name(path)) for path in MODULES} <= set(RANK)


def test_an_upward_import_is_found() -> None:
    imports = imported_modules("def lazily():\n    from marl_sb3.extensions.fast.ppo import PPO\n")
    assert upward_imports("marl_sb3.envs.arena", imports) == ["marl_sb3.extensions.fast.ppo"]
    assert upward_imports("marl_sb3.runs.build", imports) == []


def test_imports_for_type_checkers_are_free() -> None:
    assert imported_modules("if TYPE_CHECKING:\n    from marl_sb3.train import main\n") == []


def circles(imports: dict[str, set[str]]) -> list[list[str]]:
    """The groups of modules that import each other, directly or through others."""
    reached = {module: _reached(module, imports) for module in imports}
    groups = {
        frozenset(other for other in reached[module] if module in reached.get(other, ())) | {module}
        for module in imports
        if module in reached[module]
    }
    return sorted(sorted(group) for group in groups)


def _reached(module: str, imports: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    waiting = list(imports[module])
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += imports.get(name, ())
    return found


def test_modules_do_not_import_each_other_in_circles(imports: dict[str, list[str]]) -> None:
    assert circles({module: set(names) & imports.keys() for module, names in imports.items()}) == []


def test_a_circle_is_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]


# --- SB3's private members --------------------------------------------------------------------------------------------

ROOM = PACKAGE / "sb3"
NOISE = {"exploration_mat", "exploration_matrices"}  # of gSDE: public names, but inner workings


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def is_own(owner: ast.expr) -> bool:
    """`self`, `cls` or `super()`: a subclass may use and override what its base protects."""
    if isinstance(owner, ast.Call):
        owner = owner.func
    return isinstance(owner, ast.Name) and owner.id in ("self", "cls", "super")


def private_members(*packages: Path) -> set[str]:
    """The names of all private methods and attributes that the classes of these packages have."""
    found: set[str] = set()
    for path in (path for package in packages for path in package.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                found.add(node.name)
            elif isinstance(node, ast.Attribute) and is_own(node.value):
                found.add(node.attr)
    return {name for name in found if is_private(name)}


def accesses(source: str, names: set[str]) -> Iterator[str]:
    """`owner.name` and `getattr(owner, "name")` for each of the names, whoever else than `self` the owner is."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr in names and not is_own(node.value):
            yield f"line {node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id.endswith("attr"):
            owner, *rest = node.args
            if not is_own(owner) and any(isinstance(arg, ast.Constant) and arg.value in names for arg in rest):
                yield f"line {node.lineno}: {ast.unparse(node)}"


@pytest.fixture(scope="module")
def of_sb3() -> set[str]:
    packages = [Path(str(package.__file__)).parent for package in (stable_baselines3, sb3_contrib)]
    return private_members(*packages) | NOISE


def test_private_members_of_sb3_are_used_in_one_folder(of_sb3: set[str]) -> None:
    elsewhere = [path for path in MODULES if ROOM not in path.parents]
    found = [f"{path}, {access}" for path in elsewhere for access in accesses(path.read_text(encoding="utf-8"), of_sb3)]
    assert found == []


def test_a_use_of_a_private_member_is_found(of_sb3: set[str]) -> None:
    source = """
algorithm._n_updates += 1
self.algorithm._last_obs = None
getattr(self.policy, "_squash_output")
self._n_updates += 1
super()._excluded_save_params()
algorithm._not_of_sb3
"""
    assert list(accesses(source, of_sb3)) == [
        "line 2: algorithm._n_updates",
        "line 3: self.algorithm._last_obs",
        "line 4: getattr(self.policy, '_squash_output')",
    ]
