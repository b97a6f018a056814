"""@libtorch: an unpacked LibTorch on this machine, or the pinned torch wheel.

Environment:
  LIBTORCH          path of an unpacked LibTorch (include/ and lib/) or of an installed torch package, CPU or CUDA.
  LIBTORCH_VERSION  release to download when LIBTORCH is not set; the default is pinned in libtorch_versions.bzl.

Targets: @libtorch//:torch, @libtorch//:torch_cuda (empty where LibTorch has no CUDA), @libtorch//:autograd_functions_header.
Binaries carry the absolute path of the libraries in their run path, as LibTorch's own libraries find their
neighbours by their own place on disk.
"""

load(":libtorch_versions.bzl", "DEFAULT_LIBTORCH_VERSION", "LIBTORCH_WHEELS")

def _use_local(ctx, path):
    for candidate in [path, path + "/torch"]:
        if ctx.path(candidate + "/include/ATen").exists and ctx.path(candidate + "/lib").exists:
            # The run path needs the real place: next to it lie the CUDA packages that the wheel's libraries look for.
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
    for header in ["torch/include/torch/headeronly/version.h", "torch/include/torch/csrc/api/include/torch/version.h"]:
        if not ctx.path(header).exists:
            continue
        found = {}
        for line in ctx.read(header).splitlines():
            for part in ["MAJOR", "MINOR"]:
                prefix = "#define TORCH_VERSION_%s " % part
                if line.startswith(prefix):
                    found[part] = int(line[len(prefix):].strip())
        if "MAJOR" in found and "MINOR" in found:
            return (found["MAJOR"], found["MINOR"])
    fail("%s: no LibTorch version header found" % root)

def _libtorch_impl(ctx):
    path = ctx.os.environ.get("LIBTORCH", "")
    root = _use_local(ctx, path) if path else _download(ctx)
    version = _version(ctx, root)
    lib = root + "/lib"
    run_paths = [lib]
    nvidia_lib = str(ctx.path(root).dirname) + "/nvidia/cu13/lib"
    if ctx.path(nvidia_lib).exists:
        run_paths.append(nvidia_lib)
    link = ["-L" + lib, "-Wl,--no-as-needed", "-ltorch_cpu", "-Wl,--as-needed", "-lc10", "-lpthread", "-ldl"]
    for run_path in run_paths:
        link += ["-Wl,-rpath," + run_path, "-Wl,-rpath-link," + run_path]
    has_cuda = ctx.path(lib + "/libc10_cuda.so").exists
    ctx.template("BUILD", Label("//third_party:libtorch.BUILD.tpl"), {
        "%{link}": repr(link),
        "%{cuda_link}": repr(["-lc10_cuda"] if has_cuda else []),
        "%{cuda_defines}": repr(["MEMLEDGER_LIBTORCH_HAS_CUDA=1"] if has_cuda else []),
        "%{cuda_headers}": repr(["nvidia/cu13/include/**"] if has_cuda else []),
        "%{cuda_includes}": repr(["nvidia/cu13/include"] if has_cuda else []),
        "%{api_includes}": repr(["torch/include", "torch/include/torch/csrc/api/include"]),
    })
    ctx.file("version.bzl", "LIBTORCH_VERSION = %r\nLIBTORCH_HAS_CUDA = %r\n" % (version, has_cuda))

libtorch_repository = repository_rule(
    implementation = _libtorch_impl,
    environ = ["LIBTORCH", "LIBTORCH_VERSION"],
    doc = "Makes @libtorch from LIBTORCH=/path or from the pinned wheel.",
)
