"""Addresses on the Hub: only the data of a run comes down, to where nothing is changed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from stand_in_hub import Repo, StandInHub, run_files, served

import marl_sb3
from marl_sb3.errors import ConfigError
from marl_sb3.evaluation.opponents import is_code
from marl_sb3.extensions import hub
from marl_sb3.extensions.transfer.initial_weights import parse_init_from
from marl_sb3.results.reading import find_runs
from marl_sb3.runs.folder import find_run, find_run_or_env, run_around
from marl_sb3.runs.rivals import rival_of
from marl_sb3.runs.run import SavedRun
from marl_sb3.runs.settings import load_config
from marl_sb3.runs.start import resolve

# huggingface_hub 2.4 sends large files without Xet in a way that its httpx2 calls old.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandInHub]:
    with served(tmp_path / "home", monkeypatch) as server:
        yield server


@pytest.fixture
def files(run_folder: Path) -> dict[str, bytes]:
    """Those of a run with one checkpoint, as a push leaves them."""
    every = run_files(run_folder)
    newest = max(name for name in every if name.startswith("checkpoints/")).split("/")[1]
    kept = ("config.yaml", "result.jsonl")
    return {name: content for name, content in every.items() if name in kept or f"/{newest}/" in name}


def repo_of(stand_in: StandInHub, files: dict[str, bytes], name: str = "me/arena") -> str:
    """Put files into a repo; returns the commit."""
    return stand_in.repos.setdefault(name, Repo()).commit("main", files)


@pytest.mark.parametrize(
    ("text", "repo", "revision"),
    [
        ("hf:me/arena", "me/arena", None),
        ("hf:me/arena@v1.2", "me/arena", "v1.2"),
        ("hf:my-lab/a_b.c@refs/pr/3", "my-lab/a_b.c", "refs/pr/3"),
    ],
)
def test_addresses(text: str, repo: str, revision: str | None) -> None:
    assert hub.parse_address(text) == hub.parse_address(Path(text)) == (repo, revision)
    assert str(hub.parse_address(text)) == text


@pytest.mark.parametrize(
    "text", ["hf:", "hf:me", "hf:me/a/b", "hf:../x", "hf:me/..", "hf:me/a@", "hf:me/a@../b", "hf:/me/a", "hf:me/a?b"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="no address of a run on the Hub; accepted: hf:OWNER/NAME"):
        marl_sb3.load_policies(text)


def test_all_that_take_a_run_take_an_address(stand_in: StandInHub, files: dict[str, bytes]) -> None:
    commit = repo_of(stand_in, files)
    folder = find_run("hf:me/arena")
    assert (folder.name, hub.pinned("hf:me/arena@main")) == (commit, f"hf:me/arena@{commit}")
    assert find_run_or_env("hf:me/arena") == folder
    assert run_around("hf:me/arena") is None
    run = SavedRun.open("hf:me/arena")
    assert rival_of("hf:me/arena", run).name == "hf:me/arena"
    assert not is_code("hf:me/arena")  # of a league's opponents, `MODULE:CLASS` is
    loaded = marl_sb3.load_run("hf:me/arena")
    assert len(loaded.results) == 4
    assert find_runs("hf:me/arena") == [folder]  # of plots, comparisons and reports
    loaded.close()


def test_a_source_of_weights_may_be_an_address(stand_in: StandInHub, files: dict[str, bytes], tmp_path: Path) -> None:
    source = parse_init_from("pol1=hf:me/arena@v1:shared")
    assert (source.path, source.policy_id, source.source_id) == (Path("hf:me/arena@v1"), "pol1", "shared")
    assert str(source) == "pol1=hf:me/arena@v1:shared"
    commit = repo_of(stand_in, files)
    settings = {"n_steps": 20, "batch_size": 40, "init_from": ["hf:me/arena"]}
    run = marl_sb3.train("arena", timesteps=20, n_envs=1, settings=settings, run_dir=tmp_path / "run")
    assert run.config.init_from == [f"hf:me/arena@{commit}"]  # another training from it takes the same weights


def test_an_opponent_of_a_league_may_be_an_address(stand_in: StandInHub, files: dict[str, bytes]) -> None:
    commit = repo_of(stand_in, files)
    settings = {"league.snapshot_every": 1, "league.opponents": ["hf:me/arena", "random"]}
    resolved = resolve(load_config("arena", settings=settings, n_envs=1, seed=1))
    assert resolved.league.opponents == [f"hf:me/arena@{commit}", "random"]  # a resumed run has the same one


def test_a_commit_is_downloaded_once_and_needs_no_network_then(
    stand_in: StandInHub, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = repo_of(stand_in, files)
    folder = hub.local_folder("hf:me/arena")
    stand_in.asked.clear()
    assert hub.local_folder("hf:me/arena") == folder
    assert [asked for asked in stand_in.asked if "/resolve/" in asked] == []
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    assert hub.local_folder(f"hf:me/arena@{commit}") == folder
    with pytest.raises(ConfigError, match=r"hf:me/arena: the Hub cannot be asked: .*refused"):
        hub.local_folder("hf:me/arena")


def test_a_new_commit_is_another_folder(stand_in: StandInHub, files: dict[str, bytes]) -> None:
    repo_of(stand_in, files)
    former = hub.local_folder("hf:me/arena")
    repo_of(stand_in, {**files, "README.md": b"new"})
    newer = hub.local_folder("hf:me/arena")
    assert newer != former
    assert [(folder / "README.md").exists() for folder in (former, newer)] == [False, True]


# --- What comes down --------------------------------------------------------------------------------------------------

HOSTILE = [
    "evil.pkl",
    "policies/shared.zip",
    "../outside.json",
    "checkpoints/ckpt-000001/../../../outside.json",
    "checkpoints/ckpt-000001/pytorch_model.bin",
    "/etc/state.json",
    "config.yaml\n",
    "sub/config.yaml",
    ".git/config",
    "code.py",
]


def test_only_the_data_of_a_run_is_downloaded(stand_in: StandInHub, files: dict[str, bytes], tmp_path: Path) -> None:
    repo_of(stand_in, files | dict.fromkeys(HOSTILE, b"evil"))
    folder = hub.local_folder("hf:me/arena")
    assert run_files(folder) == files
    asked = {line.partition("/resolve/")[2].partition("/")[2] for line in stand_in.asked if "/resolve/" in line}
    assert asked == {*files}
    assert {path.name for path in (tmp_path / "home" / "marl_sb3").rglob("*") if path.is_file()} == {
        *(name.rpartition("/")[2] for name in files),
        ".from_hub",
        ".lock",
    }


@pytest.mark.parametrize("name", ["ppo.zip", "pytorch_model.bin", "weights.pt", "agent.pkl"])
def test_a_repo_of_pickles_is_refused_in_words(stand_in: StandInHub, name: str) -> None:
    repo_of(stand_in, {"README.md": b"", name: b"evil"})
    with pytest.raises(ConfigError, match=f"no run of marl_sb3.*'{name}', which may hold pickles, and these are never"):
        marl_sb3.load_policies("hf:me/arena")
    assert [asked for asked in stand_in.asked if "/resolve/" in asked] == []


def test_a_run_without_checkpoints_is_refused(stand_in: StandInHub, files: dict[str, bytes]) -> None:
    repo_of(stand_in, {"config.yaml": files["config.yaml"]})
    with pytest.raises(ConfigError, match=r"no run of marl_sb3: config.yaml, and checkpoints as JSON and safetensors;"):
        hub.local_folder("hf:me/arena")


def test_too_much_is_refused_before_any_of_it_is_downloaded(
    stand_in: StandInHub, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    repo_of(stand_in, files)
    monkeypatch.setattr(hub, "_MOST_BYTES", 1000)
    with pytest.raises(ConfigError, match=r"has \d+ bytes; accepted: at most 1000"):
        hub.local_folder("hf:me/arena")
    monkeypatch.setattr(hub, "_MOST_FILES", 3)
    with pytest.raises(ConfigError, match=r"has \d files; accepted: at most 3"):
        hub.local_folder("hf:me/arena")
    assert [asked for asked in stand_in.asked if "/resolve/" in asked] == []


@pytest.mark.parametrize("size", ["x", -5, 1.5, True, [1]])
def test_sizes_that_are_none_are_refused(size: Any, files: dict[str, bytes]) -> None:
    listed = [(name, len(content)) for name, content in files.items()]
    wrong = [(name, size if name.endswith("state.json") else own) for name, own in listed]
    with pytest.raises(ConfigError, match=r"the Hub lists .*state\.json with the size .*; accepted: a number of bytes"):
        hub._files_of(hub.parse_address("hf:me/arena"), wrong)
    odd: list[tuple[Any, Any]] = [(5, 1), (["config.yaml"], 1), (None, "x"), ("../config.yaml", -1)]
    assert hub._files_of(hub.parse_address("hf:me/arena"), [*odd, *listed]) == dict(listed)


def test_a_file_of_another_size_than_listed_is_refused(
    stand_in: StandInHub, files: dict[str, bytes], tmp_path: Path
) -> None:
    repo_of(stand_in, files)
    stand_in.sent = lambda path, content: content + b" " if path.endswith("state.json") else content
    with pytest.raises(ConfigError, match=r"state.json did not come with the \d+ bytes that the Hub lists"):
        hub.local_folder("hf:me/arena")
    assert [path.name for path in (tmp_path / "home" / "marl_sb3" / "me--arena").iterdir() if path.is_dir()] == []


def test_a_changed_file_is_found_by_the_manifest(stand_in: StandInHub, files: dict[str, bytes]) -> None:
    (name,) = (name for name in files if name.endswith("policy-000.safetensors"))
    changed = bytearray(files[name])
    changed[-1] ^= 1
    repo_of(stand_in, {**files, name: bytes(changed)})
    with pytest.raises(marl_sb3.CheckpointError, match=r"policy-000.safetensors is damaged"):
        marl_sb3.load_policies("hf:me/arena", checkpoint=name.split("/")[1])


def test_no_env_is_imported_because_a_repo_names_it(stand_in: StandInHub, files: dict[str, bytes]) -> None:
    config = files["config.yaml"].replace(b"arena:", b"evil_module:factory:", 1)
    repo_of(stand_in, {**files, "config.yaml": config})
    with pytest.raises(ConfigError, match="evil_module:factory"):
        SavedRun.open("hf:me/arena")
    assert marl_sb3.load_policies("hf:me/arena").policies  # needs no env


def test_a_copy_of_a_run_is_not_trained_on(stand_in: StandInHub, files: dict[str, bytes]) -> None:
    repo_of(stand_in, files)
    for run in ("hf:me/arena", hub.local_folder("hf:me/arena")):
        with pytest.raises(
            ConfigError, match="is a copy of a run on the Hub, which is not written to; accepted: a copy"
        ):
            marl_sb3.train(resume=run)
    with pytest.raises(ConfigError, match="hf:me/arena is on the Hub, where algorithms are not saved"):
        marl_sb3.load_run("hf:me/arena").algorithm.save("hf:me/arena")


# --- What the Hub refuses ---------------------------------------------------------------------------------------------


def test_what_is_not_there_or_not_yours_is_said_in_words(
    stand_in: StandInHub, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    repo_of(stand_in, files)
    stand_in.repos["me/secret"] = Repo(private=True)
    repo_of(stand_in, files, "me/secret")
    assert hub.local_folder("hf:me/secret").is_dir()
    monkeypatch.setenv("HF_TOKEN", "hf_ofsomebodyelse")
    for name in ("me/secret", "me/nothing"):
        with pytest.raises(
            ConfigError, match=f"hf:{name}: there is no such repo, or it is not yours to use; .*HF_TOKEN"
        ):
            hub.local_folder(f"hf:{name}")
    with pytest.raises(ConfigError, match="hf:me/arena@v9: the repo has no such revision"):
        hub.local_folder("hf:me/arena@v9")


def test_the_extra_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marl_sb3.startup.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"needs huggingface_hub, which is not installed; install it with: .*\[hub\]"):
        marl_sb3.load_policies("hf:me/arena")


# --- Up ---------------------------------------------------------------------------------------------------------------


def written(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def test_a_push_is_one_commit_that_replaces_the_run_and_leaves_other_files(
    stand_in: StandInHub, files: dict[str, bytes], tmp_path: Path
) -> None:
    notes = {"notes.md": b"mine", ".gitattributes": b""}
    repo_of(stand_in, {"checkpoints/ckpt-000001/manifest.json": b"{}", "replay.gif": b"old", **notes})
    address = hub.push(written(tmp_path / "folder", files), "me/arena", "better")
    repo = stand_in.repos["me/arena"]
    assert (repo.messages, address) == (["", "better"], ("me/arena", repo.branches["main"]))
    assert repo.commits[repo.branches["main"]] == {**files, **notes}
    assert run_files(hub.local_folder(str(address))) == files


def test_a_push_to_a_branch_leaves_main(stand_in: StandInHub, files: dict[str, bytes], tmp_path: Path) -> None:
    folder = written(tmp_path / "folder", files)
    for message in ("first", "second"):  # the branch is made, then it is there
        (folder / "README.md").write_text(f"---\n{{}}\n---\n{message}")
        hub.push(folder, "me/arena", message, revision="tries")
    assert "config.yaml" not in stand_in.repos["me/arena"].commits[stand_in.repos["me/arena"].branches["main"]]
    assert (hub.local_folder("hf:me/arena@tries") / "README.md").read_text().endswith("second")


def test_what_is_to_be_private_is_not_pushed_to_a_public_repo(
    stand_in: StandInHub, files: dict[str, bytes], tmp_path: Path
) -> None:
    folder = written(tmp_path / "folder", files)
    hub.push(folder, "me/new", "new", private=True)
    assert stand_in.repos["me/new"].private
    repo_of(stand_in, {})
    with pytest.raises(
        ConfigError, match="me/arena exists and is public; accepted: without --private, or another repo"
    ):
        hub.push(folder, "me/arena", "new", private=True)
    assert len(stand_in.repos["me/arena"].commits) == 1


def test_a_push_without_a_token_that_may_write_is_refused(
    stand_in: StandInHub, files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_ofsomebodyelse")
    with pytest.raises(ConfigError, match=r"me/arena: there is no such repo, or it is not yours.*hf auth login"):
        hub.push(written(tmp_path / "folder", files), "me/arena", "new")
    assert json.dumps(stand_in.asked).count("commit") == 0
