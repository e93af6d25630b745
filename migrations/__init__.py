"""Alembic migrations of the index database; run by `deltavc db upgrade`."""
