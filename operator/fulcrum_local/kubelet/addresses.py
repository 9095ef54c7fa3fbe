"""Pod addresses out of a loopback network."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Final

from fulcrum_local.kubelet.processes import read_json, write_private

_RESERVED: Final = 256
"""First addresses of the network: the node itself is among them."""


class AddressPool:
    """Hands out addresses round and round, so that an address is not soon another Pod's; kept across restarts."""

    def __init__(self, cidr: str, state_file: Path) -> None:
        self._network = ipaddress.ip_network(cidr)
        self._size = self._network.num_addresses
        if self._size <= 2 * _RESERVED:
            raise ValueError(f"the Pod network {cidr} is too small")
        self._file = state_file
        self._next = int((read_json(state_file) or {}).get("next", _RESERVED))
        self._used: set[str] = set()

    @property
    def node_address(self) -> str:
        """The node's own address: the network's first."""
        return str(self._network[1])

    def keep(self, address: str) -> None:
        """Mark an address that a Pod already has."""
        self._used.add(address)

    def allocate(self) -> str:
        """A free address. Errors: RuntimeError when all are taken."""
        for _ in range(self._size):
            if not _RESERVED <= self._next < self._size - 1:
                self._next = _RESERVED
            address = str(self._network[self._next])
            self._next += 1
            # x.y.z.0 and x.y.z.255 would work, but look like a network and a broadcast address.
            if address not in self._used and address.rpartition(".")[2] not in ("0", "255"):
                self._used.add(address)
                write_private(self._file, f'{{"next": {self._next}}}')
                return address
        raise RuntimeError("no Pod address is left")

    def release(self, address: str) -> None:
        self._used.discard(address)
