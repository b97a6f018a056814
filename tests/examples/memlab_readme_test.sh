#!/usr/bin/env bash
# The tables of examples/memlab_readme on a virtual H200. Arguments: run_test_program.sh, memledger,
# the example.
#
# In bytes, a float being 4:
#   (1024, 1024) 4194304 = 4.00M   (512, 1024) 2097152 = 2.00M   (1024,) 4096 = 4.00K
#   (10, 10, 1024) 409600 = 400.00K   (1, 10, 1024) 40960 = 40.00K
#   a scalar 4, shown as its block of 512, which is 508 more
#   an LSTM's weights: 2 * 4096 * 1024 * 4 + 2 * 4096 * 4 = 33587200 = 32.03M, which 512 divides
set -uo pipefail
run="$PWD/$1" memledger="$PWD/$2" example="$PWD/$3"
# The figures are those of a LibTorch that keeps cuBLAS's workspaces, as 2.15 does only if asked.
export TORCH_CUBLAS_WORKSPACE_CACHE=1
cd "$TEST_TMPDIR" || exit 1
"$run" "$memledger" h200 "$example" >out || exit 1
cat out

failures=0
fail() {
  echo "FAILED: $title: $*"
  failures=$((failures + 1))
}

# table TITLE: the rows below it, and all of it, are looked at by what follows.
table() {
  title="$1"
  awk -v title="== $1 ==" '/^== /{ inside = $0 == title } inside' out >table
  sed -n '/^Storage on cuda:0$/,/^---/p' table | sed '1d;$d' >rows
  expected_rows=0
}

row() {  # NAME SIZE MEMORY [PRODUCER]
  expected_rows=$((expected_rows + 1))
  local line
  line="$(printf '%-40s%20s%10s' "$1" "$2" "$3")${4:+  $4}"
  grep -Fxq -- "$line" rows || fail "no row: $line"
}

mebibytes() { sed -n "s/$1\([0-9.]*\)M.*/\1/p" table; }

# sums ELEMENTS USED ROUNDING: no row but those named above, and used memory and library workspaces
# are all that is allocated. How large the workspaces are is LibTorch's affair.
sums() {
  local count
  count="$(wc -l <rows)"
  [[ "$count" == "$expected_rows" ]] || fail "$count rows, not $expected_rows"
  grep -Fxq -- "Total Tensors: $1 "$'\t'"Used Memory: $2" table || fail "not $1 elements, $2"
  grep -Eq '^Explained: ([0-9.]+M) of \1 \(0.00B unexplained\)$' table || fail "not all is explained"
  grep -Eq '^Requested: [0-9.]+M \(0.00B unexplained\)$' table || fail "not all that was requested is explained"
  if [[ -n "$3" ]]; then
    grep -Fxq "  rounding: $3" table || fail "rounding is not $3"
  else
    grep -q '^  rounding' table && fail "something is rounded"
  fi
  local allocated workspaces
  allocated="$(mebibytes 'The allocated memory on cuda:0: ')"
  workspaces="$(mebibytes '  library workspaces: ')"
  # Each of the figures is rounded to 0.01.
  awk -v a="$allocated" -v w="${workspaces:-0}" -v u="${2%M}" 'BEGIN { d = a - w - u; exit !(d < 0.016 && d > -0.016) }' ||
    fail "allocated $allocated M, workspaces ${workspaces:-0} M and used $2 do not agree"
}

title="the device"
grep -Fxq "on cuda:0" out || fail "not on cuda:0"
grep -q "before tracking" out && fail "something was made before tracking"
tables="$(grep -c '^== ' out)"
[[ "$tables" == 8 ]] || fail "$tables tables, not 8"

table "Linear, without names"
row Tensor0 "(1024, 1024)" 4.00M "aten::to [forward]"
row Tensor1 "(1024,)" 4.00K "aten::to [forward]"
sums $((1024 * 1024 + 1024)) 4.00M ""
[[ -z "$(mebibytes '  library workspaces: ')" ]] || fail "a workspace before the first product"

table "Linear, before backward"
row weight "(1024, 1024)" 4.00M
row bias "(1024,)" 4.00K
row Tensor0 "(512, 1024)" 2.00M "aten::to [input of Linear, forward]"
row Tensor1 "(1,)" 512.00B "aten::mean [layer Linear, forward]"
sums $((1024 * 1024 + 1024 + 512 * 1024 + 1)) 6.00M 508.00B
[[ -n "$(mebibytes '  library workspaces: ')" ]] || fail "no workspace after the first product"

