"""Files are read, replaced and removed by `marl_sb3.files`; whoever does it another way has a reason in a table."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest
from documentation import ROOT

PACKAGE = ROOT / "marl_sb3"
OF_PATHS = {"read_text", "read_bytes", "write_text", "write_bytes", "touch"}  # they follow links, or wait for pipes
REMOVING = {"unlink", "rmdir", "rmtree", "rename", "symlink_to", "hardlink_to", "copytree", "copyfile"}
OF_MODULES = {
    "json": {"load", "loads"},
    "msgspec.json": {"decode"},
    "yaml": {"load", "safe_load"},
    "pickle": {"load", "loads"},
    "np": {"load", "loadtxt", "genfromtxt"},
    "th": {"load"},
    "h5py": {"File"},
    "zipfile": {"ZipFile"},
    "Image": {"open"},
    "os": {"open", "remove", "replace", "rename", "removedirs"},
    "shutil": {"move", "copy", "copy2"},
}
NAMES = {"open", "FileIO", "safe_open", "in_place_of"}
OTHERS = ("systems.py", "compiling.py", "linking.py")  # what they read and write is of the user's own cache

# Module -> call -> why it is not one of `marl_sb3.files`.
KNOWN = {
    "envs/compiled/originals.py": dict.fromkeys(
        ("Path(str(made.__file__)).read_bytes", "file.read_bytes"), "the source of a module that is imported"
    ),
    "evaluation/session.py": {"self.films.pop(next(iter(self.films))).unlink": "a film of this process"},
    "extensions/data/dataset.py": {"json.loads": "what `read_bytes` has read; `damage_named` around it"},
    "extensions/data/episode_files.py": {
        "h5py.File": "an open regular file",
        "Image.open": "bytes of an array, as JPEG alone",
    },
    "extensions/data/store.py": {
        "json.loads": "what `read_regular` has read; `damage_named` around it, or after it",
        "h5py.File": "in memory; a file of `require_own`, or none",
        "path.write_bytes": "in a folder or a file of `replaced_folder` or `replaced_file`",
        "(fresh / MAIN).unlink": "in a folder of `replaced_folder`",
        "path.unlink": "a shard by its name, in a dataset of `require_own`",
    },
    "extensions/dialects/table.py": {
        **dict.fromkeys(("json.loads", "Path(__file__).with_name('names.json').read_text"), "a file of the package")
    },
    "extensions/display/page.py": {"(files(__package__) / name).read_text": "a file of the package"},
    "extensions/display/video.py": {"self._unfinished.unlink": "a temporary name"},
    "extensions/hub.py": {"(runs / _FROM_HUB).touch": "of the user's own cache"},
    "extensions/remote/processes/messages.py": {"pickle.loads": "of a parent or a child process"},
    "extensions/remote/processes/serve.py": {"pickle.loads": "of a parent process"},
    "extensions/remote/processes/worker.py": {"pickle.loads": "of a child process"},
    "extensions/remote/shard.py": {"pickle.loads": "of a parent process"},
    "extensions/remote/workers/steps.py": {"pickle.loads": "of a child process"},
    "extensions/remote/workers/vec_env.py": {"pickle.loads": "of a child process"},
    "extensions/store/checkpoint_format.py": {
        "os.open": "makes a file that is not there, in a folder of `replaced_folder`",
        "json.loads": "what `read_bytes` has read; CheckpointError for all that it raises",
    },
    "extensions/store/tensor_file.py": {"safe_open": "a file that `opened` holds"},
    "extensions/transfer/export.py": {
        **dict.fromkeys(("path.write_bytes", "path.read_bytes"), "in a `temporary_folder`"),
        **dict.fromkeys(("in_place_of", "target.with_suffix(suffix).unlink"), "with --force, or free"),
    },
    "extensions/transfer/sb3_files.py": {
        **dict.fromkeys(("pickle.loads", "path.read_bytes"), "with --trust-pickle or unpickle_vec_normalize alone"),
        **dict.fromkeys(("zipfile.ZipFile", "th.load"), "with --trust-pickle alone, and tensors alone"),
        "zip_path.with_suffix('.processing.json').write_text": "in a temporary folder",
    },
    "output.py": {"open": "os.devnull"},
    "results/exchange.py": {"json.loads": "what `read_regular` has read; ConfigError for all that it raises"},
    "results/health.py": {
        **dict.fromkeys(("json.loads", "Path(__file__).with_suffix('.json').read_text"), "a file of the package")
    },
    "results/result_log.py": {"json.loads": "what `read_regular` has read; ConfigError for all that it raises"},
    "runs/imitate.py": {"json.loads": "what `read_regular` has read; ConfigError for all that it raises"},
    "runs/jobs.py": {"run.log.unlink": "a log in a folder that was empty at first"},
    "runs/logs.py": {"fresh.write_text": "a file of `replaced_file`"},
    "runs/trackers.py": {"shutil.copy": "to a folder that the tracker has just made"},
    "runs/tracking.py": {"msgspec.json.decode": "what `read_regular` has read; ConfigError for all that it raises"},
    "signals.py": {"os.open": "os.devnull"},
    "tools/benchmarking/plan.py": {"training.failure_file.unlink": "a regular file, by `require_own`"},
    "tools/benchmarking/working.py": {
        "claim.open": "makes a file that is not there",
        **dict.fromkeys(("file.unlink", "each.unlink"), "by names of ours"),
    },
    "tools/viewing/matching.py": {"msgspec.json.decode": "what `read_regular` has read; ConfigError for all it raises"},
    "tools/viewing/report.py": {"yaml.safe_load": "text of this process"},
    "tools/serving/client.py": {"json.loads": "an answer of the server that the user has named"},
    "tools/serving/guard.py": {"msgspec.json.decode": "a body within its limits; refused for all that it raises"},
    "tools/scaffolding/__init__.py": {
        "(_TEMPLATES / f'{kind}{template}').read_text": "a file of the package",
        "(folder / file).write_text": "in a folder that this call has made",
    },
    "tools/tuning/population.py": {"shutil.copytree": "to a folder of `replaced_folder`; links stay links"},
    "tools/tuning/ray.py": {"zipfile.ZipFile": "of a process of the user's own cluster"},
    "tools/tuning/space.py": {"json.loads": "a value of settings; any error leaves it as it is"},
}


def uses(source: str) -> Iterator[str]:
    """Yield what is called to read, write or remove a file by other means than those of `marl_sb3.files`."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in NAMES:
                if not any(each.arg == "opener" for each in node.keywords):
                    yield name
            case ast.Call(func=ast.Attribute(value=owner, attr=name) as called):
                module = ast.unparse(owner)
                is_opened = (
                    name == "open"
                    and not module[0].isupper()
                    and any(map(_is_mode, [*node.args, *(each.value for each in node.keywords)]))
                )
                if name in OF_PATHS | REMOVING or name in OF_MODULES.get(module, ()) or is_opened:
                    yield ast.unparse(called)


def _is_mode(argument: ast.expr) -> bool:
    return "mode" in ast.unparse(argument) or isinstance(argument, ast.Constant)


def test_files_are_read_replaced_and_removed_by_one_room() -> None:
    found: dict[str, set[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if not name.startswith("files/") and name not in OTHERS:
            found[name] = set(uses(path.read_text(encoding="utf-8")))
    assert {name: calls for name, calls in found.items() if calls} == {name: {*calls} for name, calls in KNOWN.items()}


@pytest.mark.parametrize(
    "call",
    [
        *("path.read_text", "(folder / name).unlink", "shutil.rmtree", "json.loads", "open", "os.replace", "np.load"),
        "path.open",
    ],
)
def test_such_a_call_is_found(call: str) -> None:
    assert list(uses(f"{call}('r')")) == [call]
    assert list(uses("open(path, opener=open_regular); read_regular(path); recorder.open(algorithm)")) == []
