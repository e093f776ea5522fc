"""Only `policy.pth` of an SB3 zip is read, and only what looks like one."""

from __future__ import annotations

import io
import os
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stable_baselines3
import torch as th
from gymnasium import spaces
from toy_envs import SampledEnv

from marl_sb3 import ConfigError, make_vec_env
from marl_sb3.extensions.transfer.sb3_files import sb3_weights

ENOUGH = 2**20


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, th.Tensor]]:
    """A zip that stock SB3 wrote, and what is in it."""
    env = make_vec_env(lambda: SampledEnv(spaces.Box(-1, 1, (2,)), spaces.Discrete(2))).as_sb3_vec_env()
    algorithm = stable_baselines3.PPO("MlpPolicy", env, n_steps=8, batch_size=8, device="cpu", seed=1)
    path = tmp_path_factory.mktemp("stock") / "model.zip"
    algorithm.save(path)
    return path, algorithm.policy.state_dict()


def members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def saved(content: Any, **options: Any) -> bytes:
    buffer = io.BytesIO()
    th.save(content, buffer, **options)
    return buffer.getvalue()


def test_the_weights_are_those_of_the_zip(stock: tuple[Path, dict[str, th.Tensor]]) -> None:
    path, expected = stock
    weights = sb3_weights(path, ENOUGH, trust_pickle=True)
    assert weights.keys() == expected.keys()
    assert all(th.equal(weights[name], tensor) for name, tensor in expected.items())


def test_without_trust_nothing_is_opened_and_the_error_says_why() -> None:
    message = (
        r"none\.zip is an SB3 zip, which holds pickles, and a pickle from a stranger may run any code .* --trust-pickle"
    )
    with pytest.raises(ConfigError, match=message):
        sb3_weights("none.zip", ENOUGH, trust_pickle=False)


class Bomb:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable, tuple]:
        return os.mkdir, (str(self.path),)


def test_pickles_elsewhere_in_the_zip_are_never_opened(stock: tuple[Path, dict], tmp_path: Path) -> None:
    algorithm = stable_baselines3.PPO.load(stock[0], device="cpu")
    algorithm.bomb = Bomb(tmp_path / "exploded")
    algorithm.save(tmp_path / "bomb.zip")
    sb3_weights(tmp_path / "bomb.zip", ENOUGH, trust_pickle=True)
    assert not (tmp_path / "exploded").exists()
    stable_baselines3.PPO.load(tmp_path / "bomb.zip", device="cpu")
    assert (tmp_path / "exploded").exists()  # it is a real one


def test_a_pickle_in_place_of_the_weights_is_not_run(tmp_path: Path) -> None:
    content = saved({"weight": Bomb(tmp_path / "exploded")})
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w") as archive:
        archive.writestr("policy.pth", content)
    with pytest.raises(ConfigError, match=r"bomb\.zip: policy\.pth has more than tensors$"):
        sb3_weights(tmp_path / "bomb.zip", ENOUGH, trust_pickle=True)
    assert not (tmp_path / "exploded").exists()


def link(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    return info


def packed_pth(content: bytes) -> bytes:
    """A .pth file whose members are compressed, which PyTorch would read all the same."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as plain, zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as packed:
        for name in plain.namelist():
            packed.writestr(name, plain.read(name))
    return buffer.getvalue()


ZEROS = {"weight": th.zeros(4, 4)}
REFUSED: dict[str, tuple[Callable[[zipfile.ZipFile], Any], str]] = {
    "nothing in it": (lambda archive: None, "it has 0 members policy.pth; accepted: one"),
    "a link": (lambda archive: archive.writestr(link("policy.pth"), "/etc/passwd"), "'policy.pth' is a link or has"),
    "an absolute name": (lambda archive: archive.writestr("/policy.pth", b""), "'/policy.pth' is a link or has a path"),
    "a name that climbs": (lambda archive: archive.writestr("a/../../policy.pth", b""), "has a path that leads out"),
    "a drive": (lambda archive: archive.writestr("C:\\policy.pth", b""), "has a path that leads out"),
    "too large": (
        lambda archive: archive.writestr("policy.pth", bytes(ENOUGH + 1), zipfile.ZIP_DEFLATED),
        "policy.pth has 1048577 bytes; accepted: up to 1048576",
    ),
    "packed without a limit": (
        lambda archive: archive.writestr("policy.pth", bytes(100), zipfile.ZIP_BZIP2),
        "policy.pth is compressed by a method that SB3 does not use",
    ),
    "packed inside": (
        lambda archive: archive.writestr("policy.pth", packed_pth(saved({"weight": th.zeros(10**6)}))),
        "policy.pth is compressed, which PyTorch does not do",
    ),
    "old format": (
        lambda archive: archive.writestr("policy.pth", saved(ZEROS, _use_new_zipfile_serialization=False)),
        "policy.pth is not of the format that PyTorch 1.6 and later write",
    ),
    "no names": (
        lambda archive: archive.writestr("policy.pth", saved([th.zeros(2)])),
        "policy.pth does not hold tensors by name",
    ),
    "names that are numbers": (
        lambda archive: archive.writestr("policy.pth", saved({1: th.zeros(2)})),
        "policy.pth does not hold tensors by name",
    ),
    "not of torch": (lambda archive: archive.writestr("policy.pth", packed_pth(saved(ZEROS))[:50]), "is not a valid"),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_what_is_no_sb3_zip_is_refused(tmp_path: Path, fault: str) -> None:
    write, message = REFUSED[fault]
    with zipfile.ZipFile(tmp_path / "model.zip", "w") as archive:
        write(archive)
    with pytest.raises(ConfigError) as caught:
        sb3_weights(tmp_path / "model.zip", ENOUGH, trust_pickle=True)
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"{tmp_path / 'model.zip'}")
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_members_of_one_name_are_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "model.zip", "w") as archive:
        for _ in range(2):
            archive.writestr("policy.pth", saved(ZEROS))
    with pytest.raises(ConfigError, match=r"it has 2 members policy\.pth; accepted: one"):
        sb3_weights(tmp_path / "model.zip", ENOUGH, trust_pickle=True)


@pytest.mark.parametrize("places", [60, pytest.param(3000, marks=pytest.mark.proof)])
def test_no_damage_gets_past_as_anything_but_a_config_error(stock: Any, places: int, tmp_path: Path) -> None:
    """A byte is another one, at each of so many places; what is still read is finite or not, with the right names."""
    content, path = bytearray(stock[0].read_bytes()), tmp_path / "model.zip"
    refused = 0
    for place in np.random.default_rng(0).integers(0, len(content), places).tolist():
        damaged = bytearray(content)
        damaged[place] ^= 0xFF
        path.write_bytes(damaged)
        try:
            weights = sb3_weights(path, ENOUGH, trust_pickle=True)
        except ConfigError:
            refused += 1
        else:
            assert weights.keys() == stock[1].keys()
    assert refused > places / 10
    for length in (0, 3, 100, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:length])
        with pytest.raises(ConfigError, match="is not a valid SB3 zip"):
            sb3_weights(path, ENOUGH, trust_pickle=True)
