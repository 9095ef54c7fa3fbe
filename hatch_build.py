"""Compiles what runs for every request (decisions, and the gateway's path from bytes to bytes) with mypyc.

The same sources run uncompiled, only slower; nothing else knows of this. As a build hook of the wheel it does nothing
where there is no C compiler, or with FULCRUM_COMPILE=0; with FULCRUM_COMPILE=1 a failure is an error. A checkout stays
uncompiled: `python hatch_build.py FOLDER` puts a compiled copy of the package into a folder, to be used with
PYTHONPATH=FOLDER.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # a compiled copy needs no hatchling
    BuildHookInterface = object

PACKAGE = Path(__file__).parent / "operator" / "fulcrum"
PACKAGES = (
    "routing", "admission", "front", "gateway/http", "gateway/api_formats", "gateway/dispatch", "gateway/front",
    "gateway/metrics", "gateway/workers",
)  # fmt: skip
"""Where all modules are compiled but those below. `benchmarks/compiled.py` measures what each package saves of the CPU
time of a request, or of a streamed chunk: 5 % is what it should save."""
PLAIN = {
    "defines values; msgspec, dataclasses and enums make classes in ways of their own": (
        "routing/pairs", "routing/path", "routing/sent", "routing/tuning",
        "admission/outcome", "admission/tuning", "front/conversation", "gateway/front/asked", "gateway/front/settings",
        "gateway/http/places", "gateway/http/upstream_answer",
        "gateway/api_formats/inference_request", "gateway/api_formats/media", "gateway/api_formats/media_blocks",
        "gateway/api_formats/named_events", "gateway/api_formats/error_object",
        "gateway/api_formats/stream_event", "gateway/dispatch/held_prefill", "gateway/dispatch/recovery",
        "gateway/dispatch/resume", "gateway/metrics/slo",
    ),
    "a long tuple of numbers as a constant, which mypyc does not set": (
        "gateway/front/metrics", "gateway/metrics/class_metrics",
    ),
    "no request waits for it": (
        "front/report", "front/routes", "gateway/front/app", "gateway/front/heartbeat", "gateway/front/object_watch",
        "gateway/front/pages", "gateway/http/internal_server", "gateway/http/passage", "gateway/http/peer",
        "gateway/api_formats/openapi", "gateway/api_formats/openapi_batches",
        "gateway/api_formats/openapi_requests", "gateway/api_formats/openapi_schemas",
        "gateway/dispatch/continuation", "gateway/dispatch/crashes", "gateway/metrics/counts",
        "gateway/workers/learned_speeds", "gateway/workers/canary", "gateway/workers/load_poll",
        "gateway/workers/prefix_sharing", "gateway/workers/prewarm", "gateway/workers/progress",
        "gateway/workers/watch",
    ),
}  # fmt: skip
"""Modules of these packages that stay Python, by the reason."""
_SETUP = """
import sys
from mypyc.build import mypycify
from setuptools import setup
extensions = mypycify(["--config-file=", *sys.argv[1:]], opt_level="3", group_name="fulcrum")
setup(name="fulcrum", packages=[], ext_modules=extensions, script_args=["--quiet", "build_ext", "--inplace"])
"""


def modules(without: str = "") -> list[str]:
    """What is compiled, as paths in the package without their suffix; none of the package `without`."""
    plain = {name for names in PLAIN.values() for name in names}
    found = (f"{package}/{path.stem}" for package in PACKAGES if package != without for path in _files(package))
    return sorted(name for name in found if name not in plain)


def _files(package: str) -> list[Path]:
    return [path for path in (PACKAGE / package).glob("*.py") if path.stem != "__init__"]


def compile_into(folder: Path, *, without: str = "") -> list[Path]:
    """Put a compiled copy of the package into `folder`; the libraries, relative to it. Raises RuntimeError.

    `without`: a package that stays Python in it. Does nothing where `folder` has been made from the same sources by the
    same interpreter.
    """
    stamp = folder / "stamp"
    want = _sources_digest() + without
    if stamp.is_file() and stamp.read_text() == want:
        return _libraries(folder)
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(PACKAGE, folder / "fulcrum", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    command = [sys.executable, "-c", _SETUP, *(f"fulcrum/{name}.py" for name in modules(without))]
    done = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True)
    shutil.rmtree(folder / "build", ignore_errors=True)
    if done.returncode:
        raise RuntimeError(f"mypyc or the C compiler failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    stamp.write_text(want)
    return _libraries(folder)


def _libraries(folder: Path) -> list[Path]:
    return sorted(path.relative_to(folder) for path in folder.rglob("*.so"))


def _sources_digest() -> str:
    digest = hashlib.sha256(sys.version.encode())
    for path in (Path(__file__), *sorted(PACKAGE.rglob("*.py"))):
        digest.update(b"%b\0%b\0" % (str(path.relative_to(Path(__file__).parent)).encode(), path.read_bytes()))
    return digest.hexdigest()


class CompileHook(BuildHookInterface):  # type: ignore[misc,unused-ignore]
    """Hatchling's hook: adds the libraries to the wheel."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, unless it is an editable install."""
        wanted = os.environ.get("FULCRUM_COMPILE", "auto")
        compiler = shutil.which(os.environ.get("CC", "cc"))
        if self.target_name != "wheel" or version != "standard" or wanted == "0":
            return
        if wanted != "1" and compiler is None:
            self.app.display_info("no C compiler: the wheel stays pure Python")
            return
        self._folder = tempfile.TemporaryDirectory()
        folder = Path(self._folder.name) / "compiled"
        try:
            libraries = compile_into(folder)
        except RuntimeError as error:
            if wanted == "1":
                raise
            self.app.display_warning(f"{error}\nThe wheel stays pure Python.")
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        build_data["force_include"].update({str(folder / path): str(path) for path in libraries})

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was built."""
        folder = getattr(self, "_folder", None)
        if folder is not None:
            folder.cleanup()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: hatch_build.py FOLDER")
    for library in compile_into(Path(sys.argv[1])):
        print(library)
