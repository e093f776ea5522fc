"""Videos: the frames that went in come out, and a file is there whole or not at all."""

from __future__ import annotations

import errno
import sys
from pathlib import Path
from typing import Any

import imageio_ffmpeg
import numpy as np
import pytest
from films import frames_of_gif, frames_of_mp4
from PIL import Image

from marl_sb3.errors import ConfigError, EnvError
from marl_sb3.extensions.display.video import VideoFile


def picture(number: int, height: int = 16, width: int = 24) -> np.ndarray:
    """A grey ground and a square at a place of its own."""
    frame = np.full((height, width, 3), 200, dtype=np.uint8)
    frame[4:12, number : number + 8] = (250, 30, 30)
    return frame


def write(path: Path, frames: list[np.ndarray], fps: float = 10) -> VideoFile:
    with VideoFile(path) as video:
        video.fps = fps
        for frame in frames:
            video.add(frame)
        video.finish()
    return video


def test_gif_has_the_very_frames_and_repeats(tmp_path: Path) -> None:
    frames = [picture(number) for number in range(5)]
    video = write(tmp_path / "film.GIF", frames)
    found, durations_ms = frames_of_gif(video.path)
    assert np.array_equal(found, frames)
    assert durations_ms == [100] * 5
    assert video.num_frames == 5
    with Image.open(video.path) as image:
        assert image.info["loop"] == 0


def test_gif_stores_what_changes_between_frames(tmp_path: Path) -> None:
    ground = np.random.default_rng(0).integers(0, 6, (128, 128, 3)).astype(np.uint8) * 50  # 216 colours
    frames = [ground.copy() for _ in range(40)]
    for number, frame in enumerate(frames):
        frame[8:16, number : number + 8] = (250, 0, 0)
    write(tmp_path / "one.gif", frames[:1])
    write(tmp_path / "all.gif", frames)
    found = frames_of_gif(tmp_path / "all.gif")[0]
    assert np.array_equal(found, frames)
    assert (tmp_path / "all.gif").stat().st_size < 3 * (tmp_path / "one.gif").stat().st_size


def test_gif_has_colours_that_appear_later(tmp_path: Path) -> None:
    frames = [picture(0), np.full_like(picture(0), (0, 60, 250)), picture(1)]
    write(tmp_path / "film.gif", frames)
    assert np.array_equal(frames_of_gif(tmp_path / "film.gif")[0], frames)


def test_gif_of_many_colours_shows_what_is_dim_and_appears_later(tmp_path: Path) -> None:
    first = np.zeros((64, 64, 3), dtype=np.uint8)
    first[:32] = np.random.default_rng(0).integers(60, 256, (32, 64, 3))
    second = first.copy()
    second[40:48, 8:16] = 45
    write(tmp_path / "film.gif", [first, second])
    (_, found), _ = frames_of_gif(tmp_path / "film.gif")
    assert np.abs(found[40:48, 8:16].astype(int) - 45).max() < 20
    assert found[50:, 20:].max() < 20


@pytest.mark.parametrize(("fps", "frame_ms"), [(5, 200), (30, 30), (50, 20), (60, 20), (1000, 20)])
def test_gif_shows_frames_as_long_as_the_format_can(tmp_path: Path, fps: float, frame_ms: int) -> None:
    write(tmp_path / "film.gif", [picture(0), picture(1)], fps)
    assert frames_of_gif(tmp_path / "film.gif")[1] == [frame_ms] * 2


def test_frames_that_do_not_change_last_as_long_as_others(tmp_path: Path) -> None:
    write(tmp_path / "film.gif", [picture(0)] * 3 + [picture(1)])
    assert sum(frames_of_gif(tmp_path / "film.gif")[1]) == 400


def test_a_film_on_a_full_disk_is_named_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("PIL.Image.Image.save", no_space)
    with pytest.raises(OSError, match=r"No space left on device: .*film\.gif"):
        write(tmp_path / "film.gif", [picture(0)])
    monkeypatch.undo()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("height", "width"), [(16, 24), (17, 25)])
def test_mp4_has_the_frames_and_even_sides(tmp_path: Path, height: int, width: int) -> None:
    frames = [picture(number, height, width) for number in range(7)]
    frames.append(picture(7, height, width)[:, ::-1])  # a view: not in one piece
    write(tmp_path / "film.MP4", frames, fps=12.5)
    found, about = frames_of_mp4(tmp_path / "film.MP4")
    assert "12.50 fps" in about
    assert "yuv420p" in about  # what every player takes
    assert np.shape(found) == (8, height + height % 2, width + width % 2, 3)
    for frame, expected in zip(found, frames, strict=True):
        inner = frame[:height, :width].astype(int)
        assert np.abs(inner - expected).mean() < 12  # colours have half the resolution


@pytest.mark.parametrize("name", ["film.gif", "film.mp4"])
def test_what_is_not_finished_leaves_the_former_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text("former")
    with VideoFile(path) as video:
        video.add(picture(0))
    assert path.read_text() == "former"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["film.gif", "film.mp4"])
def test_a_finished_file_takes_the_place_of_the_former_one(tmp_path: Path, name: str) -> None:
    path = tmp_path / "new" / "folder" / name
    write(path, [picture(0)])
    write(path, [picture(0), picture(1)])
    assert len((frames_of_gif if name.endswith("gif") else frames_of_mp4)(path)[0]) == 2
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("name", ["film.webm", "film", "film.gif.zip", ".gif"])
def test_other_kinds_of_files_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"the file's name ends in '.*'; accepted: gif, mp4"):
        VideoFile(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "film.gif").mkdir()
    with pytest.raises(ConfigError, match="is a folder; accepted: the name of a file"):
        VideoFile(tmp_path / "film.gif")


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(
        ConfigError, match=r"needs imageio_ffmpeg; install it with: pip install -c constr.* '\.\[video\]'"
    ):
        VideoFile(tmp_path / "film.mp4")
    write(tmp_path / "film.gif", [picture(0)])  # needs no extra


def test_a_machine_without_ffmpeg_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_found() -> str:
        raise RuntimeError("No ffmpeg exe could be found.")

    monkeypatch.setattr(imageio_ffmpeg, "get_ffmpeg_exe", none_found)
    with pytest.raises(ConfigError, match="needs ffmpeg: No ffmpeg exe could be found"):
        VideoFile(tmp_path / "film.mp4")


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (None, "render.. returned None; a video needs an array"),
        ("text", "returned a str; a video needs"),
        (np.zeros((4, 4, 4), np.uint8), r"returned an array \(4, 4, 4\) of uint8"),
        (np.zeros((4, 4, 3)), r"returned an array \(4, 4, 3\) of float64"),
    ],
)
def test_what_is_no_picture_is_refused(tmp_path: Path, frame: Any, message: str) -> None:
    with pytest.raises(EnvError, match=message), VideoFile(tmp_path / "film.gif") as video:
        video.add(frame)


@pytest.mark.parametrize("name", ["film.gif", "film.mp4"])
def test_frames_of_another_size_and_no_frames_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(EnvError, match=r"an array \(18, 24, 3\) of uint8; the frames before it are \(16, 24, 3\)"):
        write(tmp_path / name, [picture(0), picture(0, height=18)])
    with pytest.raises(EnvError, match="there is no video"):
        write(tmp_path / name, [])
    assert list(tmp_path.iterdir()) == []
