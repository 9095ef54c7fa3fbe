"""A GPU that failed is told from an engine's last lines; what a kernel or a request says is none."""

from __future__ import annotations

import sys

import pytest
from tests import vllm_source
from tests.worker_image.agents import free_address, worker_config
from tests.worker_image.test_agent_life import run
from tests.worker_image.test_follower import command

from fulcrum.api.device_fault import DeviceFault, heard, said
from fulcrum.api.worker import EXIT_DEVICE_FAILED, EXIT_ENGINE_NOT_STARTED
from fulcrum_worker.device_faults import device_fault
from fulcrum_worker.engine_command import EngineCommand
from fulcrum_worker.follower import run_follower

UUID = "GPU-4cf8db2d-06c0-7d70-1a51-e59b25b2c16c"
ECC = "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered"


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (ECC, DeviceFault("uncorrectable ECC error")),
        (f"(EngineCore_DP0 pid=53) ERROR 11-27 02:00:01 [core.py:935] {ECC}", DeviceFault("uncorrectable ECC error")),
        (
            f"(Worker_PP1_TP3 pid=53) ERROR 11-27 02:00:01 [multiproc_executor.py:870] {ECC}",
            DeviceFault("uncorrectable ECC error", "rank PP1_TP3"),
        ),
        (
            "RuntimeError: HIP error: uncorrectable ECC error encountered",
            DeviceFault("uncorrectable ECC error"),
        ),
        (
            "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling "
            "NumCudaDevices() that might have already set an error? Error 802: system not yet initialized "
            "(Triggered internally at /pytorch/c10/cuda/CUDAFunctions.cpp:119.)",
            DeviceFault("GPU fabric is not initialized (fabric manager)"),
        ),
        (
            "RuntimeError: CUDA unknown error - this may be due to an incorrectly set up environment, e.g. changing "
            "env variable CUDA_VISIBLE_DEVICES after program start.",
            DeviceFault("unknown error of the driver"),
        ),
        (f"[rank0]: {ECC}", DeviceFault("uncorrectable ECC error", "rank 0")),
        (
            "[rank1]:[E1127 02:00:01.130893264 ProcessGroupNCCL.cpp:2057] [PG ID 2 PG GUID 3 Rank 1] Process group "
            "watchdog thread terminated with exception: CUDA error: uncorrectable ECC error encountered",
            DeviceFault("uncorrectable ECC error", "rank 1"),
        ),
        (
            "(Worker_TP1 pid=53)   what():  [PG ID 2 PG GUID 3 Rank 1] Process group watchdog thread terminated with "
            "exception: CUDA error: uncorrectable NVLink error detected during the execution",
            DeviceFault("uncorrectable NVLink error", "rank TP1"),
        ),
        ("  what():  CUDA error: uncorrectable ECC error encountered", DeviceFault("uncorrectable ECC error")),
        (
            "torch.AcceleratorError: CUDA error: CUDA-capable device(s) is/are busy or unavailable",
            DeviceFault("GPU is busy or unavailable"),
        ),
        ("vllm.third_party.pynvml.NVMLError_GpuIsLost: GPU is lost", DeviceFault("GPU is lost")),
        (
            "[ 966.5] NVRM: Xid (PCI:0000:3B:00): 79, pid=1896, name=VLLM::EngineCor, GPU has fallen off the bus.",
            DeviceFault("Xid 79, GPU has fallen off the bus", "0000:3b:00"),
        ),
        (
            "HW Exception by GPU node-4 (Agent handle: 0x1b0fc990) reason :GPU Hang",
            DeviceFault("GPU Hang", "node-4"),
        ),
        (
            "Memory access fault by GPU node-2 (Agent handle: 0x55d) on address 0x7f1200000000. "
            "Reason: DRAM ECC failure.",
            DeviceFault("DRAM ECC failure", "node-2"),
        ),
        (
            "[ 12.3] amdgpu 0000:c1:00.0: amdgpu: 1 uncorrectable hardware errors detected in umc block",
            DeviceFault("uncorrectable hardware errors detected in umc block", "0000:c1:00.0"),
        ),
        # Defects of kernels, and what is set up wrongly on all nodes alike.
        ("torch.AcceleratorError: CUDA error: an illegal memory access was encountered", None),
        ("RuntimeError: CUDA error: device-side assert triggered", None),
        ("RuntimeError: CUDA error: unspecified launch failure", None),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", None),
        ("RuntimeError: No CUDA GPUs are available", None),
        ("NVRM: Xid (PCI:0000:3b:00): 31, pid=9, name=python3, Ch 00000008", None),
        ("NVRM: Xid (PCI:0000:3b:00): 63, pid=9, Row Remapper: New row marked for remapping", None),
        ("Memory access fault by GPU node-1 (Agent handle: 0x5) on address 0x7f. Reason: Page not present.", None),
        # A request's own words.
        (f"INFO 11-27 02:00:01 [logger.py:40] Received request r: prompt: '{ECC}'", None),
        (f"ValueError: prompt {ECC}", None),
        (f"{ECC}, said the user", None),
        (f"[rank0]: what(): said: {ECC}", None),
        ("CUDA error: " + "x" * 100_000, None),
    ],
)
def test_what_a_line_tells(line: str, fault: DeviceFault | None) -> None:
    assert device_fault(["loading", line, "RuntimeError: Engine core initialization failed."], {}) == fault


