"""Run `python -m feedline` and the program `feedline`."""

from feedline.cli import main

if __name__ == "__main__":
    main()
