"""The function that `token_provider` names is imported, called and judged before there is a client; authorities for the token endpoint."""

import re
import ssl
import sys

import pytest

from include.config import tokens
from include.config.tokens import NoToken, ProviderRefused, with_tokens
from tests.helpers import token_functions

HERE = re.escape(f"by {sys.executable} on ")
FUNCTIONS = "tests.helpers.token_functions"


def settings(name, **more):
    return {"bootstrap.servers": "b:1", "token_provider": name, **more}


def test_the_callback_takes_the_place_of_the_name(monkeypatch):
    asked = []

    def provide(config):
        asked.append(config)
        return f"token {len(asked)}", tokens.time.time() + 60, "me", {"team": "calls"}

    monkeypatch.setattr(token_functions, "from_server", provide)
    ready = with_tokens(settings(f"{FUNCTIONS}.from_server") | {"sasl.oauthbearer.config": "place"})
    assert asked == ["place"] and ready.keys() == {"bootstrap.servers", "sasl.oauthbearer.config", "oauth_cb"}
    # The token that was judged is the first that the client gets.
    assert [ready["oauth_cb"]("place")[0] for _ in range(3)] == ["token 1", "token 2", "token 3"]
    assert ready["oauth_cb"]("place")[2:] == ("me", {"team": "calls"})


@pytest.mark.parametrize(
    ("name", "line"),
    [
        (
            "no_such_company.kafka.token",
            f"cannot be imported {HERE}.*ModuleNotFoundError: No module named 'no_such_company'",
        ),
        (f"{FUNCTIONS}.no_such_function", f"cannot be imported {HERE}.*AttributeError: .*no_such_function"),
        ("token", f"cannot be imported {HERE}"),
        (f"{FUNCTIONS}.not_a_function", f"is no function {HERE}"),
        (f"{FUNCTIONS}.only_the_token", f"returned str {HERE}.*: it must return"),
        (f"{FUNCTIONS}.swapped", r"returned \(float, str\) "),
        (f"{FUNCTIONS}.empty", "returned an empty token "),
        (f"{FUNCTIONS}.expired", r"returned an expiry of \d+, which is past "),
        (f"{FUNCTIONS}.in_milliseconds", r"returned an expiry of \d+, which is no time in seconds "),
    ],
)
def test_a_provider_that_cannot_work_is_named_with_what_and_where(name, line):
    with pytest.raises(ProviderRefused, match=f"^token_provider {re.escape(name)} of kafka_default {line}") as refused:
        with_tokens(settings(name))
    assert "nobody-may-see" not in str(refused.value) and "\n" not in str(refused.value)


def test_a_provider_that_raises_may_work_later_and_its_secrets_are_not_said():
    given = settings(f"{FUNCTIONS}.raises") | {"sasl.oauthbearer.config": "hunter2"}
    line = f"failed {HERE}.*\\(PermissionError: the server does not know …\\): does it find its credentials"
    with pytest.raises(NoToken, match=line) as failed:
        with_tokens(given)
    assert not isinstance(failed.value, ProviderRefused) and "\n" not in str(failed.value)


def test_the_reason_of_a_later_failure_is_logged(monkeypatch, caplog):
    answers = iter([("token", tokens.time.time() + 60)])
    monkeypatch.setattr(token_functions, "from_server", lambda _: next(answers))
    callback = with_tokens(settings(f"{FUNCTIONS}.from_server"))["oauth_cb"]
    assert callback("")[0] == "token"
    with pytest.raises(NoToken):
        callback("")
    (line,) = (record.getMessage() for record in caplog.records)
    assert re.match(f"token_provider {FUNCTIONS}.from_server of kafka_default failed {HERE}.*StopIteration", line)


def test_an_endpoint_is_checked_by_the_authorities_of_the_machine(monkeypatch, tmp_path):
    oidc = {"sasl.oauthbearer.method": "oidc"}
    pythons, debians = tmp_path / "cert.pem", tmp_path / "ca-certificates.crt"
    paths = ssl.DefaultVerifyPaths(str(pythons), str(tmp_path), "", "", "", "")
    monkeypatch.setattr(ssl, "get_default_verify_paths", lambda: paths)
    monkeypatch.setattr(tokens, "_DEBIANS_AUTHORITIES", str(debians))
    assert with_tokens(oidc) == oidc
    debians.touch()
    assert with_tokens(oidc)["https.ca.location"] == str(debians)
    pythons.touch()
    assert with_tokens(oidc)["https.ca.location"] == str(pythons)
    assert with_tokens(oidc | {"https.ca.location": "/mine.pem"})["https.ca.location"] == "/mine.pem"
    assert "https.ca.location" not in with_tokens(oidc | {"https.ca.pem": "text"})
    assert "https.ca.location" not in with_tokens({"sasl.mechanism": "PLAIN"})
