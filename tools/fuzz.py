"""Feed the compiled kernels any bytes, by libFuzzer, beside pyarrow, numpy or Python.

    python tools/fuzz.py [--seconds SECONDS] [TARGET ...]

The targets are those of `tests/support/fuzz_targets.py`, each of which gets as long. Kernels and the program are built
by clang with AddressSanitizer and UndefinedBehaviorSanitizer below build/fuzz, where the corpus of each target grows
from run to run, from the seeds of `tests/support/fuzz_seeds.py`. An input that fails is written to
build/fuzz/TARGET-findings; once it is mended, it belongs in tests/native/findings/TARGET, whose inputs are replayed by
`tests/native/test_fuzz_targets.py` and are seeds, too.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from checked_kernels import NOT_BUILT, ROOT, BuildError, environment, kernels, run

sys.path.insert(0, str(ROOT / "tests" / "support"))

COMPILERS = ("clang", "clang-19", "clang-16", "clang-14")
SANITIZERS = "address,undefined"
CHECKS = ["-O1", "-g", "-fno-omit-frame-pointer", "-fno-sanitize-recover=undefined", "-D__SANITIZE_ADDRESS__=1"]
FOLDER = ROOT / "build" / "fuzz"
LONGEST = 4096  # bytes of an input


def compiler() -> str:
    """A clang that has libFuzzer. Raises BuildError."""
    found = next((each for each in COMPILERS if shutil.which(each)), None)
    if found is None:
        raise BuildError("there is no clang (on Debian and Ubuntu: apt install clang libclang-rt-dev)")
    return found


def build(folder: Path) -> Path:
    """A copy of the package with kernels whose coverage libFuzzer sees, and its program, which is returned."""
    clang, library = compiler(), sysconfig.get_config_var("LIBDIR")
    shutil.rmtree(folder / "feedline", ignore_errors=True)
    shutil.copytree(ROOT / "feedline", folder / "feedline", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    include = f"-I{sysconfig.get_paths()['include']}"
    for name, (source, options) in kernels().items():
        target = folder / "feedline" / "native" / f"{name}.abi3.so"
        checks = [*options, *CHECKS, f"-fsanitize=fuzzer-no-link,{SANITIZERS}"]
        run([clang, *checks, include, "-fPIC", "-shared", str(source), "-o", str(target)])
    program = folder / "fuzz"
    linked = [f"-L{library}", f"-Wl,-rpath,{library}", f"-lpython{sys.version_info[0]}.{sys.version_info[1]}"]
    main = str(ROOT / "tests" / "support" / "fuzz_main.c")
    run([clang, *CHECKS, f"-fsanitize=fuzzer,{SANITIZERS}", include, main, *linked, "-o", str(program)])
    return program


def write_seeds(target: str, folder: Path) -> None:
    """Write the seeds of a target, and the inputs that were found before."""
    from fuzz_seeds import seeds

    folder.mkdir(parents=True, exist_ok=True)
    kept = ROOT / "tests" / "native" / "findings" / target
    for seed in [*seeds(target), *(path.read_bytes() for path in sorted(kept.glob("*")))]:
        (folder / hashlib.sha1(seed).hexdigest()).write_bytes(seed)


def fuzz(program: Path, target: str, seconds: int) -> int:
    """Run a target. Returns 0 where nothing was found."""
    corpus, findings = (program.parent / f"{target}-{kind}" for kind in ("corpus", "findings"))
    write_seeds(target, corpus)
    findings.mkdir(exist_ok=True)
    variables = environment(program.parent) | {
        "FUZZ_TARGET": target,
        "FUZZ_PYTHON": sys.executable,
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONMALLOC": "malloc",
        "ARROW_DEFAULT_MEMORY_POOL": "system",
        "OMP_NUM_THREADS": "1",
    }
    options = [f"-max_total_time={seconds}", f"-max_len={LONGEST}", "-timeout=60", "-rss_limit_mb=4096"]
    options += ["-print_final_stats=1", "-verbosity=1", f"-artifact_prefix={findings}{os.sep}"]
    return subprocess.run([program, *options, corpus], env=variables, cwd=ROOT, check=False).returncode


def main() -> int:
    from fuzz_targets import TARGETS

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("targets", nargs="*", choices=[[], *TARGETS], metavar="TARGET", help="default: all")
    parser.add_argument("--seconds", type=int, default=600, help="of all targets together (default: 600)")
    known = parser.parse_args()
    targets = known.targets or list(TARGETS)
    try:
        program = build(FOLDER)
    except BuildError as error:
        print(f"the fuzzers cannot be built: {error}", file=sys.stderr)
        return NOT_BUILT
    failed = [each for each in targets if fuzz(program, each, max(1, known.seconds // len(targets)))]
    if failed:
        print(f"inputs that fail lie in {FOLDER}: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
