"""The decode loop and the kernels, compiled for GPUs that are not there.

What needs JAX's CUDA plugin is skipped without it: `make test-aot` installs it in an environment of
its own.
"""

import contextlib
import functools
import operator
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import pytest

from jaxspec.bench.aot import report as tool
from jaxspec.bench.aot import table as aot_table
from pallas_kernels import registry
from pallas_kernels.aot import compile as aot
from pallas_kernels.aot import gpus as aot_gpus

MIB = 2**20
CAN, REASON = aot.available()
needs_plugin = pytest.mark.skipif(not CAN, reason=REASON)

# Two layers of the 8B model, whose cache of 8192 rows has 32 MiB of keys.
LOOP = {"arch": "qwen3-8b", "layers": 2, "budget": 32, "capacity": 8192}
LOOPS = {gpu: {"gpu": gpu} for gpu in ("h100", "a100", "l4")}
LOOPS |= {"h100 ar": {"gpu": "h100", "drafter": "ar"}, "t4": {"gpu": "t4", "dtype": "float16"}}
LOOPS |= {"h100 policy": {"gpu": "h100", "policy": "best"}}
# Chunks of a prompt: the first one, and a loop of the others.
PREFILL = {"arch": "qwen3-8b", "layers": 2, "drafter": "ar", "part": "prefill"}
PREFILL |= {"capacity": 32768}
PREFILLS = {"h100 prefill": {"gpu": "h100"}}
PREFILLS |= {"h100 batch prefill": {"gpu": "h100", "batch": 4, "capacity": 8192}}
PREFILLS |= {"t4 prefill": {"gpu": "t4", "dtype": "float16", "capacity": 8192}}
# Rounds of every kind of tree and weights, with one layer of the target.
SPECBLOCK = {"drafter": "specblock", "builder": "rank_guided"}
ROUNDS = {
    "expand@32": {"builder": "expand", "budget": 32},
    "expand@64": {"builder": "expand", "budget": 64},
    "beam": {"builder": "beam", "budget": 64},
    "dynamic": {"builder": "dynamic", "budget": 60},
    "eagle3 dynamic": {"drafter": "eagle3", "builder": "dynamic", "budget": 60},
    "dspark lattice": {"drafter": "dspark", "builder": "lattice", "budget": 64},
    "specblock rank-guided": SPECBLOCK | {"budget": 64},
    "batch": {"budget": 16, "batch": 8},
    "block sizes": {"budget": 32, "policy": "blockpilot"},
    "int8": {"budget": 64, "quantize": "int8"},
    "fp8": {"budget": 64, "quantize": "fp8"},
    "experts": {"arch": "qwen3-30b-a3b", "budget": 64},
    "int4": {"budget": 64, "quantize": "int4"},
    "sinks": {"arch": "gpt-oss-20b", "layers": 2, "budget": 64},
    "int4 experts": {"arch": "gpt-oss-20b", "layers": 2, "budget": 64, "quantize": "int4"},
    "sandwich": {"arch": "gemma-3-12b", "budget": 64},
    "biases": {"arch": "qwen2.5-7b", "budget": 64},
    "int8 experts": {"arch": "qwen3-30b-a3b", "budget": 16, "quantize": "int8"},
}
# Rounds with weights of every form: scaled, of experts, a product's parts in one matrix, and read
# by drafts of several sizes.
WEIGHTS = ("int8", "fp8", "int4", "experts", "int4 experts", "specblock", "sizes")
# The programs of a serving engine.
SLOTS = {"arch": "qwen3-8b", "layers": 1, "batch": 2, "budget": 16}
SERVED = {"feed": {"part": "feed", "capacity": 32768}, "visit": {"part": "visit", "capacity": 4096}}
FILTERS = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.05}
# Steps of a drafter alone, and other programs of which a test or two read one figure each.
DRAFT = {"arch": "qwen3-8b", "part": "draft", "spills": False}
DRAFTS = {
    f"{builder}@{batch}": {"drafter": "dspark", "builder": builder, "budget": 64, "batch": batch}
    for batch in (1, 8)
    for builder in ("chain", "lattice", "lattice/shortlist=128")
}
DRAFTS["step"] = {"drafter": "eagle3", "builder": "chain", "budget": 4, "layers": 2}
# Chunks after the first, which read the cache that they write.
CHUNKS = {"arch": "qwen3-8b", "layers": 3, "capacity": 8192, "part": "prefill", "policy": "auto"}
LOOPS |= {"h100 filters": {"gpu": "h100", **FILTERS}}
LOOPS |= {"h100 top-p": {"gpu": "h100", "drafter": "ar", "temperature": 0.6, "top_p": 0.95}}
LOOPS |= {
    f"h100 {rule}": {"gpu": "h100", "temperature": 1.0, "acceptance": rule}
    for rule in ("sequential", "rejection")
}
# Kernels and copies of a round; 230 for others.
MOST = {"h100": 150, "h100 ar": 60, "t4": 300, "h100 top-p": 110, "h100 filters": 260}
MOST |= {"h100 sequential": 220, "h100 rejection": 330}
SHAPE = {"heads": 32, "kv_heads": 8, "head_dim": 128, "capacity": 4096}
CALLS = [
    *(SHAPE | {"rows": rows} for rows in (1, 16, 64, 256)),
    SHAPE | {"rows": 64, "capacity": 32768},
    SHAPE | {"rows": 33, "batch": 2, "window": 1024},
    SHAPE | {"rows": 64, "head_dim": 64, "heads": 5, "kv_heads": 1},
    SHAPE | {"rows": 64, "head_dim": 256, "dtype": "float16"},
    SHAPE | {"rows": 64, "dtype": "float32"},
    # Packed rows of an engine's slots: tiles of 4, 16 and 32 rows; one part of the prefix or
    # several.
    SHAPE | {"rows": 64, "batch": 16, "packed": 64},
    SHAPE | {"rows": 64, "batch": 4, "packed": 64, "window": 1024},
    SHAPE | {"rows": 512, "batch": 16, "packed": 64},
    SHAPE | {"rows": 64, "batch": 16, "packed": 64, "heads": 64, "head_dim": 64},
    SHAPE | {"rows": 64, "batch": 4, "packed": 64, "head_dim": 256, "dtype": "float16"},
    SHAPE | {"rows": 64, "batch": 4, "packed": 64, "dtype": "float32"},
    # A chunk of a prompt.
    SHAPE | {"rows": 512, "capacity": 32768, "causal": True},
    SHAPE | {"rows": 512, "head_dim": 256, "dtype": "float16", "causal": True},
]
ATTENTION = "pallas_kernels.aot.programs:make_attention_program"
# 64 rows of 16 slots, of up to 64 each: laid out by slot they would be 1024.
PACKED = SHAPE | {"rows": 64, "batch": 16, "packed": 64}


