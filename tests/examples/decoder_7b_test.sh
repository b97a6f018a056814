#!/usr/bin/env bash
# A decoder of 7 billion parameters on virtual GPUs, against sums by hand and the published counts
# of Llama 2. Arguments: run_test_program.sh, memledger, the example.
#
# In bytes per parameter, weights, gradients and AdamW's two moments take 16 in float32, 8 in
# bfloat16. To it come cuBLAS's workspaces (of the threads of forward and backward, 32 MiB each),
# the angles of the rotary embedding, and the tokens. At the peak of a step, AdamW has two tensors
# of the size of a weight in addition to it.
source tests/support/shell_test.sh
run="$PWD/$1" memledger="$PWD/$2" example="$PWD/$3"
cd "$TEST_TMPDIR" || exit 1
export MEMLEDGER_VIRTUAL_GPU_CUDNN=model
# LibTorch keeps cuBLAS's workspaces by default up to 2.14, and later if asked.
export TORCH_CUBLAS_WORKSPACE_CACHE=1
shown_on_failure=(out)

train() {  # GPU ARGUMENT…
  local gpu="$1"
  shift
  "$run" "$memledger" "$gpu" "$example" "$@" >out || fail "$gpu $*: ends with $?"
}
figures() { sed -nE "s/^cuda:$1: ([0-9]+) bytes allocated, at most ([0-9]+),.*/\1 \2/p" out; }
host_mib() { sed -nE 's/.* at most ([0-9]+) MiB of the host.*/\1/p' out; }
up() { echo $((($1 + 511) / 512 * 512)); }
# What is there besides weights and all that is of their size; TOKENS is 0 where there are none.
beside() {  # CONTEXT BYTES_PER_NUMBER TOKENS
  echo $((64 * 1048576 + $1 * 64 * 2 * $2 + $([[ $3 == 0 ]] && echo 0 || up $((($1 + 1) * 8)))))
}

readonly EMBEDDING=$((32000 * 4096)) MATRIX=$((11008 * 4096))
readonly LAYER=$((4 * 4096 * 4096 + 3 * MATRIX + 2 * 4096))
readonly ALL=6738415616  # as published

train h100:80GiB --steps=2
check "the parameters of Llama 2 7B" has out "parameters: $ALL"
now=$((ALL * 8 + $(beside 2048 2 1)))
loss=512
same "in bfloat16 it fits on one GPU" "$(figures 0)" "$now $((now + 2 * EMBEDDING * 2 + loss))"
check "the host has $(host_mib) MiB of it" test "$(host_mib)" -lt 2048

train h100:80GiB,count=8 --dtype=float32 --pipeline --steps=2
check "its parameters" has out "parameters: $ALL"
now=$((4 * LAYER * 16 + $(beside 2048 4 0)))
for device in 1 2 3 4 5 6; do
  same "four layers on GPU $device" "$(figures $device)" "$now $((now + 2 * MATRIX * 4))"
done
now=$(((EMBEDDING + 4 * LAYER) * 16 + $(beside 2048 4 1)))
same "embedding and four layers" "$(figures 0)" "$now $((now + 2 * EMBEDDING * 4))"
check "the host has $(host_mib) MiB of it" test "$(host_mib)" -lt 2048

peaks="$(for device in {0..7}; do figures $device; done | cut -d' ' -f2)"
"$memledger" dry-run --gpu=h100:80GiB,count=8 --json -- "$example" --dtype=float32 --pipeline --steps=3 >out ||
  fail "dry-run: exit status $?"
same "dry-run has a row for each of the eight" "$(python3 -c "import json
for device in json.load(open('out'))['devices']: print(device['allocated_peak']['low'])")" "$peaks"

# What one rank of eight has; LibTorch leaves up to 1 MiB of a block unsplit.
export RANK=0 WORLD_SIZE=8
train h100:80GiB --dtype=float32 --shard --steps=2
check "an eighth" has out "parameters: $ALL, of which rank 0 of 8 has $((ALL / 8))"
read -r allocated _ < <(figures 0)
more=$((allocated - ALL / 8 * 16 - $(beside 2048 4 1)))
check "$more bytes more than an eighth" test "$more" -ge 0 -a "$more" -lt 1048576

# Llama 2 70B, which fits on eight GPUs only so.
llama_70b=(--hidden=8192 --layers=80 --ffn=28672 --kv_heads=8 --context=4096)
train h100:80GiB "${llama_70b[@]}" --shard --steps=2
check "the parameters of Llama 2 70B" has out "parameters: 68976648192, of which rank 0 of 8 has 8622081024"

# The runs of a dry-run go side by side, and do not take each other's memory.
"$memledger" dry-run --gpu=h100:4GiB,share=decoder_$$ -- "$example" --layers=4 --hidden=1024 --context=512 --shard >out 2>&1
check "exit status with a shared device" equal "$?" 0

# Buffers that NCCL does not get are a want of memory, too.
"$memledger" dry-run --gpu=h100:4GiB,nccl=3900MiB -- "$example" --layers=1 --hidden=256 --context=16 --shard >out 2>&1
check "exit status where NCCL finds no memory" equal "$?" 10
unset RANK WORLD_SIZE

# Too large for one: as on a real GPU.
"$memledger" run --quiet --virtual-gpu=h100:80GiB -- "$example" --dtype=float32 >out 2>&1
check "it ends with 1" equal "$?" 1
check "in LibTorch's words" has out "decoder_7b: CUDA out of memory."

# Sharded, it trains as if it were whole.
for mode in "" --shard; do
  CUDA_VISIBLE_DEVICES="" "$example" --layers=2 --hidden=64 --context=16 --vocabulary=101 --dtype=float32 --steps=3 $mode |
    grep loss >"losses$mode"
done
check "three losses" equal "$(wc -l <losses)" 3
same "the same losses" "$(<losses--shard)" "$(<losses)"
check "which fall" test "$(sed -n '1s/.* //p' losses)" \> "$(sed -n '3s/.* //p' losses)"

# Eight processes, each with its own GPU of one machine; one of them sends the others NCCL's id.
if [[ -n "${MEMLEDGER_FULL:-}" ]]; then
  export WORLD_SIZE=8 MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + $$ % 20000))
  for rank in {0..7}; do
    RANK=$rank LOCAL_RANK=$rank "$memledger" run --quiet --virtual-gpu="h100:80GiB,count=8,share=decoder_$$" -- \
      "$example" --dtype=float32 --shard --steps=2 >"rank$rank" 2>&1 &
  done
  wait
  for rank in {0..7}; do
    check "rank $rank" has "rank$rank" "parameters: $ALL, of which rank $rank of 8 has $((ALL / 8))"
    check "its GPU: $(<"rank$rank")" has "rank$rank" "cuda:$rank: $allocated bytes allocated"
  done
fi
finish
