"""Alembic's entry: migrations run over the connection that gpuhop.db.migrate hands in."""

from __future__ import annotations

from alembic import context

from gpuhop.db.connect import connect
from gpuhop.db.tables import metadata

connection = context.config.attributes.get("connection")


def run() -> None:
    if connection is None:  # `alembic revision` from a developer's shell
        engine = connect("sqlite://")
        with engine.connect() as own:
            context.configure(connection=own, target_metadata=metadata, render_as_batch=True)
            with context.begin_transaction():
                context.run_migrations()
        return
    context.configure(connection=connection, target_metadata=metadata, render_as_batch=True)
    with context.begin_transaction():
        context.run_migrations()


run()
