"""Run `python -m feedline` and the program `feedline`.

`transform` runs where nothing but a model is served: it is loaded alone, without Dask and in half the time.
"""

import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line."""
    if sys.argv[1:2] == ["transform"]:
        from feedline.commands.transform import main as run  # noqa: PLC0415 -- without what the other commands load
    else:
        from feedline.cli import main as run  # noqa: PLC0415 -- brings Dask
    run()


if __name__ == "__main__":
    main()
