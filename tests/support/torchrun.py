"""torchrun as one of the tests' own programs: with its ranks it starts by forks of a process that has imported torch.

    python torchrun.py --no-python OPTIONS PYTHON PROGRAM.PY ARGUMENTS

Without --no-python, torchrun would give Python an option that a fork cannot take.
"""

from torch.distributed.run import main

if __name__ == "__main__":
    main()
