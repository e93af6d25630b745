"""The golden broken repositories, put together: the golden one, and what was done to it."""

import contextlib
import json
import shutil
import sqlite3

import deltavc
from tests.broken.make_broken import BROKEN, GOLDEN, VERSIONS

NAMES = sorted(path.parent.name for path in BROKEN.glob("*/kind.json"))


def told(name):
    """What a check has to find in it."""
    return json.loads((BROKEN / name / "kind.json").read_text())


def place(name, target):
    """Make the broken repository in a new directory."""
    shutil.copytree(GOLDEN, target)
    found = told(name)
    if found["database"] == "before":
        with deltavc.open(target) as repo:
            repo.branches()
    for key in found["removed"]:
        (target / key).unlink()
    if (BROKEN / name / "objects").exists():
        shutil.copytree(BROKEN / name / "objects", target, dirs_exist_ok=True)
    with contextlib.closing(sqlite3.connect(target / "lineage.db")) as db, db:
        for statement in found["sql"]:
            db.execute(statement)
    return target


def ids(messages):
    return {VERSIONS[message] for message in messages}
