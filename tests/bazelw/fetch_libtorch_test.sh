#!/usr/bin/env bash
# fetch_libtorch.py --shared with a stand-in for pip: one download for all callers, checked, whole
# or absent, and old releases go. LibTorch's Python comes with it where there is a python3.11.
set -euo pipefail

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
cp -L "$1" "$work/fetch_libtorch.py"
store="$work/store"

failures=0
check() {  # WHAT EXPECTED ACTUAL
  if [[ "$2" != "$3" ]]; then
    printf 'FAILED: %s\n  expected: %s\n  got:      %s\n' "$1" "$2" "$3"
    failures=$((failures + 1))
  fi
}

# `pip download … --dest FOLDER torch==N`: copies the wheel and counts the downloads.
# `pip install … --target FOLDER --requirement FILE`: copies the file there.
mkdir "$work/pip"
touch "$work/pip/__init__.py"
cat >"$work/pip/__main__.py" <<PIP
import os, pathlib, shutil, sys, time
arguments = sys.argv
if arguments[1] == "install":
    if os.environ.get("NO_PACKAGES"):
        sys.exit("no packages")
    folder = pathlib.Path(arguments[arguments.index("--target") + 1])
    shutil.copy(arguments[arguments.index("--requirement") + 1], folder / "installed.txt")
    sys.exit()
dest = pathlib.Path(arguments[arguments.index("--dest") + 1])
with open("$work/downloads", "a") as log:
    log.write(arguments[-1] + "\n")
time.sleep(float(os.environ.get("SLOW", "0")))
if os.environ.get("NO_NETWORK"):
    sys.exit("no network")
shutil.copy("$work/torch.whl", dest / ("torch-" + arguments[-1].split("==")[1] + "-any.whl"))
PIP
python3 - "$work/torch.whl" <<'WHEEL'
import sys, zipfile
with zipfile.ZipFile(sys.argv[1], "w") as wheel:
    wheel.writestr("torch/lib/libtorch.so", "library")
    wheel.writestr("torch/include/ATen/ATen.h", "header")
    wheel.writestr("torch/nn.py", "'python'")
    wheel.writestr("torch/test/test_nn.py", "'test'")
    wheel.writestr("torch/bin/torch_shm_manager", "program")
    wheel.writestr("torch/bin/ptxas", "compiler")
WHEEL
sum="$(sha256sum "$work/torch.whl" | cut -d' ' -f1)"
{
  echo 'DEFAULT_LIBTORCH_VERSION = "1"'
  echo 'LIBTORCH_WHEELS = {'
  for version in 1 2 3 4 5 6; do printf '"%s": [("torch==%s", "any", "%s")],\n' "$version" "$version" "$sum"; done
  echo '"bad": [("torch==7", "any", "00")],'
  echo '}'
  echo 'PYTHON_PACKAGES = [("filelock==1", "aa")]'
  echo 'TORCHVISION = {"5": [("torchvision==5", "bb")]}'
} >"$work/libtorch_versions.bzl"

# `bare` has a python3 only, `with_python` a python3.11, too.
interpreter="$(python3 -c 'import sys; print(sys.executable)')"
mkdir "$work/bare" "$work/with_python"
ln -s "$interpreter" "$work/bare/python3"
ln -s "$interpreter" "$work/with_python/python3"
ln -s "$interpreter" "$work/with_python/python3.11"
tools="$work/bare"
script() { PATH="$tools" PYTHONPATH="$work" python3 "$work/fetch_libtorch.py" "$@" 2>>"$work/stderr"; }
fetch() { script --shared "$store" "$@"; }
downloads() { if [[ -e "$work/downloads" ]]; then wc -l <"$work/downloads"; else echo 0; fi; }

# Two that ask at once get one folder and one download.
SLOW=1 fetch >"$work/first" &
SLOW=1 fetch "" >"$work/second"
wait $!
torch="$(cat "$work/first")"
check "both get the same folder" "$torch" "$(cat "$work/second")"
check "one download" 1 "$(downloads)"
check "what is kept" "$torch/include/ATen/ATen.h $torch/lib/libtorch.so" "$(echo $(find "$torch" -type f | sort))"
check "a later one downloads nothing" "$torch 1" "$(NO_NETWORK=1 fetch 1) $(downloads)"

