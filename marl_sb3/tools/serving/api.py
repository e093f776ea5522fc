"""The server of a run's policies: `/health`, `/info`, `/predict`, `/weights`, `/openapi.json`, and its metrics."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from gymnasium import spaces
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

import marl_sb3
from marl_sb3.core.acting.asked_agent import AgentInputs, RequestedOutputs
from marl_sb3.core.envs.converted import MASK
from marl_sb3.core.sb3.inference import initial_states
from marl_sb3.core.vec_env.observations import map_arrays
from marl_sb3.runs.run import SavedRun
from marl_sb3.tools.serving.guard import DEFAULT_LIMITS, Limits, Listening, RequestError, json_response, read_message
from marl_sb3.tools.serving.http import Server
from marl_sb3.tools.serving.predictor import Batcher, DecodedRequest, Prediction, Predictor, ServedPolicies
from marl_sb3.tools.serving.spaces_json import decode, describe, encode
from marl_sb3.types import AgentID
from marl_sb3.wrappers.observations import OBSERVATION, choices_of

_log = logging.getLogger(__name__)

_CHUNK_BYTES = 65_536


# --- Messages --------------------------------------------------------------------------------------------------------


class PredictRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A request for actions; everything but `observations` may be left out."""

    observations: dict[str, Any]  # by agent, any of the agents: one observation each, or `batch` of them
    # number of observations of each agent: every array has a leading axis of this length. Without it, there is one,
    # without that axis.
    batch: Annotated[int, msgspec.Meta(ge=1)] | None = None
    deterministic: bool = True  # the most likely actions instead of sampled ones
    action_masks: dict[str, Any] = {}  # by agent: true or 1 where an action is allowed
    states: dict[str, list[Any]] = {}  # by agent, as the previous answer gave them; none at the start of an episode
    episode_starts: dict[str, Any] = {}  # by agent: whether an episode starts here, so that its state is not used
    rewards: dict[str, Any] = {}  # by agent: what it was paid since its previous action, for policies that see it
    return_states: bool = True  # whether the answer has the states of the agents whose policies have memory
    return_values: bool = False  # whether it has the estimated values of the observations
    return_log_probs: bool = False  # whether it has the log-probabilities of the actions


class PredictAnswer(msgspec.Struct):
    """Actions by agent, as the env takes them, and the checkpoint whose policies chose them."""

    checkpoint: str  # its name
    actions: dict[str, Any]  # one for each agent, or `batch` of them
    states: dict[str, list[Any]] | UnsetType = UNSET  # of the agents whose policies have memory, for the next request
    values: dict[str, Any] | UnsetType = UNSET  # if they were asked for; of the rewards that the policy learns from
    log_probs: dict[str, Any] | UnsetType = UNSET  # if they were asked for


class AgentInfo(msgspec.Struct):
    """An agent: the id of its policy, and its spaces."""

    policy: str
    observation_space: dict[str, Any]
    action_space: dict[str, Any]


class PolicyInfo(msgspec.Struct):
    """A policy; `states`: whether it has memory, so that answers have states."""

    algorithm: str
    action_masks: bool
    states: bool


class Info(msgspec.Struct):
    """What is served; `learns` is true for a training that clients step, which has other routes."""

    learns: bool
    version: str
    env: str
    checkpoint: str
    checkpoint_why: str
    env_steps: int
    agents: dict[str, AgentInfo]
    policies: dict[str, PolicyInfo]
    weights_sha256: str
    limits: dict[str, float]
    requests: int
    batches: int


class Health(msgspec.Struct):
    """The server answers."""

    status: str
    checkpoint: str  # empty if the server has a token and the request has not shown it


class Readiness(msgspec.Struct):
    """The server accepts requests; while it does not, the answer is a `Refusal` with the status 503."""

    status: str


class Error(msgspec.Struct, omit_defaults=True):
    """What was wrong with a request, and what is accepted."""

    message: str
    agent: str | None = None
    key: str | None = None
    accepted: str | None = None


