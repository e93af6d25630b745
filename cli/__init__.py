"""The `deltavc` command."""
