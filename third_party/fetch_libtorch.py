#!/usr/bin/env python3
"""Downloads wheels with pip, checks their SHA-256 and unpacks what LibTorch programs need.

Usage: fetch_libtorch.py DEST [REQUIREMENT PLATFORM SHA256]...
       fetch_libtorch.py --shared STORE [VERSION [--python]]
       fetch_libtorch.py --find-python LIBTORCH

SHA256 may be `-`: then only pip's own check against the index holds, and the script says so.
With --shared, unpacks VERSION of libtorch_versions.bzl (or its default) into a folder of STORE named after the
checksums, unless it is there already, and prints the path of its `torch` folder. Processes that ask for the same
release at once wait for the first. STORE keeps the KEEP_RELEASES releases that were used last.

Beside LibTorch lies its Python, for the tests of Python programs, if the machine has the python3.11 that the wheel is
made for: torch's Python files from the same wheel, and the packages that it imports. It comes with LibTorch. --python
brings it to a LibTorch that was unpacked before; if that fails, it says why, and that is no error. --find-python prints
the folder for PYTHONPATH of that `torch` folder, or says why there is none, with exit status 2.

Run by bazelw and by the repository rule in libtorch.bzl; standard library only, Python 3.8 or newer.
"""

import fcntl
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

# The parts of the wheels that a C++ program uses. The rest (Python files and their licences) stays
# packed.
KEEP = ("torch/include/", "torch/lib/", "torch/share/", "nvidia/")
# Reads the pickles that timelines are written to; //tests/tracker:timeline_test runs it. It needs
# no other file of torch.
KEEP_FILE = "torch/cuda/_memory_viz.py"
# The wheels are tagged for one CPython, but a C++ program uses nothing of CPython: this one has a
# wheel of every release, and is Debian 12's.
PYTHON_VERSION = "3.11"
# What Python programs do not use, or have from LibTorch's folder. torch does not start without its
# torch_shm_manager.
PYTHON_SKIPS = ("torch/include/", "torch/lib/", "torch/share/", "torch/test/", "torch/bin/", "nvidia/")
PYTHON_KEEP = "torch/bin/torch_shm_manager"
# How many releases --shared keeps, 1.1 GB each: all that are pinned, as a wheel is built for them.
KEEP_RELEASES = 5


def download(requirement, platform, folder):
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
        "--only-binary=:all:", "--python-version", PYTHON_VERSION, "--platform", platform,
        "--dest", str(folder), requirement,
    ]
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if result.returncode != 0:
        sys.exit(f"pip could not download {requirement} for {platform}:\n{result.stdout}\n"
                 "Set LIBTORCH=/path/to/an/unpacked/LibTorch to use one that is already here.")
    name = requirement.split("==")[0].replace("-", "_")
    wheels = sorted(folder.glob(f"{name}-*.whl"))
    if len(wheels) != 1:
        sys.exit(f"expected one wheel of {requirement}, found {[w.name for w in wheels]}")
    return wheels[0]


def check(wheel, expected):
    if expected == "-":
        print(f"{wheel.name}: no pinned checksum, only the index's own was verified", file=sys.stderr)
        return
    digest = hashlib.sha256()
    with wheel.open("rb") as stream:
        for block in iter(lambda: stream.read(1 << 20), b""):
            digest.update(block)
    if digest.hexdigest() != expected:
        sys.exit(f"{wheel.name}: SHA-256 is {digest.hexdigest()}, expected {expected}; refusing to use it")


def unpack(wheel, dest):
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            name = member.filename
            if name == KEEP_FILE or (name.startswith(KEEP) and not name.endswith(".py")):
                archive.extract(member, dest)


def pinned():
    """What libtorch_versions.bzl, which is Python as well, defines."""
    names = {}
    exec((pathlib.Path(__file__).parent / "libtorch_versions.bzl").read_text(), names)
    return names


def python_packages(version):
    """What torch and the tests import, as (requirement, SHA-256)."""
    names = pinned()
    return names["PYTHON_PACKAGES"] + names["TORCHVISION"].get(version, [])


def python_folder(release):
    """Where the Python of an unpacked release lies; another selection is another folder."""
    selection = (PYTHON_SKIPS, PYTHON_KEEP, python_packages(release.name.partition("-")[2].partition("-")[0]))
    return release / f"python-{hashlib.sha256(repr(selection).encode()).hexdigest()[:12]}"


def why_no_python():
    """Why Python programs cannot run on this machine; empty if they can."""
    if shutil.which(f"python{PYTHON_VERSION}"):
        return ""
    return f"LibTorch's wheel is made for python{PYTHON_VERSION}, which is not on this machine"


