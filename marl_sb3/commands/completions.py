"""`python -m marl_sb3.completions`: a script with which a shell completes the command line of `marl-sb3`."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from marl_sb3.cli import COMMANDS, EXIT_DONE, CommandParser, Verbosity, command, command_named
from marl_sb3.output import print_text
from marl_sb3.startup import require_extra

_EPILOG = """\
The shell then completes commands, options, algorithms, settings after --set,
env ids, files and folders. The script has the names of what is installed now:
write it again after an update, and after installing envs.

examples
  marl-sb3 completions bash > ~/.marl-sb3.bash
  marl-sb3 completions zsh > ~/.zfunc/_marl-sb3
  marl-sb3 completions fish > ~/.config/fish/completions/marl-sb3.fish

~/.bashrc then needs: source ~/.marl-sb3.bash
In zsh, a folder such as ~/.zfunc has to be in fpath before compinit is called.

exit codes: 0 written, 2 wrong command line, or the extra is not installed
"""

Shell = Literal["bash", "zsh", "fish"]

# Settings that end with = are followed by their value, not by a space; fish knows that by itself.
_NO_SPACE = """
_marl_sb3_complete() {
  _shtab_marl_sb3 "$@"
  if [[ ${COMPREPLY[0]} == *= ]]; then compopt -o nospace 2>/dev/null; fi
}
complete -o bashdefault -F _marl_sb3_complete marl-sb3
"""


@command("completions SHELL [options]", "Print a script for your shell that completes command lines.", _EPILOG)
def main(
    shell: Annotated[Shell, "SHELL", "bash, zsh or fish"],
    *,
    verbosity: Verbosity,
) -> int:
    """Print the script; returns the exit code."""
    require_extra("completions", "completions")
    import shtab

    parser = CommandParser("marl-sb3", "COMMAND ...")
    parser_of: Any = lambda prog: command_named(prog.strip()).parser()  # noqa: E731 - in the place of a class
    commands = parser.add_subparsers(prog="", parser_class=parser_of)
    values = _values(shtab.FILE, shtab.DIRECTORY)
    for name in COMMANDS:
        of_command = commands.add_parser(name, help=command_named(name).description)
        for action in of_command.options:
            shown = "--algo" if "--algo" in action.option_strings else action.metavar
            if shown in values:
                action.complete = values[shown]  # where shtab looks
    print_text(shtab.complete(parser, shell=shell) + (_NO_SPACE if shell == "bash" else ""))
    return EXIT_DONE


def _values(file: Any, folder: Any) -> Mapping[Any, Any]:
    """Return how values are completed, by what help texts call them."""
    from marl_sb3.extensions.fast.builtin import ALGORITHMS

    envs, settings = _words("envs", _env_ids()), _words("settings", _settings(), "-S ''")
    return {
        "ENV": envs,
        "--algo": _words("algorithms", ALGORITHMS),
        **dict.fromkeys(("KEY=VALUE", "KEY=A,B,C"), settings),
        "FILE": file,
        **dict.fromkeys(("DIR", "RUN", "RUN|ENV", "RUN|FOLDER", "A B", "DATA"), folder),
    }


def _words(name: str, words: Iterable[str], in_zsh: str = "") -> Mapping[str, Any]:
    """Return how shtab completes one of these words: by a function of the script, which many options share.

    Args:
        in_zsh: options of zsh's `compadd`.
    """
    function, text = f"_marl_sb3_{name}", " ".join(words)
    definitions = {
        "bash": f"{function}() {{\n  compgen -W '{text}' -- \"$1\"\n}}",
        "zsh": f"{function}() {{\n  compadd {in_zsh} -- {text}\n}}",
        "fish": f"function {function}\n  string split ' ' '{text}'\nend",
    }
    return {"bash": function, "zsh": function, "fish": f"({function})", "preamble": definitions}


def _env_ids() -> list[str]:
    import gymnasium
    import pettingzoo

    import marl_sb3.envs  # noqa: F401 - hangs at the doors
    from marl_sb3.doors import ENV_FINDERS

    own = {env_id for finder in ENV_FINDERS for env_id in finder.known_ids()}
    return sorted({*own, *pettingzoo.parallel_registry, *pettingzoo.aec_registry, *gymnasium.registry})


def _settings() -> list[str]:
    """Return all that stands before a value of `--set`, with the equals sign."""
    from dataclasses import fields

    from marl_sb3.extensions.fast.builtin import ALGORITHMS
    from marl_sb3.runs.schema import SECTIONS, TrainConfig

    names = {each.name for each in fields(TrainConfig) if each.compare} - {"env", "hyperparameters", *SECTIONS}
    in_sections = {f"{name}.{each.name}" for name, section in SECTIONS.items() for each in fields(section)}
    of_algorithms = {name for info in ALGORITHMS.values() for name in info.kinds}
    return [f"{name}=" for name in sorted(names | in_sections | of_algorithms)]
