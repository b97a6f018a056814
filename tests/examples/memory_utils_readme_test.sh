#!/usr/bin/env bash
# The log of examples/memory_utils_readme on a virtual H200. Arguments: run_test_program.sh,
# memledger, the example.
#
# VGG-19's features are 20024384 floats in 32 tensors, 80097536 bytes = 76.387 MiB; the dummy
# tensors have 3 * 512 * 512 floats, 3 MiB, times 30, 40, 60, 120 and 80.
set -uo pipefail
run="$PWD/$1" memledger="$PWD/$2" example="$PWD/$3"
cd "$TEST_TMPDIR" || exit 1
unset BUILD_WORKING_DIRECTORY  # `bazel run` sets it, and the log would go there
"$run" "$memledger" h200 "$example" >out || exit 1
cat out

failures=0
same() {  # WHAT IS EXPECTED
  if [[ "$2" != "$3" ]]; then
    echo "FAILED: $1:"
    diff <(echo "$3") <(echo "$2")
    failures=$((failures + 1))
  fi
}

same "the device" "$(head -1 out)" "on cuda:0"

# Where and when are of the program and the clock.
same "the totals, after the header's" "$(sed -n 's/^At memory_utils_readme[.]cc line [0-9]*: main  *//p' out)" "\
Total Tensor Used Memory:0.0    Mb Total Allocated Memory:0.0    Mb
Total Tensor Used Memory:76.4   Mb Total Allocated Memory:76.4   Mb
Total Tensor Used Memory:466.4  Mb Total Allocated Memory:466.4  Mb
Total Tensor Used Memory:1066.4 Mb Total Allocated Memory:1066.4 Mb
Total Tensor Used Memory:586.4  Mb Total Allocated Memory:586.4  Mb"
same "the header's totals" "$(sed -n 's/^GPU Memory Track | [^|]* | //p' out)" \
  "Total Tensor Used Memory:0.0    Mb Total Allocated Memory:0.0    Mb"

# As in the original's README, but by bytes. A figure is cut to six characters.
same "the rows" "$(grep '^[+-] |' out | cut -d'|' -f1-4 | sed 's/ *$//')" "\
+ | 7 * Size:(512, 512, 3, 3)     | Memory: 63.0 M | Parameter
+ | 3 * Size:(256, 256, 3, 3)     | Memory: 6.75 M | Parameter
+ | 1 * Size:(512, 256, 3, 3)     | Memory: 4.5 M | Parameter
+ | 1 * Size:(256, 128, 3, 3)     | Memory: 1.125 M | Parameter
+ | 1 * Size:(128, 128, 3, 3)     | Memory: 0.5625 M | Parameter
+ | 1 * Size:(128, 64, 3, 3)      | Memory: 0.2812 M | Parameter
+ | 1 * Size:(64, 64, 3, 3)       | Memory: 0.1406 M | Parameter
+ | 8 * Size:(512,)               | Memory: 0.0156 M | Parameter
+ | 1 * Size:(64, 3, 3, 3)        | Memory: 0.0065 M | Parameter
+ | 4 * Size:(256,)               | Memory: 0.0039 M | Parameter
+ | 2 * Size:(128,)               | Memory: 0.0009 M | Parameter
+ | 2 * Size:(64,)                | Memory: 0.0004 M | Parameter
+ | 1 * Size:(60, 3, 512, 512)    | Memory: 180.0 M | Tensor
+ | 1 * Size:(40, 3, 512, 512)    | Memory: 120.0 M | Tensor
+ | 1 * Size:(30, 3, 512, 512)    | Memory: 90.0 M | Tensor
+ | 1 * Size:(120, 3, 512, 512)   | Memory: 360.0 M | Tensor
+ | 1 * Size:(80, 3, 512, 512)    | Memory: 240.0 M | Tensor
- | 1 * Size:(120, 3, 512, 512)   | Memory: 360.0 M | Tensor
- | 1 * Size:(40, 3, 512, 512)    | Memory: 120.0 M | Tensor"
same "a name" "$(grep -F 'Size:(64, 3, 3, 3) ' out)" \
  "+ | 1 * Size:(64, 3, 3, 3)        | Memory: 0.0065 M | Parameter            | torch.float32 | features.0.weight"

log="$(tail -1 out)"
same "the log's folder" "${log%/*}" "$(pwd -P)"
same "the log's name" "$(sed 's/[0-9]/0/g; s/[A-Z][a-z][a-z]/Mon/' <<<"${log##*/}")" "00-Mon-00-00:00:00-gpu_mem_track.txt"
same "what is printed is the log" "$(sed '1,2d;$d' out)" "$(cat "$log")"

exit $((failures > 0))
