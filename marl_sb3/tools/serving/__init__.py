"""Policies over HTTP: what every server of the package needs, and the server of a run's policies.

    http          an app with its guards (token, host, origin, limits), and the server it runs in
    spaces_json   observations and actions of Gymnasium spaces as JSON
    api           the routes of `serve RUN`: requests with their checks, answers, OpenAPI
    batching      requests that arrive together are answered together
    predictor     the policies of a run: newer checkpoints, PyTorch or ONNX Runtime
    weights       policies as one safetensors file, and back
    ui            `serve --ui`: the page, and the stage on which a game is played in it
    external      the routes of `train --external`
    client        `PolicyClient`

Starlette and uvicorn are imported by this layer alone, and only where something is served.
"""

from __future__ import annotations

from importlib.util import find_spec

from marl_sb3.errors import ConfigError, install_words

_NEEDED = {"serve": ("starlette", "uvicorn", "websockets"), "onnx": ("onnx", "onnxruntime", "onnxscript")}


def require_extra(what: str, extra: str = "serve") -> None:
    """Refuse to go on without the packages of an extra.

    Args:
        what: what needs them, for the message.

    Raises:
        ConfigError: one of them is not installed; the message says how to install it.
    """
    missing = [name for name in _NEEDED[extra] if find_spec(name) is None]
    if missing:
        words = f"{what} needs {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed"
        raise ConfigError(f"{words}; {install_words(extra)}")
