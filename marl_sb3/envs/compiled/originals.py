"""Whether an env is the one that a compiled twin was written for: by its code and attributes, not by what it does.

The text of its modules has to be that of a known version, and nothing in the process may differ from that text: no
function, constant, class or attribute of the env has been replaced.
"""

from __future__ import annotations

import hashlib
import importlib
import threading
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from marl_sb3.core.config.algorithms import place_of

# Module -> the beginnings of the SHA-256 of its text, in the versions with which the twins were compared. A new version
# of a package needs `pytest tests/envs/compiled/test_twins.py -m "proof or not proof"`, then lines of `digest_of` here.
# Gymnasium 1.2.2, 1.2.3, 1.3.0 and 1.4.0; mpe2 1.1.1; PettingZoo 1.27.0.
KNOWN: dict[str, tuple[str, ...]] = {
    "gymnasium.core": ("7aab6444435e0d40", "92226890db5bec67", "245745bf21d7b6f6", "2a7a1bef059c8be0"),
    "gymnasium.envs.classic_control.acrobot": ("89bd2cee2e115e95", "81ac9d2a2f7866ac", "4ea2699f41516c61"),
    "gymnasium.envs.classic_control.cartpole": ("b758e3286711a2c4", "ebc780f261233490", "8c034275500ff9c6"),
    "gymnasium.envs.classic_control.continuous_mountain_car": (
        *("ba9d0a5795afaf30", "63edd6c0e1876977", "3ad16d3f27bfb867"),
    ),
    "gymnasium.envs.classic_control.mountain_car": ("f97a9b162f329b6c", "5465a274e5ea348d", "37ab120a8e931da6"),
    "gymnasium.envs.classic_control.pendulum": ("ff7149cbcd2e1d19", "01d7006351060606", "f349a2160b54fce7"),
    "gymnasium.envs.classic_control.utils": ("5077e47a6ef0e49a",),
    "gymnasium.envs.toy_text.frozen_lake": ("994cb58dffeeb55c", "5769d6ed89fe0aba", "d640d8289c7046eb"),
    "gymnasium.envs.toy_text.taxi": ("158cfeb253c00813", "82074dd93e1f8198", "63c51638c652f31b"),
    "gymnasium.envs.toy_text.utils": ("3739667fe0ded696",),
    "gymnasium.utils.passive_env_checker": ("e8b4a41363bde335", "13457c9b3fdbde8b", "b61d74c60194ca1f"),
    "gymnasium.utils.seeding": ("eb2a223b92604b7d",),
    "gymnasium.wrappers.common": ("bc0ebcd8d1cb6528", "2a2cd78973296d58", "ef31d8b3c302ba12"),
    "mpe2._mpe_utils.core": ("5578e48334bff321",),
    "mpe2._mpe_utils.scenario": ("db5d9a464dffa4fe",),
    "mpe2._mpe_utils.simple_env": ("ac5753a926e2dde4",),
    "mpe2.simple_reference.simple_reference": ("837c9cf3db852c30",),
    "mpe2.simple_speaker_listener.simple_speaker_listener": ("c09baa241c91c90b",),
    "mpe2.simple_spread.simple_spread": ("64b46b03533ae82a",),
    "mpe2.simple_tag.simple_tag": ("6d3de4cc9a9b6a09",),
    "pettingzoo.utils.agent_selector": ("235479995e337239",),
    "pettingzoo.utils.conversions": ("7f5a413fd70dbfe4",),
    "pettingzoo.utils.env": ("9a89a8515341215f",),
    "pettingzoo.utils.wrappers.assert_out_of_bounds": ("9ddb020b270ceda8",),
    "pettingzoo.utils.wrappers.base": ("5e56310962fffabc",),
    "pettingzoo.utils.wrappers.order_enforcing": ("9f3ccf5460fb636a",),
}

# What classes and modules have besides what their text says, some of it since Python has copied, warned or been asked;
# envs of mpe2 write their names into `metadata` of a base.
_NOT_COMPARED = {
    "__annotations__",
    "__dict__",
    "__slotnames__",
    "__warningregistry__",
    "__weakref__",
    "__builtins__",
    "__cached__",
    "__loader__",
    "__spec__",
    "_abc_impl",
    "metadata",
}

_again: dict[str, types.ModuleType] = {}  # digest of a module's text -> what this makes


def why_not_original(modules: Iterable[str], env: Any, anew: Callable[[types.ModuleType], Any]) -> str | None:
    """Say why an env may do something else than its known class does; None if it cannot.

    Args:
        modules: the names of all modules whose code it runs, the one of its class last.
        env: the env without wrappers; it is reset.
        anew: makes the env that it should be, from what the last module's text makes.
    """
    for name in modules:
        digest = digest_of(importlib.import_module(name))
        if digest not in KNOWN.get(name, ()):
            return f"this version of {name} has no compiled one"
        comparison = _Comparison(name, digest)
        if (replaced := comparison.of_module()) is not None:
            return replaced
    try:
        expected = anew(comparison.made)
        for each in (env, expected):
            each.reset(seed=0)
    except Exception as error:  # of arguments that the class does not take, which other code has given it
        return f"its class cannot be made with these arguments: {type(error).__name__}: {error}"
    found = _Comparison(name, digest).of(env, expected, type(env).__name__)
    return None if found is None else f"{found} is not what its class makes of the arguments"


