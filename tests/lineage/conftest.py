"""The same tests on both databases: `new_database()` gives the URL of an empty one."""

import itertools
import secrets

import pytest
import sqlalchemy

from deltavc.store import open_store
from tests.lineage.samples import open_index


@pytest.fixture(scope="session")
def spare_databases():
    """URLs of empty PostgreSQL databases: making one takes far longer than emptying one."""
    return []


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.servers)])
def new_database(request, tmp_path, spare_databases):
    if request.param == "sqlite":
        numbers = itertools.count()
        yield lambda: f"sqlite:///{tmp_path / f'lineage-{next(numbers)}.db'}"
        return
    postgres = request.getfixturevalue("postgres")
    taken = []

    def take():
        taken.append(spare_databases.pop() if spare_databases else postgres.new_database())
        return taken[-1]

    yield take
    for url in taken:
        engine = sqlalchemy.create_engine(url)
        with engine.begin() as db:
            db.execute(sqlalchemy.text("DROP SCHEMA public CASCADE"))
            db.execute(sqlalchemy.text("CREATE SCHEMA public"))
        engine.dispose()
        spare_databases.append(url)


@pytest.fixture
def bucket():
    store = open_store(f"memory://{secrets.token_hex(8)}")
    store.prepare()
    return store


@pytest.fixture
def new_index(new_database, bucket):
    """Make an empty index of the bucket. Its connections are closed when the test ends."""
    made = []

    def make(url=None):
        made.append(open_index(url or new_database(), bucket))
        return made[-1]

    yield make
    for index in made:
        index.engine.dispose()


@pytest.fixture
def index(new_index):
    return new_index()
