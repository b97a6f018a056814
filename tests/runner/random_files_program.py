"""Calls that change and look at files at random, in the working folder, and prints what comes of
each. Usage: random_files_program.py SEED COUNT"""

import os
import random
import stat
import sys

random.seed(int(sys.argv[1]))
NAMES = ["a.txt", "log.txt", "d", "d/1", "d/sub", "d/sub/file", "empty", "link", "dlink",
         "dangling", "missing", "n", "n/x", "n/x/y", "dlink/2", "d/../a.txt", "./d/3", "empty/e",
         "data.bin", "n/link", "dlink/sub/file", "d/sub/", "link/x", "n/x/../y", "readonly"]
TARGETS = ["a.txt", "d", "../a.txt", "missing", "../n", "n/x", "link", "."]


def name():
    path = random.choice(NAMES)
    return os.path.join(os.getcwd(), path) if random.random() < 0.1 else path


def write(path, flags, text=b"text"):
    if flags & os.O_CREAT:
        path = path.rstrip("/")
    file = os.open(path, flags, 0o644)
    try:
        return os.write(file, text)
    finally:
        os.close(file)


def read(path):
    with open(path, "rb") as file:
        return len(file.read()), file.tell()


def look(path, follows=True):
    status = os.stat(path, follow_symlinks=follows)
    is_file = stat.S_ISREG(status.st_mode)
    return oct(status.st_mode), is_file and (status.st_size, status.st_nlink), status.st_uid


def list_open(path):
    file = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return sorted(os.listdir(file)), os.path.exists(f"/proc/self/fd/{file}")
    finally:
        os.close(file)


def in_folder(path, other):
    before = os.getcwd()
    os.chdir(path)
    try:
        write(os.path.basename(other), os.O_WRONLY | os.O_CREAT)
        return os.path.relpath(os.getcwd(), before), sorted(os.listdir("."))
    finally:
        os.chdir(before)


def at_folder(path, other):
    file = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        part = os.path.basename(other)
        write_to = os.open(part, os.O_WRONLY | os.O_CREAT, 0o600, dir_fd=file)
        os.close(write_to)
        os.rename(part, part + "2", src_dir_fd=file, dst_dir_fd=file)
        os.unlink(part + "2", dir_fd=file)
    finally:
        os.close(file)


def chmod(path, mode):
    # A real folder's mode stays as it is, and that is noted.
    if not os.path.isdir(path):
        os.chmod(path, mode)


def in_child(action):
    child = os.fork()
    if child == 0:
        try:
            action()
        except OSError:
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1]


# Where something is made, what a slash at the end does depends on what the kernel has cached.
W, C, T, X, A = os.O_WRONLY, os.O_CREAT, os.O_TRUNC, os.O_EXCL, os.O_APPEND
CALLS = [
    ("write", lambda p, q: write(p, W)),
    ("create", lambda p, q: write(p, W | C)),
    ("create", lambda p, q: write(p, W | C)),
    ("truncate", lambda p, q: write(p, W | C | T)),
    ("append", lambda p, q: write(p, W | C | A, b"+")),
    ("new", lambda p, q: write(p, W | C | X)),
    ("no follow", lambda p, q: write(p, W | os.O_NOFOLLOW)),
    ("read and truncate", lambda p, q: os.close(os.open(p.rstrip("/"), os.O_RDONLY | C))),
    ("read", lambda p, q: read(p)),
    ("rename", lambda p, q: os.rename(p, q)),
    ("rename", lambda p, q: os.rename(p, q)),
    ("unlink", lambda p, q: os.unlink(p)),
    ("rmdir", lambda p, q: os.rmdir(p)),
    ("mkdir", lambda p, q: os.mkdir(p)),
    ("mkdir", lambda p, q: os.makedirs(p)),
    ("link", lambda p, q: os.link(p, q.rstrip("/"), follow_symlinks=False)),
    ("symlink", lambda p, q: os.symlink(random.choice(TARGETS), p.rstrip("/"))),
    ("readlink", lambda p, q: os.readlink(p)),
    ("stat", lambda p, q: look(p)),
    ("lstat", lambda p, q: look(p, follows=False)),
    ("access", lambda p, q: (os.access(p, os.W_OK), os.access(p, os.X_OK))),
    ("list", lambda p, q: sorted(os.listdir(p))),
    ("list", lambda p, q: list_open(p)),
    ("set size", lambda p, q: os.truncate(p, 3)),
    ("chmod", lambda p, q: chmod(p, 0o640)),
    ("utime", lambda p, q: os.utime(p, (1, 2)) or os.path.isdir(p) or os.stat(p).st_mtime),
    ("chdir", in_folder),
    ("at", at_folder),
    ("realpath", lambda p, q: os.path.relpath(os.path.realpath(p, strict=True))),
    ("child", lambda p, q: in_child(lambda: os.rename(p, q))),
    ("child", lambda p, q: in_child(lambda: write(p, W | C))),
]

for number in range(int(sys.argv[2])):
    what, call = random.choice(CALLS)
    path, other = name(), name()
    try:
        result = call(path, other)
    except OSError as error:
        result = error.strerror
    here = os.getcwd() + "/"
    print(number, what, path.replace(here, "/"), other.replace(here, "/"), result)
    if number % 50 == 49:  # or nothing is left after a while
        for path in ["d/sub", "empty", "n/x"]:
            try:
                os.makedirs(path, exist_ok=True)
                write(path + "/file", W | C)
            except OSError as error:
                print(error.strerror)
