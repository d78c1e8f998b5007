"""Identity: which file of an engine a file is, however its path was typed.

It is the resolved path, with slashes, and contracts match its end: `sglang/srt/managers/x.py` is
the module `sglang.srt.managers.x` in a checkout, in site-packages and in a copy. Neither an
`__init__.py` nor a `pyproject.toml` is asked for: SGLang's own `srt` is a namespace package.
"""

from __future__ import annotations

import os
from functools import lru_cache

_SOURCES = (".py", ".pyi")


def identity_of(path: str) -> str:
    """Returns the identity of a file, which need not exist: the standard input may have its name.

    A link is what it points to, unless that is no source by its name, as in a store of contents.
    """
    folder, name = os.path.split(path)
    found = os.path.join(_resolved(os.getcwd(), folder), name)
    if os.path.islink(found):
        target = os.path.realpath(found)
        found = target if target.endswith(_SOURCES) else found
    return found.replace("\\", "/")


@lru_cache(maxsize=4096)
def _resolved(here: str, folder: str) -> str:
    return os.path.realpath(os.path.join(here, folder))


def is_module(identity: str, module: str) -> bool:
    """Tells whether the file of this identity may be the module, or the package, of this name."""
    tail, identity = module.replace(".", "/"), identity.replace("\\", "/")
    return any(
        identity == end or identity.endswith(f"/{end}")
        for end in (f"{tail}.py", f"{tail}/__init__.py")
    )
