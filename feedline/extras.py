"""Parts of Feedline that need a package which a plain installation lacks: an extra of pyproject.toml brings it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from feedline.errors import FeedlineError, SpecError


@contextmanager
def extra(name: str, what: str, error: type[FeedlineError] = SpecError) -> Iterator[None]:
    """Surrounds the imports of a part: one that fails becomes `error`, which names the extra.

    what: the part, as its user knows it.
    """
    try:
        yield
    except ModuleNotFoundError as missing:
        raise error(
            f"{what} needs a package that is not installed: {missing}. Run: pip install 'feedline[{name}]'"
        ) from None
    except ImportError as broken:
        raise error(
            f"{what} needs a package that cannot be imported: {broken}. Run: pip install --force-reinstall "
            f"'feedline[{name}]'"
        ) from broken
