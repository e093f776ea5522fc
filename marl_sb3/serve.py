"""`python -m marl_sb3.serve`: serve the policies of a run over HTTP."""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from marl_sb3.cli import (
    EXIT_DONE,
    CommandParser,
    add_env_option,
    add_run,
    add_server_options,
    add_verbosity,
    found_run,
    integer,
    named_env,
    server_settings,
)
from marl_sb3.startup import without_collections

if TYPE_CHECKING:
    from marl_sb3.runs import SavedRun
    from marl_sb3.tools.serving.api import Api
    from marl_sb3.tools.serving.http import Limits

# --- The command line ------------------------------------------------------------------------------------------------

PORT = 8000

_EPILOG = """\
GET  /health        whether the server answers
GET  /info          policies, agents, spaces, checkpoint, limits
POST /predict       {"observations": {AGENT: ...}} -> {"actions": {AGENT: ...}}
GET  /weights       the policies as a safetensors file
GET  /openapi.json  all of this, and the fields of /predict
GET  /              with --ui: a page that shows episodes, and lets you play

The address is printed when the server answers. Ctrl-C and SIGTERM end it after
the requests in flight. Clients on other machines need a token, and should get
TLS: otherwise the token can be read on its way.

examples
  python -m marl_sb3.serve runs/arena
  python -m marl_sb3.serve runs/arena --ui
  python -m marl_sb3.serve runs/arena --port 0 --checkpoint latest
  MARL_SB3_TOKEN=... python -m marl_sb3.serve runs/arena --host 0.0.0.0 \\
      --tls-cert cert.pem --tls-key key.pem

exit codes: 1 failed, 2 wrong command line or run, 130 ended by a signal
"""


def build_parser() -> CommandParser:
    """Make the parser of `serve`."""
    parser = CommandParser(
        "python -m marl_sb3.serve",
        "RUN [options]",
        description="Serve the policies of a run over HTTP.",
        epilog=_EPILOG,
    )
    add_run(parser)
    add_server_options(parser, PORT)
    parser.option(
        "--reload-s S", "seconds between looks for a newer checkpoint, 0 for none; default: 5", type=float, default=5.0
    )
    parser.option(
        "--backend",
        "what computes actions; auto: ONNX Runtime where it can and is faster; default: auto",
        choices=["auto", "onnx", "torch"],
        default="auto",
    )
    parser.option(
        "--ui", "also a page for browsers that plays episodes, in which you may act for any agent; default: off"
    )
    parser.section("limits")
    parser.option("--max-body BYTES", "size of a request; default: 8000000", type=integer, default=8_000_000)
    parser.option("--max-batch N", "observations of an agent in a request; default: 1024", type=integer, default=1024)
    parser.option("--timeout-s S", "seconds for a request to arrive; default: 10", type=float, default=10.0)
    parser.option("--max-connections N", "connections at a time; default: 256", type=integer, default=256)
    parser.section("other options")
    add_env_option(parser, also_positional=False, makes_env=False)
    add_verbosity(parser)
    return parser


# --- The command -----------------------------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return build_parser().run(_serve, argv)


def _serve(arguments: argparse.Namespace) -> int:
    from marl_sb3.tools.serving import require_extra

    require_extra("serve")
    listening = server_settings(arguments, PORT)
    limits = _limits(arguments)
    from marl_sb3.tools.serving.http import make_app, require_token, run_server, served_hosts

    require_token(listening["host"], listening["token"])
    run = _run(arguments)
    api = _api(arguments, run, limits)
    hosts = served_hosts(listening["host"])
    routes, public = api.routes(), list[str]()
    if arguments.ui:
        from marl_sb3.tools.serving.ui import PAGE_FILES, ui_routes

        routes, public = [*routes, *ui_routes(run)], [*PAGE_FILES]
    app = make_app(
        routes, token=listening.pop("token"), hosts=hosts, limits=limits, public=public, lifespan=api.lifespan
    )
    what = "page and policies" if arguments.ui else "serving"
    run_server(app, **listening, limits=limits, on_started=lambda address: print(f"{what} on {address}", flush=True))
    return EXIT_DONE


def _limits(arguments: argparse.Namespace) -> Limits:
    """Return the limits that the options say.

    Raises:
        ConfigError: a number is not accepted.
    """
    from msgspec import Meta

    from marl_sb3.core.config import at_least, require

    kinds: dict[str, Any] = {
        "reload_s": Annotated[float, Meta(ge=0)],
        "timeout_s": Annotated[float, Meta(ge=0.1, le=3600)],
        "max_body": at_least(1000),
        "max_batch": at_least(1),
        "max_connections": at_least(1),
    }
    for name, kind in kinds.items():
        require(f"--{name.replace('_', '-')}", getattr(arguments, name), kind)
    from marl_sb3.tools.serving.http import Limits

    return Limits(arguments.max_body, arguments.max_batch, arguments.timeout_s, arguments.max_connections)


def _run(arguments: argparse.Namespace) -> SavedRun:
    folder = found_run(arguments.run)
    with without_collections():  # the imports take seconds: wrong options are refused before
        from marl_sb3.runs import SavedRun

        return SavedRun.open(folder, named_env(arguments), makes_env=arguments.ui)


def _api(arguments: argparse.Namespace, run: SavedRun, limits: Limits) -> Api:
    """Load the policies, and say which."""
    with without_collections():
        from marl_sb3.tools.serving.api import Api
        from marl_sb3.tools.serving.predictor import Predictor

        env = named_env(arguments)
        options = [] if env is None else ["--env", env]
        options += [text for module in arguments.imports for text in ("--import", module)]
        predictor = Predictor(run, arguments.checkpoint, options)
    served = predictor.served
    print(f"{run.files.shown}, {served.checkpoint}, of {served.env_steps:,} env steps", flush=True)
    if served.bundle.checkpoint_why:
        print(served.bundle.checkpoint_why, flush=True)
    return Api(
        predictor,
        limits,
        reload_s=arguments.reload_s,
        backend=arguments.backend,
        say=lambda line: print(line, flush=True),
        settled=_without_scans,
    )


def _without_scans() -> None:
    """Free what a newer checkpoint has replaced, and exempt the rest from collections: they would stop all requests."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    sys.exit(main())
