"""Completion for good: a script where the shell finds it, or one with a marked line in the shell's start-up file.

    fish   ~/.config/fish/completions/deltavc.fish          read by itself
    bash   ~/.local/share/deltavc/completion.bash           a line in ~/.bashrc
    zsh    ~/.local/share/deltavc/completion.zsh            a line in ~/.zshrc

Doing it again changes nothing, or what has changed.
"""

from __future__ import annotations

import os
import shlex
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

MARK = "# deltavc completion"


@dataclass(frozen=True, slots=True)
class Installed:
    """Where completion was installed. rc: the start-up file that reads the script. changed: which were written."""

    shell: str
    script: str
    rc: str | None
    changed: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """A JSON-able form."""
        return asdict(self) | {"changed": list(self.changed)}


def install(shell: str, source: str) -> Installed:
    """Install a completion script for a shell of this user. Raises OSError."""
    import platformdirs

    if shell == "fish":
        script, rc = _home("XDG_CONFIG_HOME", ".config") / "fish" / "completions" / "deltavc.fish", None
    else:
        script = platformdirs.user_data_path("deltavc") / f"completion.{shell}"
        rc = Path.home() / ".bashrc" if shell == "bash" else _home("ZDOTDIR", "") / ".zshrc"
    changed = [script] if _put(script, source + "\n") else []
    if rc is not None and _put(rc, _with_line(rc, _line(shell, script))):
        changed.append(rc)
    return Installed(shell, str(script), None if rc is None else str(rc), tuple(map(str, changed)))


def _home(variable: str, below: str) -> Path:
    return Path(os.environ.get(variable) or Path.home() / below)


def _line(shell: str, script: Path) -> str:
    path = shlex.quote(str(script))
    if shell == "bash":
        return f"[ -r {path} ] && . {path}  {MARK}"
    compinit = "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit; }"
    return f"[[ -r {path} ]] && {{ {compinit}; source {path}; }}  {MARK}"


def _with_line(rc: Path, line: str) -> str:
    """The start-up file with our line, in the place of one that we wrote before, or at its end."""
    text = rc.read_text(encoding="utf-8", errors="surrogateescape") if rc.exists() else ""
    lines = text.removesuffix("\n").split("\n") if text else []
    ours = [number for number, each in enumerate(lines) if each.endswith(MARK)]
    if ours:
        lines = [line if number == ours[0] else each for number, each in enumerate(lines) if number not in ours[1:]]
    else:
        lines.append(line)
    return "\n".join(lines) + "\n"


def _put(path: Path, text: str) -> bool:
    """Make a file hold this, wholly or not at all; what it links to, if it is a link. Whether it had to be written."""
    from deltavc.store.files import replacing

    place = path.resolve()
    content = text.encode("utf-8", "surrogateescape")
    if place.exists() and place.read_bytes() == content:
        return False
    mode = place.stat().st_mode if place.exists() else None
    place.parent.mkdir(parents=True, exist_ok=True)
    with replacing(str(place)) as file:
        file.write(content)
        if mode is not None:
            os.fchmod(file.fileno(), mode & 0o7777)
    return True
