import string
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltavc.errors import StoreUnfit
from deltavc.store import locate, open_store, redact

SECRETS = st.text(string.ascii_letters + string.digits + "/+=%:'!$*@", min_size=1).map(lambda text: f"HUSH{text}HUSH")


@given(SECRETS)
def test_secrets_in_urls_are_not_shown(secret):
    for text in (
        f"postgresql+psycopg://me:{secret}@db.example:5432/lineage",
        f"cannot connect to postgresql://me:{secret}@db/x: timeout",
        f"s3://id:{secret}@bucket/prefix",
    ):
        assert "HUSH" not in redact(text)


@given(SECRETS.filter(lambda secret: "'" not in secret))
def test_secrets_in_options_are_not_shown(secret):
    for name in ("key", "secret", "access_token", "X-Amz-Signature", "X-Amz-Credential", "sslpassword"):
        assert "HUSH" not in redact(f"https://host/bucket?x=1&{name}={secret}&y=2".replace("@", ""))
    assert "HUSH" not in redact(f"host=db password='{secret}' user=me")
    assert "HUSH" not in redact(f"host=db password={secret} user=me".replace("@", ""))


def test_redacting_keeps_the_rest():
    assert redact("postgresql://me:pw@db:5432/x?sslmode=require") == "postgresql://***@db:5432/x?sslmode=require"
    assert redact("sqlite:////data/lineage.db") == "sqlite:////data/lineage.db"
    assert redact("https://h/b?x=1&token=t&y=2") == "https://h/b?x=1&token=***&y=2"


@pytest.mark.parametrize(
    ("url", "scheme", "place"),
    [
        ("/data/repo", "file", "/data/repo"),
        ("/data/a/../repo/", "file", "/data/repo"),
        ("file:///data/my%20repo", "file", "/data/my repo"),
        ("file://localhost/data", "file", "/data"),
        ("memory://x", "memory", "x"),
        ("s3://bucket", "s3", "bucket"),
        ("s3://bucket/a/b/", "s3", "bucket/a/b"),
        ("S3A://bucket//a", "s3", "bucket/a"),
        ("s3://id:se%2Fcret@bucket/a", "s3", "bucket/a"),
    ],
)
def test_urls_name_places(url, scheme, place):
    where = locate(url)
    assert (where.scheme, where.place) == (scheme, place)


def test_credentials_are_taken_out_of_the_url():
    where = locate("s3://id:se%2Fcret@bucket/a")
    assert (where.key, where.secret) == ("id", "se/cret")
    assert where.url == "s3://bucket/a"
    assert "se/cret" not in repr(where)


@pytest.mark.parametrize(
    "url",
    ["", "s3://", "memory://", "s3://b/../c", "gs://bucket/x", "file://host/x", "s3://b/x?secret=HUSH"],
)
def test_urls_without_a_store_are_refused(url):
    with pytest.raises(StoreUnfit) as caught:
        open_store(url)
    assert "HUSH" not in str(caught.value)


def test_importing_stores_imports_no_file_system_library():
    code = (
        "import sys, deltavc.store; print([m for m in ('fsspec', 's3fs', 'botocore', 'aiohttp') if m in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_memory_stores_of_one_name_are_one_store():
    open_store("memory://shared").put("x", b"1")
    assert open_store("memory://shared/").get("x") == b"1"


def test_a_missing_library_is_named_with_what_installs_it():
    code = "import sys; sys.modules['s3fs'] = None; import deltavc.store as s; s.open_store('s3://bucket/x')"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "s3fs is not installed; pip install 'deltavc[s3]'" in ran.stderr
