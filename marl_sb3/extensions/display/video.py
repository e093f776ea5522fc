"""Write a video as GIF by Pillow or as MP4 by imageio, atomically."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from marl_sb3.errors import ConfigError, EnvError, install_words
from marl_sb3.extensions.display.filmed_env import is_picture
from marl_sb3.files.atomic import unfinished_path, with_filename
from marl_sb3.files.paths import path_is_usable
from marl_sb3.systems import replace
from marl_sb3.types import Array

if TYPE_CHECKING:
    from PIL.Image import Image

DEFAULT_FPS = 10.0  # for envs without "render_fps" in their metadata

_GIF_COLOURS = 255  # the 256th stands for "as in the frame before"
# In a frame of more colours: the share of pixels whose red, green or blue may be further off than so much of 255.
_TOLERATED = {16: 5e-3, 32: 1e-4}


class VideoFile:
    """A video that is being written: `add` takes frames one by one, `finish` puts the file in its place.

    As a context manager, it discards the video on exit unless `finish` was called.

    Args:
        path: the file; `.gif` repeats forever, `.mp4` is H.264.

    Raises:
        ConfigError: the path has another suffix or cannot be written, or a package is missing.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.fps = DEFAULT_FPS  # frames per second; may be set before the first frame
        self.num_frames = 0  # how many frames were added
        kind = self.path.suffix.lower()
        if kind not in _ENCODERS:
            accepted = ", ".join(name.lstrip(".") for name in _ENCODERS)
            raise ConfigError(
                f"video {str(path)!r}: the file's name ends in {kind!r}; accepted: {accepted}", key="video"
            )
        self._unfinished = unfinished_path(self.path)
        _require_writable(self.path)
        if kind == ".mp4":
            _require_ffmpeg()
        self._encoder: Any = None
        self._size: tuple[int, ...] = ()

    def __enter__(self) -> VideoFile:
        return self

    def __exit__(self, *_: object) -> None:
        if self._encoder is not None and not isinstance(self._encoder, _GifEncoder):
            with suppress(OSError):  # of a full disk, which has been raised before
                self._encoder.close()
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
            self._unfinished.unlink(missing_ok=True)  # encoders would follow a link that a stranger has put there
            self._encoder = _ENCODERS[self.path.suffix.lower()](self._unfinished, self.fps)
        if frame.shape != self._size:
            raise EnvError(f"render() returned {_outline(frame)}; the frames before it are {self._size}")
        with with_filename(self.path):
            self._encoder.append_data(frame)
        self.num_frames += 1

    def finish(self) -> None:
        """Encode the frames that are left and replace the file at `path`."""
        if self._encoder is None:
            raise EnvError("no frame was rendered: there is no video")
        with with_filename(self.path):
            self._encoder.close()
        replace(self._unfinished, self.path)
        self._encoder = None


def write_film(path: Path, frames: Array) -> None:
    """Write a video of pictures, (T, height, width, 3) uint8; or leave the file that was there.

    Raises:
        EnvError: the pictures are something else.
    """
    with VideoFile(path) as video:
        for frame in frames:
            video.add(frame)
        video.finish()


def _require_writable(path: Path) -> None:
    """Refuse a path that cannot be written before anything is rendered; missing folders are made later."""
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


class _GifEncoder:
    """Keeps frames of one byte per pixel until `close` writes the file; its methods are those of imageio's writers.

    A frame has the palette of the frame before it if that shows it truly: between frames of one palette, only what
    changes is written.
    """

    def __init__(self, path: Path, fps: float) -> None:
        self._path = path
        self._frames: list[Image] = []
        self._palette: Image | None = None
        # GIF counts time in hundredths of a second, and players show frames of less than 20 ms for 100 ms.
        self._frame_ms = max(2, round(100 / fps)) * 10

    def append_data(self, frame: Array) -> None:
        from PIL import Image

        picture = Image.fromarray(frame)
        if self._palette is not None:
            drawn = picture.quantize(palette=self._palette, dither=Image.Dither.NONE)
            if _is_true(drawn, frame, exactly=picture.getcolors(_GIF_COLOURS) is not None):
                self._frames.append(drawn)
                return
        self._palette = picture.quantize(_GIF_COLOURS)
        self._frames.append(self._palette)

    def close(self) -> None:
        first, *others = self._frames
        options = {"append_images": others, "duration": self._frame_ms, "loop": 0}
        first.save(self._path, "GIF", save_all=True, **options)


def _is_true(drawn: Image, frame: Array, exactly: bool) -> bool:
    errors = np.abs(np.asarray(drawn.convert("RGB"), np.int16) - frame)
    tolerated = {0: 0.0} if exactly else _TOLERATED
    return all((errors > limit).any(axis=-1).mean() <= share for limit, share in tolerated.items())


def _mp4_encoder(path: Path, fps: float) -> Any:
    """Return what passes each frame to an ffmpeg process at once."""
    import imageio.v2 as imageio

    return imageio.get_writer(
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


_ENCODERS: Mapping[str, Callable[[Path, float], Any]] = {".gif": _GifEncoder, ".mp4": _mp4_encoder}
