#!/usr/bin/env bash
# dry_run_test.sh MEMLEDGER PROGRAM MEASURE_PROGRAM
#
# Whether a program fits: verdicts, exit statuses, and figures against LibTorch's own statistics.
source tests/support/shell_test.sh
memledger="$1" program="$2" measure_program="$3"
export MEMLEDGER_VIRTUAL_GPU_CUDNN=model
# LibTorch keeps cuBLAS's workspaces by default up to 2.14, and later if asked.
export TORCH_CUBLAS_WORKSPACE_CACHE=1
cd "$TEST_TMPDIR" || exit 1
memledger="$OLDPWD/$memledger" program="$OLDPWD/$program" measure_program="$OLDPWD/$measure_program"
shown_on_failure=(out err)

dry_run() {  # STATUS ARGUMENT…: runs it, and holds it to the status
  local wanted="$1"
  shift
  "$memledger" dry-run "$@" >out 2>err
  check "dry-run $*: exit status" equal "$?" "$wanted"
}
# Half as many runs. Both orders where they show something, and with --config=full.
one_order=,addresses=down
[[ -z "${MEMLEDGER_FULL:-}" ]] || one_order=
figure() { python3 -c "import json; j = json.load(open('out')); print($1)"; }  # EXPRESSION of j

# LibTorch's own peaks of the whole program.
"$memledger" run --quiet --virtual-gpu=h100 -- "$program" 6 >truth
read -r _ allocated reserved _ < <(tail -1 truth)

# Ended after a step, it has what the whole program has.
dry_run 0 --gpu=h100 --json=prediction.json -- "$program" 1000000
check "what was not seen is said" has out "what a smaller last batch leaves of LibTorch's cache is not in it"
cp out first_text
mv prediction.json out
check "the program was ended after a step" equal "$(figure "j['program']['ended']")" step
check "whose steps were alike" equal "$(figure "j['program']['until']")" alike
check "with the same peak" equal "$(figure "j['devices'][0]['reserved_peak']['low']")" "$reserved"
check "the first line says through which step, and that it saw no evaluation" matches <(head -1 first_text) \
  '^h100: fits through step [0-9]+, .* to spare; no evaluation was seen$'
check "so does the JSON" equal "$(figure "j['whole_run'], j['through_step'] == j['program']['steps'], j['evaluation_seen']")" "False True False"
dry_run 0 --gpu="h100$one_order" --json -- "$program" 1000 lengths
check "steps that differ are seen until they come again" equal "$(figure "j['program']['until']")" repeat

# One run goes on, and so sees an evaluation that takes more: then all have to.
"$memledger" run --quiet --virtual-gpu=h100 -- "$program" 1000 evaluate=65536 >truth
evaluated="$(tail -1 truth | cut -d' ' -f2)"
dry_run 0 --gpu=h100 --json=prediction.json --settings=none -- "$program" 1000 evaluate=65536
check "a program that was seen whole just fits" matches <(head -1 out) '^h100: fits, .* to spare$'
check "its stages" matches out '^  in evaluation .* of tensors$'
mv prediction.json out
check "the whole program was seen" equal "$(figure "j['whole_run'], j['through_step'], j['evaluation_seen']")" "True None True"
check "with the evaluation's peak at both ends" equal "$(figure "j['devices'][0]['allocated_peak']")" "{'low': $evaluated, 'high': $evaluated}"
check "which is the evaluation's" equal \
  "$(figure "[s['allocated_peak']['high'] for s in j['devices'][0]['stages'] if s['stage'] == 'evaluation']")" "[$evaluated]"
dry_run 10 --gpu="h100:$(((evaluated >> 20) - 40))MiB" --settings=none -- "$program" 1000 evaluate=65536
check "where only the evaluation is too large it does not fit" matches <(head -1 out) ': does not fit: '

