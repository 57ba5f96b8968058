#!/usr/bin/env bash
# Run the quick tests against an installed wheel, in a copy of the tree without the package's sources; those that read the
# sources are left out.
#
#   tools/test_wheel.sh WHEEL ENVIRONMENT [plain|lowest|bare] [argument of pytest]...
#
# ENVIRONMENT: a virtual environment that has what Feedline and its tests need (as `make install` makes it), which the
# wheel's own is put upon. plain: as they are there. lowest: with the versions of constraints-min.txt. bare: with the
# compiled kernels taken out of the wheel; of the tests those that use them.
set -euo pipefail
cd "$(dirname "$0")/.."

wheel=$(realpath "$1") environment=$(realpath "$2") variant=${3:-plain}
shift "$(($# < 3 ? $# : 3))"
python=$environment/bin/python
name=$variant-$("$python" -c 'import sys; print(*sys.version_info[:2], sep=".")')
place=$PWD/build/wheel-tests/$name
unset PYTHONPATH

rm -rf "$place"
mkdir -p "$place/tree"
"$python" -m venv --without-pip "$place/venv"
"$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$(echo "$place"/venv/lib/python*/site-packages)/environment.pth"
pip() { "$python" -m pip --python "$place/venv/bin/python" --disable-pip-version-check "$@"; }

pip install --quiet --no-deps --force-reinstall "$wheel"
if [ "$variant" = lowest ]; then
  # What these need in turn is taken as it is, where it fits.
  grep -v '^\(#\|torch==\)' constraints-min.txt >"$place/lowest.txt"
  pip install --quiet ${PIP_ARGS:-} --requirement "$place/lowest.txt"
  torch=$(grep '^torch==' constraints-min.txt)
  pip install --quiet ${PIP_ARGS:-} --no-deps "$torch+cpu" 2>"$place/torch.txt" ||
    echo "warning: $torch for CPUs cannot be had here: tested with torch $("$python" -c 'import torch; print(torch.__version__)')"
fi
packages=$(echo "$place"/venv/lib/python*/site-packages)
if [ "$variant" = bare ]; then rm "$packages"/feedline/native/*.so; fi

# Git's list where there is one: neither what is built nor what is ignored.
git ls-files -z --cached --others --exclude-standard -- . ':!feedline' | tar --create --null --ignore-failed-read --files-from=- 2>/dev/null |
  tar --extract --directory "$place/tree"
cd "$place/tree"
found=$("$place/venv/bin/python" -c 'import feedline; print(feedline.__file__)')
case $found in "$packages"/*) ;; *)
  echo "the tests would import $found, not the wheel" >&2
  exit 1
  ;;
esac
tests=tests
if [ "$variant" = bare ]; then tests=$(grep -rl native tests --include='test_*.py' | grep -v '^tests/system'); fi
exec "$place/venv/bin/python" -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder -p no:cacheprovider \
  -m "not nightly and not slow" --ignore tests/system --ignore tests/tools --ignore tests/test_architecture.py "$@" $tests
