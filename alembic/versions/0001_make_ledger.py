"""make ledger

Revision ID: 0001
Revises:
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from gpuhop.db.tables import Utc

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

LIVE = sa.text("state in ('awaiting-person', 'launching', 'pending', 'running')")


def upgrade() -> None:
    op.create_table(
        "jobs",
        sa.Column("id", sa.String(80), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("spec", sa.Text, nullable=False),
        sa.Column("spec_hash", sa.String(64), nullable=False),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("code_sha256", sa.String(64), nullable=False),
        sa.Column("code_size", sa.Integer, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("wish", sa.String(8), nullable=False),
        sa.Column("wish_at", Utc, nullable=False),
        sa.Column("reason", sa.String(32)),
        sa.Column("detail", sa.Text, nullable=False, server_default=""),
        sa.Column("priority", sa.Integer, nullable=False),
        sa.Column("token", sa.Integer, nullable=False),
        sa.Column("step", sa.Integer, nullable=False),
        sa.Column("used_s", sa.Float, nullable=False),
        sa.Column("created_at", Utc, nullable=False),
        sa.Column("waiting_since", Utc, nullable=False),
        sa.Column("ended_at", Utc),
        sa.Column("last_platform", sa.String(64)),
        sa.PrimaryKeyConstraint("id", name="pk_jobs"),
    )
    op.create_index("ix_jobs_state", "jobs", ["state"])
    op.create_index("ix_jobs_source_hash", "jobs", ["source", "spec_hash"])
    op.create_table(
        "sessions",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("job_id", sa.String(80), nullable=False),
        sa.Column("token", sa.Integer, nullable=False),
        sa.Column("platform", sa.String(64), nullable=False),
        sa.Column("name", sa.String(96), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("handle", sa.Text),
        sa.Column("link", sa.Text),
        sa.Column("budget_s", sa.Float, nullable=False),
        sa.Column("hold_s", sa.Float, nullable=False),
        sa.Column("launched_at", Utc, nullable=False),
        sa.Column("started_at", Utc),
        sa.Column("limit_at", Utc, nullable=False),
        sa.Column("ended_at", Utc),
        sa.Column("beat_seq", sa.Integer, nullable=False, server_default="0"),
        sa.Column("beat_at", Utc),
        sa.Column("phase", sa.String(16), nullable=False, server_default=""),
        sa.Column("speed", sa.Float, nullable=False, server_default="0"),
        sa.Column("device", sa.String(64), nullable=False, server_default=""),
        sa.Column("start_step", sa.Integer, nullable=False),
        sa.Column("step", sa.Integer, nullable=False),
        sa.Column("sealed_seq", sa.Integer),
        sa.Column("saved_step", sa.Integer, nullable=False, server_default="0"),
        sa.Column("reason", sa.String(32)),
        sa.Column("detail", sa.Text, nullable=False, server_default=""),
        sa.PrimaryKeyConstraint("id", name="pk_sessions"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_sessions_job_id"),
        sa.UniqueConstraint("job_id", "token", name="uq_sessions_job_id_token"),
    )
    op.create_index("ix_sessions_state", "sessions", ["state"])
    op.create_index("uq_sessions_live", "sessions", ["job_id"], unique=True, sqlite_where=LIVE, postgresql_where=LIVE)
    op.create_table(
        "leases",
        sa.Column("job_id", sa.String(80), nullable=False),
        sa.Column("token", sa.Integer, nullable=False),
        sa.Column("session_id", sa.Integer, nullable=False),
        sa.Column("acquired_at", Utc, nullable=False),
        sa.PrimaryKeyConstraint("job_id", name="pk_leases"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_leases_job_id"),
        sa.ForeignKeyConstraint(["session_id"], ["sessions.id"], name="fk_leases_session_id"),
    )
    op.create_table(
        "quota_entries",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("platform", sa.String(64), nullable=False),
        sa.Column("kind", sa.String(8), nullable=False),
        sa.Column("seconds", sa.Float, nullable=False),
        sa.Column("start", Utc, nullable=False),
        sa.Column("at", Utc, nullable=False),
        sa.Column("session_id", sa.Integer),
        sa.Column("note", sa.Text, nullable=False, server_default=""),
        sa.PrimaryKeyConstraint("id", name="pk_quota_entries"),
        sa.ForeignKeyConstraint(["session_id"], ["sessions.id"], name="fk_quota_entries_session_id"),
        sa.UniqueConstraint("session_id", "kind", name="uq_quota_entries_session_id_kind"),
    )
    op.create_index("ix_quota_entries_platform_at", "quota_entries", ["platform", "at"])
    op.create_table(
        "events",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("at", Utc, nullable=False),
        sa.Column("job_id", sa.String(80)),
        sa.Column("action", sa.String(32), nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_events"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_events_job_id"),
    )
    op.create_index("ix_events_job_id_id", "events", ["job_id", "id"])
    op.create_table(
        "cooldowns",
        sa.Column("platform", sa.String(64), nullable=False),
        sa.Column("until", Utc, nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("times", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("platform", name="pk_cooldowns"),
    )
    _append_only("quota_entries")
    _append_only("events")


def _append_only(table: str) -> None:
    """By the database itself: history is added to, never rewritten (DESIGN I8)."""
    if op.get_bind().dialect.name != "sqlite":
        return
    for verb in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER {table}_no_{verb.lower()} BEFORE {verb} ON {table} "
            f"BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
        )


def downgrade() -> None:
    for table in ("cooldowns", "events", "quota_entries", "leases", "sessions", "jobs"):
        op.drop_table(table)