# A device's own figures may differ, whatever the program does.
dry_run 11 --gpu=a100:20GiB,context=0B --settings=none -- "$program" 0 share=995
check "99.5 % of the memory is too much to say that it fits" has out "is to spare, and a real device may take up to 1 % or 24 MiB more"
dry_run 0 --gpu=a100:20GiB,context=0B --settings=none -- "$program" 0 share=980

# Epochs of eight batches and a smaller one, which lets the peak move after the first epoch; with
# which size is up to LibTorch's release.
peak_moves() { [[ "$(sed -n 9p truth | cut -d' ' -f3)" -lt "$(tail -1 truth | cut -d' ' -f3)" ]]; }
all_epochs=20
[[ -z "${MEMLEDGER_FULL:-}" ]] || all_epochs='3 20'
for epochs in $all_epochs; do
  for rows in 500 460; do
    "$memledger" run --quiet --virtual-gpu=h100 -- "$program" "$epochs" epochs=$rows >truth
    peak_moves && break
  done
  check "$epochs epochs: the peak moves after the first" peak_moves
  dry_run 0 --gpu="h100$one_order" --json -- "$program" "$epochs" epochs=$rows
  check "$epochs epochs: the reserved peak is inside" test "$(figure "j['devices'][0]['reserved_peak']['low']")" \
    -le "$(tail -1 truth | cut -d' ' -f3)" -a "$(figure "j['devices'][0]['reserved_peak']['high']")" -ge "$(tail -1 truth | cut -d' ' -f3)"
  check "$epochs epochs: so is the allocated" test "$(figure "j['devices'][0]['allocated_peak']['low']")" \
    -le "$(tail -1 truth | cut -d' ' -f2)" -a "$(figure "j['devices'][0]['allocated_peak']['high']")" -ge "$(tail -1 truth | cut -d' ' -f2)"
done
check "a whole round came again" equal "$(figure "j['program']['ended'], j['program']['until']")" "step repeat"

dry_run 0 --gpu=h100 --json -- "$program" 6
check "the JSON's schema" equal "$(figure "j['schema']")" memledger.prediction/1
check "the verdict" equal "$(figure "j['verdict']")" fits
check "the allocated peak is LibTorch's" equal "$(figure "j['devices'][0]['allocated_peak']['low']")" "$allocated"
check "the reserved peak is LibTorch's" equal "$(figure "j['devices'][0]['reserved_peak']['low']")" "$reserved"
check "what backward made has the line of its forward operator" equal \
  "$(figure "{r['place'].rsplit(' ', 1)[-1] for r in j['peak']['largest'] if r['phase'] == 'backward'}")" "{'main'}"
check "a short program runs to its end" equal "$(figure "j['program']['until']")" exit
check "the sum of the terms is the process's peak" equal \
  "$(figure "j['devices'][0]['process_peak']['high']")" "$(python3 -c "import json; print(sum(t['high'] for t in json.load(open('out'))['terms']))")"
dry_run 0 --gpu="h100$one_order" --until=exit --json -- "$program" 550
check "so does a long one, if asked" equal "$(figure "j['program']['ended'], j['program']['steps']")" "exit 549"
check "with the same peak" equal "$(figure "j['devices'][0]['allocated_peak']['high']")" "$allocated"

# 28 MiB more than is reserved, and 4 MiB less than is allocated: between them LibTorch empties its
# cache, or a real device may take more. Such a device has no context of its own.
dry_run 0 --gpu="h100:$(((reserved >> 20) + 28))MiB" -- "$program" 4
check "the text's verdict" has out "MiB: fits"
dry_run 11 --gpu="h100:$(((reserved >> 20) + 4))MiB$one_order" --settings=none -- "$program" 4
dry_run 10 --gpu="h100:$(((allocated >> 20) - 4))MiB" --json -- "$program" 4
check "a device that is too small" matches out '"sentence":"does not fit: .*short at Adam, optimizer"'
check "says by how much" matches out '"headroom_bytes":-[0-9]'
dry_run 10 --gpu="h100:64MiB$one_order" -- "$program" 4
check "far too small" matches out '^h100:64MiB[^ ]*: does not fit: [0-9.]+ MiB short at layer 0, forward$'
check "what failed" matches out '^The first allocation that fails: .* asks for '
check "tensors alone do not fit: no setting helps" has_not out PYTORCH_CUDA_ALLOC_CONF