# These add little to others. The A100's and the L4's loops use kernels that are compiled alone too,
# and the A100's are made as the L4's are. `expand` with 32 rows and the beam run parts that others
# run, and EAGLE-3 builds the dynamic tree. Rejection holds all that sequential acceptance does, and
# top-p is one of the filters. int8 and experts are there one by one. DSpark's lattices take a
# minute, and nothing else depends on them.
SLOW = ["a100", "l4", "expand@32", "beam", "dynamic", "dspark lattice", "h100 sequential"]
SLOW += ["h100 top-p", "int8 experts", "int4 experts", ("triton", "a100")]
SLOW += [name for name in DRAFTS if name != "step"]


# Half of what is left in time; `make test-aot` compiles them, continuous integration does not.
THOROUGH = ["visit", "h100 policy", "h100 rejection", ("triton", "l4"), "specblock rank-guided"]
THOROUGH += ["eagle3 dynamic", "block sizes", "experts", "batch", "fp8", "h100 batch prefill"]
THOROUGH += ["sinks", "sandwich", "biases", "int4"]


def mark(programs: Iterable) -> list:
    """The names of programs as parameters, with the marks of SLOW and THOROUGH."""
    marks = {name: pytest.mark.thorough for name in THOROUGH}
    marks |= {name: pytest.mark.slow for name in SLOW}
    return [
        pytest.param(
            *([name] if isinstance(name, str) else name),
            marks=[marks[name]] if name in marks else [],
        )
        for name in programs
    ]


