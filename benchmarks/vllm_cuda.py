"""A program that asks vLLM's own CUDA platform which attention backends serve a model on a GPU, without a GPU.

Reads cells as JSON from stdin and writes, for each, the backends that vLLM finds valid, the best first, with the block
size that each prefers; or why it cannot be asked. What a CPU build lacks (compiled kernels, FlashInfer) is taken as
being there, as in the CUDA wheel: nothing of it is called, backends only look whether it can be imported.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import json
import sys
import types
from collections.abc import Sequence
from typing import Any

_PACKAGES = ("flashinfer", "flash_mla", "tokenspeed_mla")
_MODULES = (
    "vllm._C_stable_libtorch", "vllm._flashmla_C", "vllm._flashmla_extension_C",
    "vllm.vllm_flash_attn._vllm_fa2_C", "vllm.vllm_flash_attn._vllm_fa3_C",
)  # fmt: skip


class _Anything(type):
    """A class whose attributes are classes of its kind."""

    def __getattr__(cls, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return _anything(name)


def _anything(name: str) -> type:
    return _Anything(name, (), {"__init__": lambda *_, **__: None, "__call__": lambda *_, **__: None})


class _Loader(importlib.abc.Loader):
    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = types.ModuleType(spec.name)
        module.__path__ = []

        def attribute(name: str) -> type:
            if name.startswith("__"):
                raise AttributeError(name)
            return _anything(name)

        module.__getattr__ = attribute  # type: ignore[method-assign]
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing: the module makes what it is asked for."""


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        absent = fullname.partition(".")[0] in _PACKAGES or fullname in _MODULES
        if absent or fullname.startswith("vllm.third_party.flashmla."):
            return importlib.machinery.ModuleSpec(fullname, _Loader(), is_package=True)
        return None


def _platform() -> Any:
    """vLLM's CUDA platform as the current one, with a compute capability that can be set."""
    import torch

    empty = torch.empty
    # A backend's module keeps a workspace on the GPU as soon as it is imported.
    torch.empty = lambda *sizes, **options: empty(  # type: ignore[assignment]
        *sizes, **({**options, "device": "meta"} if "cuda" in str(options.get("device")) else options)
    )
    torch.cuda.current_device = lambda: 0
    torch.cuda.get_device_properties = lambda *_: types.SimpleNamespace(  # type: ignore[assignment,return-value]
        multi_processor_count=132, major=9, minor=0, total_memory=1 << 37, name="H"
    )
    import vllm.platforms
    from vllm.platforms import cuda
    from vllm.platforms.interface import DeviceCapability

    class Platform(cuda.CudaPlatformBase):
        capability = DeviceCapability(9, 0)

        @classmethod
        def get_device_capability(cls, device_id: int = 0) -> DeviceCapability:  # noqa: ARG003 - vLLM's signature
            return cls.capability

        @classmethod
        def get_device_name(cls, device_id: int = 0) -> str:  # noqa: ARG003
            return "a GPU"

        @classmethod
        def get_device_total_memory(cls, device_id: int = 0) -> int:  # noqa: ARG003
            return 80 << 30

    vllm.platforms._current_platform = Platform()  # noqa: SLF001
    # Both keep the platform that they find when they are imported.
    import vllm.vllm_flash_attn.flash_attn_interface as flash_attention
    from vllm.utils import flashinfer

    flash_attention.FA4_AVAILABLE = True  # its sources are in the CUDA wheel alone
    flashinfer.has_nvidia_artifactory = lambda: True  # the worker image brings the kernels
    return Platform


def main() -> None:
    """Answer every cell."""
    sys.meta_path.insert(0, _Finder())
    import torch

    platform = _platform()
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.platforms.interface import DeviceCapability
    from vllm.utils import flashinfer
    from vllm.v1.attention.selector import AttentionSelectorConfig

    answers: list[Any] = []
    with set_current_vllm_config(VllmConfig()):
        for cell in json.load(sys.stdin):
            capability = DeviceCapability(*cell["capability"])
            platform.capability = capability
            flashinfer.supports_trtllm_attention.cache_clear()
            asked = AttentionSelectorConfig(
                dtype=torch.bfloat16, block_size=None, use_kv_connector=True, **cell["attention"]
            )
            try:
                valid, invalid = platform.get_valid_backends(capability, asked, num_heads=cell["heads"])
            except Exception as error:  # noqa: BLE001 - whatever cannot be asked here is told
                answers.append(f"{type(error).__name__}: {error}")
                continue
            unknown = [f"{name.name}: {said}" for name, (_, said) in invalid.items() if "Error:" in " ".join(said)]
            found = [(each.backend.name, each.backend_class.get_preferred_block_size(16)) for each in valid]
            answers.append(", ".join(unknown) if unknown else found)
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