dry_run 10 --gpu="h100:64MiB$one_order" --gpu="h100$one_order" --settings=none --json=both.json -- "$program" 2
check "what fits comes first" matches <(sed -n 2p out) '^h100(,[^ ]*)? .* fits, .* to spare$'
check "then what does not" matches <(sed -n 3p out) '^h100:64MiB[^ ]* .* does not fit: '
check "the details are of the first" matches out '^h100(,[^ ]*)? in detail:'
mv both.json out
check "several machines have one schema" equal "$(figure "j['devices'][1]['verdict'] + ', ' + j['verdict']")" "fits, does not fit"

# A device of a file gets a run without a limit, too.
"$memledger" gpus --json | sed -n '/"h100"/{s/,$//;s/"total_memory_bytes": *[0-9]*/"total_memory_bytes":67108864/;s/"\(least_\)\?context_bytes": *[0-9]*/"\1context_bytes":1048576/g;p}' >mine.json
sed 's/:67108864/:134217728/' mine.json >larger.json
dry_run 10 --gpu="@mine.json$one_order" --gpu="@larger.json$one_order" --settings=none --json -- "$program" 4
check "devices of files are too small" equal "$(figure "[d['capacity_bytes'] >> 20 for d in j['devices']]")" "[64, 128]"
check "their peaks" equal "$(figure "[d['allocated_peak']['high'] for d in j['devices']]")" "[$allocated, $allocated]"

# A device that may have less memory than its profile: that of an Orin is the host's.
dry_run 0 --gpu="orin$one_order" --settings=none -- "$program" 4
check "a device with the host's memory is named" has out "cuda:0 may have less: the memory is the host's, and what the system"

# The same bytes, whatever else ran.
dry_run 0 --gpu=h100 --json -- "$program" 6 conv
cp out first
dry_run 0 --gpu=h100 --json -- "$program" 6 conv
same "two dry-runs print the same" "$(cat out)" "$(cat first)"
check "workspaces of cuDNN make an interval" test "$(figure "j['devices'][0]['reserved_peak']['low']")" -lt \
  "$(figure "j['devices'][0]['reserved_peak']['high']")"

# Settings of the allocator where it does not fit; those of the caller stay.
PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:2048 dry_run 10 --gpu="h100:300MiB$one_order" --json -- "$program" 0 pieces
check "the caller's setting is kept" equal "$(figure "[s['setting'] for s in j['settings']]")" \
  "['expandable_segments:True', 'roundup_power2_divisions:8']"

# CUDA's own pool instead of LibTorch's cache: its failures are failures.
export PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync
dry_run 10 --gpu="h100:64MiB$one_order" -- "$program" 4
check "it does not fit in a small pool" matches out '^h100:64MiB[^ ]*: does not fit: [0-9.]+ MiB short at layer 0, forward$'
check "whose pieces are not known" has out "how it falls into pieces is not known"
check "settings of LibTorch's cache are not tried" has_not out "With another"
dry_run 11 --gpu="h100:1GiB$one_order" -- "$program" 4
check "so that no size is large enough" matches out \
  "^h100:1GiB[^ ]*: not known: nobody says at most how much memory CUDA's stream-ordered pool \(cudaMallocAsync\) takes$"
unset PYTORCH_CUDA_ALLOC_CONF

dry_run 0 --gpu="h100:1GiB$one_order" -- "$program" 0 grow
check "none is tried where it fits" has_not out PYTORCH_CUDA_ALLOC_CONF
dry_run 10 --gpu="h100:300MiB$one_order" --settings=none -- "$program" 0 pieces
check "or where none is wanted" has_not out PYTORCH_CUDA_ALLOC_CONF
dry_run 10 --gpu="h100:300MiB$one_order" --json=pieces.json -- "$program" 0 pieces
check "the answer comes first" matches out '^h100:300MiB[^ ]*: does not fit: .* short at aten::empty'
check "then what helps" matches out '^  expandable_segments:True +fits, '
mv pieces.json out
check "the remedy" equal "$(figure "(j['verdict'], j['remedy'], j['sentence'])")" \
  "('does not fit', 'expandable_segments', 'fits with expandable_segments')"