class Refusal(msgspec.Struct):
    """The answer to a request that was refused."""

    error: Error


# --- Reading a request -----------------------------------------------------------------------------------------------


def read_request(body: bytes, served: ServedPolicies, limits: Limits) -> tuple[PredictRequest, DecodedRequest]:
    """Read and check the body of a request.

    Raises:
        RequestError, SpaceError: it is no such request; the message names agent, key, and what is accepted.
    """
    request = read_message(body, PredictRequest, "the body is no such request")
    if request.batch is not None and request.batch > limits.batch:
        words = f"batch is {request.batch}; accepted: 1 to {limits.batch}"
        raise RequestError(words, key="batch", accepted=f"1 to {limits.batch}")
    return request, _RequestReader(request, served).read()


_NUMBER, _FLAG = spaces.Box(-np.inf, np.inf, (), np.float32), spaces.MultiBinary(())


@dataclass(frozen=True)
class _RequestReader:
    """Makes arrays of a request, with a leading axis of its rows."""

    request: PredictRequest
    served: ServedPolicies

    def read(self) -> DecodedRequest:
        request = self.request
        self._require_agents("observations", request.observations, self.served.bundle.policy_of)
        if not request.observations:
            accepted = ", ".join(self.served.bundle.policy_of)
            raise RequestError(
                "observations has no agent; accepted: one or more", key="observations", accepted=accepted
            )
        for name in ("action_masks", "states", "episode_starts", "rewards"):
            more = ", those with an observation"
            self._require_agents(name, getattr(request, name), request.observations, more)
        observations, masks, bundle = {}, dict(request.action_masks), self.served.bundle
        for agent, plain in request.observations.items():
            space = bundle.spaces[bundle.policy_of[agent]].observation
            observation, mask = self._parts(agent, space, plain)
            observations[agent] = self._value("observation", space, agent, observation)
            if mask is not None:
                masks.setdefault(agent, mask)

        def arrays(given: Mapping[AgentID, Any], read: Callable[[AgentID, Any], Any]) -> dict[AgentID, Any] | None:
            return {agent: read(agent, plain) for agent, plain in given.items()} or None

        inputs = AgentInputs(
            observations,
            arrays(request.states, self._state),
            arrays(request.episode_starts, lambda *of: self._value("episode start", _FLAG, *of).astype(bool)),
            arrays(masks, self._mask),
            arrays(request.rewards, lambda *of: self._value("reward", _NUMBER, *of)),
        )
        want = RequestedOutputs(
            actions=True,
            deterministic=request.deterministic,
            values=request.return_values,
            log_probs=request.return_log_probs,
        )
        return DecodedRequest(inputs, want, request.batch or 1)

    def _require_agents(self, name: str, given: Iterable[str], agents: Iterable[AgentID], more: str = "") -> None:
        for agent in given:
            if agent not in agents:
                accepted = ", ".join(agents)
                words = f"{name}: unknown agent {agent!r:.100}; accepted: {accepted}{more}"
                raise RequestError(words, key=name, accepted=accepted)

    def _parts(self, agent: AgentID, space: spaces.Space[Any], plain: Any) -> tuple[Any, Any]:
        """Return an observation in the form of its space, and the action mask that is in it, as PettingZoo's have."""
        mask = None
        keys = space.spaces if isinstance(space, spaces.Dict) else ()
        if isinstance(plain, Mapping) and MASK not in keys and set(plain) == {OBSERVATION, MASK}:
            plain, mask = plain[OBSERVATION], plain[MASK]
        if keys and isinstance(plain, (Mapping, list)) and (isinstance(plain, list) or set(plain) != set(keys)):
            plain = dict(_flat(plain, keys))
        return plain, mask if self.served.takes_masks(self.served.bundle.policy_of[agent]) else None

    def _value(self, what: str, space: spaces.Space[Any], agent: AgentID, plain: Any) -> Any:
        """Decode a value, and give it the leading axis where it has none."""
        value = decode(space, plain, f"the {what}", agent=agent, rows=self.request.batch)
        return value if self.request.batch else map_arrays(lambda part: np.asarray(part)[None], value)

    def _mask(self, agent: AgentID, plain: Any) -> Any:
        policy_id = self.served.bundle.policy_of[agent]
        choices = choices_of(self.served.bundle.spaces[policy_id].action)
        if choices is None or not self.served.takes_masks(policy_id):
            words = f"agent {agent!r}: an action mask was given, but its policy takes none; leave the agent out"
            raise RequestError(words, agent=agent, key="action_masks")
        return self._value("action mask", spaces.MultiBinary(sum(choices)), agent, plain).astype(bool)

    def _state(self, agent: AgentID, plain: Any) -> Any:
        bundle, rows = self.served.bundle, self.request.batch or 1
        policy_id = bundle.policy_of[agent]
        fresh = (
            *initial_states(bundle.policies[policy_id], rows),
            *bundle.processing[policy_id].initial(rows).values(),
        )
        if not isinstance(plain, list) or len(plain) != len(fresh):
            accepted = f"{len(fresh)} arrays, as the previous answer had them"
            words = f"agent {agent!r}: the state does not fit its policy {policy_id!r}; accepted: {accepted}"
            raise RequestError(words, agent=agent, key="states", accepted=accepted)
        parts = zip(fresh, plain, strict=True)
        return [decode(_any_of(array), part, "the state", agent=agent) for array, part in parts]


