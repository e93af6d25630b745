"""Upkeep: what is done to a repository beside committing to it: clean-up, checks, shorter ways, a new database."""
