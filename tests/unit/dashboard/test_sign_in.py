"""The sign-in page: what it takes, what it leaves in the browser, what it says."""

from __future__ import annotations

import pytest
from dashboard_samples import serving
from starlette.applications import Starlette
from starlette.testclient import TestClient

from core import wire
from dashboard import sign_in
from dashboard.session import COOKIE, User
from dashboard.who import who_markup

ADA = wire.WhoAmI(name="ada", role="admin", kind="token").model_dump_json()
NO = wire.ErrorBody(error=wire.ErrorDetail(message="the <token> is not known")).model_dump_json()


@pytest.fixture
def browser(monkeypatch):
    """A client of the page over a service whose answers the test sets."""
    answers = {"/admin/v1/whoami": (200, ADA)}
    with serving(answers) as url:
        monkeypatch.setenv("CONDUCTOR_URL", url)
        with TestClient(Starlette(routes=sign_in.routes()), follow_redirects=False) as client:
            client.answers = answers
            yield client


def test_the_page_keeps_to_itself(browser):
    page = browser.get("/sign-in")
    assert page.status_code == 200 and 'name="password" type="password"' in page.text
    assert page.headers["cache-control"] == "no-store"
    assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
    # Under "no-referrer" browsers send forms with the Origin "null", which is refused.
    assert page.headers["referrer-policy"] == "same-origin"


@pytest.mark.parametrize("way", ["form", "link"])
def test_a_token_becomes_a_cookie_that_scripts_cannot_read(browser, way):
    if way == "form":
        answer = browser.post("/sign-in", data={"token": " cdr_t_x "})
    else:
        answer = browser.get("/sign-in?token=cdr_t_x")
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith(f"{COOKIE}=cdr_t_x;")
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie and "Secure" not in cookie
    encrypted = browser.post(
        "/sign-in", data={"token": "x"}, headers={"x-forwarded-proto": "https"}
    )
    assert "Secure" in encrypted.headers["set-cookie"]


def test_a_token_that_is_not_good_is_said_and_not_kept(browser):
    browser.answers["/admin/v1/whoami"] = (401, NO)
    answer = browser.post("/sign-in", data={"token": "x"})
    assert answer.status_code == 401 and "set-cookie" not in answer.headers
    assert "&lt;token&gt;" in answer.text and "<token>" not in answer.text


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ({"user": "", "password": ""}, ("User: fill it in.", "Password: fill it in.")),
        ({"user": "ada", "password": ""}, ("Password: fill it in.", 'value="ada"')),
        ({"user": 'a"b' * 30, "password": "x"}, ("User: at most 64", "a&quot;b")),
        ({"user": "ada", "password": "x" * 300}, ("Password: at most 256 characters.",)),
        ({"token": ""}, ("Token: paste one whole",)),
        ({"token": "two words"}, ("Token: paste one whole",)),
        ({"token": "\u20ac"}, ("Token: paste one whole",)),
    ],
)
def test_what_cannot_be_a_sign_in_is_said_by_field(browser, typed, words):
    answer = browser.post("/sign-in", data=typed)
    assert answer.status_code == 422 and "set-cookie" not in answer.headers
    for word in words:
        assert word in answer.text


def test_a_refused_password_leaves_the_name(browser):
    answer = browser.post("/sign-in", data={"user": "ada", "password": "nearly"})
    assert answer.is_error and "set-cookie" not in answer.headers
    assert 'value="ada"' in answer.text and "nearly" not in answer.text


def test_forms_of_other_sites_and_long_ones_are_refused(browser):
    away = {"origin": "https://evil.example"}
    assert browser.post("/sign-in", data={"token": "x"}, headers=away).status_code == 403
    assert browser.post("/sign-in", data={"token": "x" * 5000}).status_code == 413
    assert browser.post("/sign-in", data={f"f{i}": "x" for i in range(9)}).status_code == 413
    here = {"origin": "http://testserver"}
    assert browser.post("/sign-in", data={"token": "x"}, headers=here).status_code == 303


def test_signing_out_forgets_the_cookie_even_if_the_service_is_away(browser):
    browser.cookies.set(COOKIE, "cdr_s_x")
    browser.answers.clear()
    answer = browser.get("/sign-out")
    assert answer.status_code == 303 and f'{COOKIE}=""' in answer.headers["set-cookie"]


def test_who_is_shown_with_the_way_in_or_out():

    assert "/sign-in" in who_markup(User()) and "/sign-in" in who_markup(User("", "viewer"))
    shown = who_markup(User('<b>"ada"', "admin"))
    assert "/sign-out" in shown and "<b>" not in shown
