"""`python -m marl_sb3.serve`: serve the policies of a run over HTTP."""

import gc
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from marl_sb3 import cli
from marl_sb3.core.config.values import Count, PositiveInt
from marl_sb3.errors import ConfigError
from marl_sb3.output import print_text
from marl_sb3.startup import require_extra, without_collections

if TYPE_CHECKING:
    from marl_sb3.runs.run import SavedRun
    from marl_sb3.tools.serving.api import Api
    from marl_sb3.tools.serving.guard import Limits

PORT = 8000

_EPILOG = """\
GET  /health        that the process is alive
GET  /ready         whether it accepts requests: 503 while it is ending
GET  /metrics       metrics in Prometheus's text format
GET  /info          policies, agents, spaces, checkpoint, limits
POST /predict       {"observations": {AGENT: ...}} -> {"actions": {AGENT: ...}}
GET  /weights       the policies as a safetensors file
GET  /openapi.json  all of this, and the fields of /predict
GET  /              with --ui: a page that shows episodes, and lets you play

The address is printed when the server answers. Ctrl-C and SIGTERM end it after
the requests in flight. Clients on other machines need a token, except for
/health and /ready, and should use TLS: without it, others in the network can
read the token.

examples
  python -m marl_sb3.serve runs/arena
  python -m marl_sb3.serve runs/arena --ui
  python -m marl_sb3.serve runs/a --ui --against runs/b --against mine:Minimax
  python -m marl_sb3.serve runs/arena --port 0 --checkpoint latest
  MARL_SB3_TOKEN=... python -m marl_sb3.serve runs/arena --host 0.0.0.0 \\
      --tls-cert cert.pem --tls-key key.pem

exit codes: 1 failed, 2 wrong command line or run, 130 ended by a signal
"""


@cli.record
class ServeOptions:
    """What `serve` takes."""

    run: Annotated[str, cli.RUN]
    checkpoint: Annotated[str | None, cli.CHECKPOINT]
    server: Annotated[cli.ServerOptions, {"default": str(PORT)}]
    reload_s: Annotated[
        float, Meta(ge=0), "--reload-s S", "seconds between checks for a newer checkpoint, 0 for none; default: 5"
    ] = 5.0
    ui: Annotated[
        bool, "--ui", "also a page for browsers that plays episodes, in which you may act for any agent; default: off"
    ]
    against: Annotated[
        Sequence[str],
        "--against WHO",
        "with --ui: an opponent that the page offers, besides the members of the run's league and its "
        "checkpoints: a run, a checkpoint, a member of a league, a player of the package such as minimax2, or "
        "MODULE:CLASS of yours; may be repeated; default: no more opponents",
    ]
    search: Annotated[Count, "--search N", f"with --ui: {cli.SEARCH[1]}"] = 0
    max_body: Annotated[
        int, Meta(ge=1000), cli.Section("limits"), "--max-body BYTES", "size of a request; default: 8000000"
    ] = 8_000_000
    max_batch: Annotated[PositiveInt, "--max-batch N", "observations of an agent in a request; default: 1024"] = 1024
    timeout_s: Annotated[
        float, Meta(ge=0.1, le=3600), "--timeout-s S", "seconds for a request to arrive; default: 10"
    ] = 10.0
    max_connections: Annotated[PositiveInt, "--max-connections N", "connections at a time; default: 256"] = 256
    drain_s: Annotated[
        float,
        Meta(ge=0, le=3600),
        "--drain-s S",
        "seconds for which requests are still answered after SIGTERM, while /ready answers 503; default: 0",
    ] = 0.0
    verify: Annotated[Path | None, cli.VERIFY, cli.Section("other options")]
    env: cli.OfRunForLog


@cli.command("serve RUN [options]", "Serve the policies of a run over HTTP.", _EPILOG)
def main(options: ServeOptions) -> int:
    """Serve until a signal; returns the exit code."""
    require_extra("serve", "serve")
    for option, given in (("--against", options.against), ("--search", options.search)):
        if given and not options.ui:
            raise ConfigError(f"{option} is for the page; accepted: with --ui", key=option)
    settings = options.server.settings(PORT)
    from marl_sb3.tools.serving.guard import Limits, Listening

    listening = Listening(**settings)
    limits = Limits(options.max_body, options.max_batch, options.timeout_s, options.max_connections)
    folder = cli.found_run(options.run, options.verify)
    with without_collections():  # the imports take seconds: wrong options are refused before
        from marl_sb3.runs.rivals import rival_of
        from marl_sb3.runs.run import SavedRun

        run = SavedRun.open(folder, options.env.named(), makes_env=options.ui)
        named = options.env.named()
        rivals = [rival_of(who, run, named, cli.verified_rival(who, options.verify)) for who in options.against]
    api = _api(options, run, limits)
    if options.ui:
        from marl_sb3.tools.serving.ui import PAGE_FILES, ui_routes

        server = api.server(listening, ui_routes(run, rivals, options.search), [*PAGE_FILES])
    else:
        server = api.server(listening)
    what = "page and policies" if options.ui else "serving"
    server.run(lambda address: print_text(f"{what} on {address}"), options.drain_s)
    return cli.EXIT_DONE


def _api(options: ServeOptions, run: "SavedRun", limits: "Limits") -> "Api":
    """Load the policies, and say which."""
    with without_collections():
        from marl_sb3.tools.serving.api import Api
        from marl_sb3.tools.serving.predictor import Predictor

        predictor = Predictor(run, options.checkpoint)
    served = predictor.served
    print_text(f"{run.files.shown}, {served.checkpoint}, of {served.env_steps:,} env steps")
    if served.bundle.checkpoint_why:
        print_text(served.bundle.checkpoint_why)
    return Api(
        predictor,
        limits,
        reload_s=options.reload_s,
        say=print_text,
        settled=_without_scans,
        replaced=gc.collect,
    )


def _without_scans() -> None:
    """Exempt all present objects from garbage collections: one of all imports stops requests for a third of a second.

    The first policies are exempt as well, and stay. Those that replace them are not, and are freed when newer ones
    have replaced them; there is little else then that a collection looks through.
    """
    gc.collect()
    gc.freeze()
