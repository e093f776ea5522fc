"""Write frames to a GIF or MP4 file, which appears whole or not at all."""

from __future__ import annotations

import errno
import importlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from marl_sb3.errors import ConfigError, EnvError, path_is_usable
from marl_sb3.types import Array

DEFAULT_FPS = 10.0  # of envs whose metadata has no "render_fps"

OnWritten = Callable[[int, int], None]  # frames that are in the file, and frames in all


class VideoFile:
    """A film in the making: frames go in one by one, `finish` puts the file in its place.

    A context manager: what is not finished when it is left is thrown away.

    Args:
        path: the file; `.gif` repeats for ever, `.mp4` is H.264.

    Attributes:
        path: the file.
        fps: frames per second; it may be set before the first frame.
        num_frames: how many there are so far.

    Raises:
        ConfigError: another kind of file, a path that cannot be written, or a missing package.
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
        _require_writable(self.path)
        if self.path.is_dir():
            raise ConfigError(f"video {str(path)!r} is a folder; accepted: the name of a file", key="video")
        self._make_encoder = _ENCODERS[kind]
        self._make_encoder.require()
        # Beside the file, so that it can be renamed; with its suffix, by which encoders know the format.
        self._unfinished = self.path.with_name(f".{self.path.stem}.{os.getpid()}.unfinished{kind}")
        self._encoder: _Encoder | None = None
        self._size: tuple[int, ...] = ()

    def __enter__(self) -> VideoFile:
        return self

    def __exit__(self, *_: object) -> None:
        if self._encoder is not None:
            self._encoder.discard()
            self._encoder = None
        self._unfinished.unlink(missing_ok=True)

    def add(self, frame: Any) -> None:
        """Add a frame, (height, width, 3) uint8; all of one size.

        Raises:
            EnvError: it is something else.
        """
        if not is_picture(frame):
            raise EnvError(f"render() returned {_outline(frame)}; a video needs an array (height, width, 3) of uint8")
        if self._encoder is None:
            self._size = frame.shape
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._encoder = self._make_encoder(self._unfinished, self.fps, (frame.shape[1], frame.shape[0]))
        if frame.shape != self._size:
            raise EnvError(f"render() returned {_outline(frame)}; the frames before it are {self._size}")
        self._encoder.add(np.ascontiguousarray(frame))
        self.num_frames += 1

    def finish(self, on_written: OnWritten | None = None) -> None:
        """Write what is left to write and give the file its name, in place of any former one.

        Raises:
            EnvError: there is no frame.
        """
        if self._encoder is None:
            raise EnvError("no frame was rendered: there is no video")
        self._encoder.finish(on_written or (lambda written, total: None))
        self._encoder = None
        os.replace(self._unfinished, self.path)


def _require_writable(path: Path) -> None:
    """Refuse a file that cannot be made, before anything is filmed; folders that are missing are made later."""
    with path_is_usable("video: cannot write to", path, "video"):
        there = next(parent for parent in path.absolute().parents if parent.exists())
        if not there.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(there))
        if not os.access(there, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(there))
        with suppress(FileNotFoundError):
            path.lstat()  # whose name may be too long


def is_picture(frame: Any) -> bool:
    """Whether it is an array (height, width, 3) of uint8."""
    return isinstance(frame, np.ndarray) and frame.dtype == np.uint8 and frame.ndim == 3 and frame.shape[2] == 3


def _outline(frame: Any) -> str:
    if isinstance(frame, np.ndarray):
        return f"an array {frame.shape} of {frame.dtype}"
    return "None" if frame is None else f"a {type(frame).__name__}"


class _Encoder(ABC):
    """Writes one file.

    Args:
        path: the file.
        fps: frames per second.
        size_px: width and height.
    """

    @classmethod
    @abstractmethod
    def require(cls) -> None:
        """Raise ConfigError where a package is missing."""

    @abstractmethod
    def __init__(self, path: Path, fps: float, size_px: tuple[int, int]) -> None: ...

    @abstractmethod
    def add(self, frame: Array) -> None:
        """Take a frame, (height, width, 3) uint8."""

    @abstractmethod
    def finish(self, on_written: OnWritten) -> None:
        """Complete the file."""

    @abstractmethod
    def discard(self) -> None:
        """Let go of what is held; the file does not matter any more."""


class _GifEncoder(_Encoder):
    """By Pillow. Frames wait with a palette of 256 colours each, which is exact where a frame has no more."""

    @classmethod
    def require(cls) -> None:
        _required("PIL.Image", "pillow")

    def __init__(self, path: Path, fps: float, size_px: tuple[int, int]) -> None:
        self._path = path
        # The format counts hundredths of a second, and viewers take less than two of them for ten.
        self._frame_ms = max(2, round(100 / fps)) * 10
        self._image = _required("PIL.Image", "pillow")
        self._frames: list[Any] = []

    def add(self, frame: Array) -> None:
        self._frames.append(self._image.fromarray(frame).quantize(256, dither=self._image.Dither.NONE))

    def finish(self, on_written: OnWritten) -> None:
        first, *others = self._frames
        first.save(
            self._path,
            save_all=True,
            append_images=_counted(others, on_written),
            duration=self._frame_ms,
            loop=0,
        )

    def discard(self) -> None:
        self._frames.clear()


def _counted(others: list[Any], on_written: OnWritten) -> Iterator[Any]:
    """All frames but the first, while someone watches how they go."""
    total = len(others) + 1
    for written, frame in enumerate(others, start=1):
        on_written(written, total)
        yield frame
    on_written(total, total)


class _Mp4Encoder(_Encoder):
    """By ffmpeg, which gets every frame at once."""

    @classmethod
    def require(cls) -> None:
        try:
            _required("imageio_ffmpeg", "marl_sb3[video]").get_ffmpeg_exe()
        except RuntimeError as error:  # the package brings ffmpeg itself only for common machines
            raise ConfigError(f"a video of this kind needs ffmpeg: {error}", key="video") from error

    def __init__(self, path: Path, fps: float, size_px: tuple[int, int]) -> None:
        self._total = 0
        self._stream = _required("imageio_ffmpeg", "marl_sb3[video]").write_frames(
            str(path),
            size_px,
            fps=fps,
            codec="libx264",
            quality=7,
            macro_block_size=1,
            ffmpeg_log_level="error",
            # H.264 as players know it has even sides: an odd one grows by a pixel, nothing is rescaled.
            output_params=["-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2"],
        )
        next(self._stream)

    def add(self, frame: Array) -> None:
        self._stream.send(frame)
        self._total += 1

    def finish(self, on_written: OnWritten) -> None:
        self._stream.close()
        on_written(self._total, self._total)

    def discard(self) -> None:
        self._stream.close()


_ENCODERS: Mapping[str, type[_Encoder]] = {".gif": _GifEncoder, ".mp4": _Mp4Encoder}


def _required(module: str, package: str) -> Any:
    """An optional module.

    Raises:
        ConfigError: it is not installed; the message says how to.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"a video of this kind needs {module.partition('.')[0]}; install it with: pip install '{package}'",
            key="video",
        ) from error
