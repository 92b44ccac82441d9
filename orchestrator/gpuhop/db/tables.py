"""The ledger's tables. SQLAlchemy Core; rows do not leave gpuhop.db."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.types import TypeDecorator

from gpuhop.domain.states import LIVE_SESSIONS

metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


_LIVE = sa.text("state in ({})".format(", ".join(f"'{state.value}'" for state in sorted(LIVE_SESSIONS))))


class Utc(TypeDecorator[datetime]):
    """An aware time, kept as UTC text of fixed width, so that text order is time order. Naive times are refused."""

    impl = sa.String(27)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Any) -> str | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("naive time refused: every time in the ledger carries its zone")
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    def process_result_value(self, value: str | None, dialect: Any) -> datetime | None:
        if value is None:
            return None
        return datetime.strptime(value, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC)


jobs = sa.Table(
    "jobs",
    metadata,
    sa.Column("id", sa.String(80), primary_key=True),
    sa.Column("name", sa.String(64), nullable=False),
    sa.Column("spec", sa.Text, nullable=False),  # gpuhop.spec.codec, JSON
    sa.Column("spec_hash", sa.String(64), nullable=False),
    sa.Column("source", sa.Text, nullable=False),  # absolute path of job.yaml, for "submitted before"
    sa.Column("code_sha256", sa.String(64), nullable=False),
    sa.Column("code_size", sa.Integer, nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("wish", sa.String(8), nullable=False),
    sa.Column("wish_at", Utc, nullable=False),
    sa.Column("reason", sa.String(32)),
    sa.Column("detail", sa.Text, nullable=False, server_default=""),
    sa.Column("priority", sa.Integer, nullable=False),
    sa.Column("token", sa.Integer, nullable=False),  # the highest ever given out
    sa.Column("step", sa.Integer, nullable=False),  # of the newest accepted checkpoint
    sa.Column("used_s", sa.Float, nullable=False),  # GPU-seconds of finished sessions
    sa.Column("created_at", Utc, nullable=False),
    sa.Column("waiting_since", Utc, nullable=False),
    sa.Column("ended_at", Utc),
    sa.Column("last_platform", sa.String(64)),
    sa.Index("ix_jobs_state", "state"),
    sa.Index("ix_jobs_source_hash", "source", "spec_hash"),
)

sessions = sa.Table(
    "sessions",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("job_id", sa.ForeignKey("jobs.id"), nullable=False),
    sa.Column("token", sa.Integer, nullable=False),
    sa.Column("platform", sa.String(64), nullable=False),
    sa.Column("name", sa.String(96), nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("handle", sa.Text),  # the platform's own name for it; null until it answered
    sa.Column("link", sa.Text),  # what a person must open, on attended platforms
    sa.Column("budget_s", sa.Float, nullable=False),
    sa.Column("hold_s", sa.Float, nullable=False),
    sa.Column("launched_at", Utc, nullable=False),
    sa.Column("started_at", Utc),
    sa.Column("limit_at", Utc, nullable=False),
    sa.Column("ended_at", Utc),
    sa.Column("beat_seq", sa.Integer, nullable=False, server_default="0"),
    sa.Column("beat_at", Utc),  # when the scheduler saw it, by the scheduler's clock
    sa.Column("phase", sa.String(16), nullable=False, server_default=""),
    sa.Column("speed", sa.Float, nullable=False, server_default="0"),
    sa.Column("device", sa.String(64), nullable=False, server_default=""),
    sa.Column("start_step", sa.Integer, nullable=False),
    sa.Column("step", sa.Integer, nullable=False),
    sa.Column("sealed_seq", sa.Integer),  # the last checkpoint of this token that counts; set when it is closed
    sa.Column("saved_step", sa.Integer, nullable=False, server_default="0"),
    sa.Column("reason", sa.String(32)),
    sa.Column("detail", sa.Text, nullable=False, server_default=""),
    sa.UniqueConstraint("job_id", "token"),
    sa.Index("ix_sessions_state", "state"),
    # One live session per job, by the database itself.
    sa.Index(
        "uq_sessions_live",
        "job_id",
        unique=True,
        sqlite_where=_LIVE,
        postgresql_where=_LIVE,
    ),
)

leases = sa.Table(
    "leases",
    metadata,
    sa.Column("job_id", sa.ForeignKey("jobs.id"), primary_key=True),
    sa.Column("token", sa.Integer, nullable=False),
    sa.Column("session_id", sa.ForeignKey("sessions.id"), nullable=False),
    sa.Column("acquired_at", Utc, nullable=False),
)

quota_entries = sa.Table(
    "quota_entries",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("platform", sa.String(64), nullable=False),
    sa.Column("kind", sa.String(8), nullable=False),  # hold | release | charge | adjust
    sa.Column("seconds", sa.Float, nullable=False),
    sa.Column("start", Utc, nullable=False),
    sa.Column("at", Utc, nullable=False),
    sa.Column("session_id", sa.ForeignKey("sessions.id")),
    sa.Column("note", sa.Text, nullable=False, server_default=""),
    # One hold, one release and one charge per session, whatever crashes and repeats.
    sa.UniqueConstraint("session_id", "kind"),
    sa.Index("ix_quota_entries_platform_at", "platform", "at"),
)

events = sa.Table(
    "events",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("at", Utc, nullable=False),
    sa.Column("job_id", sa.ForeignKey("jobs.id")),
    sa.Column("action", sa.String(32), nullable=False),
    sa.Column("text", sa.Text, nullable=False),
    sa.Index("ix_events_job_id_id", "job_id", "id"),
)

cooldowns = sa.Table(
    "cooldowns",
    metadata,
    sa.Column("platform", sa.String(64), primary_key=True),
    sa.Column("until", Utc, nullable=False),
    sa.Column("text", sa.Text, nullable=False),
    sa.Column("times", sa.Integer, nullable=False),  # refusals in a row, for growing pauses
)

# ---------------------------------------------------------------- retention and the storage ledger

pins = sa.Table(
    "pins",
    metadata,
    sa.Column("job_id", sa.ForeignKey("jobs.id"), primary_key=True),
    sa.Column("token", sa.Integer, primary_key=True),
    sa.Column("seq", sa.Integer, primary_key=True),
    sa.Column("holder", sa.String(96), primary_key=True),  # "user", or the fork that starts from it
    sa.Column("at", Utc, nullable=False),
)

marks = sa.Table(
    "marks",
    metadata,
    sa.Column("key", sa.String(1200), primary_key=True),  # of an object, or of a leftover that is none
    sa.Column("job_id", sa.ForeignKey("jobs.id")),  # null: of a job that the ledger does not know
    sa.Column("size", sa.BigInteger, nullable=False),
    sa.Column("why", sa.String(16), nullable=False),
    sa.Column("at", Utc, nullable=False),
    sa.Column("going", sa.Boolean, nullable=False),  # its removal was begun
    sa.Index("ix_marks_job_id", "job_id"),
)

stock = sa.Table(
    "stock",
    metadata,
    sa.Column("job_id", sa.ForeignKey("jobs.id"), primary_key=True),
    sa.Column("kind", sa.String(16), primary_key=True),
    sa.Column("objects", sa.Integer, nullable=False),
    sa.Column("bytes", sa.BigInteger, nullable=False),
    sa.Column("at", Utc, nullable=False),
)

freed = sa.Table(
    "freed",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("at", Utc, nullable=False),
    sa.Column("job_id", sa.ForeignKey("jobs.id")),
    sa.Column("why", sa.String(16), nullable=False),
    sa.Column("objects", sa.Integer, nullable=False),
    sa.Column("bytes", sa.BigInteger, nullable=False),
    sa.Index("ix_freed_job_id_id", "job_id", "id"),
)

looks = sa.Table(
    "looks",
    metadata,
    sa.Column("job_id", sa.ForeignKey("jobs.id"), primary_key=True),
    sa.Column("next_at", Utc),  # when a job's objects are to be looked at next
    sa.Index("ix_looks_next_at", "next_at"),
)
