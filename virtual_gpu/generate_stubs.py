"""Makes a stand-in for each of NVIDIA's libraries that a LibTorch is linked with.

What they must hold is read from LibTorch's own libraries: the names of the libraries they need, and the functions they do not
define, with their symbol versions. Every function of a stand-in counts itself by name and returns 0, which is "success" in all of
these libraries. Functions that the answers library defines are left out: stand-ins are linked with it, so that dlsym() on a
stand-in finds them there.
"""

import argparse
import collections
import os
import re
import subprocess
import sys

# Which library an unversioned function belongs to; the first that matches. Names of libraries are
# without "lib" and ".so".
FAMILIES = [
    ("cudart", r"_{0,2}cuda[A-Z]"),
    ("cublasLt", r"cublasLt[A-Z]"),
    ("cublas", r"cublas[A-Z]"),
    ("cudnn", r"cudnn[A-Z]"),
    ("cufft", r"cufft[A-Z]"),
    ("cusparseLt", r"cusparseLt[A-Z]"),
    ("cusparse", r"cusparse[A-Z]"),
    ("cusolver", r"cusolver[A-Z]"),
    ("curand", r"curand[A-Z]"),
    ("cufile", r"cuFile[A-Z]"),
    ("cupti", r"cupti[A-Z]"),
    ("nccl", r"p?nccl[A-Z]"),
    ("nvshmem_host", r"nvshmem"),
    ("nvrtc", r"nvrtc[A-Z]"),
    ("nvidia-ml", r"nvml[A-Z]"),
    ("cuda", r"cu[A-Z]"),
]
FAMILIES = [(name, re.compile(pattern)) for name, pattern in FAMILIES]

NVIDIA = re.compile(r"lib(cu|nv|nccl)")

# Opened by name while the program runs, so no library says that it needs them.
OPENED_BY_NAME = ["libcuda.so.1", "libnvidia-ml.so.1"]

OURS = "libmemledger_virtual_gpu.so"

# Libraries that a program with NVIDIA's own libraries may lack, as most of those that are linked
# with them never call them, and what each function of theirs returns where they are missing. That
# is the library's status for what it does not support (CUFFT_NOT_SUPPORTED,
# CUSOLVER_STATUS_NOT_SUPPORTED, CUSPARSE_STATUS_NOT_SUPPORTED) or for what was not initialised
# (CURAND_STATUS_INITIALIZATION_FAILED, CU_FILE_DRIVER_NOT_INITIALIZED). NVSHMEM's is any but 0.
# cuFile's functions are the driver's to answer, as their names begin like its own.
ABSENT = {"cufft": 16, "curand": 203, "cusolver": 9, "cusparse": 10, "cusparseLt": 10, "cufile": 5001, "nvshmem_host": 7}
RETURNS_TEXT = re.compile(r"cusparse(Lt)?GetError(Name|String)$")
RETURNS_MEMORY = re.compile(r"nvshmemx?_(malloc|calloc|align|ptr|mc_ptr)$")


def run(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, universal_newlines=True).stdout


def stem(soname):
    """cudart for libcudart.so.13 and for libcudart-8774224f.so.12."""
    return re.sub(r"(-[0-9a-f]{8})?\.so.*", "", soname)[len("lib") :]


def needs(path):
    """The libraries that `path` needs, and the version names with the library each is from."""
    libraries = []
    versions = {}
    file = None
    in_needs = False
    for line in run("readelf", "-d", "-V", "-W", path).splitlines():
        match = re.search(r"\(NEEDED\).*\[(.*)\]", line)
        if match:
            libraries.append(match.group(1))
        if line.startswith("Version "):
            in_needs = line.startswith("Version needs")
        match = re.search(r"Version: \d+\s+File: (\S+)", line)
        if match:
            file = match.group(1)
        match = re.search(r"Name: (\S+)", line)
        if match and in_needs and file:
            versions[match.group(1)] = file
    return libraries, versions


def undefined(path):
    """The functions that `path` takes from elsewhere, as (name, version or None)."""
    for line in run("nm", "-D", "-P", "--undefined-only", path).splitlines():
        symbol = line.split(" ", 1)[0]
        if not symbol.startswith("_Z"):
            name, _, version = symbol.partition("@")
            yield name, version.lstrip("@") or None


def defined(path):
    for line in run("nm", "-D", "-P", "--defined-only", path).splitlines():
        yield line.split(" ", 1)[0].partition("@")[0]


