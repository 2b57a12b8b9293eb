"""What the command line prints is what was written, and what it is given is checked."""

import json
import socket

import pytest
from rich.table import Table
from typer.testing import CliRunner

from core import admin_call, cli, wire
from core.errors import BadRequest, Conflict, Invalid, NotFound
from core.identity import passwords

MARKED = "[/done] see [jira-12] :rocket: [[nodes]]"


def run(*words):
    return CliRunner().invoke(cli.app, [*words])


def test_what_people_write_is_shown_as_it_is_written(capsys):
    table = Table("revision", "reason")
    table.add_row("2", MARKED)
    admin_call.print_table(table)
    assert MARKED in capsys.readouterr().out


def test_an_error_is_one_line_whatever_is_in_it(capsys, monkeypatch):
    def fail():
        raise NotFound(f"no decision with id {MARKED!r} " + "x" * 200)

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    told = capsys.readouterr().err
    assert ended.value.code == 2
    assert told.count("\n") == 1 and MARKED in told


@pytest.mark.parametrize(
    "words",
    [
        ["tokens", "create", "t", "--days", "1e9"],
        ["keys", "create", "k", "--tenant", "a", "--requests-per-s", "inf"],
        ["keys", "create", "k", "--tenant", "a", "--concurrent", "99999999999999999999"],
        ["keys", "create", "k", "--tenant", "a", "--tokens-per-min", "99999999999999999999"],
        ["audit", "list", "--before", "99999999999999999999"],
        ["plan-cpp", "--tokens", "99999999999999999999"],
    ],
)
def test_a_number_that_nothing_can_hold_names_its_option(tmp_path, monkeypatch, words):
    monkeypatch.setenv("CONDUCTOR_STATE_DIR", str(tmp_path / "state"))
    result = run(*words)
    assert result.exit_code == 2, result.output
    assert f"'{words[-2]}'" in result.output
    assert not (tmp_path / "state").exists()


def test_a_password_that_is_no_text_is_refused():
    read = b"\xff\xfe no utf-8 at all".decode("utf-8", "surrogateescape")  # as from a pipe
    with pytest.raises(Invalid, match="password: is not text"):
        passwords.check(read, "ada")


@pytest.mark.parametrize("token", ["x\ny", "\u00fcn\u00ef", "two words"])
def test_a_token_that_is_none_is_refused_and_not_repeated(token):
    result = run("--token", token, "nodes", "--url", "http://127.0.0.1:1")
    assert isinstance(result.exception, BadRequest)
    assert "token: " in str(result.exception) and token not in str(result.exception)


def test_a_node_without_a_name_is_said_before_anything_is_asked():
    for command in ("drain", "undrain", "trip"):
        assert "node: expected a node's id" in str(run(command, "", "-m", "why").exception)


@pytest.mark.parametrize(("words", "name"), [([], "server"), (["--history-only"], "history")])
def test_a_service_whose_port_is_taken_says_so_and_touches_nothing(
    tmp_path, monkeypatch, words, name
):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        monkeypatch.setenv("CONDUCTOR_STATE_DIR", str(tmp_path / "state"))
        monkeypatch.setenv(f"CONDUCTOR_{name.upper()}__PORT", port)
        result = run("serve", *words)
    assert isinstance(result.exception, Conflict)
    assert f"{name}.port: 127.0.0.1:{port} cannot be used" in str(result.exception)
    assert not (tmp_path / "state").exists()


def test_a_replay_that_nobody_answers_ends_with_code_1(tmp_path):
    trace = tmp_path / "t.jsonl"
    trace.write_text("")
    assert "holds no requests" in str(run("replay", str(trace)).exception)
    trace.write_text('{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": []}\n')
    result = run("replay", str(trace), "--model", "m", "--url", "http://127.0.0.1:1")
    assert result.exit_code == 1 and "ClientConnectorError" in result.output


def test_a_number_that_json_has_not_is_refused_before_it_is_sent():
    for asked in ({"seconds": float("nan")}, {"changes": {"weighted.load": float("inf")}}):
        with pytest.raises(BadRequest, match="is no finite number"):
            admin_call.call("http://127.0.0.1:1", "POST", "/breaker", wire.BreakerView, asked)


def test_doctor_shows_a_name_in_brackets(tmp_path, monkeypatch):
    monkeypatch.setenv("CONDUCTOR_STATE_DIR", str(tmp_path / "state"))
    shown, plain = run("doctor"), json.loads(run("doctor", "--json").stdout)
    detail = next(check["detail"] for check in plain if check["name"] == "nodes")
    assert "[[nodes]]" in detail and detail in shown.output
