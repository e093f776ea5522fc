"""Write a film as GIF or MP4 by imageio, atomically."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from marl_sb3.errors import ConfigError, EnvError, install_words, path_is_usable
from marl_sb3.storage.atomic import unfinished_path, with_filename
from marl_sb3.types import Array
from marl_sb3.wrappers.caption import is_picture

DEFAULT_FPS = 10.0  # for envs without "render_fps" in their metadata


class VideoFile:
    """A film that is being written: `add` takes frames one by one, `finish` puts the file in its place.

    As a context manager, it discards the film on exit unless `finish` was called.

    Args:
        path: the file; `.gif` repeats forever, `.mp4` is H.264.

    Attributes:
        fps: frames per second; may be set before the first frame.
        num_frames: how many frames were added.

    Raises:
        ConfigError: the path has another suffix or cannot be written, or a package is missing.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.fps = DEFAULT_FPS
        self.num_frames = 0
        kind = self.path.suffix.lower()
        if kind not in _ENCODERS:
            accepted = ", ".join(name.lstrip(".") for name in _ENCODERS)
            raise ConfigError(
                f"video {str(path)!r}: the file's name ends in {kind!r}; accepted: {accepted}", key="video"
            )
        self._unfinished = unfinished_path(self.path)
        _require_writable(self.path)
        self._make_encoder = _ENCODERS[kind]
        if kind == ".mp4":
            _require_ffmpeg()
        self._encoder: _Encoder | None = None
        self._size: tuple[int, ...] = ()

    def __enter__(self) -> VideoFile:
        return self

    def __exit__(self, *_: object) -> None:
        if self._encoder is not None:
            with suppress(OSError):  # of a full disk, which has been raised before
                self._encoder.discard()
            self._encoder = None
        self._unfinished.unlink(missing_ok=True)

    def add(self, frame: Any) -> None:
        """Add a frame.

        Args:
            frame: (height, width, 3) uint8, of the same size as the frames before it.

        Raises:
            EnvError: it is something else.
        """
        if not is_picture(frame):
            raise EnvError(f"render() returned {_outline(frame)}; a video needs an array (height, width, 3) of uint8")
        if self._encoder is None:
            self._size = frame.shape
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._encoder = self._make_encoder(self._unfinished, self.fps)
        if frame.shape != self._size:
            raise EnvError(f"render() returned {_outline(frame)}; the frames before it are {self._size}")
        with with_filename(self.path):
            self._encoder.add(frame)
        self.num_frames += 1

    def finish(self) -> None:
        """Encode the frames that are left and replace the file at `path`."""
        if self._encoder is None:
            raise EnvError("no frame was rendered: there is no video")
        with with_filename(self.path):
            self._encoder.finish()
        os.replace(self._unfinished, self.path)
        self._encoder = None


def _require_writable(path: Path) -> None:
    """Refuse a path that cannot be written before anything is filmed; missing folders are made later."""
    with path_is_usable("video: cannot write to", path, "video"):
        there = next(parent for parent in path.absolute().parents if parent.exists())
        if not there.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(there))
        if not os.access(there, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(there))
        with suppress(FileNotFoundError):
            unfinished_path(path).lstat()  # raises if the name is too long
    if path.is_dir():
        raise ConfigError(f"video {str(path)!r} is a folder; accepted: the name of a file", key="video")


def _require_ffmpeg() -> None:
    try:
        import imageio_ffmpeg

        imageio_ffmpeg.get_ffmpeg_exe()
    except ImportError as error:
        raise ConfigError(
            f"a video of this kind needs imageio_ffmpeg; {install_words('video')}", key="video"
        ) from error
    except RuntimeError as error:  # the package contains ffmpeg only for common platforms
        raise ConfigError(f"a video of this kind needs ffmpeg: {error}", key="video") from error


def _outline(frame: Any) -> str:
    if isinstance(frame, np.ndarray):
        return f"an array {frame.shape} of {frame.dtype}"
    return "None" if frame is None else f"a {type(frame).__name__}"


class _Encoder(Protocol):
    """Writes one file at `fps` frames per second."""

    def __init__(self, path: Path, fps: float) -> None: ...

    def add(self, frame: Array) -> None: ...

    def finish(self) -> None: ...

    def discard(self) -> None: ...


class _GifEncoder:
    """Keeps frames with a palette of 256 colours each (one byte per pixel) until `finish` writes the file."""

    def __init__(self, path: Path, fps: float) -> None:
        import imageio.v3 as imageio

        self._file: Any = imageio.imopen(path, "w", plugin="pillow")
        # GIF counts time in hundredths of a second, and players show frames of less than 20 ms for 100 ms.
        self._frame_ms = max(2, round(100 / fps)) * 10

    def add(self, frame: Array) -> None:
        self._file.write(frame, bits=8, duration=self._frame_ms, loop=0)

    def finish(self) -> None:
        self._file.close()

    def discard(self) -> None:
        self._file.images_to_write.clear()  # or `close` would encode them
        self._file.close()


class _Mp4Encoder:
    """Passes each frame to an ffmpeg process at once."""

    def __init__(self, path: Path, fps: float) -> None:
        import imageio.v2 as imageio

        self._file: Any = imageio.get_writer(
            path,
            format="FFMPEG",
            fps=fps,
            codec="libx264",
            quality=7,
            macro_block_size=1,
            ffmpeg_log_level="error",
            # H.264 needs even sides for players: an odd side grows by one pixel, nothing is rescaled.
            output_params=["-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2"],
        )

    def add(self, frame: Array) -> None:
        self._file.append_data(frame)

    def finish(self) -> None:
        self._file.close()

    def discard(self) -> None:
        self._file.close()


_ENCODERS: Mapping[str, type[_Encoder]] = {".gif": _GifEncoder, ".mp4": _Mp4Encoder}