def declared(header):
    """The functions of cuda_runtime_api.h or cuda.h, under all names that the header gives them."""
    with open(header, encoding="utf-8", errors="replace") as file:
        text = file.read()
    names = set(re.findall(r"\b(?:CUDARTAPI|CUDAAPI)\s+(cu\w+)\s*\(", text))
    renamed = re.findall(r"^\s*#\s*define\s+(cu\w+)\s+(cu\w+)\s*$", text, re.MULTILINE)
    names.update(new for old, new in renamed if old in names)
    return names


def mentioned(path, pattern):
    """The names in the data of `path` that are looked up by name."""
    with open(path, "rb") as file:
        return {name.decode() for name in re.findall(pattern, file.read())}


def library_of(function, sonames):
    for family, pattern in FAMILIES:
        if pattern.match(function):
            for soname in sonames:
                if stem(soname) == family:
                    return soname
            return None
    return None


def collect(folder, headers):
    """For each library a dictionary from version (or None) to the functions of that version."""
    paths = sorted(os.path.join(folder, name) for name in os.listdir(folder) if re.search(r"\.so(\.\d+)*$", name))
    present = {os.path.basename(path) for path in paths}
    if "libc10_cuda.so" not in present:
        return {}
    sonames = set()
    by_version = {}
    wanted = set()
    for path in paths:
        libraries, versions = needs(path)
        sonames.update(name for name in libraries if NVIDIA.match(name) and name not in present)
        by_version.update(versions)
        wanted.update(undefined(path))
    sonames.update(name for name in OPENED_BY_NAME if stem(name) not in {stem(other) for other in sonames})
    for path in paths:
        if os.path.basename(path) == "libc10_cuda.so":
            wanted.update((name, None) for name in mentioned(path, rb"\bnvml[A-Z]\w+(?=\0)"))

    stubs = {soname: collections.defaultdict(set) for soname in sorted(sonames)}
    unversioned = set()
    for name, version in wanted:
        if version in by_version:
            if by_version[version] in stubs:
                stubs[by_version[version]][version].add(name)
        elif library_of(name, sonames):
            unversioned.add(name)
    if unversioned:
        here = set()
        for path in paths:
            here.update(unversioned.intersection(defined(path)))
        for name in unversioned - here:
            stubs[library_of(name, sonames)][None].add(name)

    # A program's own code may call more of these two than LibTorch does.
    for header, family in (("cuda_runtime_api.h", "cudart"), ("cuda.h", "cuda")):
        path = os.path.join(headers, header) if headers else ""
        if not os.path.exists(path):
            continue
        soname = next(name for name in sonames if stem(name) == family)
        known = set().union(*stubs[soname].values()) if stubs[soname] else set()
        version = next((version for version, file in by_version.items() if file == soname), None)
        stubs[soname][version].update(declared(path) - known)
    return stubs


def c_source(soname, functions):
    lines = [
        "/* Written by generate_stubs.py. */",
        "struct memledger_virtual_gpu_function {",
        "  const char *library, *function;",
        "  unsigned long count;",
        "  struct memledger_virtual_gpu_function *next;",
        "};",
        "void memledger_virtual_gpu_reached(struct memledger_virtual_gpu_function *);",
        "void memledger_virtual_gpu_called(void);",
        "#define STUB(name) \\",
        "  long name(void) { \\",
        '    static struct memledger_virtual_gpu_function self = {"%s", #name, 0, 0}; \\' % soname,
        "    if (__atomic_fetch_add(&self.count, 1, __ATOMIC_RELAXED) == 0) memledger_virtual_gpu_reached(&self); \\",
        "    memledger_virtual_gpu_called(); \\",
        "    return 0; \\",
        "  }",
    ]
    return "\n".join(lines + ["STUB(%s)" % name for name in sorted(functions)]) + "\n"


def c_source_of_absent(soname, functions):
    lines = [
        "/* Written by generate_stubs.py. */",
        "void memledger_virtual_gpu_absent(const char *function, const char *library);",
        "static int said;",
        "#define ABSENT(name, type, result) \\",
        "  type name(void) { \\",
        '    if (__atomic_exchange_n(&said, 1, __ATOMIC_RELAXED) == 0) memledger_virtual_gpu_absent(#name, "%s"); \\' % soname,
        "    return result; \\",
        "  }",
    ]
    for name in sorted(functions):
        if RETURNS_TEXT.match(name):
            lines.append('ABSENT(%s, const char *, "not found")' % name)
        elif RETURNS_MEMORY.match(name):
            lines.append("ABSENT(%s, void *, 0)" % name)
        else:
            lines.append("ABSENT(%s, long, %d)" % (name, ABSENT[stem(soname)]))
    return "\n".join(lines) + "\n"