def served(name: str, gpu: str) -> list[dict]:
    """The calls that the implementation `name` can serve on `gpu`."""
    target, found = aot_gpus.find_gpu(gpu), []
    device = registry.Device("cuda", target.capability, target.cores)
    for call in CALLS:
        shape = [
            call.get("batch", 1),
            *(call[key] for key in ("rows", "heads", "kv_heads", "head_dim")),
        ]
        problem = registry.Problem(
            *shape, frozenset({call.get("dtype", "bfloat16")}), call["capacity"]
        )
        with registry.using(name), contextlib.suppress(ValueError):
            registry.explain("tree_attention", problem, device)
            found.append(call)
    return found


KERNELS = {
    ("triton", gpu): calls
    for gpu in ("h100", "a100", "l4")
    if CAN and (calls := served("triton", gpu))
}


def spilling(report: dict) -> dict[str, int]:
    """Kernels that spill registers, with the bytes. Without ptxas or cuobjdump nobody can tell: the
    only reason to skip.
    """
    spills = report["spills"]
    if spills["tool"] is None:
        pytest.skip(spills["reason"])  # ptxas is not in every environment; nothing else skips
    assert spills["reason"] is None and spills["checked"] > 0, spills
    return spills["spilling"]


def name_jobs() -> dict:
    """Every compilation, as a function without arguments, by the name that tests know it by."""

    def loop(*options):
        return functools.partial(
            tool.compile_decode_loop,
            **functools.reduce(operator.or_, ({"large": 4 * MIB}, *options)),
        )

    def attend(gpu, calls, large, spills=True, **options):
        options = {"calls": calls, **options}
        return functools.partial(
            aot.compile_report, ATTENTION, options, gpu, large=large, spills=spills
        )

    rounds = {"arch": "qwen3-8b", "layers": 1, "capacity": 1024}
    jobs = {name: loop(LOOP, {"spills": False}, how) for name, how in LOOPS.items()}
    jobs |= {name: loop(PREFILL, how) for name, how in PREFILLS.items()}
    jobs |= {name: loop(rounds, {"spills": "experts" in name}, how) for name, how in ROUNDS.items()}
    jobs |= {name: loop(SLOTS, how) for name, how in SERVED.items()}
    jobs |= {name: loop(DRAFT, how) for name, how in DRAFTS.items()}
    jobs["chunks"] = loop(CHUNKS, {"large": 16 * MIB, "spills": False})
    jobs["packed"] = attend("h100", [PACKED], MIB, spills=False)
    jobs["laid out"] = attend("h100", [PACKED | {"laid_out": True}], MIB, spills=False)
    for (name, gpu), calls in KERNELS.items():
        jobs[name, gpu] = attend(gpu, calls, 8 * MIB, implementation=name)
    return jobs


@pytest.fixture(scope="module")
def reports(request):
    """The compilations that the selected tests read, two processes at a time."""
    read = set()
    for item in request.session.items:
        if item.path == request.path and hasattr(item, "callspec"):
            given = item.callspec.params
            read |= set(given.get("names", ()))
            read |= {given.get("name"), (given.get("name"), given.get("gpu"))}
    with ThreadPoolExecutor(2) as pool:
        jobs = {name: pool.submit(job) for name, job in name_jobs().items() if name in read}
        yield {name: job.result() for name, job in jobs.items()}


@needs_plugin
def test_kernels_serve_where_they_should():
    assert all((registry.names()[0], gpu) in KERNELS for gpu in ("h100", "a100", "l4"))


@needs_plugin
@pytest.mark.parametrize("name", mark(LOOPS))
def test_the_decode_loop_compiles(name, reports):
    report = reports[name]
    assert report["compiles"], report["error"]
    assert report["tree_attention"] == ("blocks" if name == "t4" else registry.names()[0])


@needs_plugin
@pytest.mark.parametrize("name", mark(LOOPS))
def test_the_carry_is_aliased_and_nothing_is_copied(name, reports):
    report = reports[name]
    assert report["memory"]["aliased"] >= report["cache_bytes"] >= 64 * MIB
    most = {"t4": 192, "h100 rejection": 96}.get(name, 64)
    assert report["memory"]["temporary"] <= most * MIB
    if name != "t4":  # without Triton, XLA joins weights and slices caches before it calls cuBLAS
        # The smallest matrix of weights has 16 MiB.
        copies = [each for each in report["large"] if each["moves"] and each["bytes"] >= 16 * MIB]
        assert not copies, copies


