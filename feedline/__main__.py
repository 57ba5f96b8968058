"""Run `python -m feedline` and the program `feedline`.

`transform`, which runs on hosts that serve a model, is loaded alone: without Dask, in half the time.
"""

import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line."""
    if sys.argv[1:2] == ["transform"]:
        from feedline.commands.transform import main as run  # noqa: PLC0415 -- without the other commands' imports
    else:
        from feedline.cli import main as run  # noqa: PLC0415 -- imports Dask
    run()


if __name__ == "__main__":
    main()
