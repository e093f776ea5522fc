"""Signed folders: whatever was done to one after it was signed, it is refused before anything in it is read."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from signing_keys import Keys, keys_in

import marl_sb3
from marl_sb3.errors import CheckpointError, ConfigError
from marl_sb3.evaluate import main as evaluate
from marl_sb3.export import main as export
from marl_sb3.extensions.store import checkpoint_format
from marl_sb3.files.signed import SIGNATURE, sign_folder, verified_copy
from marl_sb3.match import main as match
from marl_sb3.watch import main as watch


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return keys_in(tmp_path_factory.mktemp("keys"), "mine")


@pytest.fixture(scope="module")
def signed_run(run_folder: Path, keys: Keys, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder as `export` writes and signs it; only to read."""
    out = tmp_path_factory.mktemp("signed") / "arena"
    options = ["--format", "run", "--episodes", "0", "--out", str(out), "--sign", str(keys.private)]
    assert export([str(run_folder), *options]) == 0
    return out


@pytest.fixture
def signed(signed_run: Path, tmp_path: Path) -> Path:
    """The same, to change."""
    return Path(shutil.copytree(signed_run, tmp_path / "arena"))


def checkpoint_in(folder: Path) -> Path:
    (found,) = (folder / "checkpoints").iterdir()
    return found