@needs_plugin
@pytest.mark.parametrize("name", mark(PREFILLS))
def test_a_prefill_needs_no_scores_and_no_copies(name, reports):
    report = reports[name]
    assert report["compiles"], report["error"]
    # The scores of one chunk over the whole cache would take 2.2 GiB, in float32.
    assert report["memory"]["temporary"] <= 128 * MIB
    # The keys of two layers have 20 MiB or more. Empty caches are filled once, before the chunks.
    moved = [one for one in report["large"] if one["moves"] and one["bytes"] >= 16 * MIB]
    assert not [one for one in moved if "broadcast" not in one["name"]], moved
    if name != "t4 prefill":
        # Prompts of a batch take turns: the loop of one's chunks is inside a loop of all.
        (chunk,) = report["round"]["inner"] or [report["round"]]
        assert chunk["buffers"] == 1 and chunk["loops"] == 0 and chunk["outside"] == 0, chunk
    text = aot_table.render_compiled([report])
    assert f"ar, prefill of {report['options']['capacity']} rows" in text
    if name != "t4 prefill":
        assert not spilling(report)


@needs_plugin
@pytest.mark.parametrize("name", mark(LOOPS))
def test_a_round_is_one_command_buffer(name, reports):
    found = reports[name]["round"]
    if name == "h100 policy":
        # Rounds of two kinds, each in a loop of its own; between them the drafter catches up.
        plain, found = found["inner"]
        assert plain["buffers"] == 1 and plain["loops"] == 0 and plain["outside"] == 0, plain
        assert plain["kernels"] + plain["copies"] <= 90, plain
        # XLA makes no command buffer of fewer than five operations.
        assert reports[name]["round"]["outside"] <= 9, reports[name]["round"]
    assert found["buffers"] == 1 and found["loops"] == 0 and found["outside"] == 0, found
    assert found["kernels"] + found["copies"] <= MOST.get(name, 230), found


@needs_plugin
@pytest.mark.parametrize("name", mark(ROUNDS))
def test_every_kind_of_round_is_one_command_buffer(name, reports):
    report = reports[name]
    assert report["compiles"], report["error"]
    found = report["round"]
    assert found["buffers"] == 1 and found["loops"] == 0 and found["outside"] == 0, found


@needs_plugin
@pytest.mark.parametrize("name", mark(SERVED))
def test_an_engine_copies_no_cache_and_each_of_its_rounds_is_one_command_buffer(name, reports):
    report = reports[name]
    assert report["compiles"], report["error"]
    assert report["memory"]["aliased"] >= report["cache_bytes"] >= 64 * MIB
    # Feeding takes the drafter's cache of one slot out, 128 MiB. A visit may hold logits of all
    # rows in float32 several times; the caches are not among what is moved.
    assert report["memory"]["temporary"] <= (160 if name == "feed" else 256) * MIB
    moved = [one["shape"] for one in report["large"] if one["moves"]]
    assert not [shape for shape in moved if f",{report['options']['capacity']}," in shape], moved
    rounds = report["round"]["inner"] or [report["round"]]
    # A visit has autoregressive rounds, the drafter's catching up, and drafted rounds.
    assert len(rounds) == (1 if name == "feed" else 3)
    for one in rounds:
        assert one["buffers"] == 1 and one["loops"] == 0 and one["outside"] == 0, one
    assert not spilling(report)


@needs_plugin
@pytest.mark.slow
@pytest.mark.parametrize("names", [("chain@1", "lattice@1")])
def test_a_lattice_costs_little_more_than_a_chain_to_draft(names, reports):
    """DSpark's steps read the Markov head once for all nodes of a level, as a chain does for one."""
    chain, lattice = (reports[name] for name in names)
    assert lattice["program"]["outside"] == 0 and lattice["program"]["buffers"] == 1
    moved = [one["traffic"]["read"] + one["traffic"]["written"] for one in (chain, lattice)]
    assert moved[0] < moved[1] < 1.25 * moved[0]
    # Logits of a level, bfloat16.
    assert lattice["memory"]["temporary"] < 2 * 62 * 151936 * 2
    assert "of both at peak bandwidth, us" in aot_table.render_compiled([chain, lattice])


