"""Who is answered: tokens, hosts, pages of other servers, bodies, and what errors say."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from echo_server import CERTIFICATE, error_of, served
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from marl_sb3.errors import ConfigError
from marl_sb3.tools.serving.guard import is_loopback, served_hosts

TOKEN = "0123456789abcdef"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with served() as server:
        yield server.address


@pytest.fixture(scope="module")
def guarded() -> Iterator[str]:
    with served(TOKEN, public=["/page"]) as server:
        yield server.address


# --- Tokens ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": f"Bearer {TOKEN}"}, 200),
        ({"Authorization": f"bearer {TOKEN}"}, 200),
        ({"Authorization": f"Bearer {TOKEN}x"}, 401),
        ({"Authorization": "Bearer \xe4"}, 401),
        ({"Authorization": f"Basic {TOKEN}"}, 401),
    ],
)
def test_requests_show_their_token(guarded: str, headers: dict[str, str], status: int) -> None:
    encoded = {name: value.encode("latin-1") for name, value in headers.items()}
    assert httpx.get(f"{guarded}/echo", headers=encoded).status_code == status
    assert httpx.get(f"{guarded}/echo?token={TOKEN}").status_code == 401  # addresses end up in logs


def test_a_refusal_says_what_is_accepted(guarded: str) -> None:
    response = httpx.get(f"{guarded}/echo")
    assert error_of(response) == "a token is missing; accepted: Authorization: Bearer TOKEN"
    assert response.headers["www-authenticate"] == "Bearer"


def test_public_paths_need_no_token(guarded: str) -> None:
    assert httpx.get(f"{guarded}/page").status_code == 200
    assert httpx.get(f"{guarded}/page/more").status_code == 401


@pytest.mark.parametrize("token", ["", "short", "with space in it", "x" * 201, "täglich-neu"])
def test_weak_tokens_are_refused(token: str) -> None:
    with pytest.raises(ConfigError, match="accepted: 8 to 200 letters"):
        served(token)


def test_websockets_show_their_token_as_browsers_can(guarded: str) -> None:
    url = guarded.replace("http", "ws") + "/talk"
    with connect(f"{url}?token={TOKEN}") as websocket:
        websocket.send("hello")
        assert websocket.recv() == "hello"
    with connect(url, subprotocols=["marl-sb3", f"token.{TOKEN}"]) as websocket:  # type: ignore[list-item]
        assert websocket.subprotocol == "marl-sb3"
    for wrong in (url, f"{url}?token=wrong", f"{url}?other={TOKEN}"):
        with pytest.raises(InvalidStatus) as refused:
            connect(wrong)
        assert refused.value.response.status_code == 401


# --- Foreign pages ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:80", "127.0.0.1:1", "[::1]:8000"])
def test_own_names_are_served(address: str, host: str) -> None:
    assert httpx.get(f"{address}/echo", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(("host", "status"), [("evil.example", 403), ("localhost.evil.example:80", 403), ("a b", 400)])
def test_other_names_are_refused(address: str, host: str, status: int) -> None:
    response = httpx.get(f"{address}/echo", headers={"Host": host})
    assert response.status_code == status
    with pytest.raises(InvalidStatus) as refused:
        connect(address.replace("http", "ws") + "/talk", additional_headers={"Host": host})
    assert refused.value.response.status_code == 400  # websockets adds its own Host: there are two


def test_pages_of_other_servers_are_refused(address: str) -> None:
    own, foreign = {"Origin": address}, {"Origin": "http://evil.example"}
    assert httpx.post(f"{address}/echo", headers=own).status_code == 200
    for headers in (foreign, {"Origin": "null"}, {"Origin": f"{address}0"}):
        for method in ("POST", "PUT", "PATCH", "DELETE"):  # whatever the route takes
            assert httpx.request(method, f"{address}/echo", headers=headers).status_code == 403
    websocket = address.replace("http", "ws") + "/talk"
    with connect(websocket, origin=address):  # type: ignore[arg-type]
        pass
    with pytest.raises(InvalidStatus):
        connect(websocket, origin="http://evil.example")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
def test_what_a_foreign_page_may_post_without_asking_is_refused(address: str, kind: str) -> None:
    """For these types of content, browsers do not ask the server before they send a request."""
    asked = {"Content-Type": kind, "Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site"}
    for left_out in ((), ("Sec-Fetch-Site",), ("Origin",)):  # by old browsers; by those that are set to send none
        headers = {name: value for name, value in asked.items() if name not in left_out}
        assert httpx.post(f"{address}/echo", content=b"{}", headers=headers).status_code == 403
    neighbour = {"Content-Type": kind, "Sec-Fetch-Site": "same-site"}  # another port of this machine
    assert httpx.post(f"{address}/echo", content=b"{}", headers=neighbour).status_code == 403
    for site in ("same-origin", "none"):
        assert httpx.post(f"{address}/echo", headers={"Content-Type": kind, "Sec-Fetch-Site": site}).status_code == 200
    assert httpx.get(f"{address}/page", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 200  # a link


def test_a_page_of_the_same_name_without_tls_is_foreign_to_a_server_with_it(address: str, tmp_path: Path) -> None:
    certificate = tmp_path / "both.pem"
    certificate.write_text(CERTIFICATE)
    assert httpx.post(f"{address}/echo", headers={"Origin": address.replace("http", "https")}).status_code == 200
    assert httpx.post(f"{address}/echo", headers={"Origin": address.replace("http", "ftp")}).status_code == 403
    with served(tls=certificate) as server:
        verify = ssl.create_default_context(cafile=certificate)
        for scheme, status in (("https", 200), ("http", 403)):
            headers = {"Origin": f"{scheme}://{server.address.partition('://')[2]}"}
            assert httpx.post(f"{server.address}/echo", headers=headers, verify=verify).status_code == status


def test_only_a_server_with_a_token_is_served_by_any_name() -> None:
    assert served_hosts("0.0.0.0") == ("*",)
    assert served_hosts("127.0.0.2") == ("localhost", "127.0.0.1", "[::1]", "127.0.0.2")
    assert [is_loopback(host) for host in ("localhost", "::1", "127.1.2.3", "0.0.0.0", "10.0.0.1", "here")] == [
        *[True] * 3,
        *[False] * 3,
    ]


# --- Bodies ----------------------------------------------------------------------------------------------------------


def test_bodies_are_read_to_their_limit(address: str) -> None:
    assert httpx.post(f"{address}/echo", content=b"x" * 1000).json() == {"bytes": 1000}
    declared = httpx.post(f"{address}/echo", content=b"x" * 1001)
    assert (declared.status_code, error_of(declared)) == (413, "the body has 1001 bytes; accepted: at most 1000")
    in_chunks = httpx.post(f"{address}/echo", content=iter([b"x" * 600] * 2))
    assert in_chunks.status_code == 413


# --- Errors ----------------------------------------------------------------------------------------------------------


def test_errors_are_json(address: str) -> None:
    assert httpx.get(f"{address}/fail?how=config").json() == {"error": {"message": "x is 1; accepted: 2", "key": "x"}}
    refused = httpx.get(f"{address}/fail?how=request")
    assert (refused.status_code, refused.json()) == (413, {"error": {"message": "too much", "agent": "a"}})
    assert error_of(httpx.get(f"{address}/nowhere")) == "there is no /nowhere"
    wrong = httpx.put(f"{address}/echo")
    assert wrong.status_code == 405
    assert "PUT is not accepted here; accepted: " in error_of(wrong)


def test_an_unexpected_error_tells_the_client_nothing(address: str, caplog: pytest.LogCaptureFixture) -> None:
    response = httpx.get(f"{address}/fail")
    assert (response.status_code, error_of(response)) == (500, "the server failed; its log says why")
    assert "/fail failed: KeyError: 'secret'" in caplog.text
