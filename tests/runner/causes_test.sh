#!/usr/bin/env bash
# causes_test.sh MEMLEDGER PROGRAM LIBRARY: causes that have a name are named on the screen of
# `memledger run`, with figures worked out by hand, and are not named where the program is fixed.
source tests/support/shell_test.sh
memledger="$PWD/$1" program="$PWD/$2" source="$PWD/tests/runner/causes_program.cc"
export CAUSES_LIBRARY="$PWD/$3"
cd "$TEST_TMPDIR" || exit 1
shown_on_failure=(err)
export MEMLEDGER_VIRTUAL_GPU_CUDNN=model

# Sentences wrap at commas: they are read on one line.
run() {
  "$memledger" run --virtual-gpu=h100 -- "$program" "$1" >out 2>screen
  local status=$?
  sed ':a;N;$!ba;s/,\n    /, /g;s/:\n    /: /g' screen >err
  return "$status"
}
says() {  # MODE PATTERN
  check "$1: the program ends" run "$1"
  check "$1: $2" matches err "$2"
}
is_silent() {  # MODE PATTERN
  check "$1: the program ends" run "$1"
  check "$1: nothing of $2" matches_not err "$2"
}

never_run='that autograd recorded was never run backward'
# Four layers, of each the result of linear and that of gelu: 8 x 64 MiB.
says infer "^  512\.00M $never_run.*: if it need not be, put torch::NoGradGuard "
is_silent fixed-infer "$never_run"

# What tanh gave in each block, 4 MiB, which its backward needs; and the last result of linear.
says serve "^  164\.00M $never_run"
check "serve: by rounds" matches err \
  '^  at the peak each of 40 rounds of 3 operators left 4\.00M: \(4096, 256\) float32 aten::tanh \[layer Linear'
is_silent fixed-serve "$never_run|rounds of"

says keep '^  each of 40 rounds of 2 operators left 4\.00M: \(1024, 1024\) float32 aten::mul'
is_silent fixed-keep 'rounds of'

# 4, 5 or 6 MiB, at no regular distance: 14 x 4 + 13 x 5 + 13 x 6.
says irregular '^  40 tensors from one place stayed alive, 4\.00M to 6\.00M each, 199\.00M in all, made throughout the run: .* aten::mul'
is_silent fixed-irregular 'stayed|rounds'

# 16 MiB and 16 KiB are frozen, 8 x (1024 + 4096) floats train.
says adapt 'parameters 16\.17M float32 \(frozen 16\.02M, trainable 160\.00K: low-rank adapters\)'
is_silent fixed-adapt 'frozen|adapters'

line="$(sed -n "/the user.s line/=" "$source")"
says library "64\.00M .* aten::add \[forward\] at causes_library\.cc:5( add_to)?, from causes_program\.cc:$line( |$)"

# 32 MiB for each thread on an H100, as LibTorch documents.
says threads 'LibTorch keeps 96\.00M of workspaces \(3 x cuBLAS 96\.00M\)'
check "threads: whose" matches err '96\.00M  3 x 32\.00M +workspace +cuBLAS workspace, one for each thread and stream'
says fixed-threads 'LibTorch keeps 32\.00M of workspaces \(cuBLAS 32\.00M\)'

says fragment "^  at [0-9.]+G reserved, LibTorch's cache had [0-9.]+G free, .* in [0-9]+ whole segments? that emptyCache\(\) gives back.*expandable_segments"
is_silent fixed-fragment "LibTorch's cache had"

# 1024 x 16384 floats, 64 MiB: of linear and of gelu again, and the result of the first time.
says checkpoint "activations 192\.00M, of it recomputed in backward 128\.00M \\(Linear 192\.00M\\)"
check "checkpoint: its rows" matches err 'aten::gelu \[layer Linear, recomputed\]'
is_silent fixed-checkpoint 'recomputed'

says pin '^pinned host memory  peak 128\.00M, 66\.00M in 2 tensors; LibTorch rounds each up to a power of two, 128\.00M; of it 66\.00M in 2 \(34603008,\) uint8 aten::pin_memory'
says fixed-pin '^pinned host memory  peak 64\.00M, 64\.00M in 2 tensors; of it 64\.00M in 2 '

# 20 results of 4 MiB each, and what each graph has saved, 2 MiB.
at() { echo "causes_program\.cc:$(grep -n -- "$1" "$source" | cut -d: -f1)"; }
says cycle "^  not freed at the end: 12[0-9]\.00M: 80\.00M aten::sigmoid \[forward\], held by a cycle: aten::sigmoid at $(at 'at::sigmoid(x)') -> its graph -> .*Gate.*saved_data"
check "cycle: what frees it" matches err 'to free 120\.00M of it: save what ctx->saved_data has by ctx->save_for_backward\(\)'
check "cycle: nobody else" matches_not err 'held by the program .*aten::neg'
is_silent fixed-cycle 'a cycle: '

says losses '^  not freed at the end: .* held by ExpBackward0\.result in the graph of aten::sum'
is_silent fixed-losses 'in the graph of'
# After 1024 graphs the rest is not walked, nor said to be held by the program: 2000 inputs.
says outputs '^  not freed at the end: .* aten::addmm'
check "outputs: what graphs hold" matches err 'aten::ones \[[^]]*\], held by AddmmBackward0\.mat1 in the graph of aten::addmm'
check "outputs: what is not walked" matches_not err 'held by the program \([0-9]* references? to aten::ones'
check "keep: the line of what the program keeps" run keep
check "keep: its line" matches err "held by the program \(1 reference to aten::mul at $(at 'mul(2)')"

finish
