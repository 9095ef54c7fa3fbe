"""What a cached prefix is worth: load it, recompute it, or both at once. Pure."""

from fulcrum.kv.link import LinkRate
from fulcrum.kv.restore import How, Restore, Waits, restore
from fulcrum.kv.tiers import Tiers, tiers_of

__all__ = ["How", "LinkRate", "Restore", "Tiers", "Waits", "restore", "tiers_of"]
