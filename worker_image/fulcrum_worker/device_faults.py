"""Which GPU failed, from the engine's last lines. Only what hardware or driver cause; a kernel's own error is no fault.

Sources: the error strings of the CUDA and HIP runtimes (`cudaGetErrorString`) as PyTorch quotes them, NVIDIA's catalog
of Xid errors, `pynvml` in vLLM, and ROCr's handlers of memory faults and hardware exceptions (`runtime.cpp`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Final

from fulcrum.api.device_fault import DeviceFault, said
from fulcrum.api.worker import EXIT_DEVICE_FAILED
from fulcrum_worker.engine_process import without_prefix

_RUNTIME: Final = {
    "uncorrectable ECC error encountered": "uncorrectable ECC error",
    "uncorrectable NVLink error detected during the execution": "uncorrectable NVLink error",
    "Invalid access of peer GPU memory over nvlink or a hardware error": "NVLink or hardware error",
    "hardware stack error": "hardware stack error",
    "system not yet initialized": "GPU fabric is not initialized (fabric manager)",
    "CUDA-capable device(s) is/are busy or unavailable": "GPU is busy or unavailable",
    "all CUDA-capable devices are busy or unavailable": "GPU is busy or unavailable",  # before CUDA 11
    "unknown error": "unknown error of the driver",
}
"""Errors of the CUDA or HIP runtime -> what is said of them. An illegal memory access, a failed assertion or an
unspecified launch failure is most often a defect of a kernel, and would follow the worker to every node."""
_XIDS: Final = {
    48: "double bit ECC error",
    62: "internal micro-controller halt",
    64: "row remapper failure",
    74: "NVLink error",
    79: "GPU has fallen off the bus",
    94: "contained ECC error",
    95: "uncontained ECC error",
    119: "GSP does not answer",
    120: "GSP error",
    140: "unrecovered ECC error",
}
"""Xids of hardware and driver. 13, 31 and 43 come from an application's own kernels, 63 tells of a repair."""
_THROWN: Final = (
    r"(?:\[rank(?P<rank>\d{1,4})\]: ?)?(?:\[[EF]\d{4} [\d:.]{1,20} \w{1,40}\.cpp:\d{1,5}\] )?(?:what\(\): {1,4})?"
    r"(?:\[PG [^][]{1,120}\] Process group watchdog thread terminated with exception: )?"
)
"""Before what an exception says: PyTorch's mark of a rank, and its watchdog of collectives, which ends the process."""
_ERROR: Final = re.compile(
    rf"{_THROWN}"
    r"(?:[\w.]{1,80}: )?(?:(?:CUDA|HIP) error: |Unexpected error from \w{1,40}\(\)\. .{0,200}Error \d{1,5}: )"
    rf"(?P<what>{'|'.join(map(re.escape, _RUNTIME))})\.?(?: \(Triggered internally at .{{0,200}})?"
)
_UNKNOWN: Final = re.compile(
    r"(?:[\w.]{1,80}: )?CUDA unknown error - this may be due to an incorrectly set up .{0,300}"
)
_LOST: Final = re.compile(r"(?:[\w.]{1,80}: )?GPU is lost")
_XID: Final = re.compile(
    rf".{{0,120}}NVRM: Xid \((?:PCI:)?(?P<gpu>[0-9a-fA-F:.]{{7,16}})\): (?P<xid>{'|'.join(map(str, _XIDS))}), .*"
)
_ROCM: Final = re.compile(
    r"(?:Memory access fault|HW Exception) by GPU (?P<gpu>node-\d{1,3}) .{0,120}[Rr]eason ?: ?"
    r"(?P<what>DRAM ECC failure|SRAM ECC failure|ECC failure|Generic hang recovery|GPU Hang)\b.*"
)
_AMDGPU: Final = re.compile(
    r".{0,120}amdgpu (?P<gpu>[0-9a-f:.]{7,16}): .{0,120}"
    r"(?P<what>device lost from bus|uncorrectable hardware errors detected in \w{1,16} block)\b.*"
)
_RANK: Final = re.compile(r"^\(Worker_(\w{1,40}) pid=\d+\) ")
"""How vLLM marks lines of a rank: `Worker_TP1`, `Worker_PP0_TP1_EP1`."""
_LONGEST_LINE: Final = 1000
"""Characters of a line that are looked at: no line that names a failed GPU is longer."""
_UUID: Final = re.compile(r"(?:GPU|MIG)-[0-9a-fA-F-]{8,40}")


def device_fault(lines: Iterable[str], environment: Mapping[str, str]) -> DeviceFault | None:
    """Return the first failure of a GPU in an engine's lines; None: no line tells of one.

    Lines must match as a whole, after vLLM's prefix, so that text of a request within a line counts for nothing. Where
    no line names the GPU it is the only one that `environment` shows (`NVIDIA_VISIBLE_DEVICES`), or the rank's.
    """
    faults = [fault for line in lines if (fault := _fault_in(line[:_LONGEST_LINE])) is not None]
    if not faults:
        return None
    visible = environment.get("NVIDIA_VISIBLE_DEVICES", "")
    only = visible if _UUID.fullmatch(visible) else None
    said_of = [fault.gpu for fault in faults if fault.gpu is not None]
    named = next((gpu for gpu in said_of if not gpu.startswith("rank ")), None)
    return DeviceFault(faults[0].what, named or only or next(iter(said_of), None))


def blamed(code: int, what: str, lines: Iterable[str]) -> tuple[int, str]:
    """Return exit code and message of a worker whose engine ended, those of a failed GPU where that was the cause."""
    fault = device_fault(lines, os.environ)
    return (code, what) if fault is None else (EXIT_DEVICE_FAILED, f"{said(fault)}{what}")


def _fault_in(line: str) -> DeviceFault | None:
    text = without_prefix(line).strip()
    rank = _RANK.match(line)
    gpu = f"rank {rank[1]}" if rank else None
    if found := _ERROR.fullmatch(text):
        return DeviceFault(_RUNTIME[found["what"]], gpu or (found["rank"] and f"rank {found['rank']}"))
    if _UNKNOWN.fullmatch(text):
        return DeviceFault(_RUNTIME["unknown error"], gpu)
    if _LOST.fullmatch(text):
        return DeviceFault("GPU is lost", gpu)
    if found := _XID.fullmatch(text):
        return DeviceFault(f"Xid {found['xid']}, {_XIDS[int(found['xid'])]}", found["gpu"].lower())
    if found := _ROCM.fullmatch(text) or _AMDGPU.fullmatch(text):
        return DeviceFault(found["what"], found["gpu"])
    return None