def test_a_signed_run_is_loaded_and_its_copy_is_removed(
    signed: Path, keys: Keys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.chdir(checkpoint_in(signed))
    bundle = marl_sb3.load_policies("../..", verify=keys.public)
    monkeypatch.chdir(tmp_path)
    assert (bundle.checkpoint, [*tmp_path.glob("marl_sb3-*")]) == (checkpoint_in(signed).name, [])
    run = marl_sb3.load_run(signed, verify=str(keys.public))
    assert run.folder != signed
    shutil.rmtree(signed)
    assert run.results[-1]["iteration"] == int(str(run.checkpoint)[5:])  # what is read later, too, is the copy
    run.close()
    del run
    assert [*tmp_path.glob("marl_sb3-*")] == []


def test_a_checkpoint_is_signed_and_loads_with_and_without_its_signature(signed: Path, keys: Keys) -> None:
    checkpoint = checkpoint_in(signed)
    sign_folder(checkpoint, keys.private)
    assert marl_sb3.load_policies(checkpoint, verify=keys.public).checkpoint == checkpoint.name
    assert marl_sb3.load_policies(checkpoint).checkpoint == checkpoint.name
    with pytest.raises(CheckpointError, match=r"arena is not what was signed: .*Extra files found.*model.sig"):
        marl_sb3.load_run(signed, verify=keys.public)  # a file was added to the run


def flip(path: Path, where: int = -1) -> None:
    content = bytearray(path.read_bytes())
    content[where] ^= 1
    path.write_bytes(content)


def forge_manifest(folder: Path) -> None:
    """Change weights and make the manifest fit: to a checkpoint alone, nothing is wrong."""
    weights, manifest = checkpoint_in(folder) / "policy-000.safetensors", checkpoint_in(folder) / "manifest.json"
    flip(weights)
    listed = json.loads(manifest.read_text())
    listed["files"][weights.name]["sha256"] = hashlib.sha256(weights.read_bytes()).hexdigest()
    manifest.write_text(json.dumps(listed))


def resign_payload(folder: Path) -> None:
    """Put the file into the list of the signature, whose bytes stay those of the former list."""
    bundle = json.loads((folder / SIGNATURE).read_text())
    statement = json.loads(base64.b64decode(bundle["dsseEnvelope"]["payload"]))
    statement["predicate"]["resources"].pop()
    bundle["dsseEnvelope"]["payload"] = base64.b64encode(json.dumps(statement).encode()).decode()
    (folder / SIGNATURE).write_text(json.dumps(bundle))


def linked(folder: Path, name: str) -> None:
    """Move a file or a folder elsewhere, and put a link in its place."""
    elsewhere = folder.parent / "elsewhere"
    (folder / name).rename(elsewhere)
    (folder / name).symlink_to(elsewhere)


FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "a flipped bit": (lambda folder: flip(checkpoint_in(folder) / "policy-000.safetensors"), "Hash mismatch for"),
    "settings changed": (lambda folder: flip(folder / "config.yaml", 3), "Hash mismatch for 'config.yaml'"),
    "a manifest that fits": (forge_manifest, "Hash mismatch for"),
    "a file added": (lambda folder: (folder / "more.json").write_text("{}"), "Extra files found.*more.json"),
    "a file of git added": (lambda folder: (folder / ".gitattributes").touch(), "Extra files|no part in the signature"),
    "a checkpoint added": (
        lambda folder: shutil.copytree(checkpoint_in(folder), folder / "checkpoints" / "ckpt-000099"),
        "Extra files found.*ckpt-000099",
    ),
    "a file removed": (lambda folder: (folder / "result.jsonl").unlink(), "Missing files.*result.jsonl"),
    "no signature": (lambda folder: (folder / SIGNATURE).unlink(), "is not signed: there is no model.sig in it; acc"),
    "an empty signature": (lambda folder: (folder / SIGNATURE).write_text(""), "is not what was signed"),
    "no bundle": (lambda folder: (folder / SIGNATURE).write_text("{}"), "is not what was signed"),
    "another list": (resign_payload, "not one of the key"),
    "a linked file": (lambda folder: linked(folder, "config.yaml"), "it is a link; accepted: a regular file"),
    "a linked folder": (lambda folder: linked(folder, "checkpoints"), "it is a link; accepted: a regular file"),
    "a linked signature": (lambda folder: linked(folder, SIGNATURE), "model.sig cannot be read: it is a link"),
    "folders too deep": (lambda folder: (folder / "/".join("a" * 30)).mkdir(parents=True), "is nested too deep"),
}
if hasattr(os, "mkfifo"):
    FAULTS["a pipe"] = (lambda folder: os.mkfifo(folder / "pipe"), "it is a pipe, a socket or a device")


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_refused_before_anything_is_read(
    name: str, signed: Path, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault, words = FAULTS[name]
    fault(signed)
    for module in ("marl_sb3.extensions.store.checkpoint_folder", "marl_sb3.extensions.store.checkpoint_format"):
        for reads in ("read_manifest", "read_checkpoint"):
            monkeypatch.setattr(f"{module}.{reads}", lambda *_: pytest.fail("read"))
    monkeypatch.setattr("marl_sb3.runs.folder.load_config", lambda *_, **__: pytest.fail("read"))
    for load in (marl_sb3.load_policies, marl_sb3.load_run):
        with pytest.raises((CheckpointError, ConfigError), match=words):
            load(signed, verify=keys.public)


def test_without_a_key_only_the_hashes_are_looked_at(signed: Path) -> None:
    """The control: the same forged weights load, so that it is the signature that refuses them."""
    forge_manifest(signed)
    assert marl_sb3.load_policies(signed).policies


def test_another_key_is_refused(signed: Path, tmp_path: Path) -> None:
    theirs = keys_in(tmp_path, "theirs")
    with pytest.raises(CheckpointError, match="arena is not what was signed: Key mismatch"):
        marl_sb3.load_policies(signed, verify=theirs.public)
    sign_folder(signed, theirs.private)
    assert marl_sb3.load_policies(signed, verify=theirs.public).policies


def test_the_hint_of_a_key_is_not_the_proof(signed: Path, keys: Keys, tmp_path: Path) -> None:
    """A folder that others have signed, with the name of the right key."""
    bundle = json.loads((signed / SIGNATURE).read_text())
    sign_folder(signed, keys_in(tmp_path, "theirs").private)
    forged = json.loads((signed / SIGNATURE).read_text())
    forged["verificationMaterial"] = bundle["verificationMaterial"]
    (signed / SIGNATURE).write_text(json.dumps(forged))
    with pytest.raises(CheckpointError, match="the signature is not one of the key"):
        marl_sb3.load_policies(signed, verify=keys.public)


def test_a_change_after_the_verification_is_not_read(signed: Path, keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who may write to the folder changes it between the verification and the reading."""
    read = checkpoint_format.read_checkpoint

    def changed_meanwhile(folder: Path) -> Any:
        shutil.rmtree(signed)
        return read(folder)

    monkeypatch.setattr("marl_sb3.extensions.store.checkpoint_folder.read_checkpoint", changed_meanwhile)
    assert marl_sb3.load_policies(signed, verify=keys.public).policies


def test_what_a_signature_leaves_out_is_not_read(signed: Path, keys: Keys) -> None:
    """The command of model_signing can leave out files; they are not verified, and so are refused."""
    from model_signing import hashing, signing

    hashed = hashing.Config().set_ignored_paths(paths=[SIGNATURE, "config.yaml"])
    signer = signing.Config().set_hashing_config(hashed).use_elliptic_key_signer(private_key=keys.private)
    signer.sign(signed, signed / SIGNATURE)
    with pytest.raises(CheckpointError, match=r"'config.yaml' has no part in the signature"):
        marl_sb3.load_policies(signed, verify=keys.public)


def test_the_signature_is_one_that_model_signing_reads(signed_run: Path, keys: Keys) -> None:
    command = [sys.executable, "-m", "model_signing", "verify", "key", str(signed_run)]
    options = ["--signature", str(signed_run / SIGNATURE), "--public_key", str(keys.public)]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "Verification succeeded"), done.stderr


def test_commands_verify(signed: Path, keys: Keys, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--verify", str(keys.public)]
    assert evaluate([str(signed), "--episodes", "1", *options]) == 0
    assert export([str(signed), *options, "--out", str(signed.parent / "zips"), "--sign", str(keys.private)]) == 0
    with verified_copy(signed.parent / "zips", keys.public) as copy:
        assert [path.name for path in copy.iterdir()] == ["shared.zip"]
    capsys.readouterr()
    flip(signed / "config.yaml", 3)
    assert evaluate([str(signed), "--episodes", "1", *options]) == 2
    assert "is not what was signed: Hash mismatch for 'config.yaml'\n" in capsys.readouterr().err


def test_a_rival_is_verified_too(
    signed: Path, run_folder: Path, keys: Keys, capsys: pytest.CaptureFixture[str]
) -> None:
    member = Path(shutil.copytree(checkpoint_in(signed), signed / "league" / "shared@4"))
    (signed / "league" / "members.json").write_text('[{"name": "shared@4", "policy": "shared", "iteration": 4}]')
    sign_folder(signed, keys.private)
    options = ["--episodes", "1", "--verify", str(keys.public)]
    assert match([str(signed), str(member), *options, "--json"]) == 0  # a member is signed with its run
    players = json.loads(capsys.readouterr().out)["players"]
    assert [(each["source"], each["checkpoint"]) for each in players] == [
        (str(signed), checkpoint_in(signed).name),
        (str(signed), "shared@4"),
    ]
    for command in (match, watch):
        assert command([str(signed), str(run_folder), *options]) == 2
        assert f"{run_folder} is not signed: there is no model.sig in it" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["missing", "no key", "rsa", "other curve"])
def test_what_is_no_key_is_refused(kind: str, signed: Path, tmp_path: Path) -> None:
    made = {"rsa": partial(rsa.generate_private_key, 65537, 2048)}
    made["other curve"] = partial(ec.generate_private_key, ec.SECP256K1())
    files = keys_in(tmp_path, "odd", made[kind]()) if kind in made else Keys(tmp_path / "odd.pem", tmp_path / "odd.pub")
    if kind == "no key":
        for file in files:
            file.write_text("secret")
    words = "cannot read the key" if kind == "missing" else "key: .*accepted: a PEM file of a key of the curve P-256"
    with pytest.raises(ConfigError, match=words):
        sign_folder(signed, files.private)
    assert export([str(signed), "--out", str(tmp_path / "out"), "--sign", str(files.private)]) == 2
    assert not (tmp_path / "out").exists()  # it is refused before anything is written
    with pytest.raises(ConfigError, match=words):
        marl_sb3.load_policies(signed, verify=files.public)


def test_a_folder_with_a_link_is_not_signed(signed: Path, keys: Keys) -> None:
    linked(signed, "config.yaml")
    with pytest.raises(ConfigError, match="arena cannot be signed: "):
        sign_folder(signed, keys.private)
    with pytest.raises(ConfigError, match=r"cannot sign .*nowhere: No such file or directory"):
        sign_folder(signed / "nowhere", keys.private)


def test_the_extra_is_named_where_it_is_missing(signed: Path, keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "model_signing", None)
    monkeypatch.delitem(sys.modules, "model_signing.verifying", raising=False)
    with pytest.raises(ConfigError, match=r"signatures need the package model_signing.*\[signing\]"):
        marl_sb3.load_policies(signed, verify=keys.public)
