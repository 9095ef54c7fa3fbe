"""What a cached prefix is worth: load it, recompute it, or both at once. Pure."""

from fulcrum.kv.link import LinkRate
from fulcrum.kv.restore import How, Restore, Waits, restore

__all__ = ["How", "LinkRate", "Restore", "Waits", "restore"]
