#!/usr/bin/env bash
# The frame of examples/mem_profiler_readme on a virtual H200, and its CSV. Arguments:
# run_test_program.sh, memledger, the example.
#
# In bytes: mf_user_embed 138493 * 64 * 4 = 35454208, mf_item_embed 26744 * 64 * 4 = 6846464, mlp_…
# twice that; all parameters 31832577 * 4 = 127330308.
source tests/support/shell_test.sh
run="$PWD/$1" memledger="$PWD/$2" example="$PWD/$3"
cd "$TEST_TMPDIR" || exit 1
# LibTorch keeps cuBLAS's workspaces by default up to 2.14, and later if asked.
export TORCH_CUBLAS_WORKSPACE_CACHE=1
unset BUILD_WORKING_DIRECTORY  # `bazel run` sets it, and the CSV would go there
"$run" "$memledger" h200 "$example" >out || exit 1
cat out

same "the device" "$(head -1 out)" "on cuda:0"
same "when it reports" "$(grep '^Memory Usage' out)" "Memory Usage for Iteration 5 of Epoch 1
Memory Usage for Iteration 5 of Epoch 2"

# As in the original's README, from the rule to the weights of the last frame; figures that depend
# on the batch aside.
sed -n '/Iteration 5 of Epoch 2/,$p' out >frame
same "the frame's lines in order" "$(sed -n '2,$p' frame | sed 's/[.]*[0-9]* MB$//; /feature maps$/d' | head -4)" "\
*******************************************
Peak cached
Current cached
Total feature map usage"
weights() {  # SUFFIX
  local name
  while read -r name megabytes; do
    local left="  $name$1" right="$megabytes MB"
    printf '%s%s%s\n' "$left" "$(printf '%*s' $((43 - ${#left} - ${#right})) '' | tr ' ' .)" "$right"
  done <<END
mf_user_embed.weight 35
mf_item_embed.weight 7
mlp_user_embed.weight 71
mlp_item_embed.weight 14
mlp.0.weight 0
mlp.0.bias 0
mlp.1.weight 0
mlp.1.bias 0
mlp.2.weight 0
mlp.2.bias 0
final.weight 0
final.bias 0
END
}
same "the weights and their gradients" "$(sed -n '/^Total layer weight usage/,/^Intermediate/p' frame | sed '$d')" "\
Total layer weight usage.............127 MB
$(weights "")

Total layer weight gradient usage....127 MB
$(weights " grad")"
same "the last line" "$(grep -c '^Intermediate gradients[.]* *[0-9]* MB$' frame)" 1
same "lines are 43 wide" "$(awk 'length($0) > 0 && length($0) != 43 && / MB$/' frame)" ""

csv="$(tail -1 out)"
same "the CSV's folder" "${csv%/*}" "$(pwd -P)/memory_csv_data"
same "its name" "$(sed 's/[0-9]/0/g; s/00*[.]csv/0.csv/' <<<"${csv##*/}")" "00000000-000000-0.csv"
same "its header" "$(head -1 "$csv")" "epoch,iteration,kind,name,bytes"
awk -F, -v epoch=2 '
  NR > 1 && $1 == epoch { sum[$3] += $5; row[$3 " " $4] = $5 }
  END {
    named = sum["weight"] + sum["weight_grad"] + sum["buffer"] + sum["optimizer_state"] + sum["workspace"] + sum["other"]
    # Two batches of 131072 int64, and as many floats.
    batch = 131072 * (8 + 8 + 4)
    # Four looks into tables, the two halves side by side, the product, three layers and their ReLU,
    # the last layer: kept all at once.
    maps = 131072 * 4 * (64 + 64 + 128 + 128 + 256 + 64 + 256 + 256 + 128 + 128 + 64 + 64 + 128 + 1)
    ok = sum["weight"] == 127330308 && sum["weight_grad"] == 127330308 && row["weight mf_user_embed.weight"] == 35454208 \
      && named == sum["current_bytes"] && sum["other"] == batch && sum["workspace"] >= 33554432 \
      && sum["most_workspace"] >= sum["workspace"] && sum["current_cached"] >= sum["current_bytes"] \
      && sum["peak_cached"] >= sum["current_cached"] && sum["feature_map"] >= 131072 * 4 * (64 + 64 + 256 + 64 + 256 + 128 + 64) \
      && sum["feature_map"] <= maps && sum["intermediate_grad"] > 0
    if (!ok) {
      print "FAILED: the CSV does not add up"
      for (kind in sum) print kind, sum[kind]
      exit 1
    }
  }' "$csv" || failures=$((failures + 1))

finish
