"""Which CPUs are known to refuse an FP8 KV cache."""

from __future__ import annotations

import pytest

from fulcrum.capacity.cpu import refuses_fp8_kv

AVX2 = "fpu sse4_2 fma avx avx2 bmi2 vaes"
AVX512 = f"{AVX2} avx512f avx512dq avx512cd avx512bw avx512vl"


@pytest.mark.parametrize(
    ("cpuinfo", "refused"),
    [
        (f"processor\t: 0\nmodel name\t: AMD EPYC\nflags\t\t: {AVX2}\nbugs\t\t: avx512f\n", True),
        (f"processor\t: 0\nflags\t\t: {AVX512}\n", False),
        ("processor\t: 0\nflags\t\t: avx2 avx512f avx512cd avx512er avx512pf\n", True),  # Xeon Phi: half of it
        (f"processor\t: 0\nflags\t\t: {AVX2} amx_bf16 amx_tile amx_int8\n", False),
        ("processor\t: 0\nFeatures\t: fp asimd bf16 sve2\n", True),
        ("processor\t: 0\nmodel name\t: unheard of\n", False),
        ("", False),
    ],
    ids=["avx2", "avx512", "phi", "amx", "arm", "silent", "empty"],
)
def test_refuses_fp8_kv(cpuinfo: str, refused: bool) -> None:
    assert refuses_fp8_kv(cpuinfo) is refused
