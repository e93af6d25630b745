"""Lineage: which versions there are, how they hang together, and how their weights are reached.

The bucket is the truth (`records`, `refs`), the database is its index (`tables`, `schema`, `index`,
`history`), and on top of it names become versions (`resolve`) and versions become paths (`plan`).
"""
