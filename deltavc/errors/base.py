"""The base of all errors."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(eq=False)
class DeltavcError(Exception):
    """Base of every error that deltavc raises on purpose."""

    kind: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 1
    hint: ClassVar[str] = ""

    def __post_init__(self) -> None:
        super().__init__(*(getattr(self, field.name) for field in dataclasses.fields(self)))

    def facts(self) -> dict[str, Any]:
        """The error's fields by name, for `--json`."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
