import pytest

from deltavc import canonical
from deltavc.errors import BadMetadata, BadPayload, BranchMoved, CorruptObject, MissingObject
from deltavc.lineage.refs import Refs
from deltavc.lineage.settings import DEFAULT, Policy, SettingsRef
from tests.faults import FaultyStore
from tests.lineage.samples import Writer, contents

FULL = Policy(keep_last=5, keep_every=10, keep_best={"loss": 2}, keep_days=3, keep_tagged=False, grace_seconds=60)


def settings_of(bucket):
    return SettingsRef(bucket, Refs(bucket))


@pytest.mark.parametrize("policy", [DEFAULT, FULL])
def test_settings_come_back_as_they_were_set(bucket, policy):
    assert Policy.parse(policy.body) == policy
    settings = settings_of(bucket)
    assert settings.newest() == DEFAULT
    settings.set(policy, "me", "why")
    assert settings.newest() == settings_of(bucket).newest() == policy


@pytest.mark.parametrize(
    "fields",
    [
        *({"keep_last": 0}, {"keep_last": "5"}, {"keep_every": 1.5}, {"keep_days": True}, {"keep_tagged": 1}),
        *({"keep_best": {"loss": 0}}, {"keep_best": {"": 1}}, {"grace_seconds": 0}, {"grace_seconds": 10**12}),
    ],
)
def test_settings_that_make_no_sense_are_refused(fields):
    with pytest.raises(BadMetadata):
        Policy(**fields)
    with pytest.raises(BadPayload):
        Policy.parse(canonical.dumps(DEFAULT.as_json() | fields))


def test_settings_of_a_later_release_are_refused_by_name(bucket):
    with pytest.raises(BadPayload, match="keep_moon"):
        Policy.parse(canonical.dumps(DEFAULT.as_json() | {"keep_moon": 1}))


def test_looking_at_unchanged_settings_costs_one_request(bucket):
    settings_of(bucket).set(FULL, "me", "why")
    counted = FaultyStore(bucket)
    settings = settings_of(counted)
    settings.newest()
    counted.calls.clear()
    settings.newest()
    assert len(counted.calls) == 1


def test_every_policy_that_ever_held_can_be_looked_at(bucket):
    one, other = settings_of(bucket), settings_of(bucket)
    other.follow()
    one.set(FULL, "me", "why")
    one.set(Policy(keep_last=1), "me", "why")
    assert [other.policy(number) for number in range(other.follow() + 1)] == [DEFAULT, FULL, Policy(keep_last=1)]


def test_of_two_who_set_at_once_one_is_told(bucket):
    one, other = settings_of(FaultyStore(bucket)), settings_of(bucket)
    one.follow()
    other.follow = lambda: one.follow()
    other._entries = []
    one.set(FULL, "me", "why")
    with pytest.raises(BranchMoved):
        other.set(DEFAULT, "me", "why")


def test_damaged_settings_are_named(bucket):
    settings_of(bucket).set(FULL, "me", "why")
    bucket.put(FULL.key, DEFAULT.body)
    with pytest.raises(CorruptObject):
        settings_of(bucket).newest()
    bucket.delete(FULL.key)
    with pytest.raises(MissingObject):
        settings_of(bucket).newest()


def test_settings_are_no_branch(bucket, new_index):
    without, with_settings = new_index(), new_index()
    Writer(bucket).commit()
    without.catch_up_all()
    settings_of(bucket).set(FULL, "me", "why")
    with_settings.catch_up_all()
    without.catch_up_all()
    assert contents(with_settings) == contents(without)
