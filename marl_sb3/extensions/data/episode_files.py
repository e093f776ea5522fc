"""Read the HDF5 files of a dataset, whose content is untrusted: episodes, and arrays of the sizes that they must have.

An HDF5 file can lead elsewhere (external links, external storage, virtual datasets), run in circles (links), and have
arrays that are larger than it is, also by compression. Here only regular files in the folder are opened, in them only
what an episode has, by its name, and only numbers, short texts and pictures are read, after a look at their sizes.
HDF5's library, which is C, parses the files all the same.
"""

from __future__ import annotations

import io
import math
import os
import re
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np

from marl_sb3.files.regular import open_regular, require_fits
from marl_sb3.types import Array

MAIN = "main_data.hdf5"  # Minari's name
SHARD = re.compile(r"episodes-(\d{8,})\.hdf5")  # beside it, with some of the episodes: see `store`
_LONGEST_TEXT = 4096
_SMALL = 2**20  # bytes of an array for which nobody asks how much memory is free


class EpisodeFiles:
    """The files of one dataset; `close` closes them.

    Args:
        folder: the folder that they are in.

    Raises:
        OSError: `main_data.hdf5` is missing, no regular file, or no HDF5 file; names it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files = {MAIN: _HDF5File(folder / MAIN)}

    def close(self) -> None:
        """Close what is open."""
        for file in self._files.values():
            file.close()

    def episode(self, number: int) -> Group:
        """Return the group of an episode; `main_data.hdf5` may have a link to one in an `episodes-N.hdf5` beside it.

        Raises:
            ValueError: it is missing, or lies elsewhere. The errors of damaged files are HDF5's.
        """
        import h5py

        name, main = f"episode_{number}", self._files[MAIN].root
        if main.link_type(name) != h5py.h5l.TYPE_EXTERNAL:
            return main.group(name)
        file, inner = (part.decode() for part in main.id.links.get_val(name.encode()))
        if not SHARD.fullmatch(file) or inner.removeprefix("/") != name:
            accepted = f"accepted: {name} in an episodes-N.hdf5 beside it"
            raise ValueError(f"{main.where}/{name} is a link to {inner[:100]!r} in {file[:100]!r}; {accepted}")
        if file not in self._files:  # one shard is open at a time
            for each in [each for each in self._files if each != MAIN]:
                self._files.pop(each).close()
            self._files[file] = _HDF5File(self._folder / file)
        return self._files[file].root.group(name)


class _HDF5File:
    """One file, opened by its descriptor: HDF5 itself would follow links and wait for pipes."""

    def __init__(self, path: Path) -> None:
        import h5py

        with ExitStack() as cleanup:
            raw = cleanup.enter_context(open(path, "rb", opener=open_regular))
            file = cleanup.enter_context(h5py.File(raw, "r"))
            self.root = Group(path.name, file.id, os.fstat(raw.fileno()).st_size)
            self.close = cleanup.pop_all().close


@dataclass(frozen=True)
class Group:
    """A group of a file."""

    where: str  # name of the file and path of the group, for messages
    id: Any  # h5py's `GroupID` or `FileID`
    size: int  # bytes of the file

    def link_type(self, name: str) -> int | None:
        """Return how a name leads to something, as `h5py.h5l` has it; None if there is no such name."""
        key, links = name.encode(), self.id.links
        return links.get_info(key).type if links.exists(key) else None

    def group(self, name: str) -> Group:
        """Return a group in this one.

        Raises:
            ValueError: there is none, or it lies elsewhere.
        """
        import h5py

        found = self._opened(name)
        if not isinstance(found, h5py.h5g.GroupID):
            raise ValueError(f"{self.where}/{name} is no group")
        return Group(f"{self.where}/{name}", found, self.size)

    def array(self, path: str, shape: Sequence[int] | None) -> Array:
        """Read an array of numbers.

        Args:
            path: names of groups and of the dataset, with `/` between them.
            shape: that it must have; None: it must be a single number.

        Raises:
            ValueError: it is missing, lies elsewhere, has another shape or type, or is larger than the file.
            OSError: the free memory does not allow it.
        """
        import h5py

        dataset, where = self._dataset(path)
        kinds = h5py.h5t.INTEGER, h5py.h5t.FLOAT, h5py.h5t.ENUM
        found, dtype = dataset.shape, dataset.dtype if dataset.get_type().get_class() in kinds else None
        if dtype is None or dtype.kind not in "biuf":
            raise ValueError(f"{where} has no numbers")
        if found != tuple(shape or ()) and (shape is not None or math.prod(found) != 1):
            raise ValueError(f"{where} has values of shape {found}; accepted: {tuple(shape or ())}")
        self._require_there(math.prod(found) * dtype.itemsize, where)
        values = np.empty(found, dtype.newbyteorder("="))
        dataset.read(h5py.h5s.ALL, h5py.h5s.ALL, values)
        return values.reshape(() if shape is None else found)

    def length(self, path: str) -> int:
        """Return the length of a dataset with one dimension; see `array`."""
        dataset, where = self._dataset(path)
        if len(dataset.shape) != 1:
            raise ValueError(f"{where} has values of shape {dataset.shape}; accepted: one dimension")
        return int(dataset.shape[0])

    def text(self, name: str) -> str:
        """Read a single text; see `array`."""
        import h5py

        dataset, where = self._dataset(name)
        kind = dataset.get_type()
        if kind.get_class() != h5py.h5t.STRING or math.prod(dataset.shape) != 1:
            raise ValueError(f"{where} is not one text")
        is_long = not kind.is_variable_str() and kind.get_size() > _LONGEST_TEXT
        value = b"" if is_long else np.ravel(h5py.Dataset(dataset)[()])[0]
        if not 0 < len(value) <= _LONGEST_TEXT:
            raise ValueError(f"{where} is a text of another length than 1 to {_LONGEST_TEXT}")
        text = bytes(value).decode() if isinstance(value, bytes) else str(value)
        if not text.isprintable():
            raise ValueError(f"{where} is a text with unprintable characters")
        return text

    def images(self, path: str, shape: Sequence[int]) -> Array:
        """Read pictures that Minari has stored as JPEG files, (n, height, width, ...) uint8; see `array`."""
        import h5py
        from PIL import Image

        dataset, where = self._dataset(path)
        kind, (number, *size) = dataset.get_type(), shape
        base = kind.get_super() if kind.get_class() == h5py.h5t.VLEN else kind
        if len(dataset.shape) not in (1, 2) or dataset.shape[0] != number or not base.equal(h5py.h5t.STD_U8LE):
            raise ValueError(f"{where} does not hold {number} JPEG files")
        if len(dataset.shape) == 2:
            self._require_there(dataset.shape[1], where)
        pictures, files = np.empty((number, *size), np.uint8), h5py.Dataset(dataset)
        for place in range(number):
            with Image.open(io.BytesIO(files[place].tobytes()), formats=["JPEG"]) as picture:
                found = (*picture.size[::-1], *([len(picture.getbands())] if len(size) == 3 else []))
                if found != tuple(size):
                    raise ValueError(f"{where} has a picture of shape {found}; accepted: {tuple(size)}")
                pictures[place] = np.asarray(picture).reshape(size)
        return pictures

    def _opened(self, name: str) -> Any:
        """Open what is here under a name, and not in another file or under another name."""
        import h5py

        found = self.link_type(name)
        if found is None:
            raise ValueError(f"{self.where}/{name} is missing")
        if found != h5py.h5l.TYPE_HARD:
            raise ValueError(f"{self.where}/{name} is a link; accepted: what is in the file itself")
        return h5py.h5o.open(self.id, name.encode())

    def _dataset(self, path: str) -> tuple[Any, str]:
        """Open a dataset whose values are in the file, as they are; returns it, and its name for messages."""
        import h5py

        *above, name = path.split("/")
        group = reduce(Group.group, above, self)
        found, where = group._opened(name), f"{self.where}/{path}"
        if not isinstance(found, h5py.h5d.DatasetID):
            raise ValueError(f"{where} is no dataset")
        form = found.get_create_plist()
        if form.get_layout() == h5py.h5d.VIRTUAL or form.get_external_count():
            raise ValueError(f"{where} has its values in another file; accepted: what is in the file itself")
        if form.get_nfilters():
            raise ValueError(f"{where} is compressed; accepted: uncompressed values, as Minari writes them")
        return found, where

    def _require_there(self, size: int, where: str) -> None:
        """Refuse an array that is larger than its file or than the free memory allows, before it is made."""
        if size > self.size:
            raise ValueError(f"{where} says that it has {size} bytes; the file has {self.size}")
        if size > _SMALL:
            require_fits(where, size)
