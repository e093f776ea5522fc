"""Names that comments and docstrings quote, such as `Actor.act`, exist."""

from __future__ import annotations

import ast
import builtins
import io
import keyword
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

PACKAGE = Path(__file__).parent.parent / "marl_sb3"
SCOPES = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
QUOTED = re.compile(r"`([A-Za-z_][\w.]*)(?:\([^`\n]*\))?`")
# Names of other packages, and examples, that no code of the package has.
OTHERS = """
AlgorithmConfig CPUGeneratorImplState FileID MarkovVectorEnv MaskableCategorical MinariDataset MyGame MyGameEnv
NStepReplayBuffer NUMBA_OPT ONNXProgram VecFrameStack _single_tensor_adam _single_tensor_rmsprop a_b add_dir butterfly
creator critic_ extract get_freeze_count learning_ load_dataset logaddexp nohup prometheus_client params_NAME
AutoresetMode continuous_actions frame_skip max_steps_in_episode num_threads stack_num
pistonball_v6 pursuer_0 pursuer_1 pyproject toml save_file waterworld_v4 NAME_1 NAME_2 NAME_mask intervall lin_0
"""


class Module:
    """A file, read once: its tokens and all nodes of its syntax tree."""

    def __init__(self, text: str) -> None:
        self.tokens = [*tokenize.generate_tokens(io.StringIO(text).readline)]
        self.nodes = [*ast.walk(ast.parse(text))]
        of_scopes = (node for node in self.nodes if isinstance(node, SCOPES) and ast.get_docstring(node) is not None)
        self.docstrings: list[Any] = [node.body[0].value for node in of_scopes]  # type: ignore[attr-defined]


class Names:
    """The names that code has: all of them, and those of each class."""

    def __init__(self, modules: Mapping[Path, Module]) -> None:
        self.all = {*dir(builtins), *keyword.kwlist, *OTHERS.split(), PACKAGE.name}
        self.owned: dict[str, set[str]] = defaultdict(set)  # by the name of the class
        self.bases: dict[str, set[str]] = defaultdict(set)
        for path, module in modules.items():
            self.all |= {*path.with_suffix("").parts, *_names_in_code(module)}
            for node in module.nodes:
                if isinstance(node, ast.ClassDef):
                    self.owned[node.name] |= {*_defined(node), *_attributes(node)}
                    self.bases[node.name] |= {ast.unparse(each).partition("[")[0].split(".")[-1] for each in node.bases}

    def lacks(self, quoted: str) -> bool:
        """Whether no code has one of the parts of a name, or its class does not have the last one."""
        *owners, name = parts = quoted.rstrip(".").split(".")
        if any(part not in self.all and not part.isdigit() for part in parts):
            return True
        return bool(owners) and owners[-1] in self.owned and not self._has(owners[-1], name)

    def _has(self, owner: str, name: str, seen: frozenset[str] = frozenset()) -> bool:
        bases = self.bases.get(owner, set()) - seen - {owner, "Protocol", "NamedTuple", "Generic", "Enum"}
        if name in self.owned[owner] or bases - self.owned.keys():  # what a class of another package has is unknown
            return True
        return any(self._has(base, name, seen | {owner}) for base in bases)


def _defined(scope: ast.ClassDef) -> Iterator[str]:
    """The names that the body of a class defines."""
    for node in scope.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name))


def _attributes(scope: ast.ClassDef) -> Iterator[str]:
    """The attributes that methods set, and the keys of strings: an attribute may be set by its name."""
    for node in ast.walk(scope):
        if isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _documented(module: Module) -> Iterator[tuple[int, str]]:
    """The comments and the docstrings of a module, each with its line."""
    for token in module.tokens:
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    yield from ((each.lineno, each.value) for each in module.docstrings)


def _names_in_code(module: Module) -> Iterator[str]:
    """All names in the code of a module, and the words of its strings but docstrings."""
    docstrings = set(map(id, module.docstrings))
    for node in module.nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield from re.findall(r"\w+", node.value)
    yield from (token.string for token in module.tokens if token.type == tokenize.NAME)


def missing(sources: dict[Path, str]) -> list[str]:
    """The names that are quoted and do not exist: the file, the line, the name."""
    modules = {path: Module(text) for path, text in sources.items()}
    names = Names(modules)
    return sorted(
        f"{path}:{line}: {quoted}"
        for path, module in modules.items()
        for line, words in _documented(module)
        for quoted in QUOTED.findall(words)
        if names.lacks(quoted)
    )


def test_names_in_comments_and_docstrings_exist() -> None:
    sources = {path.relative_to(PACKAGE): path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}
    assert missing(sources) == []


@pytest.mark.parametrize(
    ("quoted", "exists"),
    [
        *[(name, True) for name in ("Actor", "Actor.act", "Actor.rows", "acting.Actor", "len(rows)", "self.rows")],
        *[(name, False) for name in ("Actr", "Actor.react", "acting.Actr", "Base.Actor")],
    ],
)
def test_a_name_that_is_quoted_wrongly_is_found(quoted: str, exists: bool) -> None:
    code = "class Base:\n    def act(self, rows):\n        self.rows = rows\n\n\nclass Actor(Base):\n    pass\n"
    assert missing({Path("acting.py"): f'"""See `{quoted}`."""\n\n{code}'}) == (
        [] if exists else [f"acting.py:1: {quoted}"]
    )
