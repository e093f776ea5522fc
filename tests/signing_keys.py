"""Pairs of keys for tests of signatures."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec


class Keys(NamedTuple):
    """Files of a pair of keys."""

    private: Path
    public: Path


def keys_in(folder: Path, name: str = "mine", key: Any = None) -> Keys:
    """Write a pair of keys; None: new ones of the curve P-256."""
    key = key or ec.generate_private_key(ec.SECP256R1())
    files = Keys(folder / f"{name}.pem", folder / f"{name}.pub")
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    files.private.write_bytes(key.private_bytes(*form))
    of_public = (serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    files.public.write_bytes(key.public_key().public_bytes(*of_public))
    return files
