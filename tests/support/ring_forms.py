"""The ring's functions as they are compiled, and in Python."""

from __future__ import annotations

import pytest

from feedline.native import ring


def use(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a form, "compiled" or "python", for the rest of the test; skips it where there is none."""
    if form == "compiled":
        if not ring.COMPILED:
            pytest.skip("installed without a compiler")
        return
    for name in ("receive", "send", "flush", "lease", "forget_leases"):
        monkeypatch.setattr(ring, name, getattr(ring.Uncompiled, name))
