"""add retention

Revision ID: 0002
Revises: 0001
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from gpuhop.db.tables import Utc

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "pins",
        sa.Column("job_id", sa.String(80), nullable=False),
        sa.Column("token", sa.Integer, nullable=False),
        sa.Column("seq", sa.Integer, nullable=False),
        sa.Column("holder", sa.String(96), nullable=False),
        sa.Column("at", Utc, nullable=False),
        sa.PrimaryKeyConstraint("job_id", "token", "seq", "holder", name="pk_pins"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_pins_job_id"),
    )
    op.create_table(
        "marks",
        sa.Column("key", sa.String(1200), nullable=False),
        sa.Column("job_id", sa.String(80)),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("why", sa.String(16), nullable=False),
        sa.Column("at", Utc, nullable=False),
        sa.Column("going", sa.Boolean, nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_marks"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_marks_job_id"),
    )
    op.create_index("ix_marks_job_id", "marks", ["job_id"])
    op.create_table(
        "stock",
        sa.Column("job_id", sa.String(80), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("objects", sa.Integer, nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("at", Utc, nullable=False),
        sa.PrimaryKeyConstraint("job_id", "kind", name="pk_stock"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_stock_job_id"),
    )
    op.create_table(
        "freed",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("at", Utc, nullable=False),
        sa.Column("job_id", sa.String(80)),
        sa.Column("why", sa.String(16), nullable=False),
        sa.Column("objects", sa.Integer, nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_freed"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_freed_job_id"),
    )
    op.create_index("ix_freed_job_id_id", "freed", ["job_id", "id"])
    op.create_table(
        "looks",
        sa.Column("job_id", sa.String(80), nullable=False),
        sa.Column("next_at", Utc),
        sa.PrimaryKeyConstraint("job_id", name="pk_looks"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_looks_job_id"),
    )
    op.create_index("ix_looks_next_at", "looks", ["next_at"])
    if op.get_bind().dialect.name == "sqlite":
        for verb in ("UPDATE", "DELETE"):  # history is added to, never rewritten
            op.execute(
                f"CREATE TRIGGER freed_no_{verb.lower()} BEFORE {verb} ON freed "
                "BEGIN SELECT RAISE(ABORT, 'freed is append-only'); END"
            )


def downgrade() -> None:
    for table in ("looks", "freed", "stock", "marks", "pins"):
        op.drop_table(table)