def unpack_python(wheel, version, folder):
    """Makes `folder`, beside LibTorch's `torch` folder, of torch's wheel and the packages that it imports."""
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            if member.filename == PYTHON_KEEP or not member.filename.startswith(PYTHON_SKIPS):
                archive.extract(member, folder)
    (folder / PYTHON_KEEP).chmod(0o755)
    for part in ("lib", "include", "share"):
        (folder / "torch" / part).symlink_to(f"../../torch/{part}")
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as requirements:
        requirements.writelines(f"{package} --hash=sha256:{sha256}\n" for package, sha256 in python_packages(version))
        requirements.flush()
        command = [
            sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-compile",
            "--require-hashes", "--only-binary=:all:", "--python-version", PYTHON_VERSION,
            *(f"--platform={platform}_x86_64" for platform in ("manylinux_2_28", "manylinux_2_27", "manylinux2014")),
            "--target", str(folder), "--requirement", requirements.name,
        ]
        result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if result.returncode != 0:
        sys.exit(f"pip could not install what torch imports:\n{result.stdout}")
    # Tests write no .pyc files. Without any, each `import torch` would take seconds.
    subprocess.run([f"python{PYTHON_VERSION}", "-m", "compileall", "-q", str(folder)],
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def add_python(wheel, version, release, folder):
    """Makes release / folder, of a `release` that is unpacked or being unpacked. Says why if it cannot: only tests need it."""
    try:
        with tempfile.TemporaryDirectory(dir=release) as scratch:
            unpack_python(wheel, version, pathlib.Path(scratch) / folder)
            (pathlib.Path(scratch) / folder).rename(release / folder)
    except (OSError, SystemExit) as error:
        print(f"Tests of Python programs will be skipped: {error}", file=sys.stderr)


def fetch(dest, wheels, use=lambda requirement, wheel: None):
    """Unpacks `wheels` into `dest`, and calls `use` for each before it is deleted."""
    with tempfile.TemporaryDirectory(dir=dest) as scratch:
        for requirement, platform, sha256 in wheels:
            wheel = download(requirement, platform, pathlib.Path(scratch))
            check(wheel, sha256)
            unpack(wheel, dest)
            use(requirement, wheel)
            wheel.unlink()


def remove_old_releases(store, kept):
    """Removes all releases but `kept` and those used last, by their folders' times."""
    ours = re.compile(r"torch-[0-9.]+-[0-9a-f]{12}")
    releases = [folder for folder in store.iterdir() if ours.fullmatch(folder.name) and (folder / "torch").is_dir() and folder != kept]
    releases.sort(key=lambda folder: folder.stat().st_mtime, reverse=True)
    for folder in releases[KEEP_RELEASES - 1:]:
        shutil.rmtree(folder, ignore_errors=True)


def fetch_python(release, version, wheel):
    """Brings its Python to a release that is unpacked already, unless it is there or cannot be used."""
    folder = python_folder(release)
    if folder.is_dir() or why_no_python():
        return
    print(f"downloading torch {version} by pip for its Python files (about 570 MB)", file=sys.stderr)
    requirement, platform, sha256 = wheel
    with tempfile.TemporaryDirectory(dir=release) as scratch:
        try:
            path = download(requirement, platform, pathlib.Path(scratch))
            check(path, sha256)
        except SystemExit as error:
            print(f"Tests of Python programs will be skipped: {error}", file=sys.stderr)
            return
        add_python(path, version, release, folder.name)


def fetch_shared(store, version, with_python):
    """Returns the folder of `version` in `store`, unpacked once for all clones on this machine."""
    names = pinned()
    version = version or names["DEFAULT_LIBTORCH_VERSION"]
    wheels = names["LIBTORCH_WHEELS"].get(version)
    if wheels is None:
        sys.exit(f"LIBTORCH_VERSION={version} is not one of {', '.join(sorted(names['LIBTORCH_WHEELS']))}. "
                 "Set LIBTORCH=/path/to/an/unpacked/LibTorch to use another release.")
    # The name depends on which files are unpacked, too: another selection is another folder.
    key = hashlib.sha256(repr((wheels, KEEP, KEEP_FILE)).encode()).hexdigest()[:12]
    release = store / f"torch-{version}-{key}"
    store.mkdir(parents=True, exist_ok=True)
    with open(store / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if release.is_dir():
            os.utime(release)
            if with_python:
                fetch_python(release, version, wheels[0])
            return release
        print(f"downloading LibTorch {version} by pip (about 530 MB)", file=sys.stderr)
        # A process that was killed leaves a folder of this name behind.
        for left_over in store.glob(".unpacking-*"):
            shutil.rmtree(left_over, ignore_errors=True)
        scratch = pathlib.Path(tempfile.mkdtemp(prefix=".unpacking-", dir=store))

        def use(requirement, wheel):
            if requirement == wheels[0][0] and not why_no_python():
                add_python(wheel, version, scratch, python_folder(release).name)

        try:
            fetch(scratch, wheels, use)
            scratch.chmod(0o755)
            scratch.rename(release)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        remove_old_releases(store, release)
    return release


def find_python(libtorch):
    """Prints the folder for PYTHONPATH that lies beside `libtorch`. Returns the exit status."""
    why = why_no_python()
    if not why:
        folder = python_folder(libtorch.parent)
        if folder.is_dir():
            print(folder)
            return 0
        why = f"no torch for Python lies beside {libtorch}: bazelw fetches it, but not with LIBTORCH or MEMLEDGER_CACHE=off"
    print(why, file=sys.stderr)
    return 2


def main():
    arguments = sys.argv[1:]
    if arguments[:1] == ["--find-python"] and len(arguments) == 2:
        sys.exit(find_python(pathlib.Path(arguments[1])))
    if arguments[:1] == ["--shared"] and len(arguments) in (2, 3, 4):
        version = arguments[2] if len(arguments) > 2 else ""
        print(fetch_shared(pathlib.Path(arguments[1]), version, arguments[3:] == ["--python"]) / "torch")
        return
    dest = pathlib.Path(arguments[0])
    wheels = arguments[1:]
    if not wheels or len(wheels) % 3:
        sys.exit(__doc__)
    fetch(dest, list(zip(*[iter(wheels)] * 3)))


if __name__ == "__main__":
    main()
