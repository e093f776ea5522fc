"""Folders with a signature, `model.sig`: who wrote them, and that nothing in them has changed since.

The signature is that of OpenSSF's model signing by a key of an elliptic curve: a list of all files with their hashes,
signed, in the form of a Sigstore bundle. Its own command, `model_signing verify key`, reads it, too.
"""

from __future__ import annotations

import base64
import importlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from marl_sb3.errors import CheckpointError, ConfigError, install_words
from marl_sb3.files.atomic import write_whole
from marl_sb3.files.paths import as_path, path_is_usable
from marl_sb3.files.regular import open_regular, read_bytes

SIGNATURE = "model.sig"
_MOST_BYTES = 2**26  # of the signature, which has a line for each file
_DEEPEST = 20  # levels of folders
_CURVES = "a PEM file of a key of the curve P-256, P-384 or P-521, without a password"


def sign_folder(folder: str | Path, key: str | Path) -> Path:
    """Sign a folder as it is: a checkpoint, what `export` has written, or a run that is not trained any more.

    Args:
        folder: with regular files and folders alone. A signature that is there is replaced.
        key: file of the private key: PEM, of the curve P-256, P-384 or P-521, without a password; such as
            `openssl ecparam -genkey -name prime256v1 -noout -out key.pem` makes.

    Returns:
        The file of the signature, `model.sig` in the folder.

    Raises:
        ConfigError: there is no such folder or key, the folder has links in it, or the extra `signing` is missing.
    """
    folder, signer = as_path("folder", folder), require_key(key)
    hashing = _library("hashing", "sign").Config().set_ignored_paths(paths=[SIGNATURE], ignore_git_paths=False)
    with path_is_usable("cannot sign", folder, "sign"), TemporaryDirectory(prefix="marl_sb3-") as temporary:
        os.listdir(folder)  # raises if it is none
        try:
            signer.set_hashing_config(hashing).sign(folder, Path(temporary, SIGNATURE))
        except ValueError as error:
            raise ConfigError(f"{folder} cannot be signed: {error}", key="sign") from error
        return write_whole(folder / SIGNATURE, Path(temporary, SIGNATURE).read_bytes())


def require_key(key: str | Path) -> Any:
    """Return what signs by a private key; see `sign_folder`."""
    path, signer = as_path("sign", key), _library("signing", "sign").Config()
    with _key_is_usable("sign", path):
        return signer.use_elliptic_key_signer(private_key=path)


@contextmanager
def verified_copy(folder: str | Path, key: str | Path) -> Iterator[Path]:
    """Yield a copy of a signed folder, which nobody else can change, after its signature was verified.

    What is verified is the copy: whatever happens to the folder meanwhile, what is read there is what was signed. The
    copy is in the folder for temporary files, for this user alone, and is removed at the end.

    Args:
        folder: with `model.sig`; all other files in it must be signed.
        key: file of the public key of who signed it, in PEM.

    Raises:
        CheckpointError: it is not signed, or not by that key; a file was changed, added, removed or is a link. Nothing
            in it was read but to hash it.
        ConfigError: there is no such folder or key, or the extra `signing` is missing.
    """
    verifying = _library("verifying", "verify")
    folder, key = as_path("path", folder), as_path("verify", key)
    with _key_is_usable("verify", key):
        verifier = verifying.Config().use_elliptic_key_verifier(public_key=key)
    with TemporaryDirectory(prefix="marl_sb3-", ignore_cleanup_errors=True) as temporary:
        copy, signature = Path(temporary, "copy", Path(os.path.abspath(folder)).name), Path(temporary, SIGNATURE)
        with path_is_usable("cannot read", folder, "verify"):
            if SIGNATURE not in os.listdir(folder):
                words = f"{folder} is not signed: there is no {SIGNATURE} in it"
                raise CheckpointError(f"{words}; accepted: what `export --sign KEY` has written")
            signature.write_bytes(read_bytes(folder / SIGNATURE, _MOST_BYTES))
            _copy(folder, copy)
        try:
            verifier.verify(copy, signature)
            payload = json.loads(signature.read_bytes())["dsseEnvelope"]["payload"]
            statement = json.loads(base64.b64decode(payload, validate=True))["predicate"]
            signed = {each["name"] for each in statement["resources"]}
        except Exception as error:  # of forged bundles, whatever the libraries make of them
            why = _in_words(str(error)) or f"the signature is not one of the key {key}"
            raise CheckpointError(f"{folder} is not what was signed: {why}") from error
        there = {path.relative_to(copy).as_posix() for path in copy.rglob("*") if not path.is_dir()}
        if there != signed:  # a signature may leave out files, and then says nothing about them
            odd = min(there ^ signed)
            raise CheckpointError(f"{folder} is not what was signed: {odd!r:.200} has no part in the signature")
        yield copy


def _copy(folder: Path, copy: Path, depth: int = 0) -> None:
    """Copy files and folders, and refuse links; what changes meanwhile is found by its hash."""
    if depth > _DEEPEST:
        raise CheckpointError(f"{folder} is nested too deep; accepted: {_DEEPEST} levels")
    copy.mkdir(parents=True)
    with os.scandir(folder) as entries:
        there = list(entries)
    for entry in there:
        if entry.is_dir(follow_symlinks=False):
            _copy(Path(entry.path), copy / entry.name, depth + 1)
        elif depth or entry.name != SIGNATURE:
            with open(entry.path, "rb", opener=open_regular) as file, (copy / entry.name).open("xb") as fresh:
                shutil.copyfileobj(file, fresh)


def _in_words(message: str) -> str:
    """Shorten a message of model_signing, which shows digests as bytes."""
    text = " ".join(message.split()).replace("\\'", "'").removeprefix("Signature mismatch: ").lstrip("[\"'")
    return text.partition(": Expected")[0].removesuffix("]").rstrip('"')[:400]


@contextmanager
def _key_is_usable(name: str, key: Path) -> Iterator[None]:
    try:
        with path_is_usable(f"{name}: cannot read the key", key, name):
            yield
    except ConfigError:
        raise
    except (ValueError, TypeError, AttributeError) as error:  # of no PEM, with a password, of another kind
        words = f"{name}: {key} is no {'private' if name == 'sign' else 'public'} key: {error}"
        raise ConfigError(f"{words}; accepted: {_CURVES}", key=name) from error


def _library(module: str, name: str) -> Any:
    try:
        return importlib.import_module(f"model_signing.{module}")
    except ImportError as error:
        words = f"signatures need the package {error.name}, which cannot be imported; {install_words('signing')}"
        raise ConfigError(words, key=name) from error
