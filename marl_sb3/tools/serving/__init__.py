"""Policies over HTTP: what every server of the package needs, and the server of a run's policies.

    guard         who is answered: token, host, origin, bodies; what refusals say
    http          a server behind its guard: connections, times, its end, and whether it is ready
    metrics       what servers count, in Prometheus's text format
    spaces_json   observations and actions of Gymnasium spaces as JSON
    api           the routes of `serve RUN`: requests with their checks, answers, OpenAPI
    predictor     the policies of a run: newer checkpoints, one answer for requests together
    weights       policies as one safetensors file, and back
    ui            `serve --ui`: the page, and the stage on which a game is played in it
    external      the routes of `train --external`
    client        `PolicyClient`

Starlette and uvicorn are imported by this layer alone, and only where something is served.
"""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
