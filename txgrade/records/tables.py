"""The tables of the gradebook: rows are only ever added, and triggers in the file refuse everything else."""

import sqlalchemy as sql
from sqlalchemy import Column, ForeignKey, Integer, Numeric, Text

VERSION = 4  # of the tables; kept as SQLite's user_version
UPGRADABLE = (3,)  # earlier versions, which lack only what `upgrade` adds
APPLICATION = 0x74786C67  # "txlg", SQLite's application_id: this file is ours

TABLES = sql.MetaData()
ASSIGNMENTS = sql.Table(
    "assignments",
    TABLES,
    Column("hash", Text, primary_key=True),
    Column("name", Text, nullable=False),  # stays when the hash changes: what reviews belong to
    Column("time", Text, nullable=False),  # UTC, ISO 8601, as all times
    Column("data", Text, nullable=False),
)  # JSON: name, title, tasks, rule for lateness, source
SEEDS = sql.Table(  # each row is drawn once, for one or more runs
    "seeds",
    TABLES,
    Column("id", Integer, primary_key=True),
    Column("time", Text, nullable=False),
    Column("assignment_hash", Text, nullable=False),
    Column("seeds", Text, nullable=False),
)  # JSON
RUNS = sql.Table(
    "runs",
    TABLES,
    Column("id", Integer, primary_key=True),
    Column("time", Text, nullable=False),
    Column("assignment_hash", Text, ForeignKey("assignments.hash"), nullable=False),
    Column("path", Text, nullable=False),  # where the assignment was then
    Column("environment", Text, nullable=False),
    Column("isolation", Text, nullable=False),
    Column("seeds", Text, nullable=False),
)  # JSON
FINISHED = sql.Table(  # runs that came to their end, all pages written
    "finished",
    TABLES,
    Column("run", Integer, ForeignKey("runs.id"), primary_key=True),
    Column("time", Text, nullable=False),
)
RESULTS = sql.Table(
    "results",
    TABLES,
    Column("id", Integer, primary_key=True),
    Column("run", Integer, ForeignKey("runs.id"), nullable=False),
    Column("time", Text, nullable=False),
    Column("submission", Text, nullable=False, index=True),
    Column("submission_hash", Text, nullable=False),
    Column("assignment_hash", Text, nullable=False, index=True),
    Column("environment", Text, nullable=False),
    Column("isolation", Text, nullable=False),
    Column("seeds", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("score", Numeric(asdecimal=False), nullable=False),
    Column("max_score", Numeric(asdecimal=False), nullable=False),
    Column("data", Text, nullable=False),
)  # JSON: the whole Result
ANSWERS = sql.Table(  # which answers a result holds: what a review can be of
    "answers",
    TABLES,
    Column("result", Integer, ForeignKey("results.id"), primary_key=True),
    Column("task", Text, primary_key=True),
    Column("answer_hash", Text, nullable=False, index=True),
    Column("max_points", Numeric(asdecimal=False), nullable=False),
)
REVIEWS = sql.Table(
    "reviews",
    TABLES,
    Column("id", Integer, primary_key=True),
    Column("time", Text, nullable=False),
    Column("assignment", Text, nullable=False),  # its name
    Column("task", Text, nullable=False),
    Column("answer_hash", Text, nullable=False, index=True),
    Column("submission", Text),  # the only one that it is for; NULL if for everybody with this answer
    Column("points", Numeric(asdecimal=False), nullable=False),  # besides those of the rubric items
    Column("comment", Text, nullable=False),
    Column("by", Text, nullable=False),
    Column("items", Text, nullable=False, server_default="[]"),  # JSON: numbers of the rubric items that apply
)
RUBRIC = sql.Table(  # each row is a version of a rubric item: the newest counts
    "rubric",
    TABLES,
    Column("id", Integer, primary_key=True),
    Column("time", Text, nullable=False),
    Column("assignment", Text, nullable=False),  # its name
    Column("task", Text, nullable=False),
    Column("item", Integer, nullable=False),  # counts from 1 in each task
    Column("points", Numeric(asdecimal=False), nullable=False),
    Column("text", Text, nullable=False),  # empty: the item is deleted
    Column("by", Text, nullable=False),
)
CLAIMS = sql.Table(  # who marks an answer or a request, and what they have typed: each person's newest row counts
    "claims",
    TABLES,
    Column("id", Integer, primary_key=True),
    Column("time", Text, nullable=False),
    Column("assignment", Text, nullable=False),
    Column("task", Text, nullable=False),
    Column("key", Text, nullable=False),  # an answer's hash, or a request's
    Column("by", Text, nullable=False),
    Column("draft", Text, nullable=False),  # JSON
    Column("released", Integer, nullable=False),  # 1: others may mark it
)
DECISIONS = sql.Table(  # answers to regrade requests
    "decisions",
    TABLES,
    Column("id", Integer, primary_key=True),
    Column("time", Text, nullable=False),
    Column("assignment", Text, nullable=False),
    Column("submission", Text, nullable=False),
    Column("task", Text, nullable=False),
    Column("key", Text, nullable=False),  # the hash of the request's text
    Column("request", Text, nullable=False),  # its text
    Column("old", Numeric(asdecimal=False), nullable=False),
    Column("new", Numeric(asdecimal=False), nullable=False),
    Column("reason", Text, nullable=False),
    Column("by", Text, nullable=False),
)
MARKS = (REVIEWS, RUBRIC, DECISIONS)  # what people have said
PUBLISHED = sql.Table(  # what the pages and tables of a finished run said, where it differs from the run before
    "published",
    TABLES,
    Column("id", Integer, primary_key=True),
    Column("time", Text, nullable=False),
    Column("run", Integer, nullable=False),
    Column("assignment", Text, nullable=False),
    Column("submission", Text, nullable=False),
    Column("data", Text, nullable=False),  # JSON: the hashes, the points of each task, the penalty
    Column("changes", Text, nullable=False),  # JSON: what was said otherwise before
)


def upgrade(connection: sql.Connection) -> None:
    """Add what a gradebook of an UPGRADABLE version lacks; nothing that is in it changes."""
    before = set(connection.exec_driver_sql("SELECT name FROM sqlite_master WHERE type = 'table'").scalars())
    connection.exec_driver_sql("ALTER TABLE reviews ADD COLUMN items TEXT NOT NULL DEFAULT '[]'")
    create(connection, [table for table in TABLES.sorted_tables if table.name not in before])


def create(connection: sql.Connection, tables: list[sql.Table]) -> None:
    """Create tables that only grow."""
    TABLES.create_all(connection, tables)
    for table in tables:
        for statement in append_only(table):
            connection.exec_driver_sql(statement)
    connection.exec_driver_sql(f"PRAGMA application_id = {APPLICATION}")
    connection.exec_driver_sql(f"PRAGMA user_version = {VERSION}")


def append_only(table: sql.Table) -> list[str]:
    """Return triggers that refuse to change or delete a row, also by INSERT OR REPLACE."""
    words = "the gradebook is a ledger: its rows are never changed"
    refuse = f"BEGIN SELECT RAISE(ABORT, '{words}'); END"
    same = " AND ".join(f'"{column.name}" = NEW."{column.name}"' for column in table.primary_key)
    return [
        f"CREATE TRIGGER {table.name}_no_update BEFORE UPDATE ON {table.name} {refuse}",
        f"CREATE TRIGGER {table.name}_no_delete BEFORE DELETE ON {table.name} {refuse}",
        f"CREATE TRIGGER {table.name}_no_replace BEFORE INSERT ON {table.name} "
        f"WHEN EXISTS (SELECT 1 FROM {table.name} WHERE {same}) {refuse}",
    ]