def _any_of(array: Any) -> spaces.Box:
    """A space of all arrays of this shape and type."""
    if array.dtype.kind == "f":
        return spaces.Box(-np.inf, np.inf, array.shape, array.dtype.type)
    low, high = (0, 1) if array.dtype.kind == "b" else (np.iinfo(array.dtype).min, np.iinfo(array.dtype).max)
    return spaces.Box(low, high, array.shape, array.dtype.type)


def _flat(plain: Any, keys: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the parts of a nested observation by their flat names, as `flat_space` has them."""
    if path in keys or not isinstance(plain, (Mapping, list)):
        yield path, plain
        return
    for key, part in plain.items() if isinstance(plain, Mapping) else enumerate(plain):
        yield from _flat(part, keys, f"{path}/{key}" if path else str(key))


# --- Writing an answer -----------------------------------------------------------------------------------------------


def answer_of(request: PredictRequest, served: ServedPolicies, predicted: Prediction) -> PredictAnswer:
    """Return an answer as plain data; without `batch`, without the leading axis."""
    bundle = served.bundle

    def plain(by_agent: Mapping[AgentID, Any]) -> dict[str, Any]:
        return {agent: value.tolist() if request.batch else value[0].tolist() for agent, value in by_agent.items()}

    answered, answer = predicted.answer, PredictAnswer(predicted.checkpoint, {})
    for agent, actions in answered.actions.items():
        encoded = encode(bundle.spaces[bundle.policy_of[agent]].action, actions)
        answer.actions[agent] = encoded if request.batch else encoded[0]
    if answered.state and request.return_states:
        answer.states = {agent: [part.tolist() for part in state] for agent, state in answered.state.items()}
    if request.return_values:
        answer.values = plain(answered.values)
    if request.return_log_probs:
        answer.log_probs = plain(answered.log_probs)
    return answer


# --- The routes ------------------------------------------------------------------------------------------------------


class Api:
    """The routes of a server of policies, and what works in the background while it serves.

    Args:
        predictor: answers the requests.
        limits: of a request.
        reload_s: time between two looks for a newer checkpoint, in seconds; 0: none.
        say: gets a line about what happens, such as a newer checkpoint.
        settled: is called once, in a thread, when the policies have been loaded and all that was to be imported is.
        replaced: is called in a thread when newer policies have replaced others.
        max_rows: see `Batcher`.
    """

    def __init__(
        self,
        predictor: Predictor,
        limits: Limits,
        *,
        reload_s: float = 5.0,
        say: Callable[[str], None] = _log.info,
        settled: Callable[[], object] = lambda: None,
        replaced: Callable[[], object] = lambda: None,
        max_rows: int = 4096,
    ) -> None:
        self._predictor = predictor
        self._limits = limits
        self._reload_s = reload_s
        self._say = say
        self._settled, self._replaced = settled, replaced
        self._batcher: Batcher[DecodedRequest, Prediction] = Batcher(
            predictor.answer, lambda asked: asked.rows * len(asked.inputs.observations), max_rows
        )

    def server(self, listening: Listening, more: Sequence[BaseRoute] = (), public: Sequence[str] = ()) -> Server:
        """Return a server with these routes and `more`, of which the paths `public` need no token."""
        routes = [
            Route("/health", self._health),
            Route("/info", self._info),
            Route("/predict", self._predict, methods=["POST"]),
            Route("/weights", self._weights),
            Route("/openapi.json", self._openapi),
            *more,
        ]
        return Server(
            routes,
            listening,
            self._limits,
            public=public,
            lifespan=self.lifespan,
            measured=lambda: [*self._batcher.families(), *self._predictor.families()],
            unready=self._unready,
        )

    def _unready(self, request: Request) -> str | None:
        """With `/ready?newest`, policies that are older than those asked for do not count."""
        is_old = "newest" in request.query_params and self._predictor.failing
        return "the newest checkpoint cannot be loaded; the log of the server says why" if is_old else None

    async def _health(self, request: Request) -> Response:
        return json_response(Health("ok", self._predictor.served.checkpoint if request.scope["is_trusted"] else ""))

    async def _info(self, _: Request) -> Response:
        served = self._predictor.served
        bundle, limits = served.bundle, msgspec.to_builtins(self._limits)
        policies = {
            policy_id: PolicyInfo(
                algorithm=type(policy).__name__,
                action_masks=served.takes_masks(policy_id),
                states=served.has_memory(policy_id),
            )
            for policy_id, policy in bundle.policies.items()
        }
        described = {
            policy_id: AgentInfo(policy_id, describe(own.observation), describe(own.action))
            for policy_id, own in bundle.spaces.items()
        }
        content = Info(
            learns=False,
            version=marl_sb3.__version__,
            env=self._predictor.env,
            checkpoint=served.checkpoint,
            checkpoint_why=bundle.checkpoint_why,
            env_steps=served.env_steps,
            agents={agent: described[policy_id] for agent, policy_id in bundle.policy_of.items()},
            policies=policies,
            weights_sha256=served.weights_sha256,
            limits=limits,
            requests=self._batcher.requests,
            batches=self._batcher.batches,
        )
        return json_response(content)

    async def _predict(self, request: Request) -> Response:
        served = self._predictor.served
        read, asked = read_request(await request.body(), served, self._limits)
        return json_response(answer_of(read, served, await self._batcher.submit(asked)))

    async def _weights(self, request: Request) -> Response:
        """Answer with the policies as a safetensors file; with 304 if the client has them."""
        served = self._predictor.served
        headers = {"etag": f'"{served.weights_sha256}"', "x-checkpoint": served.checkpoint}
        if headers["etag"] in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        headers["content-length"] = str(len(served.weights))
        return StreamingResponse(_chunks(served.weights), headers=headers, media_type="application/octet-stream")

    async def _openapi(self, _: Request) -> Response:
        return json_response(openapi())

    # --- In the background -------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def lifespan(self, _: Any) -> AsyncIterator[None]:
        """Look for newer checkpoints while the app serves."""
        working = asyncio.create_task(self._work())
        try:
            yield
        finally:
            working.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await working

    async def _work(self) -> None:
        await asyncio.to_thread(self._settled)
        while self._reload_s:
            await asyncio.sleep(self._reload_s)
            await asyncio.to_thread(self._reload)

    def _reload(self) -> None:
        if self._predictor.reload():
            served = self._predictor.served
            self._say(f"serving {served.checkpoint}, of {served.env_steps:,} env steps")
            self._replaced()


async def _chunks(data: bytes) -> AsyncIterator[bytes]:
    """Cut data into pieces: each of them has its own time to be read by the client."""
    for first in range(0, len(data), _CHUNK_BYTES):
        yield data[first : first + _CHUNK_BYTES]


def policy_server(
    run_folder: str | Path,
    checkpoint: str | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    token: str | None = None,
    tls_cert: Path | None = None,
    tls_key: Path | None = None,
    limits: Limits = DEFAULT_LIMITS,
    reload_s: float = 5.0,
) -> Server:
    """Make a server of the policies of a run; a thread of this process serves within its context.

    Args:
        run_folder: of the run, or a folder of runs, for the newest of them.
        checkpoint: best, latest or the number of an iteration; None: see `CheckpointFolder.load`.
        host: see `Listening`, as for `port`, `token`, `tls_cert` and `tls_key`.
        limits: of requests.
        reload_s: see `Api`.

    Raises:
        ConfigError: it is not a run folder, the port is taken, or others can reach the host without a token.
        CheckpointError: there is no such checkpoint, or it is damaged.
    """
    listening = Listening(host, port, token, tls_cert, tls_key)
    predictor = Predictor(SavedRun.open(run_folder, makes_env=False), checkpoint)
    return Api(predictor, limits, reload_s=reload_s).server(listening)


# --- OpenAPI ---------------------------------------------------------------------------------------------------------

_SCHEMAS = "#/components/schemas/"
_PATHS: Mapping[str, tuple[str, str, Any]] = {  # path -> method, summary, what is answered: JSON of a type, or another
    "/health": ("get", "Whether the process is alive", Health),
    "/ready": ("get", "Whether it accepts requests; 503: it is ending", Readiness),
    "/metrics": ("get", "Metrics in Prometheus's text format", {"text/plain": {"schema": {"type": "string"}}}),
    "/info": ("get", "Policies, agents, spaces, checkpoint, limits", Info),
    "/predict": ("post", "Actions for observations", PredictAnswer),
    "/weights": (
        "get",
        "The policies as a safetensors file; the ETag is its SHA-256",
        {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    ),
    "/openapi.json": ("get", "This description", {"application/json": {"schema": {"type": "object"}}}),
}


def openapi() -> dict[str, Any]:
    """Return the description of the routes in OpenAPI 3.1."""
    answers = [answer for *_, answer in _PATHS.values() if not isinstance(answer, dict)]
    _, components = msgspec.json.schema_components(
        [PredictRequest, Refusal, *answers], ref_template=_SCHEMAS + "{name}"
    )
    return {
        "openapi": "3.1.0",
        "info": {"title": "marl_sb3", "version": marl_sb3.__version__},
        "components": {"schemas": components, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{"token": []}, {}],
        "paths": {path: {method: _operation(path, *rest)} for path, (method, *rest) in _PATHS.items()},
    }


def _operation(path: str, summary: str, answer: Any) -> dict[str, Any]:
    responses: dict[str, Any] = {
        "200": {"description": summary, "content": answer if isinstance(answer, dict) else _json_of(answer)},
        "default": {"description": "The request was refused", "content": _json_of(Refusal)},
    }
    asked = {"requestBody": {"required": True, "content": _json_of(PredictRequest)}} if path == "/predict" else {}
    return {"summary": summary, "operationId": path.strip("/").partition(".")[0], **asked, "responses": responses}


def _json_of(struct: type[msgspec.Struct]) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": _SCHEMAS + struct.__name__}}}
