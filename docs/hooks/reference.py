"""What the reference pages leave to the code. On GitHub these marks are not seen; on the site they become:

<!-- python: deltavc.Writer -->     the docstrings of a class, function or module, by mkdocstrings
<!-- errors -->                     every error, in the order of the tree
<!-- commands -->                   every command with its help, its arguments and its options, from click itself
"""

import inspect
import re

import click

_PYTHON = re.compile(r"^<!-- python: (\S+) -->$", re.MULTILINE)
_MARKS = {"<!-- errors -->": lambda: _errors(), "<!-- commands -->": lambda: _commands()}

_OF_ERRORS = {"DeltavcError": ["facts"]}
"""What errors have beside their fields: all that the first has."""


def on_page_markdown(markdown, page, config, files):
    """Put in what the marks stand for."""
    markdown = _PYTHON.sub(r"::: \1", markdown)
    for mark, lines in _MARKS.items():
        if mark in markdown:
            markdown = markdown.replace(mark, "\n".join(lines()))
    return markdown


def _errors():
    from deltavc import errors

    tree = re.findall(r"\w+", errors.__doc__.partition("\n\n    ")[2].partition("\n\n")[0])
    for name in dict.fromkeys(tree):
        error = getattr(errors, name)
        yield from [f"::: {error.__module__}.{name}", "    options:", "      inherited_members: false"]
        yield from [f"      members: {_OF_ERRORS.get(name, 'false')}", ""]
        if "kind" in vars(error):
            yield from [f"Kind `{error.kind}`, exit code {error.exit_code}. {error.hint}", ""]


def _commands():
    from deltavc.cli.main import main

    context = click.Context(main, info_name="deltavc")
    shared = {option.name for option in main.params}
    yield from _options(context, lambda option: option.name not in ("help", "version"))
    for name in main.list_commands(context):
        yield from _command(main.get_command(context, name), context, shared, name)


def _command(command, parent, shared, name):
    context = click.Context(command, parent=parent, info_name=name)
    text, _, example = inspect.cleandoc(command.help or "").partition("\n\b\nExample:\n")
    yield from [f"## {context.command_path}", "", text.replace("\b\n", ""), ""]
    yield from ["```text", context.get_usage().removeprefix("Usage: "), "```", ""]
    if example:
        yield from ["```sh", *(line.strip() for line in example.splitlines() if line.strip()), "```", ""]
    yield from _options(context, lambda option: option.name not in shared)
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            yield from _command(command.get_command(context, each), context, shared, each)


def _options(context, taken):
    """A table of options, in the words of --help."""
    options = [option for option in context.command.params if isinstance(option, click.Option) and taken(option)]
    records = [option.get_help_record(context) for option in options]
    if any(records):
        yield from ["| option | meaning |", "|---|---|"]
        yield from (f"| `{record[0]}` | {_plain(record[1])} |" for record in records if record)
        yield ""


def _plain(text):
    """Text in a cell of a table, with nothing in it that Markdown would take for its own."""
    return re.sub(r"([|<*_\[\]{}`\\])", r"\\\1", " ".join(text.split()))
