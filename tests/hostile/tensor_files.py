"""Safetensors files that may say anything of their tensors."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
from json_trees import to_json
from mutant_files import DTYPES


def unpack(data: bytes) -> tuple[dict[str, Any], bytes]:
    """Header and payload of a safetensors file."""
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def pack(header: Any, payload: bytes, length: int | None = None) -> bytes:
    """A safetensors file, or what looks like one."""
    text = header if isinstance(header, bytes) else to_json(header)
    return struct.pack("<Q", (len(text) if length is None else length) % 2**64) + text + payload


Tensor = tuple[str, list[int], bytes]  # dtype, shape, content


def tensors_of(data: bytes) -> dict[str, Tensor]:
    """The tensors of a safetensors file."""
    header, payload = unpack(data)
    return {
        name: (entry["dtype"], entry["shape"], payload[slice(*entry["data_offsets"])])
        for name, entry in header.items()
        if name != "__metadata__"
    }


def to_safetensors(tensors: Mapping[str, Tensor]) -> bytes:
    """A file of these tensors."""
    header, payload = {}, b""
    # As the format wants it: wider numbers first, so that all are aligned.
    for name, (dtype, shape, data) in sorted(tensors.items(), key=lambda item: -width(item[1][0])):
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(payload), len(payload) + len(data)]}
        payload += data
    return pack(header, payload)


def width(dtype: str) -> int:
    return DTYPES[dtype].itemsize if dtype in DTYPES else 1


def extremes(dtype: np.dtype[Any]) -> list[Any]:
    if dtype.kind == "f":
        info = np.finfo(dtype)
        return [np.nan, np.inf, -np.inf, info.max, info.min, info.tiny, info.smallest_subnormal, -1.0, 0.0, 1e30, -1e18]
    if dtype.kind == "b":
        return [False, True]
    limits = np.iinfo(dtype)
    middle = [0, 1, -1, 2, 3, 4, 5, 16, 17, 19, 20, 99, 255, 624, 625, 2**31, 2**53, 2**62]
    return [limits.min, limits.max, limits.max - 1, *(n for n in middle if limits.min <= n <= limits.max)]