@needs_plugin
@pytest.mark.slow
@pytest.mark.parametrize("names", [[n for n in DRAFTS if n.endswith(f"@{b}")] for b in (1, 8)])
def test_with_a_shortlist_a_lattice_costs_as_little_as_a_chain_to_draft(names, reports):
    """Its nodes are computed in one product; in a fallback, again in the lattice's own steps."""
    chain, dense, short = (reports[name] for name in names)
    assert short["program"]["outside"] == 0 and short["program"]["buffers"] == 1
    common, alone = short["traffic"]["common"], names[0] == "chain@1"
    moved = [
        one["read"] + one["written"]
        for one in (common, chain["traffic"], dense["traffic"], short["traffic"])
    ]
    assert moved[0] < (1.0 if alone else 1.15) * moved[1] < moved[2] < moved[3] < 1.2 * moved[2]
    assert common["kernels"] < dense["traffic"]["kernels"] < short["traffic"]["kernels"]
    assert "without a fallback: kernels" in aot_table.render_compiled([chain, short])


@needs_plugin
@pytest.mark.parametrize("name", ["step"])
def test_a_step_from_one_node_copies_no_weights(name, reports):
    """XLA multiplies a single row elementwise, and used to write EAGLE-3's projections in float32."""
    assert reports[name]["traffic"]["written"] < 32 * MIB
    # 32 MiB are cuBLAS's workspace.
    assert reports[name]["memory"]["temporary"] < 40 * MIB


@needs_plugin
@pytest.mark.parametrize("name", mark([n for n in ROUNDS if any(w in n for w in WEIGHTS)]))
def test_no_weights_are_copied_or_converted(name, reports):
    """Logits in float32 are the largest result that only converts; they are smaller than this."""
    moved = [each for each in reports[name]["large"] if each["moves"] and each["bytes"] >= 16 * MIB]
    assert not moved, moved


@needs_plugin
@pytest.mark.parametrize("name", mark(["int4", "int4 experts"]))
def test_weights_of_four_bits_never_become_floats(name, reports):
    """As bfloat16, the smallest product of Qwen3-8B's layer would have 32 MiB, and gpt-oss's
    experts of a layer 1.0 GiB.
    """
    assert reports[name]["options"]["quantize"] == "int4"
    assert reports[name]["memory"]["temporary"] < 32 * MIB


@needs_plugin
@pytest.mark.parametrize("name", mark([*LOOPS, *PREFILLS, "chunks", "feed", "visit", "int8"]))
def test_xla_writes_no_kernels_for_a_hopper_by_triton(name, reports):
    """Products of quantised weights are the only ones, and those of other GPUs."""
    report = reports[name]
    expected = "h100" in name or name in ("chunks", "feed", "visit")
    assert (report["xla_triton"] == 0) == expected or name.startswith("t4"), report["xla_triton"]


@needs_plugin
@pytest.mark.parametrize("name", mark([name for name in ROUNDS if "experts" in name]))
def test_expert_kernels_do_not_spill(name, reports):
    assert not [kernel for kernel in spilling(reports[name]) if "experts" in kernel]


@needs_plugin
@pytest.mark.parametrize(("name", "gpu"), mark(KERNELS))
def test_kernels_compile_without_spilling(name, gpu, reports):
    report = reports[name, gpu]
    assert report["compiles"], report["error"]
    assert not [each for each in report["large"] if each["moves"]]
    assert not spilling(report)


@needs_plugin
@pytest.mark.parametrize("names", [("laid out", "packed")])
def test_packed_rows_stay_where_they_are(names, reports):
    laid_out, packed = (reports[name] for name in names)
    assert laid_out["traffic"]["written"] > 16 * MIB and laid_out["large"]
    # The result, of half a MiB, and a table of tiles.
    assert packed["traffic"]["written"] < 0.6 * MIB and not packed["large"]
    assert packed["memory"]["temporary"] < MIB / 64
    assert packed["program"]["buffers"] == 1 and packed["program"]["outside"] == 0


