import pytest

from deltavc.errors import AmbiguousRef, UnknownRef
from deltavc.lineage.resolve import less_is_better, resolve, resolve_range
from tests.lineage.samples import Writer


@pytest.fixture
def line(bucket, index):
    """main at step 5, rolled back to step 3 and redone; side from step 2; a merge of it on top."""
    main = Writer(bucket)
    values = [0.5, 0.9, 0.1, "NaN", 0.95, 0.2]
    commits = {
        f"m{step}": main.commit(step=step, metrics={"reward": values[step], "loss": values[step]}) for step in range(6)
    }
    main.move(commits["m3"].id, "rollback")
    for step in (4, 5):
        commits[f"n{step}"] = main.commit(step=step, metrics={"reward": 0.3, "loss": 0.3, "only": "Infinity"})
    side = Writer(bucket, "branches/side")
    side.move(commits["m2"].id, "branch")
    commits["s3"] = side.commit(step=3, metrics={"reward": 7.0})
    commits["merge"] = main.commit(merge=[commits["s3"].id], step=6)
    tag = Writer(bucket, "tags/v1")
    tag.move(commits["m1"].id)
    gone = Writer(bucket, "branches/gone")
    gone.move(commits["m1"].id)
    gone.move(None)
    return {name: commit.id for name, commit in commits.items()}


@pytest.mark.parametrize(
    ("ref", "name"),
    [
        ("main", "merge"),
        ("branches/main", "merge"),
        ("side", "s3"),
        ("v1", "m1"),
        ("tags/v1", "m1"),
        ("main~", "n5"),
        ("main~0", "merge"),
        ("main~1", "n5"),
        ("main~3", "m3"),
        ("main~~~", "m3"),
        ("main^", "n5"),
        ("main^0", "merge"),
        ("main^1", "n5"),
        ("main^2", "s3"),
        ("main^2~1", "m2"),
        ("main~1^1~2", "m2"),
        ("v1~1", "m0"),
        ("main@{0}", "merge"),
        ("main@{1}", "n5"),
        ("main@{3}", "m3"),
        ("main@{4}", "m5"),
        ("main@{4}~1", "m4"),
        ("@{1}", "n5"),
        ("side@{1}", "m2"),
        ("tags/v1@{0}", "m1"),
        ("gone@{1}", "m1"),
        ("step:5", "n5"),
        ("step:4", "n4"),
        ("step:2~1", "m1"),
        ("main@step:3", "m3"),
        ("side@step:3", "s3"),
        ("best:reward", "m1"),
        ("worst:reward", "m2"),
        ("side@best:reward", "s3"),
        ("main@worst:reward", "m2"),
        ("best:loss", "m2"),
        ("worst:loss", "m1"),
        ("best:reward~1", "m0"),
    ],
)
def test_every_form_of_ref_finds_its_version(index, line, ref, name):
    assert resolve(index, ref) == line[name]


def test_ids_and_their_prefixes_find_their_version(index, line):
    for version in line.values():
        index.catch_up_all()
        unique = next(size for size in range(4, 65) if len(index.starting_with(version[:size])) == 1)
        assert resolve(index, version) == version
        assert resolve(index, version[:unique]) == version
        assert resolve(index, version[: max(unique, 12)] + "^0") == version


def test_the_branch_that_is_meant_can_be_given(index, line):
    assert resolve(index, "step:3", branch="side") == line["s3"]
    assert resolve(index, "@{1}", branch="side") == line["m2"]


def test_an_id_is_found_without_having_followed_anything(index, line):
    assert resolve(index, line["s3"]) == line["s3"]


def test_a_branch_is_followed_into_the_bucket(bucket, index, line):
    assert resolve(index, "main") == line["merge"]
    newer = Writer(bucket).commit(step=7)
    assert resolve(index, "main") == newer.id
    assert resolve(index, "step:7") == newer.id


@pytest.mark.parametrize(
    ("ref", "reason"),
    [
        ("nothing", "answers"),
        ("gone", "branch 'gone' was deleted; `deltavc branch gone gone@{1}`"),
        ("", "no version to start from"),
        ("~1", "no version to start from"),
        ("main~x", "take a number"),
        ("main~1x", "take a number"),
        ("main~100", "fewer than 100"),
        ("main^3", "2 parents"),
        ("main^1^2", "has 1 parent"),
        ("HEAD", "no current branch"),
        ("main..side", "only `log` takes one"),
        ("main@{99}", "moved only 10 times"),
        ("other@{1}", "no branch 'other'"),
        ("gone@{0}", "did not exist"),
        ("step:99", "no version in the history of branch 'main'"),
        ("step:x", "whole number"),
        ("other@step:1", "there is no branch 'other'"),
        ("v1@best:reward", "there is no branch 'v1'"),
        ("best:only", "finite"),
        ("best:nothing", "finite"),
        ("a b", "can have this name"),
        ("branches/", "can have this name"),
        ("0123456789", "starts with it"),
        ("0" * 64, "no version has this id"),
        ("abc", "4 digits"),
    ],
)
def test_what_cannot_be_found_says_why(index, line, ref, reason):
    with pytest.raises(UnknownRef) as caught:
        resolve(index, ref)
    assert reason in str(caught.value)
    assert caught.value.ref == ref


