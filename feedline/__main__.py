"""`python -m feedline`: the command line."""

from feedline.cli import main

if __name__ == "__main__":
    main()