# A process killed during the download leaves nothing that the next one takes for complete.
PYTHONPATH="$work" SLOW=5 python3 "$work/fetch_libtorch.py" --shared "$store" 2 2>/dev/null &
until [[ "$(downloads)" == 2 ]]; do sleep 0.1; done
kill -9 $!
wait $! 2>/dev/null || true
second="$(fetch 2)"
check "after a kill" "library" "$(cat "$second/lib/libtorch.so")"
check "nothing half unpacked stays" "" "$(find "$store" -name '.unpacking-*')"

# Failures name what is wrong and leave nothing.
check "no network" "1 0" "$(NO_NETWORK=1 fetch 3 >/dev/null || echo $?) $(find "$store" -name 'torch-3-*' | wc -l)"
check "the wrong checksum" "1 0" "$(fetch bad >/dev/null || echo $?) $(find "$store" -name 'torch-bad-*' | wc -l)"
check "an unknown release" 1 "$(fetch 99 || echo $?)"
for text in "could not download torch==3" "refusing to use it" "LIBTORCH_VERSION=99 is not one of 1, 2"; do
  grep -q "$text" "$work/stderr" || check "message" "$text" "$(cat "$work/stderr")"
done

# LibTorch's Python: only what Python programs need besides LibTorch, which it shares.
check "without python3.11" "2 0" "$(script --find-python "$torch" || echo "$?") $(find "$store" -name 'python-*' | wc -l)"
tools="$work/with_python"
check "not brought yet" "2" "$(script --find-python "$torch" || echo "$?")"
check "beside another LibTorch" "2" "$(script --find-python "$work" || echo "$?")"
check "no network for it" "$torch 0" "$(NO_NETWORK=1 fetch 1 --python) $?"
check "no packages for it" "$torch 0" "$(NO_PACKAGES=1 fetch 1 --python) $?"
check "nothing half made stays" "torch" "$(ls "$(dirname "$torch")")"
before="$(downloads)"
check "brought to a LibTorch that is there" "$torch" "$(fetch 1 --python)"
python="$(script --find-python "$torch")"
check "it lies beside LibTorch" "$(dirname "$torch")" "$(dirname "$python")"
check "its files" "installed.txt torch/bin/torch_shm_manager torch/nn.py" \
  "$(cd "$python" && echo $(find . -type f ! -name '*.pyc' | sort | sed 's,^./,,'))"
check "its program" "yes" "$([[ -x "$python/torch/bin/torch_shm_manager" ]] && echo yes)"
check "LibTorch's libraries" "library" "$(cat "$python/torch/lib/libtorch.so")"
check "its packages" "filelock==1 --hash=sha256:aa" "$(cat "$python/installed.txt")"
check "compiled" 1 "$(find "$python" -name 'nn.*.pyc' | wc -l)"
check "once" "$torch $((before + 1))" "$(fetch 1 --python) $(downloads)"
fifth="$(fetch 5)"
check "with a new LibTorch" "filelock==1 --hash=sha256:aa torchvision==5 --hash=sha256:bb" \
  "$(echo $(cat "$(script --find-python "$fifth")/installed.txt"))"
check "of the same download" "$((before + 2))" "$(downloads)"
for text in "python3.11, which is not on this machine" "no torch for Python lies beside" "will be skipped: pip could not download" "no packages"; do
  grep -q "$text" "$work/stderr" || check "message" "$text" "$(cat "$work/stderr")"
done
rm -rf "$(dirname "$fifth")"
tools="$work/bare"

# Five releases stay, all that are pinned in the real list: those used last. Folders that are no
# releases stay, too.
mkdir -p "$store/torch-geometric/torch" "$store/torch-7-mine/torch" "$store/torch-7-0123456789ab"
touch -d '9 days ago' "$store"/torch-geometric "$store"/torch-7-*
touch -d '4 days ago' "$store"/torch-2-*
for version in 3 4; do fetch "$version" >/dev/null; done
touch -d '3 days ago' "$store"/torch-3-*
touch -d '5 days ago' "$store"/torch-1-*
fetch 1 >/dev/null
for version in 5 6; do fetch "$version" >/dev/null; done
check "what is no release" "torch-7-0123456789ab torch-7-mine torch-geometric" "$(cd "$store" && echo torch-7-* torch-geometric)"
rm -r "$store"/torch-7-* "$store/torch-geometric"
check "the releases used last" "torch-1 torch-3 torch-4 torch-5 torch-6" "$(cd "$store" && echo $(ls | sed 's/-[0-9a-f]*$//'))"

if [[ "$failures" != 0 ]]; then cat "$work/stderr"; exit 1; fi
echo "all passed"