@pytest.mark.parametrize(
    ("lines", "visible", "gpu"),
    [
        ([ECC], UUID, UUID),
        ([ECC], f"{UUID},{UUID}", None),
        ([ECC], "all", None),
        ([ECC], "void", None),
        ([ECC], None, None),
        (["(Worker_TP1 pid=7) " + ECC], f"{UUID},{UUID}", "rank TP1"),
        (["(Worker_TP1 pid=7) " + ECC, "NVRM: Xid (PCI:0000:3b:00): 95, x"], f"{UUID},{UUID}", "0000:3b:00"),
    ],
)
def test_which_gpu_it_was(lines: list[str], visible: str | None, gpu: str | None) -> None:
    environment = {} if visible is None else {"NVIDIA_VISIBLE_DEVICES": visible}
    found = device_fault(lines, environment)
    assert found == DeviceFault("uncorrectable ECC error", gpu)
    assert heard(f"{said(found)}vLLM ended") == found, "the operator reads what the agent says"


@pytest.mark.parametrize(
    "message",
    [
        "",
        "vLLM was killed by SIGKILL while serving; its last lines:\nGPU failed",
        f"GPU failed: {'x' * 500}; vLLM",
        "GPU failed: <script>; vLLM",
        f"GPU failed: ECC [{'9' * 500}]; vLLM",
    ],
)
def test_what_is_no_word_of_an_agent_is_not_heard(message: str) -> None:
    assert heard(message) is None


def test_the_longest_names_that_are_told_are_heard() -> None:
    """Whatever the agent's list may come to say fits into what the operator reads."""
    for line in (
        "amdgpu 0000:c1:00.0: amdgpu: 1 uncorrectable hardware errors detected in sixteen_letters_ block",
        "RuntimeError: CUDA error: Invalid access of peer GPU memory over nvlink or a hardware error",
        f"(Worker_{'P' * 40} pid=7) {ECC}",
    ):
        found = device_fault([line], {})
        assert found is not None
        assert heard(said(found)) == found


@pytest.mark.vllm_facts
def test_vllm_says_that_a_gpu_is_lost_in_these_words() -> None:
    root = vllm_source.root()
    assert 'NVML_ERROR_GPU_IS_LOST: "GPU is lost"' in (root / "third_party/pynvml.py").read_text()
    executor = (root / "v1/executor/multiproc_executor.py").read_text()
    assert 'process_name = "Worker"' in executor
    assert 'process_name += f"_TP{tp_rank}"' in executor


async def test_the_agent_ends_with_the_gpu_that_failed(capfd: pytest.CaptureFixture[str]) -> None:
    ip = free_address()
    for line, code in ((ECC, EXIT_DEVICE_FAILED), ("RuntimeError: no such model", EXIT_ENGINE_NOT_STARTED)):
        engine = EngineCommand(argv=(sys.executable, "-c", f"print({line!r}); raise SystemExit(1)"), environment={})
        assert await run(worker_config(measure_at_start=False), engine, ip) == code
        end = capfd.readouterr().out[-2048:]
        assert "vLLM ended with exit code 1 before it was ready; its last lines:\n" in end
        assert heard(end) == (DeviceFault("uncorrectable ECC error") if code == EXIT_DEVICE_FAILED else None)


@pytest.mark.integration
async def test_a_follower_ends_with_the_gpu_that_failed(capsys: pytest.CaptureFixture[str]) -> None:
    assert await run_follower(command(sys.executable, "-c", f"print({ECC!r}); raise SystemExit(3)")) == (
        EXIT_DEVICE_FAILED
    )
    assert heard(capsys.readouterr().err) == DeviceFault("uncorrectable ECC error")