def why_not_own(*modules: str) -> str | None:
    """Say which part of modules of this package somebody has replaced; None: all is as in their files."""
    for name in modules:
        if not (digest := digest_of(importlib.import_module(name))):
            return f"the source of {name} cannot be read"
        if (why := _Comparison(name, digest).of_module()) is not None:
            return why
    return None


def digest_of(module: types.ModuleType) -> str:
    """The beginning of the SHA-256 of a module's text; "" if it has none."""
    file = Path(getattr(module, "__file__", None) or "none")
    is_text = file.suffix == ".py" and file.is_file()
    return hashlib.sha256(file.read_bytes().replace(b"\r\n", b"\n")).hexdigest()[:16] if is_text else ""


# Of objects of some kinds, what is compared: parts by their names, or a sequence of them. Of others, their attributes.
_PARTS: Sequence[tuple[Any, Callable[[Any], Any]]] = (
    (type, lambda cls: {**vars(cls), 0: cls.__bases__}),
    ((Mapping, list, tuple), lambda given: given),
    ((staticmethod, classmethod), lambda method: [method.__func__]),
    (partial, lambda call: [call.func, call.args, call.keywords]),
    (types.MethodType, lambda method: [method.__func__, method.__self__]),
    (property, lambda own: [own.fget, own.fset, own.fdel]),
    (np.ndarray, lambda array: [array.dtype, array.shape, repr(array.tolist())]),
    (np.random.Generator, lambda rng: [str(rng.bit_generator.state)]),
    (type(threading.RLock()), lambda lock: ()),  # of a cached_property
    (types.ModuleType, lambda module: [id(module)]),  # another one
)


class _Comparison:
    """Finds where an object of a module differs from its counterpart in what the text of the module makes once more.

    Args:
        name: of the module.
        digest: of its text, which is known, or this package's own.
    """

    def __init__(self, name: str, digest: str) -> None:
        self._name, self._module = name, importlib.import_module(name)
        if digest not in _again:  # made in a module that nobody else has
            made = types.ModuleType(name)
            made.__file__, made.__package__ = self._module.__file__, self._module.__package__
            code = compile(Path(str(made.__file__)).read_bytes(), str(made.__file__), "exec", dont_inherit=True)
            exec(code, vars(made))  # of a known digest, and run by this process already
            _again[digest] = made
        self.made = _again[digest]
        # With the objects themselves: an id may be that of another object, once these are gone.
        self._compared: dict[tuple[int, int], tuple[Any, Any]] = {}

    def of_module(self) -> str | None:
        """Say which part of the module somebody has replaced; None: no part."""
        found = self._of_parts(vars(self._module), vars(self.made), self._name)
        return None if found is None else f"{found} is not that of its package"

    def of(self, ours: Any, theirs: Any, where: str) -> str | None:
        """Return the name of a part that differs; None if all are equal."""
        if ours is theirs or (id(ours), id(theirs)) in self._compared:
            return None
        self._compared[id(ours), id(theirs)] = ours, theirs
        kinds = type(ours), type(theirs)  # other modules' classes are compared with these modules
        if kinds[0] is not kinds[1] and place_of(kinds[0]) != place_of(kinds[1]):
            return where
        known = ((types.FunctionType, self._function), *_PARTS)
        parts = next((parts for kind, parts in known if isinstance(theirs, kind)), None)
        if parts is not None or hasattr(theirs, "__dict__"):
            parts = parts or vars
            return self._of_parts(parts(ours), parts(theirs), where)
        # Objects of C, such as NumPy's functions, have names; a type variable is equal to itself alone.
        return None if ours == theirs or repr(ours) == repr(theirs) else where

    def _of_parts(self, ours: Any, theirs: Any, where: str) -> str | None:
        """Compare mappings from names, or other keys, to parts; or sequences of parts without names."""
        ours, theirs = (each if isinstance(each, Mapping) else dict(enumerate(each)) for each in (ours, theirs))
        for name in dict.fromkeys(name for name in [*theirs, *ours] if name not in _NOT_COMPARED):
            inner = where if isinstance(name, int) else f"{where}.{name}"
            if name not in ours or name not in theirs:
                return inner
            if (found := self.of(ours[name], theirs[name], inner)) is not None:
                return found
        return None

    def _function(self, function: Any) -> tuple[Any, ...]:
        scope: Any = function.__globals__
        is_own = scope is vars(self._module) or scope is vars(self.made)
        is_own = is_own or str(scope.get("__name__")).startswith("namedtuple_")  # its function has globals of its own
        cells = [cell.cell_contents for cell in function.__closure__ or ()]
        others = function.__defaults__, function.__kwdefaults__, vars(function)
        return None if is_own else id(scope), function.__code__, cells, others
