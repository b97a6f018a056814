#!/usr/bin/env python3
"""The table of cases: programs after people's own reports, and the line of the screen that names the cause.

  cases_table.py --memledger=FILE --programs=FOLDER --python=FILE [OPTION]…
    --cases=PATTERN   cases by a shell pattern of their names, may be repeated: --cases='0*'
    --full            those that take long, too
    --shard=I/N       each N-th case from the I-th
    --verbose         prints the screens
    --list            prints the table
"""

import argparse
import fnmatch
import sys
from dataclasses import dataclass

from cases_run import Runner


@dataclass
class Case:
    """A program, NAME.cc or NAME.py.

    source      the report
    cause       what is right, and so must be said
    says        patterns of lines; @text@ stands for the place of the program's only line with that text
    silent      patterns that no line has
    fixed       the arguments by which the program is without the cause; none: it knows no such argument
    fixed_says  as `says`, with these
    never       as `silent`, with these
    quick       arguments that make it fast; left out with --full
    card        of the virtual GPU
    long        whether it runs with --full only
    """

    name: str
    source: str
    cause: str
    says: tuple
    silent: tuple = ()
    arguments: tuple = ()
    fixed: tuple = ()
    fixed_says: tuple = ()
    never: tuple = ()
    quick: tuple = ()
    card: str = "h100"
    is_python: bool = True
    long: bool = False


GITHUB = "https://github.com/"
NEVER_RUN = r"that autograd recorded was never run backward"
ROUNDS = r"\brounds\b|\d times \S+ stayed"

