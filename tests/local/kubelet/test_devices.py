from __future__ import annotations

from pathlib import Path

import pytest

from fulcrum_local.kubelet.devices import Devices
from fulcrum_local.kubelet.environment import ConfigError


def test_each_container_has_its_own_and_keeps_them(tmp_path: Path) -> None:
    devices = Devices(4, tmp_path / "devices.json")
    assert devices.variables("a", "main", count=2)["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert devices.variables("b", "main", count=1)["CUDA_VISIBLE_DEVICES"] == "2"
    assert devices.variables("a", "main", count=2)["CUDA_VISIBLE_DEVICES"] == "0,1"
    with pytest.raises(ConfigError, match=r"2 nvidia\.com/gpu wanted, 1 of 4 free"):
        devices.variables("c", "main", count=2)
    devices.release("a")
    again = Devices(4, tmp_path / "devices.json")
    assert again.variables("b", "main", count=1)["CUDA_VISIBLE_DEVICES"] == "2"
    assert again.variables("c", "main", count=2)["CUDA_VISIBLE_DEVICES"] == "0,1"


def test_who_asks_for_none_sees_none_but_only_where_there_are_some(tmp_path: Path) -> None:
    assert Devices(1, tmp_path / "d").variables("a", "m", count=0)["CUDA_VISIBLE_DEVICES"] == ""
    assert Devices(0, tmp_path / "d").variables("a", "m", count=0) == {}
