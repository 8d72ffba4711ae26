"""What reports of compilation read out of XLA's and ptxas's texts; nothing is compiled."""

from pallas_kernels.aot import hlo as aot_hlo
from pallas_kernels.aot import ptxas as aot_ptxas
from pallas_kernels.aot import report as aot_report

THUNKS = """\
001: kCopy  [source       | next=003 (2)] kCopy
003: kWhile [prev=001 (1) | sink        ]
condition:
    004: kCustomKernel [source | sink] loop_compare_fusion grid: [1, 1, 1] threads: [1, 1, 1]  shared_memory: 0 bytes
  body:
    000: kCommandBuffer [source       | next=014 (1)]
        005: kCustomKernel [source | sink] loop_add_fusion_1 grid: [1, 1, 1] threads: [1, 1, 1]  shared_memory: 0 bytes
        012: kConditional  [prev=005 (1) | next=013 (1)]
          branch_0:
            007: kCustomKernel [source | sink] gemm_1 grid: [512, 1, 1] threads: [64, 1, 1]
          branch_1:
            008: kCustomKernel [source       | next=009 (1)] gemm_5 grid: [512, 1, 1] threads: [64, 1, 1]
            009: kCublasLtMatmul [prev=008 (1) | next=010 (1)] kCublasLtMatmul
        013: kCopy         [prev=012 (1) | next=014 (1)] kCopy
    014: kWhile        [prev=000 (1) | next=019 (1)]
condition:
        015: kCustomKernel [source | sink] loop_compare_fusion_1 grid: [1, 1, 1] threads: [1, 1, 1]  shared_memory: 0 bytes
      body:
        016: kDynamicSliceFusion [source | sink] params=1, results=1
            017: kCopy [source | sink] kCopy
    019: kCustomKernel [prev=014 (1) | sink        ] loop_add_fusion_2 grid: [1, 1, 1] threads: [1, 1, 1]
"""
METADATA = """\
thunk_metadata { thunk_info { profile_annotation: "gemm.5" thunk_id: 8 } thunk_kind: "kCustomKernel" }
thunk_metadata { thunk_info { profile_annotation: "while.2" thunk_id: 14 } thunk_kind: "kWhile" }
"""
HLO = """\
%gemm.5_computation (p0: bf16[64,128], p1: bf16[128,256]) -> bf16[64,256] {
  ROOT %dot.1 = bf16[64,256]{1,0} dot(%p0, %p1), metadata={op_name="jit(run)/while/body/Transformer/layers_3/mlp/dot_general"}
}

%weights (p0: bf16[128,256], p1: bf16[128,256]) -> bf16[128,512] {
  %p0 = bf16[128,256]{1,0} parameter(0)
  ROOT %concatenate.1 = bf16[128,512]{1,0} concatenate(%p0, %p1), dimensions={1}
}

%write (p0: bf16[2,4096,128], p1: bf16[2,1,128]) -> bf16[2,4096,128] {
  ROOT %dynamic-update-slice.1 = bf16[2,4096,128]{2,1,0} dynamic-update-slice(%p0, %p1, %c, %c, %c)
}

%body.1 (arg: (s32[], bf16[2,4096,128])) -> (s32[], bf16[2,4096,128]) {
  %gemm.5 = bf16[64,256]{1,0} fusion(%a, %b), kind=kCustom, calls=%gemm.5_computation
  %wrapped_concatenate = bf16[128,512]{1,0} fusion(%a, %b), kind=kLoop, calls=%weights
  %copy.7 = bf16[2,4096,128]{2,1,0} copy(%c)
  %update = bf16[2,4096,128]{2,1,0} fusion(%c, %d), kind=kLoop, calls=%write
  %while.2 = (s32[], bf16[2,4096,128]) while(%t), condition=%c, body=%inner, backend_config={"known_trip_count":{"n":"3"}}
}

ENTRY %main (p: bf16[2,4096,128]) -> bf16[2,4096,128] {
  %while.1 = (s32[], bf16[2,4096,128]{2,1,0}) while(%t), condition=%cond, body=%body.1
}
"""
PTXAS = """\
ptxas info    : Compiling entry function 'tree_attention' for 'sm_90a'
ptxas info    : Function properties for tree_attention
    2944 bytes stack frame, 5092 bytes spill stores, 7124 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 2944 bytes cumulative stack size
ptxas info    : Compiling entry function 'sort_0' for 'sm_90a'
ptxas info    : Function properties for sort_0
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 39 registers, used 1 barriers, 16384 bytes smem
"""


