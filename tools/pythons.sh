#!/usr/bin/env bash
# Print the Pythons from 3.11 on that can make a virtual environment here, on PATH or among pyenv's: one of each minor
# release, the newest first.
for minor in $(seq 30 -1 11); do
  for python in "$(command -v "python3.$minor")" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3."$minor".*/bin/python; do
    if "$python" -c "import ensurepip, sys, venv; sys.exit(sys.version_info[:2] != (3, $minor))" 2>/dev/null; then
      echo "$python"
      break
    fi
  done
done
