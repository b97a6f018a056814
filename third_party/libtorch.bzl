"""@libtorch: an unpacked LibTorch on this machine, or the pinned torch wheel.

Environment:
  LIBTORCH          absolute path of an unpacked LibTorch (include/ and lib/) or of an installed torch package, CPU or CUDA,
                    2.9 or newer, with the C++11 ABI.
  LIBTORCH_VERSION  release to download when LIBTORCH is not set; the default is pinned in libtorch_versions.bzl.
  CUDA_HOME         a CUDA toolkit, looked at only where NVIDIA's wheels do not lie beside LibTorch.

Targets: @libtorch//:torch, @libtorch//:torch_cuda, @libtorch//:torch_cuda_headers, @libtorch//:autograd_functions_header.
`torch_cuda_headers` has CUDA's headers and MEMLEDGER_LIBTORCH_HAS_CUDA and links nothing: it is for code
that must also run where LibTorch's CUDA libraries are not loaded. `torch_cuda` adds `torch` and links
LibTorch's CUDA libraries. The linker does not look for cuBLAS, cuDNN and the others that those need, so a
program links where they are not installed (it starts where they are, or on the virtual GPU).

Both are empty (without MEMLEDGER_LIBTORCH_HAS_CUDA) if LibTorch has no CUDA, or if the CUDA headers that
its own headers include are missing: cuda_runtime_api.h and crt/, of its CUDA's major version. They are
looked for in NVIDIA's wheels beside LibTorch (nvidia/cu13, or nvidia/cuda_runtime and its neighbours) and
in CUDA_HOME.

Binaries have the absolute path of the libraries in their run path, because LibTorch's libraries find each
other by their place on disk.

version.bzl has LIBTORCH_VERSION (2, 11), LIBTORCH_RELEASE "2.11.0", LIBTORCH_HAS_CUDA, LIBTORCH_LIB, the
folder of the libraries, and LIBTORCH_CUDART_STATIC, the path of the CUDA runtime that nvcc links into programs ("" where
there is none).
"""

load(":libtorch_versions.bzl", "DEFAULT_LIBTORCH_VERSION", "LIBTORCH_WHEELS")

_OLDEST = (2, 9)

def _use_local(ctx, path):
    if not path.startswith("/"):
        fail("LIBTORCH=%s is not an absolute path. Give an absolute path, the build does not know which folder you are in." % path)
    for candidate in [path, path + "/torch"]:
        if ctx.path(candidate + "/include/ATen").exists and ctx.path(candidate + "/lib").exists:
            # The run path needs the real path: the wheel's libraries look for CUDA packages next to
            # it.
            root = str(ctx.path(candidate).realpath)
            ctx.symlink(root + "/include", "torch/include")
            nvidia = ctx.path(root).dirname.get_child("nvidia")
            if nvidia.exists:
                ctx.symlink(nvidia, "nvidia")
            return root
    fail("LIBTORCH=%s: no include/ATen and lib folder there. Give the folder of an unpacked LibTorch, or of an installed torch package." % path)

def _download(ctx):
    version = ctx.os.environ.get("LIBTORCH_VERSION", "") or DEFAULT_LIBTORCH_VERSION
    machine = ctx.execute(["uname", "-sm"]).stdout.strip()
    if machine != "Linux x86_64":
        fail("No pinned LibTorch for %s. Set LIBTORCH=/path/to/an/unpacked/LibTorch." % machine)
    if version not in LIBTORCH_WHEELS:
        fail("LIBTORCH_VERSION=%s is not one of %s. Set LIBTORCH=/path/to/an/unpacked/LibTorch to use another release." % (version, ", ".join(sorted(LIBTORCH_WHEELS))))
    arguments = []
    for requirement, platform, sha256 in LIBTORCH_WHEELS[version]:
        arguments += [requirement, platform, sha256]
    ctx.report_progress("downloading torch %s by pip (about 530 MB)" % version)
    python = ctx.which("python3")
    if not python:
        fail("python3 with pip is needed to download LibTorch. Set LIBTORCH=/path to use one that is already here.")
    result = ctx.execute([python, ctx.path(Label("//third_party:fetch_libtorch.py")), "."] + arguments, timeout = 3600, quiet = False)
    if result.return_code != 0:
        fail("LibTorch %s could not be fetched:\n%s%s" % (version, result.stdout, result.stderr))
    return str(ctx.path("torch"))

def _version(ctx, root):
    """The version as numbers, (2, 11, 0)."""
    for header in ["torch/include/torch/headeronly/version.h", "torch/include/torch/csrc/api/include/torch/version.h"]:
        if not ctx.path(header).exists:
            continue
        found = {}
        for line in ctx.read(header).splitlines():
            for part in ["MAJOR", "MINOR", "PATCH"]:
                prefix = "#define TORCH_VERSION_%s " % part
                if line.startswith(prefix):
                    found[part] = int(line[len(prefix):].strip())
        if len(found) == 3:
            return (found["MAJOR"], found["MINOR"], found["PATCH"])
    fail("%s: no version header there. memledger needs LibTorch %d.%d or newer." % ((root,) + _OLDEST))

