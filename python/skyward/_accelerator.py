"""Which accelerator there is, and whose."""

from __future__ import annotations

import re

from skyward._info import instance_info

# Names of accelerators without spaces and punctuation, as Offers and clouds write them.
_NVIDIA = re.compile(
    r"NVIDIA|TESLA|GEFORCE|QUADRO|TITAN|RTX|GTX|CMP\d|PRO\d{4}|(?:[ABHKLPRT]|GH|GB)[1-9]|M60|V100"
)
_TRAINIUM = re.compile(r"(?:AWS|AMAZON)?(?:TRAINIUM|TRN\d)")


def current_accelerator() -> str | None:
    """Type of the accelerators of this machine as Offers name it, such as "A100"; None where it has none.

    Raises NotInTaskError outside of a Task.
    """
    accelerator = instance_info().accelerator
    return accelerator.type if accelerator else None


def is_nvidia(name: str | None = None) -> bool:
    """Whether an accelerator of that name, such as "H100" or "A100-80GB", is one of NVIDIA.

    Without a name this machine's accelerator is meant: False where it has none.
    """
    return _matches(_NVIDIA, name)


def is_trainium(name: str | None = None) -> bool:
    """Whether an accelerator of that name, such as "Trainium2" or "trn1", is AWS Trainium.

    Without a name this machine's accelerator is meant: False where it has none.
    """
    return _matches(_TRAINIUM, name)


def _matches(names: re.Pattern[str], name: str | None) -> bool:
    if name is None:
        name = current_accelerator()
    return bool(name and names.match(re.sub(r"[^A-Z0-9]", "", name.upper())))
