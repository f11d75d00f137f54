"""Builds the extension modules of kbroker._fast.

Environment:
    KBROKER_DEBUG=1        bounds checks and internal invariants (invariant.h) on, little optimisation
    KBROKER_SANITIZE=a,b   the compiler's sanitizers, as address,undefined; with KBROKER_DEBUG=1
    KBROKER_ANNOTATE=1     write Cython's annotated HTML beside each source
    KBROKER_EXTENSIONS=a,b build only these modules of kbroker/_fast; "none": none of them
"""

import gc
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

JOBS = os.cpu_count() or 1
DEBUG = os.environ.get("KBROKER_DEBUG") == "1"
ANNOTATE = os.environ.get("KBROKER_ANNOTATE") == "1"
SANITIZE = os.environ.get("KBROKER_SANITIZE", "")
ONLY = {name for name in os.environ.get("KBROKER_EXTENSIONS", "").split(",") if name}

DIRECTIVES = {
    "language_level": 3,
    "boundscheck": DEBUG,
    "wraparound": False,
    "initializedcheck": DEBUG,
    "cdivision": True,
    "overflowcheck": False,
    "embedsignature": True,
    "binding": False,
    "auto_pickle": False,
}
COMPILE_ARGS = ["-O1", "-g", "-UNDEBUG", "-DKBROKER_DEBUG=1"] if DEBUG else ["-O2", "-g1", "-DNDEBUG"]
# No -march=native: a wheel must run on any x86-64 or arm64 machine; crc32c picks its instructions at run time.
COMPILE_ARGS += ["-fno-strict-aliasing", "-Wno-unused-function", "-Wno-unreachable-code"]
LINK_ARGS = ["-pthread"]
if SANITIZE:
    # Python is built with -fwrapv, which hides signed overflow from the sanitizer.
    COMPILE_ARGS += [f"-fsanitize={SANITIZE}", "-fno-omit-frame-pointer", "-fno-wrapv"]
    LINK_ARGS += [f"-fsanitize={SANITIZE}"]


# Code that Cython would put into every module is compiled once, in a module of its own. A build of a part, or with
# checks, has it in each: its modules then load beside those of another build.
SHARED = None if DEBUG or SANITIZE or ONLY else "kbroker._fast.base._cyutility"


def extension(name: str, source: str) -> Extension:
    return Extension(
        name,
        [source],
        include_dirs=["kbroker/_fast/base"],
        extra_compile_args=COMPILE_ARGS,
        extra_link_args=LINK_ARGS,
    )


def extensions() -> list[Extension]:
    # The largest first: at the end of a build no core waits for another. The shared one is among them.
    sources = sorted(Path("kbroker/_fast").rglob("*.pyx"), key=lambda source: source.stat().st_size, reverse=True)
    found = [
        extension(".".join(source.with_suffix("").parts), str(source))
        for source in sources
        if not ONLY or source.stem in ONLY
    ]
    if SHARED:
        found.insert(0, extension(SHARED, SHARED.replace(".", "/") + ".c"))
    return found


class BuildExtensions(build_ext):
    """Makes each module's C file, in processes of their own, while others are compiled.

    Commands that build nothing, such as sdist, see the Cython sources.
    """

    def build_extensions(self) -> None:
        gc.set_threshold(100_000)  # by default a sixth of Cython's time goes to collections that free next to nothing
        with ProcessPoolExecutor(JOBS, multiprocessing.get_context("fork")) as translators:
            self.translated = {
                each.name: translators.submit(
                    cythonize,
                    each,
                    compiler_directives=DIRECTIVES,
                    annotate=ANNOTATE,
                    quiet=True,
                    shared_utility_qualified_name=SHARED,
                    force=DEBUG,
                    emit_linenums=DEBUG,
                    build_dir="build/cython-debug" if DEBUG else "build/cython",
                )
                for each in self.extensions
            }
            super().build_extensions()

    def build_extension(self, ext: Extension) -> None:
        ext.sources = self.translated[ext.name].result()[0].sources
        super().build_extension(ext)


setup(
    ext_modules=extensions(),
    cmdclass={"build_ext": BuildExtensions},
    options={"build_ext": {"parallel": JOBS}},
)