# Sizes that only the device has.
dry_run 11 --gpu="h100$one_order" -- "$measure_program" reads
check "a size without an upper bound" matches out '^h100[^ ]*: not known: .* depend on values that only the device has \(aten::'
dry_run 11 --gpu="h100$one_order" -- "$measure_program" item_size
check "a number that becomes a size" has out "not known: it depends on a number that only the device has (aten::item"
dry_run 0 --gpu="h100$one_order" -- "$measure_program" item_printed
check "a number that does not" has out "tried with 4 values, which make the same allocations"
dry_run 0 --gpu="h100$one_order" -- "$measure_program" received
check "a number of other ranks" has out "a number of other ranks, taken to be this one's"
dry_run 11 --gpu="h100$one_order" -- "$measure_program" summed
check "a sum over ranks" has out "not known: it depends on a number that only the device has (aten::item"

# Sizes that differ each time leave more pieces in LibTorch's cache than the largest alone.
largest="$("$memledger" run --quiet --virtual-gpu=h100,events=late,workspaces=upper -- "$program" 6 masks | tail -1 | cut -d' ' -f3)"
narrow="h100:$(((largest >> 20) + 4))MiB"
check "the largest fit" "$memledger" run --quiet --virtual-gpu="$narrow" -- "$program" 6 masks >out
"$memledger" run --quiet --virtual-gpu="$narrow" -- "$program" 6 masks=3 >out 2>err
check "those that differ do not" has err "CUDA out of memory"
dry_run 11 --gpu="$narrow$one_order" --settings=none -- "$program" 6 masks
check "and the verdict is not that it fits" matches out 'not known: (nothing|only .*) is to spare, and sizes that differ each time .* \(aten::nonzero in '
dry_run 0 --gpu="h100$one_order" --settings=none --json -- "$program" 6 masks
check "what is reserved for them is in the interval" test "$(figure "j['devices'][0]['reserved_peak']['high']")" -gt "$largest"
dry_run 0 --gpu="h100:$(((largest >> 20) + 30))MiB$one_order,reads=all" --settings=none -- "$program" 6 masks

dry_run 0 --gpu="h100$one_order" -- "$measure_program" saves
check "what it would have written is named" has err "outside a dry run the program would have written"

dry_run 12 --gpu="h100$one_order" -- "$program" 1 fail
check "the program's status" matches out '^h100[^ ]*: failed: the program ended with 3$'
check "its last lines" has err "the last lines of the program:"
dry_run 12 --gpu="h100$one_order" -- "$program" 1 wait
check "its input is empty" has out "failed: the program ended with 4: it reads standard input, which is empty here"
dry_run 10 --gpu="h100$one_order" --settings=none -- "$program" 1 catch
check "a failure that was caught" has out "went on, maybe with something slower"
dry_run 12 --gpu="h100$one_order" -- "$program" 1 open no_such_data.bin
check "a file that is not there" has out "it needs a file that is not there (no_such_data.bin: No such file or directory)"
dry_run 12 --gpu="h100$one_order" -- "$measure_program" throws
check "what it threw" has out "uncaught exception: no data set here"
# What zeros mislead: what was read, and the policy with which it goes on.
dry_run 12 --gpu="h100$one_order" -- "$measure_program" dies_of_zero
check "what it read" matches out 'uncaught exception: no rows, perhaps because it read a value that only the device has as 0 \(aten::item in .*dies_of_zero\); --assume=[a-zA-Z_:.0-9]+=VALUE says what it is$'
dry_run 11 --gpu="h100,numbers=one$one_order" -- "$measure_program" dies_of_zero
dry_run 0 --gpu="h100$one_order" -- "$measure_program" dies_of_copied_zero
check "a fraction is likely to be one" matches out 'a fraction, tried with 3 values'
dry_run 0 --gpu="h100,keep=4KiB$one_order" -- "$measure_program" dies_of_copied_zero
# A program that does not end, and one that shows on a terminal how far it is.
dry_run 11 --gpu="h100$one_order" --timeout=4 -- "$measure_program" never_steps
check "it never steps" matches out 'not known: the program did not end within 4 s, and it made no optimizer step; --timeout=SECONDS gives it more$'
python3 - "$memledger" dry-run --gpu=h100,addresses=down -- "$program" 3 slow >out 2>err <<'END'
import pty, sys
pty.spawn(sys.argv[1:])
END
check "progress on a terminal" matches <(tr '\r' '\n' <out) 'memledger dry-run: runs? [12]( to 2)? of 2, after optimizer step 2, [0-9]+ s'
check "then the answer" has out "h100,addresses=down: fits"
dry_run 0 --gpu=h100,addresses=down -- "$program" 3 slow
check "off a terminal the first run's answer comes before the others'" matches err \
  '^memledger dry-run: after 1 run, more follow: h100,addresses=down: fits, .* to spare$'