def test_near_names_are_offered(index, line):
    with pytest.raises(UnknownRef) as caught:
        resolve(index, "mian")
    assert caught.value.candidates == ("main",)
    with pytest.raises(UnknownRef) as caught:
        resolve(index, "best:rewrad")
    assert caught.value.candidates == ("best:reward",)
    with pytest.raises(UnknownRef) as caught:
        resolve(index, "best:only")  # there is nothing like it
    assert caught.value.candidates == ("best:loss", "best:reward")
    with pytest.raises(UnknownRef) as caught:
        resolve(index, "v1@step:3")
    assert caught.value.candidates == ()


def test_a_step_of_another_branch_or_of_none_is_offered_by_id(bucket, index, line):
    main = Writer(bucket)
    alone = main.commit(step=7).id
    main.move(line["merge"], "rollback")
    for branch in ("main", "side"):
        with pytest.raises(UnknownRef) as caught:
            resolve(index, "step:7", branch)
        assert caught.value.candidates == (alone,)


@pytest.mark.parametrize("ref", [1, None, b"main", ("main",)], ids=repr)
def test_what_is_not_text_is_no_ref(index, line, ref):
    for ask in (resolve, resolve_range):
        with pytest.raises(UnknownRef, match="a ref is text: 'main', 'step:120'"):
            ask(index, ref)


def test_a_branch_and_a_tag_of_one_name_are_ambiguous(bucket, index, line):
    Writer(bucket, "tags/side").move(line["m0"])
    with pytest.raises(AmbiguousRef) as caught:
        resolve(index, "side")
    assert caught.value.candidates == ("branches/side", "tags/side")
    assert resolve(index, "tags/side") == line["m0"]
    assert resolve(index, "branches/side") == line["s3"]


def test_an_ambiguous_prefix_lists_the_ids(bucket, index):
    main = Writer(bucket)
    seen = {}
    while True:
        made = main.commit().id
        if (other := seen.setdefault(made[:4], made)) != made:
            break
    index.catch_up_all()
    with pytest.raises(AmbiguousRef) as caught:
        resolve(index, made[:4])
    assert caught.value.candidates == tuple(sorted([made, other]))


def test_a_step_taken_twice_in_one_history_is_ambiguous(bucket, index):
    main = Writer(bucket)
    twice = [main.commit(step=1).id for _ in range(2)]
    with pytest.raises(AmbiguousRef) as caught:
        resolve(index, "step:1")
    assert caught.value.candidates == tuple(reversed(twice))


@pytest.mark.parametrize("abandoned", [1, 70])
def test_abandoned_versions_are_not_found_by_searches(bucket, index, abandoned):
    main = Writer(bucket)
    kept = main.commit(step=1, metrics={"reward": 0.1})
    for _ in range(abandoned):
        main.commit(step=2, metrics={"reward": 0.9})
        main.move(kept.id)
    best = main.commit(step=2, metrics={"reward": 0.2})
    main.commit(step=3, metrics={"reward": 0.1})
    assert resolve(index, "best:reward") == resolve(index, "step:2") == best.id


def test_of_equal_values_the_newest_is_best(bucket, index):
    main = Writer(bucket)
    made = [main.commit(metrics={"reward": 1}).id for _ in range(3)]
    assert resolve(index, "best:reward") == resolve(index, "worst:reward") == made[-1]


def test_ranges_name_both_ends(index, line):
    assert resolve_range(index, "v1..side") == (line["m1"], line["s3"])
    assert resolve_range(index, "v1..") == (line["m1"], line["merge"])
    assert resolve_range(index, "..side") == (line["merge"], line["s3"])
    assert resolve_range(index, "main~1..main") == (line["n5"], line["merge"])
    assert resolve_range(index, "side") == (None, line["s3"])
    with pytest.raises(UnknownRef):
        resolve_range(index, "a..b..c")


@pytest.mark.parametrize(
    ("metric", "less"),
    [
        *((metric, True) for metric in ("loss", "eval/loss", "val_loss", "evalLoss", "NLL", "kl")),
        *((metric, False) for metric in ("reward", "accuracy", "lossless", "loss/scale", "", "1")),
    ],
)
def test_a_loss_is_best_where_it_is_lowest(metric, less):
    assert less_is_better(metric) is less