def _check_usable(ctx, root, version):
    if version[:2] < _OLDEST:
        fail("memledger needs LibTorch %d.%d or newer, this is %d.%d.%d: %s" % (_OLDEST + version + (root,)))
    newest = max([tuple([int(part) for part in pinned.split(".")[:2]]) for pinned in LIBTORCH_WHEELS])
    if version[:2] > newest:
        # buildifier: disable=print
        print(("LibTorch %d.%d.%d is newer than %d.%d, the newest that this memledger was tested with. It may not build; where it " +
               "does, cuBLAS's workspaces have no names.") % (version + newest))
    config = ctx.path(root + "/share/cmake/Torch/TorchConfig.cmake")
    if config.exists and "_GLIBCXX_USE_CXX11_ABI=0" in ctx.read(config):
        fail("%s is built with the old C++ ABI (_GLIBCXX_USE_CXX11_ABI=0), memledger is not. Use a LibTorch with the C++11 ABI, such as any torch wheel from 2.9 on." % root)

def _cuda_major(ctx, lib):
    """The major version of LibTorch's CUDA runtime, as text; "" if unknown."""
    result = ctx.execute(["grep", "-a", "-o", "-m1", "libcudart[-0-9a-f]*[.]so[.][0-9]*", lib + "/libc10_cuda.so"])
    lines = result.stdout.splitlines()
    return lines[0].split(".")[-1] if lines else ""