def version_script(versions):
    """A version node is needed even where no function is left in it: the loader looks for its name."""
    blocks = []
    named = sorted(version for version in versions if version)
    for position, version in enumerate(named):
        # The linker takes no unversioned functions next to named versions; any version satisfies
        # who asks for none.
        functions = versions[version] | (versions.get(None, set()) if position == 0 else set())
        functions = "".join(" %s;" % name for name in sorted(functions))
        blocks.append("%s {%s%s };" % (version, " global:" + functions if functions else "", " local: *;" if position == 0 else ""))
    return "\n".join(blocks) + "\n"


def make_library(folder, soname, versions, text, answers, cc):
    """A library of generated functions, linked with the answers."""
    source = os.path.join(folder, soname + ".c")
    with open(source, "w") as file:
        file.write(text)
    # Not optimised: the compiler has nothing to gain here, and half of the time to lose.
    command = [cc, "-shared", "-fPIC", "-O0", "-w", "-nostdlib", "-s", "-o", os.path.join(folder, soname)]
    # A C++ compiler would take the file for C++, and mangle the names.
    command += ["-x", "c", source, "-x", "none"]
    to_answers = os.path.join("$ORIGIN", os.path.relpath(os.path.dirname(answers), folder))
    command += ["-Wl,-soname," + soname, "-Wl,-rpath," + to_answers, "-Wl,--hash-style=gnu", "-Wl,--no-as-needed", answers]
    script = source[:-1] + "map"
    if any(versions):
        with open(script, "w") as file:
            file.write(version_script(versions))
        command.append("-Wl,--version-script=" + script)
    subprocess.run(command, check=True)
    os.remove(source)
    if os.path.exists(script):
        os.remove(script)


def all_of(versions):
    return set().union(*versions.values()) if versions else set()


def make(folder, answers_file, stubs, cc):
    """The stand-ins beside a copy of the answers, and preload.txt, the order in which they are preloaded."""
    os.makedirs(folder, exist_ok=True)
    if not stubs:
        # No CUDA in this LibTorch: nothing to preload.
        open(os.path.join(folder, "preload.txt"), "w").close()
        return

    answers = os.path.join(folder, OURS)
    with open(answers_file, "rb") as source, open(answers, "wb") as target:
        target.write(source.read())
    os.chmod(answers, 0o755)
    considered = set(defined(answers))

    for soname, versions in stubs.items():
        left = {version: functions - considered for version, functions in versions.items()}
        make_library(folder, soname, left, c_source(soname, all_of(left)), answers, cc)

    with open(os.path.join(folder, "preload.txt"), "w") as file:
        file.write("".join(name + "\n" for name in [OURS] + list(stubs)))


def make_absent(folder, stubs, cc):
    """In a folder below that of the driver: what is preloaded for each library of ABSENT that a program lacks."""
    os.makedirs(folder, exist_ok=True)
    answers = os.path.join(os.path.dirname(folder), OURS)
    for soname, versions in stubs.items():
        if stem(soname) in ABSENT:
            make_library(folder, soname, versions, c_source_of_absent(soname, all_of(versions)), answers, cc)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--libtorch", required=True, help="LibTorch's lib folder")
    parser.add_argument("--headers", default="", help="folder of cuda_runtime_api.h and cuda.h: all their functions are generated, too")
    parser.add_argument("--answers", help="the library of considered functions; copied under the name %s" % OURS)
    parser.add_argument("--driver", help="the same that shows the driver and NCCL alone; stand-ins for their libraries go with it into OUT/driver, and into OUT/driver/absent libraries that refuse, for those that a program may lack")
    parser.add_argument("--cc", default="cc", help="compiler; one of C++ will do")
    parser.add_argument("--list", action="store_true", help="print what would be made, as library, version, function")
    parser.add_argument("--out", help="folder for the libraries and preload.txt")
    arguments = parser.parse_args()

    stubs = collect(arguments.libtorch, arguments.headers)
    if arguments.list:
        for soname, versions in stubs.items():
            for version, functions in sorted(versions.items(), key=str):
                for name in sorted(functions):
                    print(soname, version or "-", name)
        return
    if not arguments.out or not arguments.answers:
        parser.error("--out and --answers are needed")
    make(arguments.out, arguments.answers, stubs, arguments.cc)
    if arguments.driver:
        beside_own = lambda soname: soname in OPENED_BY_NAME or stem(soname) == "nccl"
        driver = {soname: versions for soname, versions in stubs.items() if beside_own(soname)}
        make(os.path.join(arguments.out, "driver"), arguments.driver, driver, arguments.cc)
        make_absent(os.path.join(arguments.out, "driver", "absent"), stubs, arguments.cc)


if __name__ == "__main__":
    sys.exit(main())