# What they share is what they write.
dry_run 0 --gpu=h100 --writes=allow -- "$program" 1 alone "$PWD/lock"
check "a program that disturbs itself is run alone" has out "fits"
dry_run 0 --gpu=h100 --settings=none --writes=allow -- bash -c 'echo "$PET_MASTER_PORT" >>ports; exec "$@"' bash "$program" 2
check "each run of torchrun has a port of its own" equal "$(sort -un ports | grep -c '^[1-9]')" 4
says='echo "meets at <$MASTER_PORT> <$PET_MASTER_PORT>, seed $PYTHONHASHSEED"; exit 3'
MASTER_PORT=4 PYTHONHASHSEED=7 dry_run 12 --gpu=h100 -- sh -c "$says"
check "a port that the environment names is another in each run" matches err '^meets at <([0-9]{4,5})> <\1>, seed 7$'
PET_MASTER_PORT=5 dry_run 12 --gpu=h100 -- sh -c "$says"
check "a port that is named for torchrun stays, and the seed is 0" matches err '^meets at <> <5>, seed 0$'
dry_run 12 --gpu=h100 -- /bin/true
check "a program without a GPU" has out "it used no GPU"
# The first of its runs ends, the others never would.
dry_run 12 --gpu=h100 --timeout=60 --writes=allow -- bash -c 'mkdir one_run && exit; sleep 600'
check "which one run tells" has out "it used no GPU"
check "what it said last is of no interest" has_not err "last lines"
dry_run 127 --gpu=h100 -- ./no_such_program
check "there is no such program" equal "$(cat err)" "memledger dry-run: cannot run ./no_such_program: No such file or directory"
echo text >no_program
dry_run 126 --gpu=h100 -- "$PWD/no_program"
check "no program" equal "$(cat err)" "memledger dry-run: cannot run $PWD/no_program: Permission denied"
dry_run 2 --gpu=h100 --json=no_such_folder/x.json -- "$program" 2
check "before any work" equal "$(cat out)$(cat err)" \
  "memledger dry-run: --json: cannot write no_such_folder/x.json: No such file or directory"
dry_run 11 --gpu=h100 --timeout=1 -- /bin/sleep 60
check "a program that does not end" has out "did not end within 1 s, and it made no optimizer step; --timeout="
dry_run 2 --gpu=h1000 -- /bin/true
check "an unknown GPU" has err "is not a known device: h100?"
dry_run 2 -- /bin/true
dry_run 2 --gpu=h100 --until=never -- /bin/true
dry_run 0 --gpu=h100 --json=prediction.json -- "$program" 2
check "the JSON in a file" has prediction.json '"schema":"memledger.prediction/1"'
check "beside the text" has out "h100: fits"
finish
