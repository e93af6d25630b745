"""The documentation is so: its Python runs, its links lead somewhere, the commands and errors that it names exist."""

import re
import shlex

import click
import pytest
from deltavc.cli.main import COMMANDS, main

import deltavc
from deltavc import errors
from tests.docs.pages import PAGES, ROOT, blocks, links, prose, slugs

STRANGE = re.compile(rf"{re.escape(str(ROOT))}|(?<![\w/.])/(?:root|tmp|work)\b")


def every(pages, taken):
    return [pytest.param(page, id=str(page.relative_to(ROOT))) for page in pages if taken(page)]


@pytest.mark.parametrize("page", every(PAGES, lambda page: "s3://" not in str(blocks(page, "python"))))
def test_the_python_of_a_page_runs(page, tmp_path, monkeypatch):
    run(page, tmp_path, monkeypatch, str)


@pytest.mark.servers
@pytest.mark.parametrize("page", every(PAGES, lambda page: "s3://" in str(blocks(page, "python"))))
def test_the_python_of_a_page_about_servers_runs_against_real_ones(page, tmp_path, monkeypatch, s3, postgres):
    real = {
        "s3://my-bucket": s3.new_bucket(),
        "https://s3.example.com": s3.endpoint,
        "my-access-key": s3.storage_options["key"],
        "my-secret-key": s3.storage_options["secret"],
        "my-reader-key": s3.reader_options["key"],
        "my-reader-secret": s3.reader_options["secret"],
        "postgresql://trainer@db.example.com/lineage": postgres.new_database(),
    }

    def put_in(text):
        for placeholder, value in real.items():
            text = text.replace(placeholder, value)
        return text

    run(page, tmp_path, monkeypatch, put_in)


def run(page, directory, monkeypatch, put_in):
    """Run the blocks of a page one after another, as somebody who types them in would."""
    monkeypatch.chdir(directory)
    monkeypatch.setenv("XDG_CACHE_HOME", str(directory / "cache"))
    names = {"__name__": "__main__"}
    for line, code in blocks(page, "python"):
        exec(compile("\n" * line + put_in(code), page, "exec"), names)
    for value in names.values():
        if isinstance(value, deltavc.Repo):
            value.close()


@pytest.mark.parametrize("page", every(PAGES, lambda page: True))
def test_links_lead_somewhere(page):
    for link in links(page):
        path, _, part = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{link} leads nowhere"
        assert target.is_relative_to(ROOT), f"{link} leaves the project"
        if part:
            assert part in slugs(target), f"{link}: there is no such heading"


@pytest.mark.parametrize("page", every(PAGES, lambda page: True))
def test_no_page_names_a_place_of_one_machine(page):
    assert not STRANGE.findall(page.read_text())


@pytest.mark.parametrize("page", every(PAGES, lambda page: True))
def test_every_command_in_a_page_is_one(page):
    for command in commands(page):
        check_command(command)


def commands(page):
    """What stands after `deltavc` in code, up to the end of the command."""
    text = page.read_text()
    in_blocks = "\n".join(code for language in ("sh", "console") for _, code in blocks(page, language))
    inline = re.findall(r"`(deltavc [^`]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    in_blocks += "\n" + "\n".join(re.findall(r"^(?<=\n\n)(?: {4}.*\n)+", prose(page), flags=re.MULTILINE))
    found = re.findall(r"^(?:\$ | {4})?(deltavc .+)$", re.sub(r"\\\n\s*", " ", in_blocks), flags=re.MULTILINE)
    return [command.replace("\n", " ") for command in [*inline, *found]]


def check_command(line):
    """Options have to exist where they stand; values are not looked at."""
    command = main
    known = options_of(command)
    for word in shlex.split(line, comments=True)[1:]:
        if word in ("|", ">", "&&", ";"):
            break
        if word.startswith("-") and len(word) > 1:
            assert word.partition("=")[0] in known, f"{line}: {word} is no option"
        elif isinstance(command, click.Group) and not skipped(word, command):
            found = command.get_command(click.Context(command), word)
            assert found is not None, f"{line}: {word} is no command"
            command, known = found, known | options_of(found)


def options_of(command):
    return {"-h", "--help"} | {name for option in command.params for name in (*option.opts, *option.secondary_opts)}


def skipped(word, group):
    """Whether a word before a command's name is an option's value, or stands for any command."""
    return word.isupper() or word == "..." or "=" in word or "://" in word or "/" in word


@pytest.mark.parametrize("name", [*(name for name in COMMANDS if name != "db"), "db upgrade"])
def test_the_help_of_every_command_has_examples_that_are_commands(name):
    context = click.Context(main, info_name="deltavc")
    for word in name.split():
        context = click.Context(context.command.get_command(context, word), parent=context, info_name=word)
    examples = context.get_help().partition("\n  Example:\n")[2].partition("\n\n")[0]
    found = re.findall(r"\bdeltavc [^)|\n]+", examples)
    assert any(command.startswith(f"deltavc {name}") for command in found)
    for command in found:
        check_command(command)


def test_troubleshooting_tells_of_every_kind_of_error_and_of_no_other():
    page = ROOT / "docs/troubleshooting.md"
    errors_only = page.read_text().partition("\n## What fsck finds")[0]
    told = re.findall(r"^\| `(\w+)` \|", errors_only, flags=re.MULTILINE)
    kinds = {error.kind for error in vars(errors).values() if isinstance(error, type) and "kind" in vars(error)}
    assert len(told) == len(set(told))
    assert set(told) - CLI_KINDS == kinds - {"error"}
    assert set(told) >= CLI_KINDS


CLI_KINDS = {"usage", "interrupted", "missing_package", "out_of_memory", "os_error", "internal"}


def test_every_page_can_be_found_from_the_index():
    index = ROOT / "docs/index.md"
    found = {(index.parent / link.partition("#")[0]).resolve() for link in links(index)}
    assert {page for page in PAGES if page not in (index, ROOT / "README.md")} <= found


@pytest.mark.parametrize("page", every(PAGES, lambda page: True))
def test_files_that_a_page_names_exist(page):
    for name in re.findall(r"`((?:tests|bench|deltavc|examples)/[\w/.-]*)`", prose(page)):
        assert (ROOT / name).exists(), f"{name} does not exist"