def _has_cuda_runtime(ctx, include, major):
    header = ctx.path(include + "/cuda_runtime_api.h")
    if not header.exists:
        return False
    for line in ctx.read(header).splitlines():
        words = [word for word in line.split(" ") if word]
        if words[:2] == ["#define", "CUDART_VERSION"]:
            return not major or str(int(words[2]) // 1000) == major
    return False

def _holds_cuda_libraries(ctx, folder):
    if not ctx.path(folder).exists:
        return False
    for entry in ctx.path(folder).readdir():
        if entry.basename.startswith("libcudart.so") or entry.basename.startswith("libcupti.so"):
            return True
    return False

def _cuda(ctx, root):
    """LibTorch's CUDA: include folders, relative to the repository, and absolute library folders."""
    lib = root + "/lib"
    is_cuda = ctx.path(lib + "/libc10_cuda.so").exists
    major = _cuda_major(ctx, lib) if is_cuda else ""

    # NVIDIA's wheels next to LibTorch: nvidia/cu13 holds all of CUDA 13; CUDA 12 has a folder for
    # each wheel, such as nvidia/cuda_runtime.
    nvidia = str(ctx.path(root).dirname) + "/nvidia"
    names = sorted([entry.basename for entry in ctx.path(nvidia).readdir()]) if ctx.path(nvidia).exists else []
    if major:
        # The folder of the right major version goes first; those of other versions are left out.
        right = "cu" + major
        names = [name for name in names if name == right] + [name for name in names if not (name.startswith("cu") and name[2:].isdigit())]
    lib_folders = ["%s/%s/lib" % (nvidia, name) for name in names if _holds_cuda_libraries(ctx, "%s/%s/lib" % (nvidia, name))]
    if not is_cuda:
        return [], lib_folders

    includes = ["nvidia/%s/include" % name for name in names if ctx.path("nvidia/%s/include" % name).exists]
    runtimes = [include for include in includes if _has_cuda_runtime(ctx, include, major)]
    if runtimes:
        # cuDNN, NCCL, CUDA 12's compiler headers and so on are added; a second runtime is not.
        others = [
            include
            for include in includes
            if include != runtimes[0] and not ctx.path(include + "/cuda_runtime_api.h").exists
        ]
        includes = [runtimes[0]] + others
        for include in includes:
            if ctx.path(include + "/crt/host_defines.h").exists:
                return includes, lib_folders

    # Read only here, so that a change of CUDA_HOME makes @libtorch again (and maybe downloads it)
    # only if it matters.
    home = ctx.read(ctx.path(Label("@memledger_cuda_home//:path.txt")))
    if home.startswith("/") and _has_cuda_runtime(ctx, home + "/include", major):
        if not lib_folders:
            candidates = [home + "/lib64", home + "/lib", home + "/extras/CUPTI/lib64"]
            lib_folders = [folder for folder in candidates if _holds_cuda_libraries(ctx, folder)]
        ctx.symlink(home + "/include", "cuda_home/include")
        return ["cuda_home/include"], lib_folders

    # buildifier: disable=print
    print(("%s has CUDA%s, but not all of its headers are here: @libtorch//:torch_cuda stays empty. They come with the wheels " +
           "nvidia-cuda-runtime and nvidia-cuda-crt beside LibTorch, or with a CUDA toolkit at CUDA_HOME.") % (root, " " + major if major else ""))
    return [], lib_folders

def _runtime_headers(ctx, cuda_includes):
    return [
        include + "/" + name
        for include in cuda_includes[:1]
        for name in ["cuda_runtime_api.h", "cuda.h"]
        if ctx.path(include + "/" + name).exists
    ]

def _runtime_link(ctx, folders):
    """The CUDA runtime by its file name: the wheels have no libcudart.so without a version."""
    for folder in folders:
        for entry in ctx.path(folder).readdir():
            if entry.basename.startswith("libcudart.so"):
                return ["-L" + folder, "-l:" + entry.basename]
    return []

def _static_runtime(ctx, root, folders):
    """The CUDA runtime that nvcc links into programs; "" where it is not here."""
    for folder in folders:
        # A toolkit has it in lib64, CUDA 12's wheels in a folder of their own.
        for candidate in [folder, ctx.path(root).dirname.get_child("nvidia").get_child("cuda_runtime").get_child("lib")]:
            path = str(candidate) + "/libcudart_static.a"
            if ctx.path(path).exists:
                return path
    return ""

# What LibTorch's CUDA libraries themselves need may be missing when a program is linked. Both are
# linked even if no symbol needs them: kernels register themselves when their library is loaded.
_CUDA_LINK = ["-Wl,--no-as-needed", "-ltorch_cuda", "-lc10_cuda", "-Wl,--as-needed", "-Wl,--allow-shlib-undefined"]

def _libtorch_impl(ctx):
    path = ctx.os.environ.get("LIBTORCH", "")
    root = _use_local(ctx, path) if path else _download(ctx)
    version = _version(ctx, root)
    _check_usable(ctx, root, version)
    lib = root + "/lib"
    cuda_includes, cuda_lib_folders = _cuda(ctx, root)
    has_cuda = bool(cuda_includes)
    link = ["-L" + lib, "-Wl,--no-as-needed", "-ltorch_cpu", "-Wl,--as-needed", "-lc10", "-lpthread", "-ldl"]
    for run_path in [lib] + cuda_lib_folders:
        link += ["-Wl,-rpath," + run_path, "-Wl,-rpath-link," + run_path]
    ctx.template("BUILD", Label("//third_party:libtorch.BUILD.tpl"), {
        "%{link}": repr(link),
        "%{cuda_link}": repr(_CUDA_LINK + _runtime_link(ctx, cuda_lib_folders) if has_cuda else []),
        "%{cuda_runtime_headers}": repr(_runtime_headers(ctx, cuda_includes)),
        "%{cuda_defines}": repr(["MEMLEDGER_LIBTORCH_HAS_CUDA=1"] if has_cuda else []),
        "%{cuda_headers}": repr([include + "/**" for include in cuda_includes]),
        "%{cuda_includes}": repr(cuda_includes),
        "%{api_includes}": repr(["torch/include", "torch/include/torch/csrc/api/include"]),
    })
    ctx.file("version.bzl", "\n".join([
        "LIBTORCH_VERSION = %r" % (version[:2],),
        "LIBTORCH_RELEASE = %r" % ".".join([str(part) for part in version]),
        "LIBTORCH_HAS_CUDA = %r" % has_cuda,
        "LIBTORCH_LIB = %r" % lib,
        "LIBTORCH_CUDART_STATIC = %r" % (_static_runtime(ctx, root, cuda_lib_folders) if has_cuda else ""),
        "",
    ]))

    # The libraries are no inputs of Bazel: they are gigabytes, and must stay where they are. This
    # file stands for them.
    ctx.file("libraries.txt", "%s\n%s" % (lib, ctx.execute(["ls", "-lL", "--time-style=full-iso", lib]).stdout))

def _cuda_home_impl(ctx):
    ctx.file("BUILD")
    ctx.file("path.txt", ctx.os.environ.get("CUDA_HOME", ""))

_cuda_home_repository = repository_rule(
    implementation = _cuda_home_impl,
    environ = ["CUDA_HOME"],
    doc = "What CUDA_HOME says, as a file.",
)

_libtorch_repository = repository_rule(
    implementation = _libtorch_impl,
    environ = ["LIBTORCH", "LIBTORCH_VERSION"],
    doc = "Makes @libtorch from LIBTORCH=/path or from the pinned wheel.",
)

def libtorch_repository(name):
    """Declares @libtorch, or another name for it."""
    if "memledger_cuda_home" not in native.existing_rules():
        _cuda_home_repository(name = "memledger_cuda_home")
    _libtorch_repository(name = name)
