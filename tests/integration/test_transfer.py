"""Out to files and back in: whole, once, and told clearly what does not fit."""

from __future__ import annotations

import csv
import random
from datetime import timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import typer
from record_cases import T0, decision, keep, outcome, rejected, rows
from sqlalchemy import text as sql
from typer.testing import CliRunner

from core.domain import NodeId, NodeSpec, Telemetry
from core.errors import BadRequest, Conflict, StoreError
from core.ports import RevisionRecord
from storage import cli, migrate, transfer
from storage.database import writer_engine
from storage.store import open_storage

TENANTS = ("", "=cmd|x", "'quoted", 'a,b\n"c"')
TABLES = ("decisions", "outcomes", "node_telemetry", "events", "nodes", "revisions")


@pytest.fixture
def full(record_url: str) -> str:
    """A database with a bit of everything."""
    rng = random.Random(3)
    with open_storage(record_url) as storage:
        keep(
            storage,
            *(
                decision(n, tenant=rng.choice(["", "=cmd|x", "'quoted", 'a,b\n"c"']))
                for n in range(40)
            ),
            *(outcome(n, kind=rng.choice(["ok", "timeout"]), ttft_s=0.1 * n) for n in range(30)),
            rejected(50, message="+1 é"),
        )
        storage.sink.put_telemetry("p0", T0, Telemetry(running=3, kv_usage=0.25))
        storage.sink.put_event("breaker.opened", "p0", {"deep": [1, None]}, T0)
        storage.sink.put_node(NodeSpec(id=NodeId("p0"), url="http://p0"), "active", T0)
        assert storage.sink.flush()
        storage.store.add_revision(
            RevisionRecord(
                number=2, base=1, at=T0, author="a", reason="-r", changes={}, values={"x": 1}
            )
        )
    return record_url


def contents(url: str) -> dict[str, list[tuple[object, ...]]]:
    return {name: sorted(rows(url, f"SELECT * FROM {name}"), key=repr) for name in TABLES}


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_everything_survives_a_way_through_files_and_twice_is_once(full, tmp_path, ending):
    other = f"sqlite:///{tmp_path / 'other.db'}"
    migrate.upgrade(other)
    source, target = writer_engine(full), writer_engine(other)
    for name in TABLES:
        path = tmp_path / f"{name}.{ending}"
        seen: list[int] = []
        done = transfer.export(source, name, path, progress=seen.append)
        assert sum(seen) == done == len(contents(full)[name])
        assert transfer.load(target, name, path) == (done, done)
        assert transfer.load(target, name, path)[0] == done
    source.dispose()
    target.dispose()
    here, there = contents(full), contents(other)
    for name in TABLES:
        assert len(there[name]) == len(here[name])
    with open_storage(full) as one, open_storage(other) as two:
        for n in range(40):
            key = f"0197{n:06d}"
            assert one.store.decision(key) == two.store.decision(key)
        assert one.store.nodes() == two.store.nodes()
        assert one.store.events() == two.store.events()
        assert one.store.revisions() == two.store.revisions()
        end = T0 + timedelta(hours=1)
        assert one.store.telemetry(T0, end) == two.store.telemetry(T0, end)
        assert [b.decisions for b in two.store.series(T0, end, step_s=3_600)] == [41]


def test_the_audit_is_a_table_for_people(full, tmp_path):
    engine = writer_engine(full)
    start, end = T0 + timedelta(seconds=10), T0 + timedelta(seconds=20)
    path = tmp_path / "audit.csv"
    assert transfer.export(engine, "audit", path, start=start, end=end) == 10
    with path.open(newline="") as file:
        cells = list(csv.DictReader(file))
    assert cells[0]["at_us"] == "2026-03-01T12:00:10+00:00"
    assert cells[0]["outcome_kind"] in ("ok", "timeout")
    assert not any(
        value.startswith(("=", "+", "-", "@")) for row in cells for value in row.values()
    )

    parquet = tmp_path / "audit.parquet"
    assert transfer.export(engine, "audit", parquet) == 41
    table = pq.read_table(parquet)
    assert str(table.schema.field("at_us").type) == "timestamp[us, tz=UTC]"
    assert table.num_rows == 41
    with pytest.raises(BadRequest, match="not one of"):
        transfer.load(engine, "audit", path)
    engine.dispose()


def test_exports_are_read_in_pages_without_gaps(full, tmp_path, monkeypatch):
    monkeypatch.setattr(transfer, "_PAGE", 7)
    engine = writer_engine(full)
    for name in TABLES:
        path = tmp_path / f"{name}.csv"
        assert transfer.export(engine, name, path) == len(contents(full)[name])
    engine.dispose()


