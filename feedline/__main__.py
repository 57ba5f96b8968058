"""`python -m feedline`: the command line, and the feeder process (`python -m feedline feed …`)."""

import gc

gc.disable()  # the imports below make half a million objects that stay; `main` turns it on again

from feedline.cli import main  # noqa: E402

if __name__ == "__main__":
    main()