@needs_plugin
@pytest.mark.parametrize("name", ["t4"])
def test_gpus_are_columns_of_one_table(name, reports):
    table = aot_table.render_compiled([reports[name] | {"gpu": "h100"}, reports[name]])
    (row,) = (line for line in table.splitlines() if line.startswith("GPU"))
    assert row.split() == ["GPU", "h100", "t4"]
    assert "GPU" not in aot_table.render_compiled([reports[name]])


@needs_plugin
def test_weights_are_assembled_in_place():
    """A piece of stacked experts: the array is donated, and only the piece is copied."""
    options = {"array": (8, 2048, 1536), "rows": (768, 2048), "transpose": True}
    program = "jaxspec.bench.aot.programs:make_write_program"
    report = aot.compile_report(program, options, "h100", large=4 * MIB)
    assert report["compiles"], report["error"]
    assert report["memory"]["aliased"] == 48 * MIB and not report["large"]
    assert report["memory"]["temporary"] < 4 * MIB and report["program"]["copies"] == 0


@needs_plugin
@pytest.mark.parametrize("name", ["chunks"])
def test_prefill_writes_the_targets_cache_in_place(name, reports):
    """Chunks after the first read the cache that they write. XLA would copy it in each chunk."""
    report = reports[name]
    assert report["compiles"], report["error"]
    inside = [one for one in report["large"] if "/while/body" in one["source"] and one["moves"]]
    assert not inside, inside
    assert "prefill" in aot_table.render_compiled([report])


@needs_plugin
@pytest.mark.parametrize("name", ["chunks"])
def test_the_drafter_absorbs_a_last_token_without_writing_its_weights(name, reports):
    """XLA multiplies a single row elementwise, and writes the matrix to do so."""
    after = [one for one in reports[name]["large"] if "/while/body" not in one["source"]]
    assert not [one for one in after if "dot_general" in one["source"]], after


@needs_plugin
def test_what_does_not_compile_is_reported():
    options = {"calls": [SHAPE | {"rows": 16}], "implementation": registry.names()[0]}
    report = aot.compile_report(ATTENTION, options, "t4")
    assert not report["compiles"] and "needs compute capability 8.0" in report["error"]
    assert aot_table.render_compiled(
        [{"part": "rounds", "options": {"drafter": "ar"}} | report]
    ).startswith("ar does not compile: ValueError: ")


@pytest.mark.skipif(CAN, reason="the plugin is installed")
def test_without_the_plugin_the_command_says_what_to_install(capsys):
    from jaxspec.cli.main import main

    assert main(["aot", "mini"]) == 2
    assert "pip install jax-cuda12-plugin" in capsys.readouterr().err


def test_a_wrong_method_is_told_before_anything_compiles(capsys):
    from jaxspec.cli.main import main

    assert main(["aot", "mini", "--drafter", "bush"]) == 2
    assert "unknown drafter 'bush'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--rows", "64"], "--rows is for --visit"),
        (["--visit", "--prefill"], "--visit takes no --draft, --prefill, --default or --policy"),
        (["--visit", "--batch", "4", "--rows", "3"], "give at least one for each of 4 slots"),
        (["--visit", "--tp", "2"], "--tp compiles rounds and prefills, not visit"),
    ],
)
def test_a_visit_says_which_options_it_takes(options, error, capsys):
    from jaxspec.cli.main import main

    assert main(["aot", "mini", *options]) == 2
    assert error in capsys.readouterr().err


def test_options_out_of_range_are_refused():
    with pytest.raises(ValueError, match="unknown GPU 'h900': choose one of h100, "):
        aot_gpus.find_gpu("h900")
    assert [aot_gpus.find_gpu(gpu).dtype for gpu in ("t4", "a100")] == ["float16", "bfloat16"]
    with pytest.raises(ValueError, match="layers is 99: qwen3-8b has 36"):
        tool.compile_decode_loop(arch="qwen3-8b", layers=99)
    with pytest.raises(ValueError, match="3 devices cannot share 32 heads .* choose one of"):
        tool.compile_decode_loop(arch="qwen3-8b", devices=3)
    with pytest.raises(ValueError, match="batch is 0: give an integer at least 1"):
        tool.compile_decode_loop(arch="mini", batch=0)
    with pytest.raises(ValueError, match="a cache of 64 rows is too small: give at least 80"):
        tool.compile_decode_loop(arch="mini", capacity=64)