def test_thunks_are_nested_and_counted():
    copy, loop = aot_report.parse_thunks(THUNKS)
    assert (copy.kind, loop.kind) == ("kCopy", "kWhile")
    assert [thunk.ident for thunk in loop.body] == [0, 14, 19]
    conditional = loop.body[0].body[1]
    assert [[thunk.ident for thunk in branch.body] for branch in conditional.body] == [[7], [8, 9]]
    inner = loop.body[1]
    assert [thunk.ident for thunk in inner.condition] == [15] and inner.body[0].body[0].ident == 17
    # The larger branch; three times the inner loop's comparison and copy.
    found = aot_report.count(loop.body, {14: 3})
    assert found == aot_report.Count(
        kernels=3 + 3 + 1, copies=1 + 3, outside=6 + 1, buffers=1, loops=1
    )
    assert aot_report.count(loop.body, {}).unknown == 1


def test_branches_on_a_boolean_are_counted():
    text = """\
101: kConditional  [prev=033 (1)  | next=102 (1)  ]
  false_branch:
    034: kCustomKernel [source | sink] fusion grid: [1, 1, 1] threads: [2, 1, 1]
    035: kCopy [source | sink] kCopy
  true_branch:
    036: kCustomKernel [source | sink] fusion_1 grid: [1, 1, 1] threads: [2, 1, 1]
102: kCopy [source | sink] kCopy
"""
    thunks = aot_report.parse_thunks(text)
    assert [thunk.ident for thunk in thunks] == [101, 102]
    assert aot_report.count(thunks, {}) == aot_report.Count(kernels=1, copies=2, outside=3)


def test_launches_are_grouped_by_layer():
    names, trips = aot_report.thunk_names(METADATA), aot_hlo.trip_counts(HLO)
    assert names == {8: "gemm.5", 14: "while.2"} and trips == {"while.2": 3}
    groups = aot_report.group(
        aot_report.parse_thunks(THUNKS)[1].body, {14: 3}, names, aot_hlo.op_names(HLO)
    )
    assert groups == {"other": 10, "Transformer/layers_*": 1}


def test_large_results_are_found_and_updates_in_place_left_out():
    found = aot_hlo.large_results(HLO, 2**15)
    assert [(each["name"], each["bytes"], each["moves"]) for each in found] == [
        ("copy.7", 2**21, True),
        ("wrapped_concatenate", 2**17, True),
        ("gemm.5", 2**15, False),
    ]
    assert found[-1]["source"].endswith("layers_3/mlp/dot_general")


FAKE_PTXAS = """#!/bin/sh
# Takes one file at a time, and never one that is called bad.
case "$*" in *a.ptx*b.ptx*) kill -SEGV $$ ;; *bad.ptx*) echo "cannot read it" >&2; exit 1 ;; esac
echo "ptxas info    : Used 40 registers" >&2
"""


def test_files_that_ptxas_does_not_take_together_are_checked_one_by_one(tmp_path, monkeypatch):
    tool = tmp_path / "ptxas"
    tool.write_text(FAKE_PTXAS)
    tool.chmod(0o755)
    monkeypatch.setattr(aot_ptxas, "find_ptxas", lambda: str(tool))
    files = [tmp_path / name for name in ("a.ptx", "b.ptx", "bad.ptx")]
    for file in files:
        file.write_text(".visible .entry kernel()")
    found = aot_ptxas.register_spills(files[:2], "sm_90a")
    assert found["reason"] is None and found["checked"] == 2 and found["most_registers"] == 40
    found = aot_ptxas.register_spills(files, "sm_90a")
    assert found["reason"] == "cannot read it" and found["checked"] == 2


def test_spills_are_read():
    found = aot_ptxas.parse_ptxas(PTXAS)
    assert found == {
        "checked": 2,
        "most_registers": 255,
        "spilling": {"tree_attention": 5092 + 7124},
    }
