"""The pages of the documentation, and what stands in them."""

import re
import shlex
import subprocess
from pathlib import Path

from click.testing import CliRunner
from deltavc.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

_BLOCK = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def blocks(page, language):
    """The fenced blocks of one language: the number of the line that each stands on, and its text."""
    text = page.read_text()
    return [(text[: found.start(2)].count("\n"), found[2]) for found in _BLOCK.finditer(text) if found[1] == language]


def steps(page):
    """What a page lets its reader do, in order.

    ("python", line, code), ("console", command, lines that it prints), ("sh", command, None)
    """
    text = page.read_text()
    found = []
    for block in _BLOCK.finditer(text):
        if block[1] == "python":
            found.append(("python", text[: block.start(2)].count("\n"), block[2]))
        elif block[1] == "console":
            for line in block[2].splitlines():
                if line.startswith("$ "):
                    found.append(("console", line[2:], []))
                else:
                    found[-1][2].append(line)
        elif block[1] == "sh":
            found += [("sh", command, None) for command in re.split(r"\n| && ", block[2].strip())]
    return found


def answer(command):
    """Run a command line: the exit code, and what it prints on stdout and on stderr. Here, if it needs no shell."""
    program, *words = shlex.split(command)
    if program == "deltavc" and not any(sign in command for sign in ("|", "$(", " > ", "--run")):
        done = CliRunner().invoke(main, words)
        return done.exit_code, done.stdout, done.stderr
    ran = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    return ran.returncode, ran.stdout, ran.stderr


def general(line, folder):
    """A line that a command prints, without what differs from run to run."""
    line = line.replace(str(folder), "/data/me").rstrip()
    line = re.sub(r"\b[0-9a-f]{12,64}\b", "ID", line)
    line = re.sub(r"\d[\d.,]*( [kM]?B\b)?", "N", line)
    line = re.sub(r"\S+@[\w.-]+", "WHO", line)
    return re.sub(r" +", " ", line)


def prose(page):
    """A page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def links(page):
    """Where the links of a page lead that stay in the project."""
    return [link for link in _LINK.findall(prose(page)) if "://" not in link]


def slugs(page):
    """The names by which headings are linked to, as GitHub makes them."""
    headings = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in _HEADING.findall(prose(page)))
    return {heading.strip().replace(" ", "-") for heading in headings}
