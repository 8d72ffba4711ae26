"""Collectives of compiled programs, as XLA prints them."""

from pallas_kernels.aot.collectives import list_collectives

TEXT = """
  %all-reduce.9 = f32[2,4,16]{2,1,0} all-reduce(%add.3), channel_id=1, to_apply=%region_1.2
  %ags = (s32[2,64,1]{2,1,0}, s32[2,64,8]{2,1,0}) all-gather-start(%fusion), channel_id=5
  ROOT %agd = s32[2,64,8]{2,1,0} all-gather-done(%ags)
  %ars = bf16[1,64,2048]{2,1,0} all-reduce-start(%gemm), channel_id=7
  %scalar = pred[] all-reduce(%any), channel_id=8, to_apply=%or
  %dot = f32[4,4]{1,0} dot(%a, %b), metadata={op_name="all-reduce(x)"}
"""


def test_collectives_are_listed_with_their_results():
    found = [(one["kind"], one["shape"], one["bytes"]) for one in list_collectives(TEXT)]
    assert found == [
        ("all-reduce", "f32[2,4,16]", 512),
        ("all-gather", "s32[2,64,8]", 4096),
        ("all-reduce", "bf16[1,64,2048]", 262144),
        ("all-reduce", "pred[]", 1),
    ]