@pytest.mark.parametrize(
    ("name", "text", "part"),
    [
        ("x.csv", "id,at_us,colour\n", "has the column 'colour'"),
        ("x.csv", "id\n", "lacks the column 'at_us'"),
        ("x.csv", "id,at_us\nd,soon\n", "line 2, at_us: 'soon' is not a number"),
        ("x.csv", "id,at_us,policy\nd,1,p\ne,2", "line 3 has not as many cells as the heading"),
        ("x.csv", "id,at_us\nd,1,2\n", "line 2 has not as many cells"),
        ("x.csv", "id,at_us\nd,99999999999999999999\n", "line 2, at_us: '99999999999999999999'"),
        ("x.csv", b"id,at_us\n\xff\xfe,1\n", "is no CSV file"),
        ("x.parquet", "no parquet", "cannot be read"),
        ("x.txt", "", "neither .csv nor .parquet"),
    ],
)
def test_what_is_no_export_is_refused_by_name(tmp_path, name, text, part):
    url = f"sqlite:///{tmp_path / 'records.db'}"
    migrate.upgrade(url)
    (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    engine = writer_engine(url)
    with pytest.raises(BadRequest, match=part):
        transfer.load(engine, "decisions", tmp_path / name)
    assert rows(url, "SELECT count(*) FROM decisions") == [(0,)]
    engine.dispose()


def test_a_file_is_never_overwritten_and_never_half_written(full, tmp_path, monkeypatch):
    engine = writer_engine(full)
    path = tmp_path / "d.csv"
    path.write_text("mine")
    with pytest.raises(Conflict, match="exists"):
        transfer.export(engine, "decisions", path)
    with pytest.raises(BadRequest, match="cannot be written"):
        transfer.export(engine, "decisions", tmp_path / "no" / "d.csv")

    def fail(_rows: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        transfer.export(engine, "decisions", tmp_path / "e.csv", progress=fail)
    assert [p.name for p in tmp_path.glob("*.csv*")] == ["d.csv"]
    engine.dispose()


@pytest.fixture
def conductor(tmp_path: Path):
    """Runs `db` commands against a database of their own."""
    app = typer.Typer()
    app.command("nothing")(lambda: None)
    cli.register(app)
    url = f"sqlite:///{tmp_path / 'records.db'}"
    config = tmp_path / "conductor.toml"
    config.write_text(f'state_dir = "{tmp_path / "state"}"\ndatabase_url = "{url}"\n')

    def run(*arguments: str, code: int = 0) -> str:
        result = CliRunner().invoke(app, ["db", *arguments, "--config", str(config)])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == code, result.output
        return result.output

    run.url = url  # type: ignore[attr-defined]
    return run


def test_the_commands_do_what_they_say(conductor, tmp_path):
    assert f"schema {migrate.head()}" in conductor("upgrade")
    with open_storage(conductor.url) as storage:
        keep(storage, *(decision(n) for n in range(10)))
    text = conductor("status")
    assert "decisions              10" in text and "roll-ups behind        1" in text
    assert '"outcomes": 0' in conductor("status", "--json")
    file = tmp_path / "decisions.parquet"
    assert "10 rows of decisions" in conductor("export", "decisions", str(file))
    assert "10 rows of decisions read, 0 of them new" in conductor("import", "decisions", str(file))
    refused = conductor("vacuum", "--decisions-days", "1", code=1)
    assert "more than 20%" in refused
    assert "10 deleted" in conductor("vacuum", "--decisions-days", "1", "--force", "--shrink")
    assert "decisions              0" in conductor("status")
    assert "schema 0001" in conductor("downgrade", "0001", "--yes")
    assert "schema                 0001" in conductor("status")
    with pytest.raises(BadRequest, match="start: 'noon'"):
        conductor("export", "decisions", str(tmp_path / "x.csv"), "--start", "noon")


def test_another_releases_tables_are_left_alone(conductor, tmp_path):
    conductor("upgrade")
    with open_storage(conductor.url) as storage:
        keep(storage, *(decision(n) for n in range(10)))
    conductor("downgrade", "0012", "--yes")
    with pytest.raises(StoreError, match="is at schema 0012, not "):
        conductor("vacuum", "--decisions-days", "1", "--force")
    conductor("upgrade")
    engine = writer_engine(conductor.url)
    with engine.begin() as connection:
        connection.execute(sql("UPDATE alembic_version SET version_num = '9999'"))
    engine.dispose()
    with pytest.raises(StoreError, match="9999 does not fit this release"):
        conductor("vacuum", "--decisions-days", "1", "--force")
    assert rows(conductor.url, "SELECT count(*) FROM decisions") == [(10,)]


def test_what_makes_no_sense_names_the_field(conductor, tmp_path):
    conductor("upgrade")
    for revision in ("nosuch", ""):
        with pytest.raises(BadRequest, match="revision: "):
            conductor("downgrade", revision, "--yes")
    with pytest.raises(BadRequest, match="revision: "):
        conductor("upgrade", "nosuch")
    conductor("vacuum", "--decisions-days", "1e300", code=2)
    conductor("vacuum", "--rollups-days", "inf", code=2)
    with pytest.raises(BadRequest, match="start: "):
        conductor("export", "events", str(tmp_path / "x.csv"), "--start", "0001-01-01T00:00+14:00")


def test_a_database_that_is_away_is_told(conductor, tmp_path):
    with pytest.raises(StoreError):
        conductor("export", "decisions", str(tmp_path / "x.csv"))