CASES = (
    # Channels of 2 x 200 x 200 floats that autograd keeps: of each block 352 (those before each
    # leaky_relu, both results of cat, the sum), of the last 416 as it runs, of the head 64: 8224
    # x 0.305 MiB.
    Case("01_no_grad_guard", GITHUB + "pytorch/pytorch/issues/40133",
         "autograd keeps every activation, as torch::NoGradGuard is missing",
         says=(rf"^  2\.45G {NEVER_RUN}, first at @tail(body->forward@.*put torch::NoGradGuard there",
               r"activations 2\.45G \(body\.0 … 21: 107\.42M each, .*head 19\.53M\)"),
         fixed=("fixed",), never=(NEVER_RUN,), is_python=False),
    # 10000 x 10000 floats are 381.47 MiB.
    Case("02_net_deleted", GITHUB + "pytorch/pytorch/issues/128033",
         "the input and the result are still held by variables, and cuBLAS has a workspace",
         says=(r"^  not freed at the end: 76[23]\.\d+M: .*381\.47M aten::ones",
               r"^  not freed at the end: .*381\.47M aten::(linear|addmm)",
               r"LibTorch keeps 3[23]\.00M of workspaces \(cuBLAS 32\.00M"),
         is_python=False),
    Case("04_stateful_plugin", GITHUB + "anira-project/anira/issues/45",
         "the state carries its graph from block to block: NoGradGuard",
         says=(rf"{NEVER_RUN}, first at @lstm->forward(block, state)@.*put torch::NoGradGuard there",
               r"((300|299) rounds of \d+ operators left \d+\.\d+[KM]:|(300|299) times \S+ stayed,).*aten::lstm"),
         fixed=("fixed",), never=(NEVER_RUN, ROUNDS), is_python=False),
    # 32 MiB for each handle from compute capability 9.0 on.
    Case("05_threads_workspaces", GITHUB + "dotnet/TorchSharp/issues/1445",
         "each thread has a cuBLAS handle with a workspace, which stays",
         says=(r"LibTorch keeps 2\d\d\.00M of workspaces \(8 x cuBLAS 256\.00M",
               r"256\.00M  8 x 32\.00M +workspace +cuBLAS workspace, one for each thread and stream"),
         fixed=("1",), fixed_says=(r"LibTorch keeps 3[23]\.00M of workspaces \(cuBLAS 32\.00M",), never=("8 x cuBLAS",),
         is_python=False),
    # Its tensors are the same after each picture: two layers of 96 x 128 x 120 floats, and their
    # workspaces.
    Case("06_varying_shapes_cpu", GITHUB + "pytorch/pytorch/issues/25646",
         "oneDNN keeps what it has made for each shape: the process grows, tensors do not",
         says=(r"^cpu  peak allocated 1[5-9]\.\d+M", r"^  not freed at the end: nothing$",
               r"^outside LibTorch's allocator: the process uses [2-9]\d\d\.\d+M of its own memory, \d\d\.\d+M of "
               r"it already when LibTorch had loaded, and its tensors took 1[5-9]\.\d+M at their peak; .*oneDNN"),
         fixed=("one",), never=("outside LibTorch's allocator",), is_python=False, long=True),
    # Eight layers of 2048 x 2048 floats.
    Case("08_zero_grad_keeps", GITHUB + "pytorch/pytorch/issues/68167",
         "gradients of the step before are there in the next forward pass",
         says=(r"^cuda:0 .*peak allocated 993\.\d+M", r"requested: parameters 128\.06M float32, gradients 128\.06M",
               r"128\.00M  8 x 16\.00M +\(2048, 2048\) float32 +0…14\.weight\.grad"),
         fixed=("fixed",), fixed_says=(r"^cuda:0 .*peak allocated [89]\d\d\.\d+M",),
         never=(r"requested: parameters 128\.06M float32, gradients 128\.06M", r"peak allocated 993"), is_python=False),
    # 4096 x 4096 floats, twice.
    Case("09_jit_reload", GITHUB + "pytorch/pytorch/issues/61448",
         "the new module is loaded while the old one is there; nothing stays",
         says=(r"128\.00M  2 x 64\.00M +\(16777216,\) float32 +Scorer\S*\.table at @    scorer = torch::jit::load@",
               r"^cuda:0 .* peak allocated 1[3-7]\d\.\d+M",
               r"^  not freed at the end: nothing"),
         is_python=False),
    # 8192 x 32 x 1024 x 128 x 2 bytes; without, 512 + 8 + 64 MiB and cuBLAS's 32.
    Case("10_broadcast_bmm", GITHUB + "pytorch/pytorch/issues/149302",
         "matmul copies the shared operand for each query",
         says=(r"^ +64\.00G +\(8192, 32, 1024, 128\) bfloat16 aten::matmul \[forward\] at @result = torch.matmul@",),
         fixed=("fixed",), fixed_says=(r"^cuda:0 .*peak allocated 616\.00M",), never=(r"64\.00G",)),
    # By layer 512 x 32 x 512 floats; LibTorch's own peak is 1533 MiB then.
    Case("13_checkpoint_whole_model", GITHUB + "pytorch/pytorch/issues/147449",
         "one checkpoint around all layers: backward computes everything again at once",
         says=(r"peak allocated 5\.63G.*, backward of layers\.11\.",
               r"activations 4\.82G, of it recomputed in backward 4\.82G \(layers\.0 … 10: 416\.75M each"),
         fixed=("fixed",),
         fixed_says=(r"^cuda:0 .*peak allocated 1\.50G", r"of it inputs of checkpoints 352\.00M",
                     r"352\.00M  11 x 32\.00M +\(512, 32, 512\) float32 +aten::layer_norm .*, a checkpoint's input"),
         never=(r"recomputed in backward 4\.82G",)),
    # (2 x 20000 x 512 + 2 x 2048 x 512 + biases) x 4 bytes.
    Case("15_resume_keeps_checkpoint", GITHUB + "karpathy/nanoGPT/issues/158",
         "the loaded checkpoint stays, held by a global",
         says=(r"^  of the peak 86\.21M, made at @checkpoint = torch.load@ <module>, is held at the end by "
               r"checkpoint\[…\]",
               r"^cuda:0 .*peak allocated 693\.\d+M"),
         fixed=("fixed",), fixed_says=(r"^cuda:0 .*peak allocated 605\.\d+M",), never=(r"^  of the peak ",)),
    Case("16_exception_holds_frame", GITHUB + "pytorch/pytorch/issues/27600",
         "the exception that is kept holds the frames of the failed attempt",
         says=(r"^Of it alive since an earlier failure, on cuda:0: 1\.50G aten::linear .*held by hidden in run\(\) "
               r"\(@return net[2](net[1](hidden))@\), kept by the exception last_error",
               r"384\.00M aten::randn .*held by x in run\(\)",
               r"^Advice: to free 1\.88G of it: drop the exception last_error once it is handled"),
         fixed=("fixed",), never=("last_error", "since an earlier failure")),
    # 50 x 1024 x 1024 floats.
    Case("17_ctx_keeps_output", GITHUB + "pytorch/pytorch/issues/25340",
         "a result on ctx closes the cycle y -> grad_fn -> ctx -> y",
         says=(r"^  each of 50 rounds of \d+ operators left 4\.00M: .*@y = torch.sigmoid@ forward, "
               r"held by a cycle: y -> GateBackward's ctx -> y",
               r"^  not freed at the end: 20[0-9]\.\d+M: 200\.00M Gate .*held by a cycle: y -> GateBackward's ctx -> y",
               r"to free 200\.00M of it: save y by ctx\.save_for_backward\(\), not as ctx\.y"),
         fixed=("fixed",), never=("a cycle", ROUNDS)),
    Case("18_mark_dirty_cycle", GITHUB + "pytorch/pytorch/issues/160317",
         "LibTorch 2.11 leaks no more here: nothing grows, nothing is left",
         says=(r"^  not freed at the end: nothing$", r"^cpu  peak allocated 76\.29M"),
         silent=(ROUNDS, "a cycle", "has grown")),
    # What the report has published, measured on the CPU: 89.68, 89.68, 179.37 and 1310.95 MiB;
    # with LoRA 90.9 of parameters, 1.21 of gradients, and 2618.32 of activations, as much as the
    # masks and results of dropout add.
    Case("20_lora_resnet_activations", GITHUB + "huggingface/peft/issues/2196",
         "LoRA saves gradients and states, not activations: dropout keeps each input once more",
         says=(r"parameters 90\.90M float32 \(frozen 89\.68M, trainable 1\.21M, of it low-rank adapters 1\.21M\), .*optimizer state 2\.42M float32, .*activations 2\.(53|06)G",
               r"(8|4) x 49\.00M +\(16, 256, 56, 56\) float32 +aten::dropout \[",
               r"^  after the last step \(2\): .*gradients 1\.21M float32"),
         fixed=("full",),
         fixed_says=(r"parameters 89\.68M float32, .*gradients 89\.68M float32, optimizer state 179\.37M float32, "
                     r".*activations 1\.27G",),
         never=("dropout",), quick=("cuda",)),
    # 2 x 2048 x 128256 floats.
    Case("21_logits_of_last_step", GITHUB + "foundation-model-stack/fms-fsdp/pull/152",
         "what a step leaves in its variables is there at the peak of the next one",
         says=(r"^  of the peak 1\.96G, made at @probs = logits.detach()@ <module>, was left by an earlier step, "
               r"and at the end probs holds another one",
               r"^cuda:0 .*peak allocated 10\.81G"),
         fixed=("fixed",), fixed_says=(r"^cuda:0 .*peak allocated 8\.86G",), never=("left by an earlier step",)),
    # 304 326 632 parameters.
    Case("22_adam_intermediates", GITHUB + "pytorch/pytorch/issues/97712",
         "foreach=True makes one intermediate as large as all parameters",
         says=(r"at step \d, optimizer of Adam, by aten::_foreach_sqrt",
               r"parameters 1\.13G float32, gradients 1\.13G float32, optimizer state 2\.27G float32, "
               r".*optimizer's temporaries 1\.13G"),
         fixed=("fixed",), never=(r"optimizer's temporaries 1\.13G", "_foreach_sqrt")),
    # 25 215 464 parameters are 96.19 MiB; the first buckets stay until the watchdog frees them.
    Case("23_ddp_buckets", GITHUB + "pytorch/pytorch/issues/41954",
         "DDP's buckets are a second set of gradients",
         says=(r"gradients 96\.19M float32, DDP's buckets (96\.19|192\.38)M",),
         silent=(r"30\.27M +\(1408, 1408\) float32 +0…16\.weight\.grad",),
         fixed=("fixed",), fixed_says=(r"3 x 30\.27M +\(1408, 1408\) float32 +0…16\.weight\.grad",),
         never=(r"DDP's buckets 192\.38M",)),
    # 16 layers x 2 x 8 x 16 x 2023 x 128 x 2 bytes, and one token less.
    Case("24_kv_cache_cat", GITHUB + "huggingface/transformers/pull/30536",
         "cat copies: the cache of the token before is there beside the new one",
         says=(r"^ +1\.98G  32 x 63\.22M  \(8, 16, 2023, 128\) bfloat16 aten::cat .*at @torch.cat([old, t], 2)@",
               r"^ +1\.97G  32 x 63\.19M  \(8, 16, 2022, 128\) bfloat16 aten::cat",
               r"^  not freed at the end: .*held by caches\[…\]\[…\], 1\.97G aten::cat .*held by past\[…\]\[…\]"),
         fixed=("fixed",), never=("aten::cat",)),
    # 18944 x 3584 x 2 bytes are 129.5 MiB, for which the host gives 256.
    Case("25_pinned_power_of_two", GITHUB + "pytorch/pytorch/issues/150517",
         "pinned memory is rounded up to a power of two",
         says=(r"^pinned host memory  peak 1\.00G, 518\.00M in 4 tensors; LibTorch rounds each up to a power of two, "
               r"1\.00G; of it 518\.00M in 4 \(18944, 3584\) float16 aten::pin_memory",),
         fixed=("fixed",),
         fixed_says=(r"^pinned host memory  peak 512\.00M, 448\.00M in 4 tensors; .*, 512\.00M; ",), never=(r"1\.00G",)),
    # 16 x 577 x 384 floats are 13.52 MiB.
    Case("26_cls_token_views", GITHUB + "ViCCo-Group/thingsvision/pull/150",
         "a view of one token keeps the storage of all 577",
         says=(r"^  not freed at the end: .*540\.94M aten::_transformer_encoder_layer_fwd .*"
               r"held by features\[…\], which shows 1/577 of it",
               r"to free 526\.50M of it: keep features\[…\]\.clone\(\)"),
         fixed=("fixed",), never=("which shows", r"keep features\[…\]\.clone")),
    # What the reporter has measured on an A10G: 8519680 bytes.
    Case("27_linear_leaves_workspace", GITHUB + "pytorch/pytorch/issues/95668",
         "cuBLAS's workspace stays",
         says=(r"^  not freed at the end: nothing, and LibTorch keeps 8\.12M of workspaces \(cuBLAS 8\.12M\)",),
         card="a10g"),
    # 110000 x 110000 floats; without, 110000 x 200 for the result, its gradient and b's.
    Case("28_sparse_mm_backward", GITHUB + "pytorch/pytorch/issues/41128",
         "the gradient of the sparse matrix is made dense first",
         says=(r"^ +45\.08G +\(110000, 110000\) float32 +aten::mm \[SparseAddmmBackward0 of aten::_sparse_mm, backward\]",
               r"^cuda:0 .*, backward, by aten::mm"),
         fixed=("fixed",),
         fixed_says=(r"^cuda:0 .*peak allocated 47\d\.\d+M", r"3 x 83\.92M +\(110000, 200\) float32 +aten::mm"),
         never=(r"45\.08G",)),
    # Six results of each batch of 2048 x 512 floats: 24 MiB of 30.
    Case("29_loss_accumulates", GITHUB + "pytorch/pytorch/issues/64586",
         "the running sum keeps the graph of every batch",
         says=(r"^    since step 2: \+672\.\d+M, namely .*in the graph of running",
               r"^  not freed at the end: .*in the graph of running",
               r"to free 708\.\d+M of it: keep \.detach\(\) or \.item\(\) of running instead of its graph"),
         fixed=("fixed",), never=("in the graph of running",)),
    # 6 x 2048 x 2048 floats, whatever the window.
    Case("30_window_mask_t4", GITHUB + "karpathy/nanochat/issues/825",
         "the mask is T x T whatever the window, and the math kernel makes as much again",
         says=(r"^cuda:0 \(t4\)  peak allocated 2[67]\d\.\d+M.*by aten::scaled_dot_product_attention",
               r"^ +96\.00M +\(1, 6, 2048, 2048\) float32 aten::scaled_dot_product_attention at @enable_gqa=True@"),
         arguments=("16", "bf16"), card="t4"),
    # 2 x 640 x 256 x 7500 floats and four sixteenths; the program prints what LibTorch reserves.
    Case("31_fragmentation", GITHUB + "nanoporetech/dorado/issues/1358",
         "the cache is in pieces that the next large tensor does not fit into",
         says=(r"^cuda:0 .*peak allocated 10\.20G, reserved 37\.56G",
               r"^  at 37\.56G reserved, LibTorch's cache had 27\.36G free, .*in \d+ pieces? beside living tensors.*"
               r"memledger dry-run measures what expandable_segments and max_split_size_mb save",),
         is_python=False),
    # 60 inputs and 60 results of relu of 1024 x 512 floats.
    Case("32_evalkeep", GITHUB + "pytorch/pytorch/issues/13613",
         "outputs with their graph in an attribute of an object",
         says=(rf"^  124\.30M {NEVER_RUN}, first at @self.outs.append@ go: .*put torch\.no_grad\(\) there",
               r"^  not freed at the end: .*in the graph of r\.outs\[…\]",
               r"to free 240\.00M of it: keep \.detach\(\) or \.item\(\) of r\.outs\[…\]")),
    # 500 x 1024 x 1024 floats.
    Case("33_leak500", GITHUB + "pytorch/pytorch/issues/25340",
         "each call leaves 4 MiB, held by the cycle y -> grad_fn -> ctx -> y",
         says=(r"^  each of 500 rounds of \d+ operators left 4\.00M: .*@y = torch.sigmoid@ forward, "
               r"held by a cycle: y -> GateBackward's ctx -> y",
               r"to free 1\.95G of it: save y by ctx\.save_for_backward\(\), not as ctx\.y"),
         fixed=("fixed",), never=("a cycle", ROUNDS)),
)


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--memledger", default="")
    parser.add_argument("--programs", default="")
    parser.add_argument("--python", default="")
    parser.add_argument("--cases", action="append", default=[])
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--shard", default="0/1")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--list", action="store_true")
    return parser.parse_args()


def chosen(options):
    part, parts = map(int, options.shard.split("/"))
    wanted = [case for case in CASES if not case.long or options.full or options.cases]
    if options.cases:
        wanted = [case for case in wanted if any(fnmatch.fnmatch(case.name, one) for one in options.cases)]
    return wanted[part::parts]


def main():
    options = parse()
    cases = chosen(options)
    if options.list:
        for case in cases:
            print(f"{case.name:28s} {'full' if case.long else '':5s} {case.source}\n{'':34s} {case.cause}")
        return 0
    runner = Runner(options)
    failures = 0
    for case in cases:
        if case.is_python and not options.python:
            continue
        for is_fixed in (False, True) if case.fixed else (False,):
            wrong, screen, seconds = runner.run(case, is_fixed)
            failures += bool(wrong)
            print(f"{case.name}{' fixed' if is_fixed else ''}: {seconds:.1f} s{', FAILED' if wrong else ''}", flush=True)
            for one in wrong:
                print("  " + one)
            if wrong or options.verbose:
                print(screen)
    if not cases:
        sys.exit("no case is called so")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
