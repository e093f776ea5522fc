"""The layers of the package, as a test: the picture in docs/how_it_is_built.md.

Imports go downwards only, the core reaches no extension, extensions and tools do not import each other, and names are
imported from the modules that define them. A room is a folder of the package or of `core`, `extensions` and `tools`, or
a module beside them; each module of `commands` is one, too. Rooms that users import from have a face, `__init__`.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import sb3_contrib
import stable_baselines3
from budgets import MOST, SLACK, inside, measured, traces
from layers import RANK

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "marl_sb3"
NAME = PACKAGE.name


# What users import from a folder, besides `marl_sb3` itself; the package imports each name from the module that
# defines it. Commands use the names of `cli` together.
PUBLIC_ROOMS = ("evaluation", "envs", "envs.batches", "envs.compiled", "results", "tools.serving", "cli")

# Lines of all modules that importing the one of `MultiAgentAlgorithm` loads, and with those that functions import,
# rounded up to a hundred.
MOST_LINES_OF_CORE = (13_400, 14_892)


class Import(NamedTuple):
    """A name that a module imports, and the module of the package that defines it."""

    module: str
    name: str  # "" if it is the module itself
    face: str | None  # the face through which it comes; None: it comes from its module
    lazy: bool  # whether a function imports it


def module_name(path: Path) -> str:
    relative = path.relative_to(PACKAGE.parent).with_suffix("")
    return ".".join(part for part in relative.parts if part != "__init__")


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def room_of(module: str) -> str:
    """`marl_sb3.core.acting.actor` -> `core.acting`; `marl_sb3.train` -> `train`."""
    _, *parts = module.split(".")
    return ".".join(parts[:2] if parts[:1] in (["commands"], ["core"], ["extensions"], ["tools"]) else parts[:1])


def names_of_faces() -> dict[str, dict[str, str]]:
    """Face -> name -> the module that defines it, by the stubs that lazy_loader reads."""
    line = re.compile(r"from \.([\w.]+) import (\w+)")
    stubs = {module: path.with_suffix(".pyi") for module, path in MODULES.items()}
    return {
        face: {name: f"{face}.{module}" for module, name in line.findall(stub.read_text())}
        for face, stub in stubs.items()
        if stub.exists()
    }


FACES = names_of_faces()


def imports_of(source: str) -> list[Import]:
    """All that a file imports from the package, anywhere in it; imports for type checkers alone are free."""
    found: list[Import] = []
    waiting: list[tuple[ast.AST, bool]] = [(ast.parse(source), False)]
    while waiting:
        node, lazy = waiting.pop()
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            found += [Import(alias.name, "", None, lazy) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [_import(node.module, alias.name, lazy) for alias in node.names]
        lazy = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        waiting += [(child, lazy) for child in inside(node)]
    return [each for each in found if each.module.startswith(f"{NAME}.")]


def _import(module: str, name: str, lazy: bool) -> Import:
    if f"{module}.{name}" in MODULES:
        return Import(f"{module}.{name}", "", None, lazy)
    names = FACES.get(module, {})
    return Import(names.get(name, module), name, module if name in names else None, lazy)


@pytest.fixture(scope="module")
def imports() -> dict[str, list[Import]]:
    """What each module imports; the face of the package is free."""
    return {module: imports_of(path.read_text(encoding="utf-8")) for module, path in MODULES.items() if module != NAME}


def refused(module: str, imported: list[Import]) -> list[str]:
    """The modules of layers above, or of other rooms of the same layer."""
    own = room_of(module)
    others = [each.module for each in imported if room_of(each.module) != own]
    return [other for other in others if RANK[room_of(other)] >= RANK[own]]


def test_every_room_has_a_layer() -> None:
    assert {room_of(module) for module in MODULES if module != NAME} == set(RANK)


def test_modules_import_only_from_layers_below(imports: dict[str, list[Import]]) -> None:
    found = {module: refused(module, imported) for module, imported in imports.items()}
    assert {module: others for module, others in found.items() if others} == {}


def test_an_import_from_above_or_from_beside_is_found() -> None:
    lazily = imports_of("def lazily():\n    from marl_sb3.extensions.fast.ppo import PPO\n")
    assert refused("marl_sb3.core.envs.registry", lazily) == ["marl_sb3.extensions.fast.ppo"]  # the core reaches none
    assert refused("marl_sb3.extensions.data.store", lazily) == ["marl_sb3.extensions.fast.ppo"]
    assert refused("marl_sb3.extensions.fast.coverage", lazily) == []
    assert refused("marl_sb3.runs.building", lazily) == []
    beside = imports_of("from marl_sb3.tools.viewing import stages\n")
    assert refused("marl_sb3.tools.tuning.study", beside) == ["marl_sb3.tools.viewing.stages"]


def test_imports_for_type_checkers_are_free() -> None:
    assert imports_of("if TYPE_CHECKING:\n    from marl_sb3.train import main\n") == []


# --- Faces -----------------------------------------------------------------------------------------------------------


def around_modules(imports: dict[str, list[Import]]) -> list[tuple[str, str]]:
    """The imports of names through a face: the module that imports, the name."""
    own = {f"{NAME}.cli"}
    return sorted(
        (module, each.name)
        for module, imported in imports.items()
        for each in imported
        if each.face not in own | {None}
    )


def test_names_are_imported_from_the_modules_that_define_them(imports: dict[str, list[Import]]) -> None:
    assert around_modules(imports) == []


def test_a_name_through_a_face_is_found() -> None:
    found = imports_of("from marl_sb3.evaluation import play\nfrom marl_sb3.runs.run import Run\n")
    assert around_modules({"marl_sb3.tools.viewing.matching": found}) == [("marl_sb3.tools.viewing.matching", "play")]


def test_only_public_folders_have_faces() -> None:
    assert set(FACES) == {NAME, *(f"{NAME}.{room}" for room in PUBLIC_ROOMS)}


def _is_of(folder: Path) -> bool:
    """Whether the package has a folder, or a module in its place, or it is one of those for the whole package."""
    is_room = (PACKAGE / folder).is_dir() or ".".join([NAME, *folder.parts]) in MODULES
    return is_room or str(folder) in ("crash", "hostile", "memory")


def test_tests_stand_in_the_folders_of_what_they_test() -> None:
    folders = {path.parent.relative_to(TESTS) for path in TESTS.rglob("*.py")}
    assert [str(folder) for folder in folders if not _is_of(folder)] == []


def test_no_two_files_of_tests_have_one_name() -> None:
    """Pytest cannot collect both: their folders are no packages."""
    names = Counter(path.name for path in TESTS.rglob("*.py") if path.name != "conftest.py")
    assert [name for name, number in names.items() if number > 1] == []


def test_faces_name_what_is_there() -> None:
    """Type checkers read the stubs alone."""
    for face, names in FACES.items():
        for name, module in names.items():
            assert module in MODULES, (face, name)


# --- What the core reaches -------------------------------------------------------------------------------------------


def reached(start: str, imports: dict[str, list[Import]], *, lazy: bool) -> set[str]:
    """The modules that importing a module loads; with `lazy`, also those that functions import."""
    found: set[str] = set()
    waiting = [start]
    while waiting:
        module = waiting.pop()
        if module not in found and module in imports:
            found.add(module)
            waiting += [each.module for each in imports[module] if lazy or not each.lazy]
    return found


def test_the_core_can_be_read(imports: dict[str, list[Import]]) -> None:
    """Its size may only fall."""
    for lazy, most in zip((False, True), MOST_LINES_OF_CORE, strict=True):
        modules = reached(f"{NAME}.core.training.algorithm", imports, lazy=lazy)
        lines = sum(len(MODULES[module].read_text(encoding="utf-8").splitlines()) for module in modules)
        assert lines <= most, f"{len(modules)} modules, lazy={lazy}"


def test_each_count_is_within_its_budget() -> None:
    counts = {**measured(), **traces()}
    assert counts.keys() == MOST.keys()
    assert {name: (count, MOST[name]) for name, count in counts.items() if count > MOST[name]} == {}
    saved = {name: count for name, count in counts.items() if name.endswith("lines") and MOST[name] - count > SLACK}
    assert saved == {}, "lower the budgets of tests/budgets.py"


# --- Circles ---------------------------------------------------------------------------------------------------------


def circles(imports: dict[str, set[str]]) -> list[list[str]]:
    """The groups of modules that import each other, directly or through others."""
    behind = {module: _behind(module, imports) for module in imports}
    groups = {
        frozenset(other for other in behind[module] if module in behind.get(other, ())) | {module}
        for module in imports
        if module in behind[module]
    }
    return sorted(sorted(group) for group in groups)


def _behind(module: str, imports: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    waiting = list(imports[module])
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += imports.get(name, ())
    return found


def test_modules_do_not_import_each_other_in_circles(imports: dict[str, list[Import]]) -> None:
    by_name = {module: {each.module for each in imported} & imports.keys() for module, imported in imports.items()}
    assert circles(by_name) == []


def test_a_circle_is_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]


# --- SB3's private members --------------------------------------------------------------------------------------------

SB3 = PACKAGE / "core" / "sb3"
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
    elsewhere = [path for path in MODULES.values() if SB3 not in path.parents]
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
