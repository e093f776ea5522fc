"""Frames of GIF and MP4 files, for tests of films."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import imageio_ffmpeg
import numpy as np
from PIL import Image


def frames_of_gif(path: Path) -> tuple[list[np.ndarray], list[int]]:
    """The frames and how long each is shown, in milliseconds."""
    frames, durations_ms = [], []
    with Image.open(path) as image:
        for number in range(image.n_frames):
            image.seek(number)
            frames.append(np.asarray(image.convert("RGB")))
            durations_ms.append(image.info["duration"])
    return frames, durations_ms


def frames_of_mp4(path: Path) -> tuple[list[np.ndarray], str]:
    """The frames, and what ffmpeg says of the file."""
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-i", str(path), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    done = subprocess.run(command, capture_output=True, check=True)
    about = done.stderr.decode()
    width, height = (int(side) for side in re.findall(r"Video: h264.*?, (\d+)x(\d+)", about)[0])
    return list(np.frombuffer(done.stdout, np.uint8).reshape(-1, height, width, 3)), about