table "Linear, after backward"
row weight "(1024, 1024)" 4.00M
row weight.grad "(1024, 1024)" 4.00M
row bias "(1024,)" 4.00K
row bias.grad "(1024,)" 4.00K
row Tensor0 "(512, 1024)" 2.00M "aten::to [input of Linear, forward]"
row Tensor1 "(1,)" 512.00B "aten::mean [layer Linear, forward]"
sums $((2 * 1024 * 1024 + 2 * 1024 + 512 * 1024 + 1)) 10.01M 508.00B

table "Shared weights"
row 0.weight+1.weight "(1024, 1024)" 4.00M
row 0.weight.grad+1.weight.grad "(1024, 1024)" 4.00M
for name in 0.bias 0.bias.grad 1.bias 1.bias.grad; do row "$name" "(1024,)" 4.00K; done
row Tensor0 "(512, 1024)" 2.00M "aten::to [input of 0, forward]"
row Tensor1 "(1,)" 512.00B "aten::mean [layer 1, forward]"
sums $((2 * 1024 * 1024 + 4 * 1024 + 512 * 1024 + 1)) 10.02M 508.00B

readonly LSTM_ELEMENTS=$((2 * 4096 * 1024 + 2 * 4096))
table "LSTM, before forward"
row weight_ih_l0 "(4096, 1024)" 32.03M
row "weight_hh_l0(->weight_ih_l0)" "(4096, 1024)" 0.00B "offset 16777216, extent 16777216"
row "bias_ih_l0(->weight_ih_l0)" "(4096,)" 0.00B "offset 33554432, extent 16384"
row "bias_hh_l0(->weight_ih_l0)" "(4096,)" 0.00B "offset 33570816, extent 16384"
sums "$LSTM_ELEMENTS" 32.03M ""

# 2 * 33587200 + 2 * 409600 + 2 * 40960 = 68075520 = 64.92M
table "LSTM, after backward"
row weight_ih_l0 "(4096, 1024)" 32.03M
row "weight_hh_l0(->weight_ih_l0)" "(4096, 1024)" 0.00B "offset 16777216, extent 16777216"
row "bias_ih_l0(->weight_ih_l0)" "(4096,)" 0.00B "offset 33554432, extent 16384"
row "bias_hh_l0(->weight_ih_l0)" "(4096,)" 0.00B "offset 33570816, extent 16384"
row weight_ih_l0.grad "(4096, 1024)" 32.03M
row "weight_hh_l0.grad(->weight_ih_l0.grad)" "(4096, 1024)" 0.00B "offset 16777216, extent 16777216"
row "bias_ih_l0.grad(->weight_ih_l0.grad)" "(4096,)" 0.00B "offset 33554432, extent 16384"
row "bias_hh_l0.grad(->weight_ih_l0.grad)" "(4096,)" 0.00B "offset 33570816, extent 16384"
row Tensor0 "(10, 10, 1024)" 400.00K "aten::to [input of LSTM, forward]"
row Tensor1 "(10, 10, 1024)" 400.00K "aten::lstm [output of LSTM, forward]"
# 40 columns; bash would count the bytes.
row "2 x Tensor2 …$(printf '%27s' '')" "(1, 10, 1024)" 80.00K "aten::lstm [output of LSTM, forward]"
sums $((2 * LSTM_ELEMENTS + 2 * 10 * 10 * 1024 + 2 * 10 * 1024)) 64.92M ""

seen() {  # TITLE NAME PRODUCER
  table "$1"
  row weight "(1024, 1024)" 4.00M
  row bias "(1024,)" 4.00K
  row Tensor0 "(512, 1024)" 2.00M "aten::to [forward]"
  row "$2" "(512, 1024)" 2.00M "$3"
  row Tensor2 "(1,)" 512.00B "aten::mean [layer Linear, forward]"
  sums $((1024 * 1024 + 1024 + 2 * 512 * 1024 + 1)) 8.00M 508.00B
}
seen "What Python could not see" Tensor1 "aten::mul [input of Linear, forward]"
seen "What Python could not see, with the graph" AddmmBackward0.mat1 "aten::mul [forward]"

exit $((failures > 0))
