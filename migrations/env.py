"""Runs migrations on the connection that `deltavc.lineage.schema.upgrade` hands over, in its transaction."""

from alembic import context

from deltavc.lineage.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=context.config.attributes["revision_table"],
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
