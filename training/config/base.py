"""Types of the fields in a config, with their checks, and the strict base class of its tables."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from torch import nn

__all__ = ["Gravity", "Identifier", "Name", "NamedCode", "Stiffness", "Table", "Vector", "Word"]

# A number far beyond any robot is a slip of the keyboard, and would end in overflow many steps later.
Stiffness = Annotated[float, Field(gt=1e-15, le=1e12)]
Gravity = Annotated[float, Field(ge=-1e4, le=1e4)]


def _names_files(name: str) -> str:
    if not re.fullmatch(r"\w[\w .+-]{0,79}", name):
        raise ValueError(f"names files: expected letters, digits, blanks and . + - _, got {name!r:.99}")
    return name


def _names_attributes(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z_]\w{0,79}", name) or hasattr(nn.ModuleDict(), name):
        raise ValueError(f"expected a name of letters, digits and _ that means nothing to PyTorch, got {name!r:.99}")
    return name


def _printable(name: str) -> str:
    if not name or not name.isprintable():
        raise ValueError(f"expected the name of a file or folder, got {name!r:.99}")
    return name


def _names_code(name: str) -> str:
    file, _, attribute = name.rpartition(":")
    if not (file.endswith(".py") and attribute.isidentifier() and name.isprintable()):
        raise ValueError(f'expected "file.py:Name", got {name!r:.99}')
    return name


Word = Annotated[str, AfterValidator(_names_files)]
Identifier = Annotated[str, AfterValidator(_names_attributes)]
Name = Annotated[str, AfterValidator(_printable)]
NamedCode = Annotated[str, AfterValidator(_names_code)]
Vector = Annotated[list[Annotated[float, Field(ge=-1e6, le=1e6)]], Field(min_length=3, max_length=3)]


class Table(BaseModel):
    """A table of the file, which refuses unknown fields, numbers written as text, and infinite ones."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, str_max_length=1000, allow_inf_nan=False)

    def changed(self, *fields: str) -> list[str]:
        """Return which of some fields have another value than their default."""
        return [name for name in fields if getattr(self, name) != type(self).model_fields[name].default]
