#!/usr/bin/env bash
# Every example starts and ends well without NVIDIA's libraries and without the runner. Arguments:
# the examples.
source tests/support/shell_test.sh
root="$PWD"
cd "$TEST_TMPDIR" || exit 1
# `bazel run` sets the first, and files would go there; the others may lead to libraries that a bare
# machine has not.
unset BUILD_WORKING_DIRECTORY LD_LIBRARY_PATH LD_PRELOAD CUDA_HOME
export CUDA_VISIBLE_DEVICES=

for example in "$@"; do
  name="$(basename "$example")"
  # What LibTorch's CPU library itself needs is in the pinned wheels; all else of NVIDIA's may be
  # missing.
  needed="$(ldd "$root/$example")"
  grep -q 'not found' <<<"$needed" && fail "$name needs what is not here: $(grep 'not found' <<<"$needed")"
  grep -E 'lib(torch_cuda|c10_cuda|cublas|cudnn|cufft|cufile|cusolver|cusparse|nccl|nvshmem|cuda)\b' <<<"$needed" &&
    fail "$name is linked with a library of GPUs"
  small=()
  case "$name" in
    decoder_7b) small=(--layers=2 --hidden=64 --context=16 --vocabulary=101 --dtype=float32) ;;
    quickstart | trumpy) small=(--batch=2 --size=64) ;;
  esac
  timeout 200 "$root/$example" "${small[@]}" >out 2>error
  status=$?
  [[ $status == 0 ]] || fail "$name ends with $status: $(tail -3 error)"
  # Where there is no driver nothing is said about a GPU; where there is one, and no more, a line
  # is.
  [[ $(wc -l <error) -le 1 ]] || fail "$name says: $(<error)"
  case "$name" in
    mem*_readme | model_size) grep -q '^on cpu' out || fail "$name does not say where it ran: $(head -1 out)" ;;
    line_profiler_readme) [[ ! -s out ]] || fail "$name says $(<out)" ;;
    *) [[ -s out ]] || fail "$name says nothing" ;;
  esac
done

finish
